"""Hold the classes that a method chose by a model's logits, so that it runs on another model with the same rivals."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import Any, Protocol, Self, runtime_checkable

from torch import Tensor

from sightline.models.adapter import Adapter
from sightline.models.targets import with_classes
from sightline.types import Method, Target

__all__ = ["ChoosesClasses", "hold_classes"]


@runtime_checkable
class ChoosesClasses(Protocol):
    """A method in which classes compete, chosen by the logits or given."""

    @property
    def asks_the_model(self) -> bool:
        """Whether they are chosen by the logits."""
        ...

    def competing(self, model: Adapter, images: Tensor, target: Target) -> Tensor:
        """Return the classes that compete, (batch, K), negative where an image has fewer."""
        ...

    def with_picture_classes(self) -> Self:
        """Return the same for the classes that the target brings along."""
        ...


def hold_classes(method: Method, model: Adapter, images: Tensor, target: Target) -> tuple[Method, Target]:
    """Return a method and a target that keep the classes which `var` would choose by this model's logits.

    So that a method can be run on another model, or on changed images, with the rivals it had. A method in which
    nothing asks the model comes back as it is.
    """
    chosen = _first_that_asks(method)
    if chosen is None:
        return method, target
    sets = [[one for one in row if one >= 0] for row in chosen.competing(model, images, target).tolist()]
    return _held(method, chosen), with_classes(target, sets, model, len(images))


def _first_that_asks(method: Any) -> ChoosesClasses | None:
    if isinstance(method, ChoosesClasses) and method.asks_the_model:
        return method
    return next((found for inner in _inner(method).values() if (found := _first_that_asks(inner)) is not None), None)


def _held(method: Any, chosen: ChoosesClasses) -> Any:
    """Return a method in which the part that chooses classes takes those of the picture instead."""
    if method == chosen:
        return chosen.with_picture_classes()
    changed = {name: _held(inner, chosen) for name, inner in _inner(method).items()}
    return replace(method, **changed) if changed else method


def _inner(method: Any) -> dict[str, Method]:
    """Return the methods inside a method, by field."""
    if not is_dataclass(method) or isinstance(method, type):
        return {}
    options = {field.name: getattr(method, field.name) for field in fields(method) if field.init}
    return {name: value for name, value in options.items() if isinstance(value, Method)}
