"""Methods of other packages: any object with Captum's ``.attribute(inputs, target=…)``."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from sightline.errors import TargetError, UnsupportedMethod
from sightline.models.adapter import Adapter
from sightline.models.capture import Site, watch
from sightline.models.passes import spend, thawed
from sightline.types import Attribution, Logit, Passes, Target, Value, map_grid


@dataclass(frozen=True, slots=True, eq=False)
class Foreign:
    """A Captum-style object as a method: its attribution, summed over channels.

    Pass the object to `explain` where a recipe would stand, and to `evaluate` as `method`. It takes the class of a
    `Logit`, or the index of a `Value`. It holds a model of its own, which has to be the one that is explained: one that
    shares no weights with it, as a randomised copy does not, is refused. Passes are counted at its model's input: as
    many backward as forward where a graph was built.

    Two are equal where they hold the same object.
    """

    source: Any

    def __str__(self) -> str:
        return type(self.source).__name__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Foreign) and other.source is self.source

    def __hash__(self) -> int:
        return hash((Foreign, id(self.source)))

    def __call__(self, model: Adapter, images: Tensor, target: Target) -> Attribution:
        if not isinstance(target, Logit | Value):
            raise TargetError(f"{self} takes class indices; got {type(target).__name__}, give Logit or an index")
        self._check_model(model)
        index = target.index if isinstance(target.index, int) else torch.tensor(target.index, device=images.device)
        with self._counted(), thawed(), torch.enable_grad():
            attributed = self.source.attribute(images.clone().requires_grad_(), target=index)
        values = self._map(attributed, model, images).detach()
        return Attribution(values[None], map_grid(values, images))

    @property
    def _forward(self) -> Any:
        """The function or module that the object runs."""
        return getattr(self.source, "forward_func", None) or getattr(self.source, "model", None)

    def _check_model(self, model: Adapter) -> None:
        """Refuse an object that runs another model than the one to be explained."""
        own = {id(tensor) for module in _modules(self._forward) for tensor in _weights(module)}
        explained = {id(tensor) for tensor in _weights(model.model)} if isinstance(model.model, nn.Module) else own
        if own and explained and own.isdisjoint(explained):
            raise UnsupportedMethod(
                f"{self} runs a model of its own, which shares no weights with {model.name}, so it would explain "
                "another model; make it for this one, and leave out metrics that randomise a copy of the model"
            )

    def _counted(self) -> Any:
        """Count the images that enter the object's own model."""
        module = self._forward
        if not isinstance(module, nn.Module):
            return nullcontext()

        def count(images: Tensor) -> Tensor:
            spend(forward=len(images), backward=len(images) if torch.is_grad_enabled() else 0)
            return images

        return watch({"input": Site(module, "input")}, {"input": count})

    def _map(self, attributed: Any, model: Adapter, images: Tensor) -> Tensor:
        """Sum over channels: (batch, height, width)."""
        if isinstance(attributed, tuple) and len(attributed) == 1:
            attributed = attributed[0]
        if isinstance(attributed, Tensor) and attributed.ndim == 4:
            return attributed.sum(dim=1)
        if isinstance(attributed, Tensor) and attributed.ndim == 3 and model.kind == "transformer":
            return model.grid_of(images).to_map(attributed.sum(dim=-1))
        shape = tuple(attributed.shape) if isinstance(attributed, Tensor) else type(attributed).__name__
        raise UnsupportedMethod(f"{self}.attribute gave {shape}; a (batch, channel, height, width) tensor is needed")

    def cost(self, model: Adapter) -> Passes:
        raise UnsupportedMethod(f"what {self} costs is known only after it has run")


def _modules(function: Any) -> Iterator[nn.Module]:
    """Yield the modules that can be seen in a callable: itself, its object, its arguments, what it refers to."""
    if isinstance(function, nn.Module):
        yield function
    elif inspect.ismethod(function):
        yield from _modules(function.__self__)
    elif isinstance(function, partial):
        for part in (function.func, *function.args, *function.keywords.values()):
            yield from _modules(part)
    elif inspect.isfunction(function):
        seen = inspect.getclosurevars(function)
        yield from (
            value for value in (*seen.nonlocals.values(), *seen.globals.values()) if isinstance(value, nn.Module)
        )
    elif hasattr(function, "__dict__"):
        yield from (value for value in vars(function).values() if isinstance(value, nn.Module))


def _weights(module: nn.Module) -> Iterator[Tensor]:
    yield from module.parameters()
    yield from module.buffers()
