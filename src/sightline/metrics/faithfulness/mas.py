"""Magnitude-aligned scoring: insertion and deletion, with a penalty where magnitudes differ from the response."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from sightline.errors import RecipeError
from sightline.metrics.case import Case, Measurement, area, flags_where, join_flags
from sightline.metrics.faithfulness.filled_curve import (
    FIRST_WINDOW,
    CurveDifference,
    DeletionCurve,
    FilledCurve,
    Filling,
    check_visible,
    curve_flags,
    same_order,
)
from sightline.metrics.faithfulness.insertion_deletion_mda import FLAT, monotone
from sightline.models.adapter import Adapter
from sightline.perturb.curve import STEP, Direction, Tie
from sightline.registry import METRICS
from sightline.types import Passes

PARITY = "chasewalker26/MDA: response, density, penalty, score to 1e-4, areas to 1e-4, on a real ViT and a photograph"
Ranked = Literal["magnitude", "value"]


@dataclass(frozen=True, slots=True, eq=False)
class Aligned:
    """The curves that a magnitude-aligned score consists of, each of shape (batch, points).

    Attributes:
        response: the scaled, monotone response; see `monotone`.
        density: the share of the map's magnitude that has been inserted, or remains.
        penalty: the difference of the two.
        score: the response minus or plus the penalty, scaled to run from 0 to 1.
        flat: where there was nothing to scale and the score is a straight line, shape (batch,).
    """

    response: Tensor
    density: Tensor
    penalty: Tensor
    score: Tensor
    flat: Tensor


@dataclass(frozen=True, slots=True)
class _MagnitudeAligned(FilledCurve):
    """Base of magnitude-aligned insertion and deletion.

    Attributes:
        by: magnitude ranks and weighs pixels by it, as the authors do; value ranks by the signed value and weighs by
            its positive part.
    """

    by: Ranked = "magnitude"
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    direction: ClassVar[Direction]

    def __post_init__(self) -> None:
        if self.by not in ("magnitude", "value"):
            raise RecipeError(f"got by={self.by!r}; a magnitude-aligned score goes by magnitude or value")
        FilledCurve.__post_init__(self)

    def aligned(self, case: Case) -> Aligned:
        """Return the curves that the score consists of."""
        response = monotone(self.curve(case, self.direction), self.direction)
        inserted = self._inserted(case)
        return align(response, inserted if self.direction == "insert" else 1 - inserted, self.direction)

    def _inserted(self, case: Case) -> Tensor:
        """Return the share of the map's magnitude that the first pixels hold, at each point of the curve."""
        order = case.order(self.tie, self.seed, same_order(case, self.by))
        weights = _weights(case, self.by).gather(1, order)
        sums = torch.cat([weights.new_zeros(len(weights), 1), weights.cumsum(dim=1)], dim=1)
        counts = self.settings("insert").counts(weights.shape[1])
        return sums[:, counts] / sums[:, -1:]

    def __call__(self, case: Case, /) -> Measurement:
        aligned, visible = self.aligned(case), self.left_out(case)
        empty = _weights(case, self.by).amax(dim=1) == 0
        values = area(aligned.score).masked_fill(visible | empty, float("nan"))
        flags = join_flags(
            curve_flags(case, visible), flags_where(empty, "no magnitude"), flags_where(aligned.flat & ~empty, FLAT)
        )
        return Measurement(values, aligned.score, flags)


@METRICS.register(
    "mas_insertion",
    family="faithfulness",
    cite="walker2024mas, mda2025",
    cost="at most 260 forward, 35 of them to find the blur",
    direction="higher",
    parity=PARITY,
)
@dataclass(frozen=True, slots=True)
class MasInsertion(_MagnitudeAligned):
    r"""Magnitude-aligned insertion: insertion with a penalty where the map's magnitudes differ from the response.

    .. math:: s_k = m_k - |m_k - D_k|, \qquad D_k = \frac{\sum_{i \in \text{first}\ k \cdot \mathrm{step}} |a_i|}
        {\sum_i |a_i|}

    where :math:`m_k` is the monotone response of `insertion_mda` and :math:`D_k` the share of the map's magnitude in
    the pixels inserted so far :cite:p:`walker2024mas`. The score s is cut to 0..1, scaled so that its least value is 0
    and its largest 1, and its area is taken by the trapezoid rule. Two maps with the same order score differently:
    magnitudes should fall as the response rises.

    The scaling hides a penalty that is the same everywhere; it is in the authors' program and not in their text.
    ``metric.aligned(case)`` gives response, density, penalty and score. It costs what `insertion_mda` costs and shares
    its curve.

    Edge cases: where every blur leaves the class visible the score is NaN, "class visible in every blur"; a map of
    zeros has no density, NaN, "no magnitude"; where the score has nothing to scale (image and blurred copy score alike)
    it is a straight line, 0.5, and flagged.

    Attributes:
        fill: the image that the curve starts from: fade, a blur in which the class is not recognised; or zero, blur,
            black, white, mean.
    """

    direction: ClassVar[Direction] = "insert"


