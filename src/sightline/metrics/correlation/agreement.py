"""How well attributions agree with changes of the score: a correlation per image, and why where there is none."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from sightline.metrics.case import Case, Measurement, flags_where, join_flags
from sightline.metrics.similarity import pearson, spearman

Correlation = Literal["pearson", "spearman"]
ROUNDING = 1e-12  # of the largest change, below which changes are the same
UNEQUAL, UNCHANGED = "equal attributions", "the score does not change"


def agreement(case: Case, attributions: Tensor, changes: Tensor, correlation: Correlation) -> Measurement:
    """Return the correlation of attributions and changes of the score, (batch, item) each.

    It is NaN where all attributions are equal, or all changes, and the flag says which.
    """
    attributions, changes = attributions.double(), changes.double()
    values = {"pearson": pearson, "spearman": spearman}[correlation](attributions, changes)
    same, still = _equal(attributions), _equal(changes)
    flags = join_flags(case.flags, flags_where(same, UNEQUAL), flags_where(still, UNCHANGED))
    return Measurement(values.masked_fill(same | still, float("nan")).clamp(-1, 1), flags=flags)


def _equal(values: Tensor) -> Tensor:
    spread = values.amax(dim=1) - values.amin(dim=1)
    return spread <= ROUNDING * values.abs().amax(dim=1)
