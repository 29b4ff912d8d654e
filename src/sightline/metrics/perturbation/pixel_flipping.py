"""Pixel flipping: the score as the most important pixels become black."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sightline.metrics.case import CurveArea
from sightline.perturb.curve import Direction
from sightline.perturb.fill import FillOption
from sightline.registry import METRICS


@METRICS.register(
    "pixel_flipping",
    family="perturbation",
    cite="bach2015",
    cost="225 forward",
    direction="lower",
    parity="Quantus 0.6 PixelFlipping, its curve, live, 1e-5",
)
@dataclass(frozen=True, slots=True)
class PixelFlipping(CurveArea):
    r"""Area under the class probability as the most important pixels become black.

    .. math:: \frac{1}{n} \sum_{k=1}^{n} \frac{p_{k-1} + p_k}{2}, \qquad n = \lceil HW / \mathrm{step} \rceil

    where :math:`p_k` is the target class's probability once the :math:`k \cdot \mathrm{step}` most important pixels
    are black :cite:p:`bach2015`. It is `deletion` with another colour, and says how much that matters: a model that was
    trained on dark images may take black for evidence. Quantus gives the curve, or its area without dividing by n.

    It costs :math:`n + 1` forward passes.

    Edge cases: those of `deletion`; a constant map is flagged.

    Attributes:
        fill: what flipped pixels become: black, zero (after normalisation), white, mean, blur.
    """

    fill: FillOption = "black"
    direction: ClassVar[Direction] = "delete"
