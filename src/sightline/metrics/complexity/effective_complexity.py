"""Effective complexity: how many pixels of the map are not nearly zero."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sightline.errors import RecipeError
from sightline.metrics.case import Case, Measurement, WithoutPasses, flags_where, join_flags
from sightline.registry import METRICS


@METRICS.register(
    "effective_complexity",
    family="complexity",
    cite="nguyen2020",
    cost="0 forward",
    direction="lower",
    parity="Quantus 0.6 EffectiveComplexity, live, exactly",
)
@dataclass(frozen=True, slots=True)
class EffectiveComplexity(WithoutPasses):
    r"""Number of pixels whose magnitude exceeds a small share of the largest.

    .. math:: \Bigl|\Bigl\{ i : |a_i| > \varepsilon \max_j |a_j| \Bigr\}\Bigr|

    :cite:p:`nguyen2020`. The paper removes features while the model's expected loss stays below a bound, and so finds
    the threshold; a fixed share of the largest value is what Quantus takes, and what is taken here. With the default,
    only pixels that are zero but for rounding are left out: it tells maps with exact zeros from the others. Raise
    `threshold` to tell concentrated maps from spread ones. A concentrated map may be wrong.

    Edge cases: a constant map counts every pixel, and is flagged; a map of zeros is NaN, "zero map".

    Attributes:
        threshold: the share ε of the largest magnitude.
    """

    threshold: float = 1e-5
    range: ClassVar[tuple[float, float]] = (0.0, float("inf"))

    def __post_init__(self) -> None:
        if not 0 <= self.threshold < 1:
            raise RecipeError(f"got threshold={self.threshold}; give a share of the largest value, 0 or more, below 1")

    def __call__(self, case: Case, /) -> Measurement:
        size = case.maps.double().flatten(1).abs()
        most = size.amax(dim=1, keepdim=True)
        zero = most[:, 0] == 0
        count = (size > self.threshold * most).sum(dim=1).double()
        flags = join_flags(case.flags, flags_where(zero, "zero map"))
        return Measurement(count.masked_fill(zero, float("nan")), flags=flags)
