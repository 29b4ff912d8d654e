"""Magnitude-aligned scoring: insertion and deletion that also ask whether the map's magnitudes fit the response."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from sightline.errors import RecipeError
from sightline.metrics.case import Case, Measurement, flags_where, join_flags
from sightline.metrics.faithfulness.fading import FIRST, Filling, Walk, same_order, walk_flags
from sightline.metrics.faithfulness.insertion_deletion import area
from sightline.metrics.faithfulness.monotone import FLAT, monotone
from sightline.models.adapter import Adapter
from sightline.perturb.curve import Direction
from sightline.perturb.order import Tie
from sightline.registry import METRICS
from sightline.types import Passes

PARITY = "chasewalker26/MDA: response, density, penalty, score to 1e-4, areas to 1e-4, on a real ViT and a photograph"
Ranked = Literal["magnitude", "value"]


@dataclass(frozen=True, slots=True, eq=False)
class Aligned:
    """What a magnitude-aligned score consists of, each of shape (batch, points).

    Attributes:
        response: the share of the response that is back, or left; see `monotone`.
        density: the share of the map's magnitude that has entered, or is left.
        penalty: how far the two are apart.
        score: the response, less or more the penalty, scaled to run from 0 to 1.
        flat: where there was nothing to scale and the score is a straight line, shape (batch,).
    """

    response: Tensor
    density: Tensor
    penalty: Tensor
    score: Tensor
    flat: Tensor


@METRICS.register(
    "mas_insertion",
    family="faithfulness",
    cite="walker2024mas, mda2025",
    cost="at most 260 forward, 35 of them to find the blur",
    direction="higher",
    parity=PARITY,
)
@dataclass(frozen=True, slots=True)
class MasInsertion(Walk):
    r"""Insertion of which is taken off how far the map's magnitudes are from the response.

    .. math:: s_k = m_k - |m_k - D_k|, \qquad D_k = \frac{\sum_{i \in \text{first}\ k \cdot \mathrm{step}} |a_i|}
        {\sum_i |a_i|}

    where :math:`m_k` is the monotone response of `insertion_mda` and :math:`D_k` the share of the map that has entered
    with it :cite:p:`walker2024mas`. The score s is cut to 0..1, scaled so that its least value is 0 and its largest 1,
    and its area is taken by the trapezoid rule. Two maps with the same order score differently: magnitudes should
    fall as the response rises.

    The scaling hides a penalty that is the same everywhere; it is in the authors' program and not in their text.
    ``metric.aligned(case)`` gives response, density, penalty and score. It costs what `insertion_mda` costs and shares
    its curve.

    Edge cases: where every blur leaves the class visible the score is NaN, "class visible in every blur"; a map of
    zeros has no density, NaN, "no magnitude"; where the score has nothing to scale (image and blurred copy score alike)
    it is a straight line, 0.5, and flagged.

    Attributes:
        step: pixels per step.
        fill: what the curve starts from: fade, a blur in which the class cannot be seen; or zero, blur, black, white,
            mean.
        window: width of the first blur tried when it fades, in pixels, odd.
        radius: of a fixed blur.
        sigma: of a fixed blur.
        by: magnitude ranks and weighs pixels by it, as the authors do; value ranks by the signed value and weighs by
            its positive part.
        tie: the order of equal pixels: index (row-major), or random, by the seed.
        seed: of random ties.
    """

    step: int = 224
    fill: Filling = "fade"
    window: int = FIRST
    radius: int = 5
    sigma: float = 5.0
    by: Ranked = "magnitude"
    tie: Tie = "index"
    seed: int = 0
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)

    def __post_init__(self) -> None:
        _check(self)

    def aligned(self, case: Case) -> Aligned:
        """Return the curves that the score consists of."""
        return _aligned(case, self, "insert")

    def __call__(self, case: Case, /) -> Measurement:
        return _measured(case, self, self.aligned(case))

    def cost(self, model: Adapter, /) -> Passes:
        return Passes(forward=self.forwards(model))


@METRICS.register(
    "mas_deletion",
    family="faithfulness",
    cite="walker2024mas, mda2025",
    cost="225 forward",
    direction="lower",
    parity=PARITY,
)
@dataclass(frozen=True, slots=True)
class MasDeletion(Walk):
    r"""Deletion to which is added how far the map's magnitudes are from the response.

    .. math:: s_k = m_k + |m_k - D_k|, \qquad D_k = 1 - \frac{\sum_{i \in \text{first}\ k \cdot \mathrm{step}} |a_i|}
        {\sum_i |a_i|}

    where :math:`m_k` is the monotone response of `deletion_mda` and :math:`D_k` the share of the map that is left
    :cite:p:`walker2024mas`. The score s is cut to 0..1, scaled so that its least value is 0 and its largest 1, and its
    area is taken by the trapezoid rule. ``metric.aligned(case)`` gives response, density, penalty and score. It costs
    what `deletion_mda` costs and shares its curve.

    Edge cases: a map of zeros has no density, NaN, "no magnitude"; where the score has nothing to scale (image and
    filled copy score alike) it is a straight line, 0.5, and flagged.

    Attributes:
        step: pixels per step.
        fill: what pixels become: zero, black, white, mean, blur; or fade, the first blur that hides the class.
        window: width of the first blur tried when it fades, in pixels, odd.
        radius: of a fixed blur.
        sigma: of a fixed blur.
        by: magnitude ranks and weighs pixels by it, as the authors do; value ranks by the signed value and weighs by
            its positive part.
        tie: the order of equal pixels: index (row-major), or random, by the seed.
        seed: of random ties.
    """

    step: int = 224
    fill: Filling = "zero"
    window: int = FIRST
    radius: int = 5
    sigma: float = 5.0
    by: Ranked = "magnitude"
    tie: Tie = "index"
    seed: int = 0
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)

    def __post_init__(self) -> None:
        _check(self)

    def aligned(self, case: Case) -> Aligned:
        """Return the curves that the score consists of."""
        return _aligned(case, self, "delete")

    def __call__(self, case: Case, /) -> Measurement:
        return _measured(case, self, self.aligned(case))

    def cost(self, model: Adapter, /) -> Passes:
        return Passes(forward=self.forwards(model))


@METRICS.register(
    "mas_ins_del",
    family="faithfulness",
    cite="walker2024mas, mda2025",
    cost="at most 484 forward, 35 of them to find the blur",
    direction="higher",
    parity=PARITY,
)
@dataclass(frozen=True, slots=True)
class MasInsDel:
    r"""Magnitude-aligned insertion minus magnitude-aligned deletion: one number for both.

    .. math:: \frac1n \sum_{k=1}^{n} \frac{d_{k-1} + d_k}{2}, \qquad d_k = s^{\mathrm{ins}}_k - s^{\mathrm{del}}_k

    the area between the score curves of `mas_insertion` and `mas_deletion` :cite:p:`walker2024mas`. It shares both with
    them, and costs :math:`2n + 1` forward passes and the search for the blur alone.

    Edge cases: it is NaN where one of the two is, and carries the flags of both.

    Attributes:
        step: pixels per step.
        window: width of the first blur tried, in pixels, odd.
        by: magnitude ranks and weighs pixels by it; value ranks by the signed value and weighs by its positive part.
        tie: the order of equal pixels: index (row-major), or random, by the seed.
        seed: of random ties.
    """

    step: int = 224
    window: int = FIRST
    by: Ranked = "magnitude"
    tie: Tie = "index"
    seed: int = 0
    range: ClassVar[tuple[float, float]] = (-1.0, 1.0)

    def __post_init__(self) -> None:
        _ = self.pair

    @property
    def pair(self) -> tuple[MasInsertion, MasDeletion]:
        rest = {"step": self.step, "by": self.by, "tie": self.tie, "seed": self.seed}
        return MasInsertion(window=self.window, **rest), MasDeletion(**rest)  # type: ignore[arg-type]

    def __call__(self, case: Case, /) -> Measurement:
        inserted, deleted = (metric(case) for metric in self.pair)
        assert inserted.curve is not None
        assert deleted.curve is not None
        flags = tuple(_both(*ones) for ones in zip(inserted.flags, deleted.flags, strict=True))
        return Measurement(inserted.values - deleted.values, inserted.curve - deleted.curve, flags)

    def cost(self, model: Adapter, /) -> Passes:
        return Passes(forward=sum(metric.forwards(model) for metric in self.pair) - 1)


def align(response: Tensor, density: Tensor, direction: Direction) -> Aligned:
    """Score how well response and density agree, both of shape (batch, points).

    A response without a scale (NaN), and a score that is the same everywhere, become a straight line.
    """
    penalty = (response - density).abs()
    score = (response - penalty if direction == "insert" else response + penalty).clamp(0, 1)
    low, high = score.amin(dim=1, keepdim=True), score.amax(dim=1, keepdim=True)
    score = (score - low) / (high - low)
    flat = score.isnan().any(dim=1)
    line = torch.linspace(0, 1, score.shape[1], dtype=score.dtype, device=score.device)
    score = torch.where(flat[:, None], line if direction == "insert" else line.flip(0), score)
    return Aligned(response, density, penalty, score, flat)


def _aligned(case: Case, walk: Walk, direction: Direction) -> Aligned:
    response = monotone(walk.curve(case, direction), direction)
    entered = _entered(case, walk)
    return align(response, entered if direction == "insert" else 1 - entered, direction)


def _entered(case: Case, walk: Walk) -> Tensor:
    """Return the share of the map's magnitude that the first pixels hold, at each point of the curve."""
    by = same_order(case, walk.by)
    weights = _weights(case, walk).gather(1, case.order(walk.tie, walk.seed, by))
    sums = torch.cat([weights.new_zeros(len(weights), 1), weights.cumsum(dim=1)], dim=1)
    counts = walk.plain("insert").counts(weights.shape[1])
    return sums[:, counts] / sums[:, -1:]


