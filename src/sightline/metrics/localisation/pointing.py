"""Average precision and pointing games: whether the map lies where the evidence is known to be.

Masks say where: 1 evidence, 0 background, -1 ignore. Ignored pixels count neither for nor against a map.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sightline.metrics.case import Case, Measurement, WithoutPasses, flags_where
from sightline.metrics.localisation.evidence import labels_of, measured
from sightline.registry import METRICS

LOWEST = float("-inf")


@METRICS.register(
    "average_precision",
    family="localisation",
    cite="skipplus2024",
    cost="0 forward",
    direction="higher",
    needs=("masks",),
    parity="scikit-learn's average_precision_score to 1e-9; torchmetrics binary_average_precision, 1e-6",
)
@dataclass(frozen=True, slots=True)
class AveragePrecision(WithoutPasses):
    r"""Area under the precision-recall curve of the map as a detector of the evidence.

    .. math:: \sum_t (R_t - R_{t-1})\, P_t

    over the distinct values :math:`t` of the map from the highest to the lowest, where precision :math:`P_t` and recall
    :math:`R_t` are those of the pixels with values of at least :math:`t`; steps, not trapezoids, so that equal pixels
    stand or fall together :cite:p:`skipplus2024`. It depends on the order of the values only: scale, shift and any
    other increasing change of the map leave it as it is.

    It asks that the whole evidence come before the rest, which a model need not have used: a map may be faithful and
    score low. Where objects stand in the middle, a map of the centre scores high; read it as a margin over `centre`.

    Edge cases: a constant map scores the share of evidence in the image, and is flagged; without evidence the score is
    NaN, "no foreground"; without background it is 1 for every map, "no background".
    """

    def __call__(self, case: Case, /) -> Measurement:
        evidence, labelled = labels_of(case)
        values = average_precision(case.maps.flatten(1), evidence, labelled)
        full = (evidence == labelled).all(dim=1)
        return measured(case, values, flags_where(full, "no background"))


@METRICS.register(
    "pointing_game",
    family="localisation",
    cite="zhang2018",
    cost="0 forward",
    direction="higher",
    needs=("masks",),
    parity="closed form",
)
@dataclass(frozen=True, slots=True)
class PointingGame(WithoutPasses):
    r"""Pointing game: 1 when the highest pixel of the map lies on the evidence, 0 when it does not.

    .. math:: \mathbb{1}[\arg\max_i a_i \in M]

    with no tolerance around the mask; the mean over images is the share of hits :cite:p:`zhang2018`. It asks little,
    one pixel, and forgives everything else; where objects stand in the middle, `centre` hits nearly always.

    Edge cases: among equal maxima the first in row-major order counts, and an image where some of them lie inside and
    some outside is flagged with how many; a constant map points at the first pixel, and is flagged; ignored pixels
    cannot be pointed at; without evidence the score is NaN, "no foreground".
    """

    def __call__(self, case: Case, /) -> Measurement:
        evidence, labelled = labels_of(case)
        maps = case.maps.flatten(1).masked_fill(~labelled, LOWEST)
        hits = evidence.gather(1, maps.argmax(dim=1, keepdim=True))[:, 0]
        highest = labelled & (maps == maps.amax(dim=1, keepdim=True))
        return measured(case, hits.double(), _tied((highest & evidence).sum(dim=1), highest.sum(dim=1)))


@METRICS.register(
    "energy_pointing_game",
    family="localisation",
    cite="wang2020",
    cost="0 forward",
    direction="higher",
    needs=("masks",),
    parity="closed form",
)
@dataclass(frozen=True, slots=True)
class EnergyPointingGame(WithoutPasses):
    r"""Energy-based pointing game: share of the map's positive part that lies on the evidence.

    .. math:: \frac{\sum_{i \in M} \max(a_i, 0)}{\sum_i \max(a_i, 0)}

    :cite:p:`wang2020`. Unlike the pointing game it sees the whole map, and unlike average precision it sees how much,
    not only in what order: a shift of the map changes it, a positive factor does not. A uniform positive map scores the
    share of evidence in the image.

    Edge cases: a map without a positive value scores 0, "no positive value"; ignored pixels are left out of both sums;
    without evidence the score is NaN, "no foreground".
    """

    def __call__(self, case: Case, /) -> Measurement:
        evidence, labelled = labels_of(case)
        energy = case.maps.flatten(1).double().clamp(min=0) * labelled
        highest = energy.amax(dim=1, keepdim=True)
        share = energy / highest.where(highest > 0, 1)  # so that huge values do not overflow the sum
        total = share.sum(dim=1)
        values = (share * evidence).sum(dim=1) / total.where(total > 0, 1)
        return measured(case, values, flags_where(total == 0, "no positive value"))


def average_precision(scores: Tensor, positive: Tensor, counted: Tensor | None = None) -> Tensor:
    """Return the step-wise average precision of each row, (batch, item) -> (batch,), NaN where nothing is positive.

    Args:
        scores: finite numbers.
        positive: which items should come first.
        counted: which items count at all, every one by default.

    >>> average_precision(torch.tensor([[0.9, 0.5, 0.1]]), torch.tensor([[True, False, True]]))
    tensor([0.8333], dtype=torch.float64)
    """
    counted = torch.ones_like(positive) if counted is None else counted
    ordered, order = scores.masked_fill(~counted, LOWEST).sort(dim=1, descending=True)
    hits = (positive & counted).gather(1, order).double()
    hits_so_far = hits.cumsum(dim=1)
    precision = hits_so_far / torch.arange(1, scores.shape[1] + 1, device=scores.device)  # items not counted are last
    return (hits * precision.gather(1, _last_of_equals(ordered))).sum(dim=1) / hits_so_far[:, -1]  # 0 / 0 is NaN


def _last_of_equals(ordered: Tensor) -> Tensor:
    """Return for each item of sorted rows the index of the last one that is equal to it."""
    length = ordered.shape[1]
    index = torch.arange(length, device=ordered.device).expand_as(ordered)
    followed = torch.zeros_like(ordered, dtype=torch.bool)
    followed[:, :-1] = ordered[:, :-1] == ordered[:, 1:]
    return index.masked_fill(followed, length).flip(1).cummin(dim=1).values.flip(1)


def _tied(inside: Tensor, total: Tensor) -> tuple[str, ...]:
    """Flag images where some of the highest pixels are evidence and some are not."""
    counts = zip(inside.tolist(), total.tolist(), strict=True)
    return tuple(f"{hits} of {all_} highest pixels inside" if 0 < hits < all_ else "" for hits, all_ in counts)
