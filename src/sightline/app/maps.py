"""Maps that the server keeps: the attribution with its scores, found again by what was asked and never by who asked."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sightline.audit.panel import ScoredMap
from sightline.report.figure import smoothing_of
from sightline.types import Attribution

__all__ = ["KeptMap", "MapCache"]

Key = tuple[str, ...]  # the picture's digest, the model, the target and its place, the recipe


@dataclass(frozen=True, eq=False)
class KeptMap:
    """A map of one image.

    Attributes:
        attribution: with every layer the method gives, without details.
        scored: its scores; None until it is scored.
        shares: for a contrast by `var`, the classes and the share of each at every pixel, (class, height, width).
    """

    attribution: Attribution
    scored: ScoredMap | None = None
    shares: tuple[tuple[int, ...], NDArray[Any]] | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of its arrays."""
        own = self.attribution.values.element_size() * self.attribution.values.nelement()
        return own + (0 if self.shares is None else int(self.shares[1].nbytes))

    def pixels(self, layer: int | None = None) -> NDArray[np.float32]:
        """Return the map at image size: the method's own, or that of one of its layers by position."""
        name = None if layer is None else self.attribution.layers[layer]
        return np.asarray(self.attribution.pixels(layer=name)[0].detach().float().cpu().numpy(), dtype="<f4")

    def json(self) -> dict[str, Any]:
        """Return what is known of the map, as plain data."""
        grid = self.attribution.grid
        measured = {} if self.scored is None else {**self.scored.json(), "curves": self.scored.curves}
        return {
            "recipe": self.attribution.recipe,
            "grid": [grid.height, grid.width],
            "size": list(grid.image),
            "layers": [str(layer) for layer in self.attribution.layers],
            "own": self.attribution.own,
            "classes": [] if self.shares is None else list(self.shares[0]),
            "smoothing": smoothing_of(self.pixels()),
            "scored": self.scored is not None,
            **measured,
        }


class MapCache:
    """The maps asked for last, by the content of what was asked; at most so many bytes."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._kept: OrderedDict[Key, KeptMap] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def find(self, key: Key) -> KeptMap | None:
        """Return the map, where it is still there."""
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
            return self._kept.get(key)

    def keep(self, key: Key, kept: KeptMap) -> None:
        """Keep a map; those not asked for longest go where there are too many."""
        with self._lock:
            before = self._kept.pop(key, None)
            self._bytes += kept.nbytes - (0 if before is None else before.nbytes)
            self._kept[key] = kept
            while self._bytes > self.limit and self._kept:
                self._bytes -= self._kept.popitem(last=False)[1].nbytes

    @property
    def nbytes(self) -> int:
        """Bytes of all maps."""
        return self._bytes
