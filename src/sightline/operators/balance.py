"""LibraGrad: any gradient method with balanced gradients."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from sightline.catalogue.ranges import Range
from sightline.methods.multi_target import multi_target_cost
from sightline.models.adapter import Adapter
from sightline.models.backward.gamma import GammaRule
from sightline.models.backward.libra import Preset, balanced
from sightline.models.passes import counting, spend
from sightline.operators.wrapper import MultiTargetCall, Wrapper
from sightline.registry import OPERATORS
from sightline.types import Attribution, Method, Passes, Target

RERUNS = 4  # of a layer under the gamma rule: both signs of its inputs, for both signs of its outputs


@OPERATORS.register(
    "libra",
    family="balance",
    cite="libragrad2025",
    cost="the method's; with gamma 4 times its backward, and as much forward",
    needs=("gradient",),
)
@dataclass(frozen=True, slots=True)
class Libra(Wrapper):
    r"""LibraGrad: the method with balanced gradients, pruned and scaled where non-linear layers unbalance them.

    The forward pass stays bit-identical. In the backward pass a norm's denominator, the attention probabilities and the
    gates of activations are constants, and the two factors of a gated MLP get half their gradient each:

    .. math:: \mathrm{LN}(x) \to \frac{x - \bar x}{[\sigma(x)]}\,\gamma + \beta, \qquad
        \mathrm{Attn} \to [P]\,V, \qquad u\,\phi(u) \to u\,[\phi(u)], \qquad a \odot b \to \tfrac12

    where :math:`[\cdot]` has no gradient. It makes gradient attributions of transformers complete: ``libra(full_grad)``
    sums to the logit from every start layer, and ``libra(ixg)`` is ``decompx`` without biases. The paper's tables
    explain the probability, our default is the logit (see docs/guide/libra.md).

    Attributes:
        preset: libra; libra_unit, in which the norm of a CLIP embedding is a constant too; or, for comparison, the
            rules of two predecessors: attn_lrp (the softmax keeps its gradient, values get a half, queries and keys a
            quarter) and ali_lrp (norms and attention as in libra, activations unchanged).
        gamma: γ of the gamma rule at convolutions and linear layers, one number or one for each; 0 leaves them alone.
            ``libra(ixg(at='pixels'), gamma=(0.25, 0.05))`` is AttnLRP :cite:p:`achtibat2024` as its authors' package
            runs it on vision transformers.
    """

    method: Method
    preset: Preset = "libra"
    gamma: Annotated[float | tuple[float, float], Range(0, 1e6)] = 0.0  # packages use 100 and more at convolutions

    @property
    def _gammas(self) -> tuple[float, float]:
        """γ of convolutions and of linear layers."""
        return self.gamma if isinstance(self.gamma, tuple) else (self.gamma, self.gamma)

    def combine(
        self, multi_target: MultiTargetCall, model: Adapter, images: Tensor, targets: Sequence[Target]
    ) -> list[Attribution]:
        if not any(self._gammas):
            with balanced(self.preset):
                return multi_target(model, images, targets)
        with ExitStack() as stack:
            meter = stack.enter_context(counting())
            stack.enter_context(GammaRule(*self._gammas))
            stack.enter_context(balanced(self.preset))
            attributions = multi_target(model, images, targets)
        spend(forward=RERUNS * meter.passes.backward, backward=(RERUNS - 1) * meter.passes.backward)
        return attributions

    def multi_target_cost(self, model: Adapter, count: int, *, every_layer: bool = False) -> Passes:
        cost = multi_target_cost(self.method, model, count, every_layer=every_layer)
        return cost + Passes(RERUNS * cost.backward, (RERUNS - 1) * cost.backward) if any(self._gammas) else cost
