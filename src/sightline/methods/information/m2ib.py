"""M2IB: the information bottleneck of IBA for the similarity of an image and a text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from sightline.errors import RecipeError
from sightline.methods.cam.fusion import Layer
from sightline.methods.information.iba import InformationBottleneck
from sightline.methods.multi_target import MultiTarget
from sightline.models.adapter import Adapter
from sightline.models.vit.adapter import VisionTransformer
from sightline.models.vit.zero_shot import ZeroShot
from sightline.registry import METHODS
from sightline.types import Attribution, Passes, Target


@dataclass(frozen=True, slots=True)
class _Scaled:
    """A target times a number."""

    target: Target
    factor: float

    def __call__(self, logits: Tensor) -> Tensor:
        return self.factor * self.target(logits)

    def take(self, rows: Sequence[int]) -> _Scaled:
        return _Scaled(self.target.take(rows), self.factor)


@METHODS.register(
    "m2ib",
    family="information",
    cite="wang2023m2ib",
    cost="1 forward, and steps × samples forward and backward of the part of the model after the layer",
    needs=("gradient", "layers"),
    parity="iba at the same layer with the same weights, 1e-9; the authors' code has no licence",
)
@dataclass(frozen=True, slots=True)
class MultiModalBottleneck(MultiTarget):
    r"""M2IB: how many bits of each patch are needed for the similarity of an image and a text.

    .. math:: \min_\alpha\; -\mathbb E_\varepsilon\bigl[\cos(f(z), t)\bigr] + \beta\, \overline{I}, \qquad
        z = \lambda F + (1 - \lambda)\,\varepsilon, \quad \lambda = \operatorname{sigmoid}(\alpha), \qquad
        A_{ij} = \sum_k I_{kij}

    as ``iba``, with the cosine of image and text as the score, at three quarters of the depth. On a zero-shot
    classifier the logits are divided by the model's scale, which leaves the cosine; on any other model the score is the
    target itself. The map is in bits and never negative.

    Attributes:
        layer: a layer's name or index; by default the block at three quarters of the depth, 9 of 12, and on a
            convolutional network that of class activation maps.
        beta: weight of the mean information.
        steps: of the optimiser, Adam.
        rate: its learning rate.
        samples: draws of noise for each step.
        seed: of the noise, which depends on the seed and the image alone.
    """

    layer: Layer = None
    beta: float = 0.1
    steps: int = 10
    rate: float = 1.0
    samples: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        if min(self.steps, self.samples) < 1:
            raise RecipeError(f"got steps={self.steps}, samples={self.samples}; give one of each at least")
        if self.beta < 0 or not self.rate > 0:
            raise RecipeError(f"got beta={self.beta}, rate={self.rate}; neither can be negative")

    def multi_target(
        self, model: Adapter, images: Tensor, targets: Sequence[Target], *, every_layer: bool = False
    ) -> list[Attribution]:
        if isinstance(model, ZeroShot):
            targets = [_Scaled(target, 1 / model.scale) for target in targets]
        return self._bottleneck(model).multi_target(model, images, targets)

    def multi_target_cost(self, model: Adapter, count: int, *, every_layer: bool = False) -> Passes:
        return self._bottleneck(model).multi_target_cost(model, count)

    def peak(self, model: Adapter) -> int:
        """Return the bytes held for one image: those of the bottleneck."""
        return self._bottleneck(model).peak(model)

    def _bottleneck(self, model: Adapter) -> InformationBottleneck:
        layer = self.layer
        if layer is None and isinstance(model, VisionTransformer):
            layer = min(3 * model.depth // 4, model.depth - 1)
        return InformationBottleneck(
            layer, self.beta, self.steps, self.rate, self.samples, sigma=None, seed=self.seed, score=None
        )
