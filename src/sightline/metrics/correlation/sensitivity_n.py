"""Sensitivity-n: the correlation of attributions with changes of the score, for subsets of several sizes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from sightline.errors import RecipeError
from sightline.metrics.case import Case, Measurement, join_flags
from sightline.metrics.correlation.agreement import agreement
from sightline.metrics.correlation.subsets import random_pixels
from sightline.metrics.faithfulness.options import PerturbationOptions
from sightline.metrics.removal import sums_and_drops
from sightline.models.adapter import Adapter
from sightline.perturb.fill import FillOption, removing_fill
from sightline.registry import METRICS
from sightline.types import Passes

SHARES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8)


@METRICS.register(
    "sensitivity_n",
    family="correlation",
    cite="ancona2018",
    cost="141 forward",
    direction="higher",
    parity="closed form; numpy.corrcoef on changes computed by hand, 1e-9",
)
@dataclass(frozen=True, slots=True)
class SensitivityN(PerturbationOptions):
    r"""Correlation of the sum of the map over n random pixels with the drop of the score, averaged over several n.

    .. math:: \frac{1}{|N|} \sum_{n \in N} \operatorname{corr}_{|S| = n}\Bigl( \sum_{i \in S} a_i,\;
        s(x) - s(x_{\setminus S}) \Bigr)

    for n from a hundredth to four fifths of the pixels :cite:p:`ancona2018`. The attributions of a linear model, its
    weights times the pixels, score 1 for every n. The curve holds the correlation at each n: small n test whether the
    map predicts local changes, large n whether it does when most of the image is gone.

    Quantus' metric of this name removes the most important pixels first instead of random ones, cumulatively; it is
    another measure. The score is the target that was
    explained. It costs `samples` passes per n and one for the image.

    Edge cases: an n at which all sums or all changes are equal is left out of the mean; where that is every n the
    metric is NaN, and the flag says which; a constant map is flagged.

    Attributes:
        shares: of the pixels that a subset has, each above 0 and below 1.
        samples: subsets per n.
        fill: what removed pixels become: zero (after normalisation), black, white, mean, blur.
        seed: of the subsets, which depend on the image and not on its batch.
    """

    shares: tuple[float, ...] = SHARES
    samples: int = 20
    fill: FillOption = "zero"
    seed: int = 0
    range: ClassVar[tuple[float, float]] = (-1.0, 1.0)

    def __post_init__(self) -> None:
        removing_fill(self.fill)
        if not self.shares or not all(0 < share < 1 for share in self.shares) or self.samples < 2:
            raise RecipeError(
                f"got shares={self.shares}, samples={self.samples}; give shares between 0 and 1, and two samples"
            )

    def __call__(self, case: Case, /) -> Measurement:
        pixels = case.maps[0].numel()
        sizes = [max(1, round(share * pixels)) for share in self.shares for _ in range(self.samples)]
        subsets = random_pixels(case, sizes, self.seed)
        sums, drops = sums_and_drops(case, subsets, removing_fill(self.fill), case.target)
        parts = zip(sums.split(self.samples, dim=1), drops.split(self.samples, dim=1), strict=True)
        each = [agreement(case, *part, "pearson") for part in parts]
        curve = torch.stack([found.values for found in each], dim=1)
        return Measurement(curve.nanmean(dim=1), curve, _flags(curve, [found.flags for found in each], case.flags))

    def cost(self, model: Adapter, /) -> Passes:
        return Passes(forward=1.0 + len(self.shares) * self.samples)


def _flags(curve: Tensor, each: list[tuple[str, ...]], own: tuple[str, ...]) -> tuple[str, ...]:
    """Return why an image has no correlation at any n, and what is wrong with its map."""
    reasons = join_flags(*each)
    nowhere = curve.isnan().all(dim=1).tolist()
    return tuple(reason if none else flag for reason, none, flag in zip(reasons, nowhere, own, strict=True))
