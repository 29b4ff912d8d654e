"""Small random perturbations of the images and the method's maps of them, shared by the metrics of robustness."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from sightline.catalogue.ranges import Range
from sightline.errors import RecipeError
from sightline.metrics.case import Case, WithoutPasses, flags_where
from sightline.metrics.re_explain import re_explained_maps
from sightline.metrics.scaling import power_of_two
from sightline.seeds import generators, uniform


@dataclass(frozen=True, slots=True)
class Neighbourhood(WithoutPasses):
    """Base of the metrics that explain perturbed images; two of them with the same options share the maps.

    Attributes:
        samples: how many perturbed images.
        radius: r, in the units of the normalised image.
        seed: of the perturbations, which depend on the image and not on its batch.
    """

    samples: int = 10
    radius: Annotated[float, Range(0, 1e6)] = 0.02
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.radius:
            raise RecipeError("got radius=0, at which no map changes; give a radius above 0")

    def perturbed(self, images: Tensor) -> list[Tensor]:
        """Return the images, moved within the box of the radius, once per sample."""
        drawn = [uniform((self.samples, *images.shape[1:]), random) for random in generators(self.seed, images)]
        offsets = (2 * torch.stack(drawn, dim=1) - 1) * self.radius
        return [images + offset.to(images) for offset in offsets]

    def moved(self, case: Case) -> Tensor:
        """Return the maps of the perturbed images, (sample, batch, height, width)."""
        key = ("maps of perturbed images", self.samples, self.radius, self.seed)
        return case.once(
            key, lambda: torch.stack([re_explained_maps(case, images=each) for each in self.perturbed(case.images)])
        )


def zero_flags(maps: Tensor) -> tuple[str, ...]:
    """Flag maps of zeros."""
    return flags_where((maps == 0).flatten(1).all(dim=1), "zero map")


def relative_changes(maps: Tensor, moved: Tensor) -> Tensor:
    """Return the relative changes of maps, (batch, …) and (sample, batch, …) -> (sample, batch); NaN for zeros.

    >>> relative_changes(torch.tensor([[3.0, 4.0]]), torch.tensor([[[3.0, 3.0]], [[3.0, 6.0]]])).flatten()
    tensor([0.2000, 0.4000], dtype=torch.float64)
    """
    factor = power_of_two(maps).reshape(-1, *[1] * (maps.ndim - 1))  # so that huge values do not overflow the norm
    exact = maps.double() * factor
    change: Tensor = (moved.double() * factor - exact).flatten(2).norm(dim=2)
    size: Tensor = exact.flatten(1).norm(dim=1)
    return (change / size).cpu()
