"""Maximum sensitivity: the largest change of the map under small perturbations of the image."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from sightline.errors import RecipeError
from sightline.metrics.case import Case, Measurement, WithoutPasses, flags_where, join_flags
from sightline.metrics.re_explain import re_explained_maps
from sightline.metrics.scaling import power_of_two
from sightline.registry import METRICS
from sightline.seeds import generators, uniform


@METRICS.register(
    "max_sensitivity",
    family="robustness",
    cite="yeh2019",
    cost="10 attributions, of perturbed images",
    direction="lower",
    needs=("method",),
    parity="captum sensitivity_max on the same perturbations, 1e-9",
)
@dataclass(frozen=True, slots=True)
class MaxSensitivity(WithoutPasses):
    r"""Largest relative change of the map under small random perturbations of the image.

    .. math:: \max_{k \le n} \frac{\lVert a(x + \delta_k) - a(x) \rVert_2}{\lVert a(x) \rVert_2},
        \qquad \delta_k \sim U[-r, r]

    The class stays the one that was explained :cite:p:`yeh2019`. A constant method has sensitivity 0, so the number
    says something only beside a faithfulness metric. The best of few draws is a lower bound: it grows with `samples`.

    It runs the method `samples` times and costs nothing else.

    Edge cases: a map of zeros has no relative change: NaN, "zero map"; a constant map is flagged.

    Attributes:
        samples: how many perturbed images.
        radius: r, in the units of the normalised image.
        seed: of the perturbations, which depend on the image and not on its batch.
    """

    samples: int = 10
    radius: float = 0.02
    seed: int = 0
    range: ClassVar[tuple[float, float]] = (0.0, float("inf"))

    def __post_init__(self) -> None:
        if self.samples < 1 or not 0 < self.radius < float("inf"):
            raise RecipeError(
                f"got samples={self.samples}, radius={self.radius}; give one sample at least and a radius above 0"
            )

    def __call__(self, case: Case, /) -> Measurement:
        moved = [re_explained_maps(case, images=images) for images in self.perturbed(case.images)]
        zero = flags_where((case.maps == 0).flatten(1).all(dim=1), "zero map")
        return Measurement(sensitivity(case.maps, torch.stack(moved)), None, join_flags(case.flags, zero))

    def perturbed(self, images: Tensor) -> list[Tensor]:
        """Return the images, moved within the box of the radius, once per sample."""
        drawn = [uniform((self.samples, *images.shape[1:]), random) for random in generators(self.seed, images)]
        offsets = (2 * torch.stack(drawn, dim=1) - 1) * self.radius
        return [images + offset.to(images) for offset in offsets]


def sensitivity(maps: Tensor, moved: Tensor) -> Tensor:
    """Return the largest relative change, (batch, …) against (sample, batch, …) -> (batch,); NaN for maps of zeros.

    >>> sensitivity(torch.tensor([[3.0, 4.0]]), torch.tensor([[[3.0, 3.0]], [[3.0, 6.0]]]))
    tensor([0.4000], dtype=torch.float64)
    """
    factor = power_of_two(maps).reshape(-1, *[1] * (maps.ndim - 1))  # so that huge values do not overflow the norm
    exact = maps.double() * factor
    change: Tensor = (moved.double() * factor - exact).flatten(2).norm(dim=2)
    size: Tensor = exact.flatten(1).norm(dim=1)
    return (change / size).amax(dim=0).cpu()
