"""D-RISE: randomised input sampling for the explanation of detectors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from sightline.errors import RecipeError
from sightline.methods.multi_target import MultiTarget
from sightline.methods.sampling.coalitions import FillOption, check_fill
from sightline.methods.sampling.rise import Rise
from sightline.models.adapter import Adapter
from sightline.registry import METHODS
from sightline.types import Attribution, Passes, Target


@METHODS.register(
    "d_rise",
    family="sampling",
    cite="petsiuk2021",
    cost="1 forward per sample",
    parity="closed form; the sum over masks of the formula, written out, 1e-6",
)
@dataclass(frozen=True, slots=True)
class DRise(MultiTarget):
    r"""D-RISE: random masks averaged with the likeness of what a detector still finds to one detection as weight.

    .. math:: A = \frac{1}{N p} \sum_{i=1}^{N} M_i \, \max_j \mathrm{IoU}(b, b_j) \; o_j \; \cos(p, p_j)

    over the detections j in the masked image, with boxes b, objectness o and label probabilities p. A black-box method
    for any detector, with a `Box` as its target; for a target of any other kind it is RISE with finer masks. The
    authors scale by nothing: the factor in front is one positive number.

    Attributes:
        samples: how many masks, as the authors.
        cells: of the coarse grid, from top to bottom and from left to right; never more than pixels.
        ratio: the probability that a cell is on.
        seed: of the masks.
        blank: the fill where the mask is 0: mean, black, white, blur, or a number, that value after normalisation.
    """

    samples: int = 5000
    cells: int = 16
    ratio: float = 0.5
    seed: int = 0
    blank: FillOption = "mean"

    def __post_init__(self) -> None:
        check_fill(self.blank, segments=False)
        if not 0 < self.ratio <= 1:
            raise RecipeError(f"got ratio={self.ratio}; a probability above 0 and up to 1 is needed")

    def multi_target(
        self, model: Adapter, images: Tensor, targets: Sequence[Target], *, every_layer: bool = False
    ) -> list[Attribution]:
        sampling = Rise(self.samples, self.cells, self.ratio, self.seed, self.blank)
        return sampling.multi_target(model, images, targets, every_layer=every_layer)

    def multi_target_cost(self, model: Adapter, count: int, *, every_layer: bool = False) -> Passes:
        return Passes(self.samples)
