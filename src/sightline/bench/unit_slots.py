"""Slots: the units of a manifest by key, for a store that only asks which of them are done.

A run of a hundred thousand units is opened in a second this way, and one of millions takes some tens of bytes a unit:
what units share is written as JSON once, only the part that differs is digested for each, and keys are held as numbers.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from sightline.bench.unit import Manifest, Unit
from sightline.bench.unit_keys import Words, text_of, words_of_digests
from sightline.errors import InputError

__all__ = ["UnitSlot", "UnitSlots", "each_slot", "share_of", "slots_of", "unit_at"]

FIRST_OF_TAIL = "metrics"  # of the names in alphabetical order, those before it alone depend on the chunk
BLOCK = 65_536  # slots that are made at a time


class UnitSlot(NamedTuple):
    """The place of a unit in its manifest.

    Attributes:
        key: of the unit.
        model: index among the manifest's models.
        recipe: the recipe of the method.
        chunk: index among the manifest's chunks.
        maps: how many images of the chunk keep their maps.
    """

    key: str
    model: int
    recipe: str
    chunk: int
    maps: int


class UnitSlots(Sequence[UnitSlot]):
    """Units of a manifest as columns; a `UnitSlot` is made when it is asked for.

    Attributes:
        manifest: of the run.
        words: the keys as numbers.
        places: of the units in the order of `Manifest.units`.
    """

    def __init__(self, manifest: Manifest, words: Words, places: NDArray[np.int64]) -> None:
        self.manifest = manifest
        self.words = words
        self.places = places

    def __len__(self) -> int:
        return len(self.places)

    def __iter__(self) -> Iterator[UnitSlot]:
        for start in range(0, len(self), BLOCK):
            yield from self[start : start + BLOCK]._block()

    @overload
    def __getitem__(self, chosen: int) -> UnitSlot: ...

    @overload
    def __getitem__(self, chosen: slice) -> UnitSlots: ...

    def __getitem__(self, chosen: int | slice) -> UnitSlot | UnitSlots:
        if isinstance(chosen, slice):
            return self.chosen(chosen)
        return next(self.chosen(np.array([range(len(self))[chosen]]))._block())

    def chosen(self, which: slice | NDArray[Any]) -> UnitSlots:
        """Return some of them, by a slice, a mask or their indices."""
        return UnitSlots(self.manifest, self.words[which], self.places[which])

    def _block(self) -> Iterator[UnitSlot]:
        models, kept = self.manifest.models, self._kept_maps
        columns = zip(self.models.tolist(), self.recipes.tolist(), self.chunks.tolist(), strict=True)
        for key, (model, recipe, chunk) in zip(text_of(self.words), columns, strict=True):
            yield UnitSlot(key, model, models[model].recipes[recipe], chunk, kept[chunk])

    @cached_property
    def models(self) -> NDArray[np.int32]:
        """The index of each unit's model."""
        return np.searchsorted(self._starts[1:], self.places, side="right").astype(np.int32)

    @cached_property
    def recipes(self) -> NDArray[np.int32]:
        """The index of each unit's recipe among those of its model."""
        return (self._inside % self._widths[self.models]).astype(np.int32)

    @cached_property
    def chunks(self) -> NDArray[np.int32]:
        """The index of each unit's chunk."""
        return (self._inside // self._widths[self.models]).astype(np.int32)

    @property
    def _inside(self) -> NDArray[np.int64]:
        """The place of each unit among those of its model."""
        return self.places - self._starts[self.models]

    @property
    def _widths(self) -> NDArray[np.int64]:
        return np.array([len(model.recipes) for model in self.manifest.models], dtype=np.int64)

    @property
    def _starts(self) -> NDArray[np.int64]:
        return np.concatenate([[0], np.cumsum(len(self.manifest.chunks) * self._widths)]).astype(np.int64)

    @cached_property
    def _kept_maps(self) -> list[int]:
        return self.manifest.kept_maps()


def slots_of(manifest: Manifest) -> UnitSlots:
    """Return every unit's place and key, in the order of `Manifest.units`."""
    digests = bytearray()
    for *_, of_chunk in _each_chunk(manifest):
        digests += b"".join(of_chunk)
    words = words_of_digests(digests)
    return UnitSlots(manifest, words, np.arange(len(words)))


def each_slot(manifest: Manifest) -> Iterator[UnitSlot]:
    """Yield what `slots_of` returns, without holding all of it."""
    for place, index, maps, of_chunk in _each_chunk(manifest):
        for recipe, digest in zip(manifest.models[place].recipes, of_chunk, strict=True):
            yield UnitSlot(digest.hex(), place, recipe, index, maps)


def _each_chunk(manifest: Manifest) -> Iterator[tuple[int, int, int, list[bytes]]]:
    """Yield the model, the chunk and its kept maps, and the digests of all recipes on it."""
    kept = manifest.kept_maps()
    for place, model in enumerate(manifest.models):
        if not manifest.chunks or not model.recipes:
            continue
        example = [manifest.unit(model, recipe, manifest.chunks[0], kept[0]).to_json() for recipe in model.recipes]
        tails = [_text(part, tail=True) for part in example]
        for index, (chunk, maps) in enumerate(zip(manifest.chunks, kept, strict=True)):
            own = {"data": chunk.data, "images": list(chunk.images), "maps": maps}
            head = hashlib.blake2b(_text(example[0] | own, tail=False), digest_size=16)
            digests = []
            for tail in tails:
                digest = head.copy()
                digest.update(tail)
                digests.append(digest.digest())
            yield place, index, maps, digests


def _text(unit: dict[str, Any], *, tail: bool) -> bytes:
    """Return the beginning or the end of the JSON text that `key_of` digests."""
    part = {name: value for name, value in unit.items() if (name >= FIRST_OF_TAIL) == tail}
    text = json.dumps(part, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return ("," + text[1:] if tail else text[:-1]).encode()


def unit_at(manifest: Manifest, slot: UnitSlot) -> Unit:
    """Return the unit of a slot."""
    return manifest.unit(manifest.models[slot.model], slot.recipe, manifest.chunks[slot.chunk], slot.maps)


def share_of(slots: UnitSlots, index: int, count: int) -> UnitSlots:
    """Return share `index` of `count`: chunks are dealt in turn, or single units where there are few chunks.

    Every unit is in exactly one share. A chunk's recipes stay together, so that its images are read once.
    """
    if not 0 <= index < count:
        raise InputError(f"got share {index} of {count}; shares are counted from 0 to {count - 1}")
    pairs = slots.models.astype(np.int64) * len(slots.manifest.chunks) + slots.chunks
    groups, group_of = np.unique(pairs, return_inverse=True)
    if len(groups) < 4 * count:
        return slots[index::count]
    return slots.chosen(group_of % count == index)