@METRICS.register(
    "mas_deletion",
    family="faithfulness",
    cite="walker2024mas, mda2025",
    cost="at most 261 forward, 36 of them to find the blur",
    direction="lower",
    parity=PARITY,
)
@dataclass(frozen=True, slots=True)
class MasDeletion(_MagnitudeAligned, DeletionCurve):
    r"""Magnitude-aligned deletion: deletion with a penalty where the map's magnitudes differ from the response.

    .. math:: s_k = m_k + |m_k - D_k|, \qquad D_k = 1 - \frac{\sum_{i \in \text{first}\ k \cdot \mathrm{step}} |a_i|}
        {\sum_i |a_i|}

    where :math:`m_k` is the monotone response of `deletion_mda` and :math:`D_k` the share of the map's magnitude in the
    remaining pixels :cite:p:`walker2024mas`. The score s is cut to 0..1, scaled so that its least value is 0 and its
    largest 1, and its area is taken by the trapezoid rule. ``metric.aligned(case)`` gives response, density, penalty
    and score. It costs what `deletion_mda` costs and shares its curve.

    Edge cases: an image whose class every blur leaves visible is left out as in `mas_insertion`, NaN, unless
    ``visible='keep'``; a map of zeros has no density, NaN, "no magnitude"; where the score has nothing to scale (image
    and filled copy score alike) it is a straight line, 0.5, and flagged.
    """

    fill: Filling = "zero"
    direction: ClassVar[Direction] = "delete"

    def __post_init__(self) -> None:
        check_visible(self.visible)
        _MagnitudeAligned.__post_init__(self)


@METRICS.register(
    "mas_ins_del",
    family="faithfulness",
    cite="walker2024mas, mda2025",
    cost="at most 484 forward, 35 of them to find the blur",
    direction="higher",
    parity=PARITY,
)
@dataclass(frozen=True, slots=True)
class MasInsDel(CurveDifference):
    r"""Magnitude-aligned insertion minus magnitude-aligned deletion: one number for both.

    .. math:: \frac1n \sum_{k=1}^{n} \frac{d_{k-1} + d_k}{2}, \qquad d_k = s^{\mathrm{ins}}_k - s^{\mathrm{del}}_k

    the area between the score curves of `mas_insertion` and `mas_deletion` :cite:p:`walker2024mas`. It shares both with
    them, and costs :math:`2n + 1` forward passes and the search for the blur alone.

    Edge cases: it is NaN where one of the two is, and carries the flags of both.

    Attributes:
        by: magnitude ranks and weighs pixels by it; value ranks by the signed value and weighs by its positive part.
    """

    step: int = STEP
    window: int = FIRST_WINDOW
    by: Ranked = "magnitude"
    tie: Tie = "index"
    seed: int = 0
    range: ClassVar[tuple[float, float]] = (-1.0, 1.0)

    @property
    def pair(self) -> tuple[MasInsertion, MasDeletion]:
        rest = {"step": self.step, "by": self.by, "tie": self.tie, "seed": self.seed}
        # an image whose class no blur hides is left out by insertion already
        return MasInsertion(window=self.window, **rest), MasDeletion(visible="keep", **rest)  # type: ignore[arg-type]

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


def _weights(case: Case, by: Ranked) -> Tensor:
    """Return what each pixel weighs, shape (batch, pixel), the largest of a map being one so that no sum overflows."""
    maps = case.maps.double().flatten(1)
    weights = maps.abs() if by == "magnitude" else maps.clamp(min=0)
    largest = weights.amax(dim=1, keepdim=True)
    return weights / torch.where(largest > 0, largest, 1)
