"""Insertion and deletion of the MDA protocol: the response is scaled to 0..1 and made monotone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

from torch import Tensor

from sightline.errors import RecipeError
from sightline.metrics.case import Case, Measurement, area, flags_where, join_flags
from sightline.metrics.faithfulness.filled_curve import (
    FIRST_WINDOW,
    CurveDifference,
    DeletionCurve,
    FilledCurve,
    Filling,
    curve_flags,
    further_blurs,
)
from sightline.models.adapter import Adapter
from sightline.perturb.curve import STEP, Direction, Importance, Tie
from sightline.registry import METRICS
from sightline.types import Passes

PARITY = "chasewalker26/MDA: response curves and areas to 1e-4 on a real ViT and a photograph"
FLAT = "image and filled image score alike"


Variant = Literal["program", "text"]


class _MonotoneArea(FilledCurve):
    """Base of insertion and deletion of the MDA protocol: the area under a scaled, monotone response curve."""

    __slots__ = ()
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    direction: ClassVar[Direction]
    variant: Variant

    @property
    def below(self) -> bool:
        return self.variant == "text"

    def response(self, case: Case) -> Tensor:
        """Return the curve whose area is the score, shape (batch, points)."""
        curve = self.curve(case, self.direction).double()
        return curve if self.variant == "text" else monotone(curve, self.direction)

    def __call__(self, case: Case, /) -> Measurement:
        curve, visible = self.response(case), self.left_out(case)
        flat = curve.isnan().any(dim=1)
        total = curve.mean(dim=1) if self.variant == "text" else area(curve)
        values = total.masked_fill(visible | flat, float("nan"))
        return Measurement(values, curve, join_flags(curve_flags(case, visible), flags_where(flat, FLAT)))


def _check_variant(variant: str) -> None:
    if variant not in get_args(Variant):
        raise RecipeError(f"got variant={variant!r}; the score is that of the authors' program or of their text")


@METRICS.register(
    "insertion_mda",
    family="faithfulness",
    cite="mda2025, petsiuk2018",
    cost="at most 260 forward, 35 of them to find the blur",
    direction="higher",
    parity=PARITY,
)
@dataclass(frozen=True, slots=True)
class InsertionMda(_MonotoneArea):
    r"""Insertion of the MDA protocol: area under the scaled, monotone class probability, from a strong blur on.

    .. math:: \frac1n \sum_{k=1}^{n} \frac{m_{k-1} + m_k}{2}, \qquad
        m_k = \max_{j \le k}\, \min\Bigl(1, \max\Bigl(0, \frac{p_j - p(\tilde x)}{|p(x) - p(\tilde x)|}\Bigr)\Bigr)

    where :math:`p_j` is the class's probability once :math:`j \cdot \mathrm{step}` pixels of the image x have replaced
    those of its blurred copy :math:`\tilde x` :cite:p:`mda2025`. The blur is the first of 31, 33, … 101 pixels (window
    and sigma alike) that leaves the class a probability of one per cent, so the curve begins at zero on every image.
    The response may only rise: where a later pixel lowers the probability, that does not count. Not comparable with
    `insertion`.

    The paper's text averages the raw response, ``variant='text'``; this is what its program computes. Pixels are ranked
    by magnitude, as there: a map with negative values has them among the important ones unless ``by='value'``. A target
    without a class is followed itself, and the blur must bring it to 0.01 in its own units. It costs :math:`n + 1`
    forward passes and one more for every wider blur that is tried; the blur is shared with `mas_insertion`.

    Edge cases: where every blur leaves the class visible the score is NaN, "class visible in every blur" (the authors
    skip the image), and so it is where image and blurred copy score alike. A constant map is judged by the order of
    its ties and flagged.

    Attributes:
        fill: the image that the curve starts from: fade, the blur described above; or zero, blur, black, white, mean.
        variant: program as above, or text, the score of the paper's text: the mean of the raw probabilities of all
            points, from a blur that leaves the class less than one per cent.
    """

    variant: Variant = "program"
    direction: ClassVar[Direction] = "insert"

    def __post_init__(self) -> None:
        _check_variant(self.variant)
        FilledCurve.__post_init__(self)


@METRICS.register(
    "deletion_mda",
    family="faithfulness",
    cite="mda2025, petsiuk2018",
    cost="at most 261 forward, 36 of them to find the blur",
    direction="lower",
    parity=PARITY,
)
@dataclass(frozen=True, slots=True)
class DeletionMda(_MonotoneArea, DeletionCurve):
    r"""Deletion of the MDA protocol: area under the scaled, monotone class probability as pixels are removed.

    .. math:: \frac1n \sum_{k=1}^{n} \frac{m_{k-1} + m_k}{2}, \qquad
        m_k = \min_{j \le k}\, \min\Bigl(1, \max\Bigl(0, \frac{p_j - p(\tilde x)}{|p(x) - p(\tilde x)|}\Bigr)\Bigr)

    where :math:`p_j` is the class's probability once :math:`j \cdot \mathrm{step}` pixels have become zero after
    normalisation, and :math:`\tilde x` the image in which all have :cite:p:`mda2025`. The response may only
    fall: where a later pixel raises the probability, that does not count. Not comparable with `deletion`.

    The paper's text speaks of black and of the raw response, ``fill='black', variant='text'``; this is what its program
    computes. Pixels are ranked by magnitude, as there. A target without a class is followed itself. It costs
    :math:`n + 1` forward passes, which it shares with `mas_deletion` and, on maps without negative values, with
    `deletion`, and those of the search for the blur, which it shares with `insertion_mda`.

    Edge cases: an image whose class every blur leaves visible has no insertion and is left out here too, NaN, "class
    visible in every blur", unless ``visible='keep'``. Where image and filled copy score alike the score is NaN, and
    flagged. A constant map is judged by the order of its ties and flagged.

    Attributes:
        fill: what removed pixels become: zero (after normalisation), black, white, mean, blur; or fade, a blur in which
            the class is not recognised.
        variant: program as above, or text: the mean of the raw probabilities of all points.
    """

    fill: Filling = "zero"
    variant: Variant = "program"
    direction: ClassVar[Direction] = "delete"

    def __post_init__(self) -> None:
        _check_variant(self.variant)
        DeletionCurve.__post_init__(self)


@METRICS.register(
    "ins_del_mda",
    family="faithfulness",
    cite="mda2025, petsiuk2018",
    cost="at most 484 forward, 35 of them to find the blur",
    direction="higher",
    parity=PARITY,
)
@dataclass(frozen=True, slots=True)
class InsDelMda(CurveDifference):
    r"""Insertion minus deletion of the MDA protocol: one number for both.

    .. math:: \frac1n \sum_{k=1}^{n} \frac{d_{k-1} + d_k}{2}, \qquad d_k = m^{\mathrm{ins}}_k - m^{\mathrm{del}}_k

    the area between the curves of `insertion_mda` and `deletion_mda` :cite:p:`mda2025`, which it shares with them. It
    costs :math:`2n + 1` forward passes and the search for the blur alone.

    Edge cases: it is NaN where one of the two is, and carries the flags of both.

    Attributes:
        fill: two names: the image that insertion starts from, and what pixels removed by deletion become.
        by: what makes a pixel important: magnitude, value, or negative, the least important first.
        variant: program, or text for the mean of the raw probabilities.
    """

    step: int = STEP
    fill: tuple[Filling, Filling] = ("fade", "zero")
    window: int = FIRST_WINDOW
    by: Importance = "magnitude"
    tie: Tie = "index"
    seed: int = 0
    variant: Variant = "program"
    range: ClassVar[tuple[float, float]] = (-1.0, 1.0)

    @property
    def pair(self) -> tuple[InsertionMda, DeletionMda]:
        start, end = self.fill
        rest: dict[str, Any] = {name: getattr(self, name) for name in ("step", "by", "tie", "seed", "variant")}
        faded: dict[str, Any] = {"window": self.window} if "fade" in self.fill else {}
        inserted = InsertionMda(fill=start, **rest, **(faded if start == "fade" else {}))
        # an image whose class no blur hides is left out already; its deletion need not be asked
        return inserted, DeletionMda(fill=end, visible="keep", **rest, **(faded if end == "fade" else {}))

    def cost(self, model: Adapter, /) -> Passes:
        first, second = self.pair
        shared = 1 + (first.fill == second.fill)  # the image, and the filled image where it is the same
        blurs = further_blurs("fade", self.window) if first.fill == second.fill == "fade" else 0
        return Passes(forward=first.forwards(model) + second.forwards(model) - shared - blurs)


def monotone(curve: Tensor, direction: Direction) -> Tensor:
    """Scale response curves, shape (batch, points), between their endpoints and make them monotone.

    A curve that ends where it begins has no scale and gives NaN.

    >>> import torch
    >>> monotone(torch.tensor([[0.1, 0.5, 0.4, 0.9]]), "insert")
    tensor([[0.0000, 0.5000, 0.5000, 1.0000]], dtype=torch.float64)
    """
    curve = curve.double()
    full, empty = (curve[:, -1:], curve[:, :1]) if direction == "insert" else (curve[:, :1], curve[:, -1:])
    share = ((curve - empty) / (full - empty).abs()).clamp(0, 1)
    return share.cummax(dim=1).values if direction == "insert" else share.cummin(dim=1).values
