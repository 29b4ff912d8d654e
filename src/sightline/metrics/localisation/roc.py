"""Area under the receiver operating characteristic of the map as a detector of the evidence."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sightline.metrics.case import Case, Measurement, WithoutPasses, flags_where
from sightline.metrics.localisation.evidence import labels_of, measured
from sightline.registry import METRICS


@METRICS.register(
    "auc_roc",
    family="localisation",
    cite="fawcett2006",
    cost="0 forward",
    direction="higher",
    needs=("masks",),
    parity="scikit-learn's roc_auc_score, and Quantus 0.6 AUC, live, 1e-9",
)
@dataclass(frozen=True, slots=True)
class AucRoc(WithoutPasses):
    r"""Area under the ROC curve of the map as a detector of the evidence.

    .. math:: P(a_i > a_j) + \tfrac{1}{2} P(a_i = a_j), \qquad i \in M,\; j \notin M

    the probability that a pixel of the evidence is higher than one of the background :cite:p:`fawcett2006`. It depends
    on the order of the values only; chance is 0.5 however small the evidence is. Where the evidence is small a high
    area still leaves many false alarms: read it beside `average_precision`.

    Edge cases: a constant map scores 0.5, and is flagged; ignored pixels are left out; without evidence it is NaN,
    "no foreground"; without background it is NaN, "no background".
    """

    def __call__(self, case: Case, /) -> Measurement:
        evidence, labelled = labels_of(case)
        rows = zip(case.maps.flatten(1), evidence, labelled, strict=True)
        values = torch.stack([roc_area(scores[counted], positive[counted]) for scores, positive, counted in rows])
        return measured(case, values, flags_where((evidence == labelled).all(dim=1), "no background"))


def roc_area(scores: Tensor, positive: Tensor) -> Tensor:
    """Return the area under the ROC curve, (item,) each; NaN without positive or without negative items.

    >>> roc_area(torch.tensor([0.9, 0.4, 0.4, 0.1]), torch.tensor([True, True, False, False]))
    tensor(0.8750, dtype=torch.float64)
    """
    _, level, count = scores.unique(return_inverse=True, return_counts=True)
    count = count.double()
    mean_rank = count.cumsum(dim=0) - (count - 1) / 2
    hits = positive.sum().double()
    misses = len(scores) - hits
    above = mean_rank[level][positive].sum() - hits * (hits + 1) / 2
    area: Tensor = above / (hits * misses)  # 0 / 0 is NaN
    return area
