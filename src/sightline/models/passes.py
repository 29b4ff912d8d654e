"""Count model passes: images through the whole model, forward and backward."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from sightline.types import Passes

_open: ContextVar[tuple[Meter, ...]] = ContextVar("open_meters", default=())


class Meter:
    """A counter of the model passes spent while it is open."""

    def __init__(self) -> None:
        self.passes = Passes()


@contextmanager
def counting() -> Iterator[Meter]:
    """Open a meter; whatever adapters spend inside is added to it, and to every meter around it."""
    meter = Meter()
    token = _open.set((*_open.get(), meter))
    try:
        yield meter
    finally:
        _open.reset(token)


def spend(forward: float = 0.0, backward: float = 0.0) -> None:
    """Add to every open meter."""
    for meter in _open.get():
        meter.passes += Passes(forward, backward)
