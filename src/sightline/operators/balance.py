"""LibraGrad: any gradient method with balanced gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from sightline.models.adapter import Adapter
from sightline.models.backward.libra import Preset, balanced
from sightline.operators.wrapper import MultiTargetCall, Wrapper
from sightline.registry import OPERATORS
from sightline.types import Attribution, Method, Target


@OPERATORS.register("libra", family="balance", cite="libragrad2025", cost="the method's", needs=("gradient",))
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
    """

    method: Method
    preset: Preset = "libra"

    def combine(
        self, multi_target: MultiTargetCall, model: Adapter, images: Tensor, targets: Sequence[Target]
    ) -> list[Attribution]:
        with balanced(self.preset):
            return multi_target(model, images, targets)
