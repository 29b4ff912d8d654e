"""FullGrad+: PLUS or SkipPLUS with bias attributions, each bias counted once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from torch import Tensor

from sightline.errors import RecipeError
from sightline.methods.gradient.full_grad import FullGrad, full_grad_terms
from sightline.methods.gradient.gradient import InputTimesGradient
from sightline.methods.multi_target import MultiTarget, multi_target, multi_target_cost
from sightline.models.adapter import Adapter
from sightline.models.vit.adapter import VisionTransformer
from sightline.operators.balance import Libra
from sightline.operators.layers import depth_of, half, sum_layers
from sightline.registry import OPERATORS
from sightline.types import Attribution, Method, Passes, Target


@OPERATORS.register(
    "full_grad_plus", family="layers", cite="skipplus2024", cost="the method's, and 1 forward and 1 backward for biases"
)
@dataclass(frozen=True, slots=True)
class FullGradPlus(MultiTarget):
    r"""FullGrad+: a method's attributions summed over start layers, plus the bias gradients of FullGrad, once.

    .. math:: M = \sum_{\ell=m}^{L-1} A(f_\ell)(X_\ell)
        + \sum_{b \in B_{\ge m}} \sum_d b_d \frac{\partial s}{\partial z^b_d}

    ``plus(full_grad)`` would count the biases of block :math:`\ell` once for every layer up to :math:`\ell`; here they
    count once. With ``ixg``, the default, all of it comes from one pass forward and one backward. Libra belongs
    outside, ``libra(full_grad_plus)``; inside it is moved there, so that inputs and biases follow the same rules.

    Attributes:
        start: m, the first layer of the sum: a block, or "half" for half the blocks, as in ``skip_plus``.
    """

    method: Method = field(default_factory=InputTimesGradient)
    start: int | Literal["half"] = 0

    def multi_target(
        self, model: Adapter, images: Tensor, targets: Sequence[Target], *, every_layer: bool = False
    ) -> list[Attribution]:
        if isinstance(self.method, Libra):
            return multi_target(self._libra_outside(self.method), model, images, targets)
        depth = depth_of(model, self.method)
        assert isinstance(model, VisionTransformer)
        first = half(depth) if self.start == "half" else self.start
        if not 0 <= first < depth:
            raise RecipeError(f"got start={first}; {model.name} has blocks 0 to {depth - 1}")
        grid = model.grid_of(images)
        terms = full_grad_terms(model, images, targets)
        biases = [grid.to_map(of_target.biases[first])[None] for of_target in terms]
        if self._plain:
            blocks = tuple(range(depth))
            layers = [Attribution(grid.to_map(of_target.inputs), grid, layers=blocks) for of_target in terms]
        else:
            layers = multi_target(self.method, model, images, targets, every_layer=True)
        sums = [sum_layers(self.method, model, attribution, first, depth) for attribution in layers]
        return [replace(x, values=x.values + b, details=None) for x, b in zip(sums, biases, strict=True)]

    @property
    def _plain(self) -> bool:
        """Whether the same pass yields the method and the biases: for ixg, which is full_grad without its biases."""
        return isinstance(self.method, FullGrad) or self.method == InputTimesGradient()

    def _libra_outside(self, libra: Libra) -> Method:
        return replace(libra, method=replace(self, method=libra.method))

    def multi_target_cost(self, model: Adapter, count: int, *, every_layer: bool = False) -> Passes:
        if isinstance(self.method, Libra):
            return multi_target_cost(self._libra_outside(self.method), model, count)
        own = Passes() if self._plain else multi_target_cost(self.method, model, count, every_layer=True)
        return own + Passes(1, count)

    def peak(self, model: Adapter) -> int:
        """Return the bytes held for one image: those of its method, or of the biases."""
        return max(FullGrad().peak(model), self.method.cost(model).peak)
