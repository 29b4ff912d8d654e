"""Areas under precision-recall curves, of the map as a detector of the evidence and of the background."""

from __future__ import annotations

from dataclasses import dataclass

from sightline.metrics.case import Case, Measurement, WithoutPasses, flags_where, join_flags
from sightline.metrics.localisation.pointing import AveragePrecision, average_precision
from sightline.registry import METRICS

PARITY = "scikit-learn's average_precision_score to 1e-9"


@METRICS.register(
    "aupr1",
    family="localisation",
    cite="caap2026",
    cost="0 forward",
    direction="higher",
    needs=("masks",),
    parity=f"{PARITY}; torchmetrics binary_average_precision, 1e-6",
)
@dataclass(frozen=True, slots=True)
class Aupr1(WithoutPasses):
    r"""Area under the precision-recall curve of the map as a detector of the evidence: average precision.

    .. math:: \mathrm{AUPR}_1 = \mathrm{AP}(a, M) = \sum_t (R_t - R_{t-1})\, P_t

    where precision :math:`P_t` and recall :math:`R_t` are those of the pixels whose value is at least :math:`t`
    :cite:p:`caap2026`. It is `average_precision` under the name it has beside `aupr0`: steps, not trapezoids, so that
    a constant map scores the share of evidence and no more. The paper scales the map to 0..1 first, which leaves the
    order of the pixels, and so the score, as it is.

    Edge cases: as for `average_precision`; without evidence the score is NaN, "no foreground"; without background it is
    1 for every map, "no background".
    """

    def __call__(self, case: Case, /) -> Measurement:
        return AveragePrecision()(case)


@METRICS.register(
    "aupr0",
    family="localisation",
    cite="caap2026",
    cost="0 forward",
    direction="higher",
    needs=("masks",),
    parity=PARITY,
)
@dataclass(frozen=True, slots=True)
class Aupr0(WithoutPasses):
    r"""Area under the precision-recall curve of the negated map as a detector of the background.

    .. math:: \mathrm{AUPR}_0 = \mathrm{AP}(1 - a, 1 - M) = \mathrm{AP}(-a, 1 - M)

    with the same step-wise area as `aupr1` :cite:p:`caap2026`. Where `aupr1` asks that the highest pixels be evidence,
    this asks that the lowest be background: a map with a sharp peak on the object and noise elsewhere has a fair
    `aupr1` and a poor `aupr0`. It too depends on the order of the values only.

    Edge cases: a constant map scores the share of background, and is flagged; without background the score is NaN,
    "no background"; without evidence every map would score 1, so that is NaN too, "no foreground". Ignored pixels count
    neither way.
    """

    def __call__(self, case: Case, /) -> Measurement:
        masks = case.evidence.flatten(1)
        background, evidence = masks == 0, masks > 0
        values = average_precision(-case.maps.flatten(1), background, masks >= 0)
        bare, full = ~evidence.any(dim=1), ~background.any(dim=1)
        flags = join_flags(case.flags, flags_where(bare, "no foreground"), flags_where(full, "no background"))
        return Measurement(values.masked_fill(bare | full, float("nan")), flags=flags)
