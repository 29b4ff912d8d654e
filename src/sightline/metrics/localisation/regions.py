"""Region metrics: how much of a smoothed map lies in the region that it should lie in.

The measures of the grid pointing game and of attribution against masks :cite:p:`var2025`. The signed map is blurred,
then cut at zero; what is left is summed (`region_attribution`) or taken as a set of pixels (`iou`, `precision`,
`recall`, `f1`). Masks say where the region is: 1 inside, 0 outside, -1 ignored.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from sightline.errors import RecipeError
from sightline.metrics.case import Case, Measurement, WithoutPasses, flags_where
from sightline.metrics.localisation.evidence import measured, ratio
from sightline.perturb.mirror import mirrored
from sightline.registry import METRICS

LEAST = 1e-7  # what a sum must exceed to be divided by: the rule of the grid pointing game
CLOSED = "closed form; the blur is OpenCV's to 1e-12"
OVERLAP = "closed form; the blur is OpenCV's to 1e-12; without it torchmetrics {}, 1e-6, its own precision"


@dataclass(frozen=True, slots=True)
class _Smoothed(WithoutPasses):
    """Base of the metrics that smooth the map by a Gaussian first.

    Attributes:
        window: width of the blur's window in pixels, an odd number; 1 leaves the map as it is.
        sigma: its standard deviation; None takes OpenCV's for the window, 0.3 ((window − 1)/2 − 1) + 0.8, which is 2
            for 11.
    """

    window: int = 11
    sigma: float | None = None

    def __post_init__(self) -> None:
        if self.window < 1 or self.window % 2 == 0:
            raise RecipeError(
                f"got window={self.window}; the blur has a middle pixel, so give an odd number of 1 or more"
            )


@METRICS.register(
    "region_attribution",
    family="localisation",
    cite="var2025",
    cost="0 forward",
    direction="higher",
    needs=("masks",),
    parity=CLOSED,
)
@dataclass(frozen=True, slots=True)
class RegionAttribution(_Smoothed):
    r"""Share of the smoothed map's positive part that lies in the region.

    .. math:: \frac{\sum_{i \in R} \tilde a_i^+}{\sum_i \tilde a_i^+}, \qquad \tilde a = G_\sigma * a

    where the signed map :math:`a` is blurred by a Gaussian before it is cut at zero, so that noise of both signs
    cancels :cite:p:`var2025`. A map spread evenly scores the region's share of the image, a quarter on a quad.

    Edge cases: a sum of at most 1e-7 scores 0, "no positive value", so give maps in units in which that is little;
    ignored pixels are blurred with the rest and left out of both sums; without a region the score is NaN,
    "no foreground".
    """

    def __call__(self, case: Case, /) -> Measurement:
        return _share(case, smoothed(case, self.window, self.sigma))


@METRICS.register(
    "grid_pointing",
    family="localisation",
    cite="rao2022",
    cost="0 forward",
    direction="higher",
    needs=("masks",),
    parity="closed form",
)
@dataclass(frozen=True, slots=True)
class GridPointing(WithoutPasses):
    r"""Share of the map's positive part that lies in the cell of the class it explains.

    .. math:: \frac{\sum_{i \in \text{cell}} a_i^+}{\sum_i a_i^+}

    on an image composed of n × n others, the mask being the cell of the target's class :cite:p:`rao2022`. An even map
    scores :math:`1/n^2`. It is `region_attribution` without the blur, and `energy_pointing_game` on cells.

    Edge cases: a sum of at most 1e-7 scores 0, "no positive value"; without a cell the score is NaN, "no foreground".
    """

    def __call__(self, case: Case, /) -> Measurement:
        return _share(case, case.maps.double())


@dataclass(frozen=True, slots=True)
class _Binary(_Smoothed, ABC):
    """Base of the metrics that compare the set of pixels above a threshold with the region.

    Attributes:
        threshold: what a pixel of the smoothed map must exceed, in the map's own units.
    """

    threshold: float = 0.0

    def __post_init__(self) -> None:
        _Smoothed.__post_init__(self)
        if not 0 <= self.threshold < float("inf"):
            raise RecipeError(
                f"got threshold={self.threshold}; the map is cut at zero first, so give a number of 0 or more"
            )

    def __call__(self, case: Case, /) -> Measurement:
        both, predicted, region = overlap(case, self)
        flags = flags_where(predicted == 0, "nothing above the threshold")
        return measured(case, self.score(both, predicted, region), flags)

    @abstractmethod
    def score(self, both: Tensor, predicted: Tensor, region: Tensor) -> Tensor:
        """Return the score from the counts of pixels, each (batch,)."""


@METRICS.register(
    "iou",
    family="localisation",
    cite="var2025",
    cost="0 forward",
    direction="higher",
    needs=("masks",),
    parity=OVERLAP.format("binary_jaccard_index"),
)
@dataclass(frozen=True, slots=True)
class Iou(_Binary):
    r"""Intersection over union of the map's positive pixels and the region.

    .. math:: \frac{|P \cap R|}{|P \cup R|}, \qquad P = \{i : \tilde a_i > \text{threshold}\}

    where :math:`\tilde a` is the signed map after a Gaussian blur :cite:p:`var2025`. Only the sign is asked, not how
    much: a map that is positive everywhere scores the region's share of the image, a quarter on a quad, whatever its
    shape; one of random signs scores less.

    Edge cases: an empty prediction scores 0, "nothing above the threshold"; ignored pixels are left out; without a
    region the score is NaN, "no foreground".
    """

    def score(self, both: Tensor, predicted: Tensor, region: Tensor) -> Tensor:
        return ratio(both, predicted + region - both)


@METRICS.register(
    "precision",
    family="localisation",
    cite="var2025",
    cost="0 forward",
    direction="higher",
    needs=("masks",),
    parity=OVERLAP.format("binary_precision"),
)
@dataclass(frozen=True, slots=True)
class Precision(_Binary):
    r"""Share of the map's positive pixels that lie in the region.

    .. math:: \frac{|P \cap R|}{|P|}, \qquad P = \{i : \tilde a_i > \text{threshold}\}

    where :math:`\tilde a` is the signed map after a Gaussian blur :cite:p:`var2025`. One pixel in the region is enough
    for 1; read it beside `recall`.

    Edge cases: an empty prediction scores 0, "nothing above the threshold"; ignored pixels are left out; without a
    region the score is NaN, "no foreground".
    """

    def score(self, both: Tensor, predicted: Tensor, region: Tensor) -> Tensor:
        return ratio(both, predicted)


@METRICS.register(
    "recall",
    family="localisation",
    cite="var2025",
    cost="0 forward",
    direction="higher",
    needs=("masks",),
    parity=OVERLAP.format("binary_recall"),
)
@dataclass(frozen=True, slots=True)
class Recall(_Binary):
    r"""Share of the region on which the map is positive.

    .. math:: \frac{|P \cap R|}{|R|}, \qquad P = \{i : \tilde a_i > \text{threshold}\}

    where :math:`\tilde a` is the signed map after a Gaussian blur :cite:p:`var2025`. A map that is positive everywhere
    scores 1; read it beside `precision`.

    Edge cases: an empty prediction scores 0, "nothing above the threshold"; ignored pixels are left out; without a
    region the score is NaN, "no foreground".
    """

    def score(self, both: Tensor, predicted: Tensor, region: Tensor) -> Tensor:
        return ratio(both, region)


@METRICS.register(
    "f1",
    family="localisation",
    cite="var2025",
    cost="0 forward",
    direction="higher",
    needs=("masks",),
    parity=OVERLAP.format("binary_f1_score"),
)
@dataclass(frozen=True, slots=True)
class F1(_Binary):
    r"""Harmonic mean of precision and recall of the map's positive pixels.

    .. math:: \frac{2\,|P \cap R|}{|P| + |R|}, \qquad P = \{i : \tilde a_i > \text{threshold}\}

    where :math:`\tilde a` is the signed map after a Gaussian blur :cite:p:`var2025`. It is a function of `iou`, 2 IoU /
    (1 + IoU), image by image; their means are not.

    Edge cases: an empty prediction scores 0, "nothing above the threshold"; ignored pixels are left out; without a
    region the score is NaN, "no foreground".
    """

    def score(self, both: Tensor, predicted: Tensor, region: Tensor) -> Tensor:
        return ratio(2 * both, predicted + region)


def overlap(case: Case, metric: _Binary) -> tuple[Tensor, Tensor, Tensor]:
    """Count the pixels in prediction and region, in the prediction, in the region, each (batch,)."""
    labelled, region = case.evidence >= 0, case.evidence > 0
    predicted = (smoothed(case, metric.window, metric.sigma) > metric.threshold) & labelled
    sets = (predicted & region, predicted, region)
    both, alone, wanted = (pixels.flatten(1).sum(dim=1).double() for pixels in sets)
    return both, alone, wanted


def smoothed(case: Case, window: int, sigma: float | None) -> Tensor:
    """Return the signed maps of a case after a Gaussian blur, computed once for all metrics that ask the same."""
    return case.once(("smoothed", window, sigma), lambda: gaussian_blur(case.maps.double(), window, sigma))


def gaussian_blur(maps: Tensor, window: int, sigma: float | None = None) -> Tensor:
    """Blur maps, (batch, height, width), by a Gaussian within a window, reflected at the border.

    >>> gaussian_blur(torch.tensor([[[0.0, 0.0, 1.0, 0.0, 0.0]]]), 3, 0.5)
    tensor([[[0.0000, 0.1065, 0.7870, 0.1065, 0.0000]]])
    """
    radius = window // 2
    sigma = usual_sigma(window) if sigma is None else sigma
    line = torch.exp(
        -(torch.arange(-radius, radius + 1, dtype=torch.float64, device=maps.device) ** 2) / (2 * sigma**2)
    )
    line = (line / line.sum()).to(maps.dtype)[None, None, None]
    rows, columns = (
        mirrored(torch.arange(-radius, length + radius, device=maps.device), length) for length in maps.shape[-2:]
    )
    padded = maps[:, None, rows][..., columns]
    blurred: Tensor = F.conv2d(F.conv2d(padded, line), line.mT)[:, 0]
    return blurred


def usual_sigma(window: int) -> float:
    """Return the standard deviation that OpenCV gives a window whose own is not named.

    >>> usual_sigma(11)
    2.0
    """
    return 0.3 * ((window - 1) / 2 - 1) + 0.8


def _share(case: Case, maps: Tensor) -> Measurement:
    """Sum the positive part inside the region and divide by the whole."""
    energy = (maps.clamp(min=0) * (case.evidence >= 0)).flatten(1)
    total = energy.sum(dim=1)
    inside = (energy * (case.evidence > 0).flatten(1)).sum(dim=1)
    little = total <= LEAST
    values = torch.where(little, 0.0, inside / total.where(~little, 1))
    return measured(case, values, flags_where(little, "no positive value"))
