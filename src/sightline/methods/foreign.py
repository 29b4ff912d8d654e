"""Methods from outside: any object with Captum's ``.attribute(inputs, target=…)``."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sightline.errors import TargetError, UnsupportedMethod
from sightline.models.adapter import Adapter
from sightline.models.capture import Site, watch
from sightline.models.passes import spend
from sightline.types import Attribution, Logit, Passes, Target, map_grid


@dataclass(frozen=True, slots=True)
class Foreign:
    """A Captum-style object as a method: its answer, channels summed.

    Pass the object to `explain` where a recipe would stand. It holds a model of its own and is asked for the class of a
    `Logit` target. Passes are counted at its model's door: images in, and, where a graph was built, as many back.
    """

    source: Any

    def __str__(self) -> str:
        return type(self.source).__name__

    def __call__(self, model: Adapter, images: Tensor, target: Target) -> Attribution:
        if not isinstance(target, Logit):
            raise TargetError(
                f"{type(self.source).__name__} takes class indices; got {type(target).__name__}, give Logit or an index"
            )
        index = target.index if isinstance(target.index, int) else torch.tensor(target.index, device=images.device)
        with self._counted(), torch.enable_grad():
            found = self.source.attribute(images.clone().requires_grad_(), target=index)
        values = self._one_map(found, model, images).detach()
        return Attribution(values[None], map_grid(values, images))

    def _counted(self) -> Any:
        """Watch the door of the object's own model."""
        inner = getattr(self.source, "forward_func", None) or getattr(self.source, "model", None)
        if not isinstance(inner, nn.Module):
            return nullcontext()

        def count(images: Tensor) -> Tensor:
            spend(forward=len(images), backward=len(images) if torch.is_grad_enabled() else 0)
            return images

        return watch({"door": Site(inner, "input")}, {"door": count})

    def _one_map(self, found: Any, model: Adapter, images: Tensor) -> Tensor:
        found = found[0] if isinstance(found, tuple) and len(found) == 1 else found
        if isinstance(found, Tensor) and found.ndim == 4:
            return found.sum(dim=1)
        if isinstance(found, Tensor) and found.ndim == 3 and model.kind == "transformer":
            return model.grid_of(images).to_map(found.sum(dim=-1))
        shape = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
        raise UnsupportedMethod(
            f"{type(self.source).__name__}.attribute gave {shape}; a (batch, channel, height, width) tensor is needed"
        )

    def cost(self, model: Adapter) -> Passes:
        raise UnsupportedMethod(f"what {type(self.source).__name__} costs is known only after it has run")
