"""Focus: how much of the map lies in those cells of a mosaic that show the class."""

from __future__ import annotations

from dataclasses import dataclass

from sightline.metrics.case import Case, Measurement, WithoutPasses
from sightline.metrics.localisation.pointing import EnergyPointingGame
from sightline.registry import METRICS


@METRICS.register(
    "focus",
    family="localisation",
    cite="ariasduart2022",
    cost="0 forward",
    direction="higher",
    needs=("masks",),
    parity="Quantus 0.6 Focus on mosaics of two by two, live, 1e-6",
)
@dataclass(frozen=True, slots=True)
class Focus(WithoutPasses):
    r"""Focus: share of the positive relevance that lies in the cells of a mosaic that show the explained class.

    .. math:: \frac{\sum_{i \in \text{cells of } c} \max(a_i, 0)}{\sum_i \max(a_i, 0)}

    on mosaics of two images of class :math:`c` and two of others, in random places :cite:p:`ariasduart2022`. The mask
    is the union of the class's cells, so chance is one half. Precision of the map's mass, with cells for evidence: a
    map anywhere within the right cells scores 1. Its definition is that of `energy_pointing_game`; what differs is
    the picture.

    Edge cases: a map without a positive value scores 0, "no positive value"; a constant map is flagged; without a cell
    of the class the score is NaN, "no foreground".
    """

    def __call__(self, case: Case, /) -> Measurement:
        return EnergyPointingGame()(case)
