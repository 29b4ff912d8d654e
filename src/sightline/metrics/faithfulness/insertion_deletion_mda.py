"""Insertion and deletion of the MDA protocol: the response is scaled to 0..1 and made monotone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from sightline.metrics.case import Case, Measurement, flags_where, join_flags
from sightline.metrics.faithfulness.filled_curve import FilledCurve, Filling, curve_flags
from sightline.metrics.faithfulness.insertion_deletion import area
from sightline.models.adapter import Adapter
from sightline.perturb.curve import Direction
from sightline.registry import METRICS
from sightline.types import Passes

PARITY = "chasewalker26/MDA: response curves and areas to 1e-4 on a real ViT and a photograph"
FLAT = "image and filled image score alike"


@dataclass(frozen=True, slots=True)
class _MonotoneArea(FilledCurve):
    """Base of insertion and deletion of the MDA protocol: the area under a scaled, monotone response curve."""

    range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    direction: ClassVar[Direction]

    def __call__(self, case: Case, /) -> Measurement:
        curve = monotone(self.curve(case, self.direction), self.direction)
        filled = self.filled(case)
        flat = curve.isnan().any(dim=1)
        values = area(curve).masked_fill(filled.visible | flat, float("nan"))
        return Measurement(values, curve, join_flags(curve_flags(case, filled), flags_where(flat, FLAT)))

    def cost(self, model: Adapter, /) -> Passes:
        return Passes(forward=self.forwards(model))


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

    The paper's text averages the raw response; this is what its program computes. Pixels are ranked by magnitude, as
    there: a map with negative values has them among the important ones unless ``by='value'``. A target without a
    class is followed itself, and the blur must bring it to 0.01 in its own units. It costs :math:`n + 1` forward passes
    and one more for every wider blur that is tried; the blur is shared with `mas_insertion`.

    Edge cases: where every blur leaves the class visible the score is NaN, "class visible in every blur" (the authors
    skip the image), and so it is where image and blurred copy score alike. A constant map is judged by the order of
    its ties and flagged.

    Attributes:
        fill: the image that the curve starts from: fade, the blur described above; or zero, blur, black, white, mean.
    """

    direction: ClassVar[Direction] = "insert"


@METRICS.register(
    "deletion_mda",
    family="faithfulness",
    cite="mda2025, petsiuk2018",
    cost="225 forward",
    direction="lower",
    parity=PARITY,
)
@dataclass(frozen=True, slots=True)
class DeletionMda(_MonotoneArea):
    r"""Deletion of the MDA protocol: area under the scaled, monotone class probability as pixels are removed.

    .. math:: \frac1n \sum_{k=1}^{n} \frac{m_{k-1} + m_k}{2}, \qquad
        m_k = \min_{j \le k}\, \min\Bigl(1, \max\Bigl(0, \frac{p_j - p(\tilde x)}{|p(x) - p(\tilde x)|}\Bigr)\Bigr)

    where :math:`p_j` is the class's probability once :math:`j \cdot \mathrm{step}` pixels have become zero after
    normalisation, and :math:`\tilde x` the image in which all have :cite:p:`mda2025`. The response may only
    fall: where a later pixel raises the probability, that does not count. Not comparable with `deletion`.

    The paper's text speaks of black and of the raw response; this is what its program computes. Pixels are ranked by
    magnitude, as there. A target without a class is followed itself. It costs :math:`n + 1` forward passes, which it
    shares with `mas_deletion` and, on maps without negative values, with `deletion`.

    Edge cases: where image and filled copy score alike the score is NaN, and flagged. A constant map is judged by the
    order of its ties and flagged. The authors leave an image out of both metrics when no blur hides its class; here
    deletion, which needs no blur, keeps it.
    """

    fill: Filling = "zero"
    direction: ClassVar[Direction] = "delete"


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
