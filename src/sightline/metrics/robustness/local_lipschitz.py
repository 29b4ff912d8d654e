"""Local Lipschitz estimate and continuity: the largest change of the map per change of the image."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from sightline.errors import RecipeError
from sightline.metrics.case import Case, Measurement, WithoutPasses, flags_where, join_flags
from sightline.metrics.re_explain import re_explained_maps
from sightline.metrics.robustness.neighbourhood import Neighbourhood
from sightline.registry import METRICS


@METRICS.register(
    "local_lipschitz",
    family="robustness",
    cite="alvarezmelis2018robustness",
    cost="10 attributions, of perturbed images",
    direction="lower",
    needs=("method",),
    parity="Quantus 0.6 LocalLipschitzEstimate on the same perturbations, live, 1e-6",
)
@dataclass(frozen=True, slots=True)
class LocalLipschitz(Neighbourhood):
    r"""Local Lipschitz estimate: largest change of the map divided by the change of the image.

    .. math:: \max_{k \le n} \frac{\lVert \hat a(x + \delta_k) - \hat a(x) \rVert_2}{\lVert \delta_k \rVert_2},
        \qquad \delta_k \sim U[-r, r]

    :cite:p:`alvarezmelis2018robustness`. With `normalise` each map is divided by its largest magnitude, as Quantus
    does; without, maps in large units change more, and methods cannot be compared. A constant method scores 0: read it
    beside a faithfulness metric. More samples find larger changes.

    It runs the method `samples` times and costs nothing else.

    Edge cases: a map of zeros stays zero; a constant map is flagged.

    Attributes:
        normalise: divide each map by its largest magnitude.
    """

    normalise: bool = True
    range: ClassVar[tuple[float, float]] = (0.0, float("inf"))

    def __call__(self, case: Case, /) -> Measurement:
        moved = torch.stack([_scaled(each, self.normalise) for each in self.moved(case)])
        change = (moved - _scaled(case.maps, self.normalise)).flatten(2).norm(dim=2)
        steps = [(each - case.images).double().flatten(1).norm(dim=1) for each in self.perturbed(case.images)]
        return Measurement((change / torch.stack(steps)).amax(dim=0).cpu(), None, case.flags)


@METRICS.register(
    "continuity",
    family="robustness",
    cite="montavon2018",
    cost="8 attributions, of shifted images",
    direction="lower",
    needs=("method",),
    parity="closed form",
)
@dataclass(frozen=True, slots=True)
class Continuity(WithoutPasses):
    r"""Explanation continuity: strongest variation of the map as the image is shifted pixel by pixel.

    .. math:: \max_{k \ne l} \frac{\lVert \hat a(x_k) - \hat a(x_l) \rVert_1}{\lVert x_k - x_l \rVert_2}

    over the image and its copies shifted to the right by 1, 2, … pixels, with the border repeated
    :cite:p:`montavon2018`. If two images are nearly equivalent their explanations must be so too. Quantus' metric of
    this name correlates the sums of patches with the scores along the shifts; this is the paper's. A map that moves
    with the object varies as the object does: compare methods on the same images.

    It runs the method once per shift and costs nothing else.

    Edge cases: an image that no shift changes is NaN, "the image does not change"; a constant map is flagged.

    Attributes:
        shifts: how many pixels the image is shifted at most, one at a time.
        normalise: divide each map by its largest magnitude.
    """

    shifts: int = 8
    normalise: bool = True
    range: ClassVar[tuple[float, float]] = (0.0, float("inf"))

    def __post_init__(self) -> None:
        if self.shifts < 1:
            raise RecipeError(f"got shifts={self.shifts}; the image is shifted by one pixel at least")

    def __call__(self, case: Case, /) -> Measurement:
        images = [case.images, *(shifted(case.images, by) for by in range(1, self.shifts + 1))]
        maps = [case.maps, *(re_explained_maps(case, images=each) for each in images[1:])]
        values = variation(torch.stack([_scaled(each, self.normalise) for each in maps]), torch.stack(images).double())
        still = values.isnan()
        return Measurement(values.cpu(), None, join_flags(case.flags, flags_where(still, "the image does not change")))


def shifted(images: Tensor, by: int) -> Tensor:
    """Shift images to the right by some pixels, repeating the left border."""
    width = images.shape[-1]
    return F.pad(images, (by, 0, 0, 0), mode="replicate")[..., :width]


def variation(maps: Tensor, images: Tensor) -> Tensor:
    """Return the largest L1 change of maps per L2 change of images over all pairs, (copy, batch, …) -> (batch,).

    >>> maps, images = torch.tensor([[[0.0, 1.0]], [[3.0, 1.0]]]), torch.tensor([[[0.0]], [[2.0]]])
    >>> variation(maps, images)
    tensor([1.5000])
    """
    first, second = torch.triu_indices(len(maps), len(maps), offset=1, device=maps.device)
    change = (maps[first] - maps[second]).flatten(2).abs().sum(dim=2)
    step: Tensor = (images[first] - images[second]).flatten(2).norm(dim=2)
    most = (change / step).masked_fill(step == 0, -1).amax(dim=0)
    return most.masked_fill(most < 0, float("nan"))


def _scaled(maps: Tensor, normalise: bool) -> Tensor:
    """Return the maps in double precision, each divided by its largest magnitude where that is asked for."""
    maps = maps.double()
    if not normalise:
        return maps
    most = maps.abs().amax(dim=(-2, -1), keepdim=True)
    return maps / most.where(most > 0, 1)