def _weights(case: Case, walk: Walk) -> Tensor:
    """Return what each pixel weighs, the largest of a map being one so that no sum overflows."""
    maps = case.maps.double().flatten(1)
    weights = maps.abs() if walk.by == "magnitude" else maps.clamp(min=0)
    largest = weights.amax(dim=1, keepdim=True)
    return weights / torch.where(largest > 0, largest, 1)


def _measured(case: Case, walk: Walk, aligned: Aligned) -> Measurement:
    filled = walk.filled(case)
    empty = _weights(case, walk).amax(dim=1) == 0
    values = area(aligned.score).masked_fill(filled.visible | empty, float("nan"))
    flags = join_flags(
        walk_flags(case, filled), flags_where(empty, "no magnitude"), flags_where(aligned.flat & ~empty, FLAT)
    )
    return Measurement(values, aligned.score, flags)


def _check(walk: Walk) -> None:
    if walk.by not in ("magnitude", "value"):
        raise RecipeError(f"got by={walk.by!r}; a magnitude-aligned score goes by magnitude or value")
    Walk.__post_init__(walk)


def _both(first: str, second: str) -> str:
    """Join two texts of the same image, each reason once."""
    return "; ".join(dict.fromkeys(reason for text in (first, second) for reason in text.split("; ") if reason))
