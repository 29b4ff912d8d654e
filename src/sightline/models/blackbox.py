"""Black boxes: any function from images to logits, for methods that need no access to the model.

An `nn.Module` that no family recognises is opaque too, but differentiable: gradients at the pixels work.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from torch import Tensor, nn

from sightline.models.adapter import Adapter
from sightline.models.capture import Site
from sightline.types import TokenGrid, pixel_grid


class BlackBox(Adapter):
    """A black box: a callable from images to logits."""

    kind = "blackbox"

    def grid_of(self, images: Tensor) -> TokenGrid:
        return pixel_grid(images)


class Opaque(BlackBox):
    """A module of unknown structure: gradients at the pixels, and any module's output as a site."""

    kind = "opaque"
    offers = frozenset({"gradient"})

    def __init__(self, model: nn.Module, **facts: Any) -> None:
        super().__init__(model, **facts)

    @cached_property
    def sites(self) -> Mapping[str, Site]:
        return {name: Site(module) for name, module in self.model.named_modules() if name}
