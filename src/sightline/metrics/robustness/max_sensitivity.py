"""Maximum and average sensitivity: how much the map changes under small perturbations of the image."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from sightline.metrics.case import Case, Measurement, join_flags
from sightline.metrics.robustness.neighbourhood import Neighbourhood, relative_changes, zero_flags
from sightline.registry import METRICS

COST = "10 attributions, of perturbed images"


@METRICS.register(
    "max_sensitivity",
    family="robustness",
    cite="yeh2019",
    cost=COST,
    direction="lower",
    needs=("method",),
    parity="captum sensitivity_max on the same perturbations, 1e-9; Quantus MaxSensitivity, 1e-6",
)
@dataclass(frozen=True, slots=True)
class MaxSensitivity(Neighbourhood):
    r"""Largest relative change of the map under small random perturbations of the image.

    .. math:: \max_{k \le n} \frac{\lVert a(x + \delta_k) - a(x) \rVert_2}{\lVert a(x) \rVert_2},
        \qquad \delta_k \sim U[-r, r]

    The class stays the one that was explained :cite:p:`yeh2019`. A constant method has sensitivity 0, so the number
    says something only beside a faithfulness metric. The best of few draws is a lower bound: it grows with `samples`.

    It runs the method `samples` times and costs nothing else.

    Edge cases: a map of zeros has no relative change: NaN, "zero map"; a constant map is flagged.
    """

    range: ClassVar[tuple[float, float]] = (0.0, float("inf"))

    def __call__(self, case: Case, /) -> Measurement:
        flags = join_flags(case.flags, zero_flags(case.maps))
        return Measurement(sensitivity(case.maps, self.moved(case)), None, flags)


@METRICS.register(
    "average_sensitivity",
    family="robustness",
    cite="yeh2019, bhatt2020",
    cost=COST,
    direction="lower",
    needs=("method",),
    parity="Quantus 0.6 AvgSensitivity on the same perturbations, live, 1e-6",
)
@dataclass(frozen=True, slots=True)
class AverageSensitivity(Neighbourhood):
    r"""Mean relative change of the map under small random perturbations of the image.

    .. math:: \frac{1}{n} \sum_{k=1}^{n} \frac{\lVert a(x + \delta_k) - a(x) \rVert_2}{\lVert a(x) \rVert_2},
        \qquad \delta_k \sim U[-r, r]

    `max_sensitivity` with the mean in place of the maximum, which settles with few samples. It shares the maps of the
    perturbed images with the other metrics of robustness. A method that ignores the image scores 0.

    It runs the method `samples` times and costs nothing else.

    Edge cases: a map of zeros has no relative change: NaN, "zero map"; a constant map is flagged.
    """

    range: ClassVar[tuple[float, float]] = (0.0, float("inf"))

    def __call__(self, case: Case, /) -> Measurement:
        changes = relative_changes(case.maps, self.moved(case))
        return Measurement(changes.mean(dim=0), None, join_flags(case.flags, zero_flags(case.maps)))


def sensitivity(maps: Tensor, moved: Tensor) -> Tensor:
    """Return the largest relative change, (batch, …) against (sample, batch, …) -> (batch,); NaN for maps of zeros.

    >>> import torch
    >>> sensitivity(torch.tensor([[3.0, 4.0]]), torch.tensor([[[3.0, 3.0]], [[3.0, 6.0]]]))
    tensor([0.4000], dtype=torch.float64)
    """
    return relative_changes(maps, moved).amax(dim=0)
