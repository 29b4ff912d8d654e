"""Passes that several methods have in common, run once for the same model, images and targets.

Many methods begin alike: the attention of every block, its gradients, the activations before the head. A function that
computes such a part is marked by `shared`; inside ``with sharing(images, passes):`` what it returns is remembered and
given to the next method that asks for the same. Outside of it, and while anything in the model is captured, edited or
replaced, the function runs as if it were not marked. What is remembered must not be changed in place.

A method that takes what another has computed counts its passes and seconds as its own, so that costs do not depend on
who came first; `SharedPasses.saved` says what was not run again.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

import torch
from torch import Tensor

from sightline.models.adapter import Adapter
from sightline.models.passes import counting, is_changed, spend
from sightline.types import Passes

__all__ = ["SharedPasses", "shared", "sharing"]

T = TypeVar("T")
M = TypeVar("M", bound=Adapter)
P = ParamSpec("P")
LIMIT = 2**30  # bytes of tensors that are remembered; the oldest go first


@dataclass(frozen=True, slots=True)
class _Known:
    """What a function returned, and what that took."""

    value: Any
    passes: Passes
    seconds: float
    size: int


class SharedPasses:
    """What methods have computed of some images.

    Attributes:
        saved: passes that were not run again, counted in images.
        seconds: that these took when they were run.
    """

    def __init__(self, limit: int = LIMIT) -> None:
        self.saved = Passes()
        self.seconds = 0.0
        self._limit = limit
        self._known: dict[Hashable, _Known] = {}

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return what `make` gives, computed on the first call with this key."""
        known = self._known.get(key)
        if known is None:
            started = time.perf_counter()
            before = self.seconds
            with counting() as meter:
                value = make()
            seconds = time.perf_counter() - started + self.seconds - before
            self._remember(key, _Known(value, meter.passes, seconds, _bytes(value)))
            return value
        spend(known.passes.forward, known.passes.backward)
        self.saved += known.passes
        self.seconds += known.seconds
        return cast(T, known.value)

    def _remember(self, key: Hashable, known: _Known) -> None:
        self._known[key] = known
        while self._known and sum(each.size for each in self._known.values()) > self._limit:
            del self._known[next(iter(self._known))]


_open: ContextVar[tuple[Tensor, SharedPasses] | None] = ContextVar("shared_passes", default=None)


@contextmanager
def sharing(images: Tensor, passes: SharedPasses) -> Iterator[None]:
    """Remember what methods compute of these images; they must stay as they are for as long as `passes` is used."""
    token = _open.set((images, passes))
    try:
        yield
    finally:
        _open.reset(token)


def shared(function: Callable[Concatenate[M, Tensor, P], T]) -> Callable[Concatenate[M, Tensor, P], T]:
    """Mark a function of a model, images and hashable options whose result methods may share."""

    signature = inspect.signature(function)

    @wraps(function)
    def run(model: M, images: Tensor, *args: P.args, **options: P.kwargs) -> T:
        opened = _open.get()
        if opened is None or is_changed() or not _is_part(images, opened[0]):
            return function(model, images, *args, **options)
        bound = signature.bind(model, images, *args, **options)
        bound.apply_defaults()
        key = _key(function, model, images, bound.args[2:])
        if key is None:
            return function(model, images, *args, **options)
        return opened[1].once(key, lambda: function(model, images, *args, **options))

    return cast(Callable[Concatenate[M, Tensor, P], T], run)


def _is_part(images: Tensor, of: Tensor) -> bool:
    """Tell whether these are some of the images themselves, and not made of them."""
    return not images.requires_grad and images.untyped_storage().data_ptr() == of.untyped_storage().data_ptr()


def _key(function: Any, model: Adapter, images: Tensor, options: tuple[Any, ...]) -> Hashable | None:
    """Return what the result depends on; None where an option cannot be compared."""
    place = (images.storage_offset(), images.shape, images.stride(), images.dtype, images._version)
    try:
        given = _frozen(options)
        hash(given)
    except TypeError:
        return None
    return function, model, place, torch.is_grad_enabled(), given


def _frozen(value: Any) -> Any:
    """Return lists as tuples, deep down; a tensor is nothing to compare by."""
    if isinstance(value, Tensor):
        raise TypeError("a tensor is no key")
    return tuple(map(_frozen, value)) if isinstance(value, list | tuple) else value


def _bytes(value: Any) -> int:
    """Return how many bytes the tensors inside a value hold, about."""
    if isinstance(value, Tensor):
        return value.untyped_storage().nbytes()
    if isinstance(value, Mapping):
        return sum(map(_bytes, value.values()))
    if isinstance(value, list | tuple):
        return sum(map(_bytes, value))
    if is_dataclass(value) and not isinstance(value, type):
        return sum(_bytes(getattr(value, field.name)) for field in fields(value) if field.name != "block")
    return 0
