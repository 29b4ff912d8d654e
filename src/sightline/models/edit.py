"""Edit the activations at named sites of a model while it runs; the counterpart of `capture`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from torch import Tensor

from sightline.models.capture import Change, Site, watch


@contextmanager
def edit(sites: Mapping[str, Site], changes: Mapping[str, Change | Tensor]) -> Iterator[None]:
    """Replace each named site's tensor by what its change returns, or by a given tensor.

    Keys and values of an attention may be replaced by longer or shorter ones: queries then attend to those instead.
    Edits and captures of the same site apply in the order in which they were opened.
    """
    with watch(sites, {name: _constant(x) if isinstance(x, Tensor) else x for name, x in changes.items()}):
        yield


def _constant(value: Tensor) -> Change:
    return lambda _old: value
