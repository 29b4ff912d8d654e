"""Black boxes: any function from images to logits, for methods that need no access to the model.

An `nn.Module` that no family recognises is opaque too, but differentiable: gradients at the pixels work. They work on a
function as well, where autograd can follow it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from sightline.models.adapter import Adapter
from sightline.models.capture import Site
from sightline.models.passes import spend
from sightline.models.survey import IMAGE_SIZES
from sightline.types import TokenGrid, pixel_grid


class BlackBox(Adapter):
    """A black box: a callable from images to logits."""

    kind = "blackbox"
    _differentiable: bool | None = None  # not tried yet

    @property
    def offers(self) -> frozenset[str]:  # type: ignore[override]
        """Gradients at the pixels, where autograd can follow the function.

        That is tried once, on one blank image of the size that is known or of a usual one.
        """
        if self._differentiable is None:
            sizes = [self._size] if self._size else [(side, side) for side in IMAGE_SIZES]
            self._differentiable = any(map(self._follows, sizes))
        return frozenset({"gradient"}) if self._differentiable else frozenset()

    def _follows(self, size: tuple[int, int]) -> bool:
        """Run the function on one blank image, and see whether autograd knows that its output depends on the pixels."""
        try:
            with torch.inference_mode(False), torch.enable_grad():
                image = torch.zeros(1, self.image_channels, *size, requires_grad=True)
                logits = self.logits(self.forward(image))
                (gradient,) = torch.autograd.grad(logits.sum(), image, allow_unused=True)
        except Exception:  # a user's code: it may leave torch, take another size, or refuse a blank image
            return False
        spend(forward=1, backward=1)
        return gradient is not None

    def grid_of(self, images: Tensor) -> TokenGrid:
        return pixel_grid(images)


class Opaque(BlackBox):
    """A module of unknown structure: gradients at the pixels, and any module's output as a site."""

    kind = "opaque"
    unread = frozenset({"layers", "cuts", "attention", "tokens"})

    @property
    def offers(self) -> frozenset[str]:  # type: ignore[override]
        return frozenset({"gradient"})

    def __init__(self, model: nn.Module, **facts: Any) -> None:
        super().__init__(model, **facts)

    @cached_property
    def sites(self) -> Mapping[str, Site]:
        return {name: Site(module) for name, module in self.model.named_modules() if name}
