"""Relevance mass and rank accuracy, top-k intersection: how much of the map, or of its highest pixels, is evidence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from sightline.errors import RecipeError
from sightline.metrics.case import Case, Measurement, WithoutPasses, flags_where, join_flags
from sightline.metrics.localisation.evidence import labels_of, measured, ratio
from sightline.metrics.localisation.pointing import LOWEST
from sightline.registry import METRICS

Part = Literal["positive", "magnitude"]


@METRICS.register(
    "relevance_mass_accuracy",
    family="localisation",
    cite="arras2022",
    cost="0 forward",
    direction="higher",
    needs=("masks",),
    parity="Quantus 0.6 RelevanceMassAccuracy, live, 1e-9",
)
@dataclass(frozen=True, slots=True)
class RelevanceMassAccuracy(WithoutPasses):
    r"""Relevance mass accuracy: share of the map's relevance that lies on the evidence.

    .. math:: \frac{\sum_{i \in M} r_i}{\sum_i r_i}, \qquad r_i = \max(a_i, 0)

    or :math:`r_i = |a_i|` with ``part='magnitude'`` :cite:p:`arras2022`. A uniform positive map scores the share of
    evidence in the image. With the positive part it is `energy_pointing_game`.

    Edge cases: a map without relevance scores 0, "no relevance"; ignored pixels are left out of both sums; a constant
    map is flagged; without evidence the score is NaN, "no foreground".

    Attributes:
        part: positive, or magnitude: what of a signed map counts as relevance.
    """

    part: Part = "positive"

    def __call__(self, case: Case, /) -> Measurement:
        evidence, labelled = labels_of(case)
        maps = case.maps.flatten(1).double()
        mass = (maps.abs() if self.part == "magnitude" else maps.clamp(min=0)) * labelled
        highest = mass.amax(dim=1, keepdim=True)
        share = mass / highest.where(highest > 0, 1)  # so that huge values do not overflow the sum
        total = share.sum(dim=1)
        return measured(case, ratio((share * evidence).sum(dim=1), total), flags_where(total == 0, "no relevance"))


@METRICS.register(
    "relevance_rank_accuracy",
    family="localisation",
    cite="arras2022",
    cost="0 forward",
    direction="higher",
    needs=("masks",),
    parity="Quantus 0.6 RelevanceRankAccuracy, live, 1e-9",
)
@dataclass(frozen=True, slots=True)
class RelevanceRankAccuracy(WithoutPasses):
    r"""Relevance rank accuracy: share of the K highest pixels that are evidence, K being the size of the evidence.

    .. math:: \frac{|\,\mathrm{top}_K(a) \cap M\,|}{K}, \qquad K = |M|

    :cite:p:`arras2022`. It sees the order of the values only, and is precision and recall at once, at the one cut where
    they are equal. A map in random order scores the share of evidence in the image.

    Edge cases: equal pixels count in row-major order; a constant map is judged by that order and flagged; ignored
    pixels cannot be among the highest; without evidence the score is NaN, "no foreground".
    """

    def __call__(self, case: Case, /) -> Measurement:
        evidence, _ = labels_of(case)
        size = evidence.sum(dim=1)
        return measured(case, ratio(_hits(case, size), size.double()), ("",) * len(size))


@METRICS.register(
    "top_k_intersection",
    family="localisation",
    cite="theiner2022",
    cost="0 forward",
    direction="higher",
    needs=("masks",),
    parity="Quantus 0.6 TopKIntersection, live, 1e-9",
)
@dataclass(frozen=True, slots=True)
class TopKIntersection(WithoutPasses):
    r"""Top-k intersection: share of the map's k highest pixels that are evidence.

    .. math:: \frac{|\,\mathrm{top}_k(a) \cap M\,|}{k}

    :cite:p:`theiner2022`. The fixed k asks for precision alone: evidence beyond the k pixels need not be found. With
    ``influence=True`` the share is divided by the share of the image that is evidence, so that 1 is chance and small
    evidence weighs more, as their concept influence has it.

    Edge cases: an image with fewer labelled pixels than k is judged by those, "fewer pixels than k"; equal pixels count
    in row-major order; a constant map is judged by that order and flagged; without evidence the score is NaN,
    "no foreground".

    Attributes:
        k: how many of the highest pixels.
        influence: divide by the share of evidence; the score may then exceed 1.
    """

    k: int = 1000
    influence: bool = False

    def __post_init__(self) -> None:
        if self.k < 1:
            raise RecipeError(f"got k={self.k}; one pixel at least is looked at, so give 1 or more")

    def __call__(self, case: Case, /) -> Measurement:
        evidence, labelled = labels_of(case)
        pixels = labelled.sum(dim=1)
        most = pixels.clamp(max=self.k)
        values = ratio(_hits(case, most), most.double())
        if self.influence:
            values = ratio(values, ratio(evidence.sum(dim=1), pixels.double()))
        few = flags_where(pixels < self.k, "fewer pixels than k")
        return measured(case, values, join_flags(few))


def _hits(case: Case, counts: Tensor) -> Tensor:
    """Return how many of each map's highest pixels are evidence, (batch,); `counts` says how many are looked at."""
    evidence, labelled = labels_of(case)
    maps = case.maps.flatten(1).double().masked_fill(~labelled, LOWEST)
    hits = [(own & _highest(pixels, count)).sum() for pixels, own, count in zip(maps, evidence, counts, strict=True)]
    return torch.stack(hits).double()


def _highest(values: Tensor, count: Tensor) -> Tensor:
    """Mark as many of the highest values, (pixel,), the first of equal ones; selected, which is faster than sorted."""
    least = values.topk(max(int(count), 1), sorted=False).values.amin()
    above, equal = values > least, values == least
    return (above | (equal & (equal.cumsum(dim=0) <= count - above.sum()))) & (count > 0)
