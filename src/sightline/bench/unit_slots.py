"""Slots: the units of a manifest by key, for a store that only asks which of them are done.

A run of a hundred thousand units is opened in a second this way: what units share is written as JSON once, and only the
part that differs is digested for each.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from sightline.bench.unit import Manifest, Unit
from sightline.errors import InputError

__all__ = ["UnitSlot", "each_slot", "share_of", "slots_of", "unit_at"]

FIRST_OF_TAIL = "metrics"  # of the names in alphabetical order, those before it alone depend on the chunk


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


def slots_of(manifest: Manifest) -> list[UnitSlot]:
    """Return every unit's place and key, in the order of `Manifest.units`."""
    return list(each_slot(manifest))


def each_slot(manifest: Manifest) -> Iterator[UnitSlot]:
    """Yield what `slots_of` returns, without holding all of it."""
    kept = manifest.kept_maps()
    for place, model in enumerate(manifest.models):
        if not manifest.chunks or not model.recipes:
            continue
        example = [manifest.unit(model, recipe, manifest.chunks[0], kept[0]).to_json() for recipe in model.recipes]
        tails = [_text(part, tail=True) for part in example]
        for index, (chunk, maps) in enumerate(zip(manifest.chunks, kept, strict=True)):
            own = {"data": chunk.data, "images": list(chunk.images), "maps": maps}
            head = hashlib.blake2b(_text(example[0] | own, tail=False), digest_size=16)
            for recipe, tail in zip(model.recipes, tails, strict=True):
                digest = head.copy()
                digest.update(tail)
                yield UnitSlot(digest.hexdigest(), place, recipe, index, maps)


def _text(unit: dict[str, Any], *, tail: bool) -> bytes:
    """Return the beginning or the end of the JSON text that `key_of` digests."""
    part = {name: value for name, value in unit.items() if (name >= FIRST_OF_TAIL) == tail}
    text = json.dumps(part, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return ("," + text[1:] if tail else text[:-1]).encode()


def unit_at(manifest: Manifest, slot: UnitSlot) -> Unit:
    """Return the unit of a slot."""
    return manifest.unit(manifest.models[slot.model], slot.recipe, manifest.chunks[slot.chunk], slot.maps)


def share_of(slots: list[UnitSlot], index: int, count: int) -> list[UnitSlot]:
    """Return share `index` of `count`: chunks are dealt in turn, or single units where there are few chunks.

    Every unit is in exactly one share. A chunk's recipes stay together, so that its images are read once.
    """
    if not 0 <= index < count:
        raise InputError(f"got share {index} of {count}; shares are counted from 0 to {count - 1}")
    groups = list(dict.fromkeys((slot.model, slot.chunk) for slot in slots))
    if len(groups) < 4 * count:
        return slots[index::count]
    mine = set(groups[index::count])
    return [slot for slot in slots if (slot.model, slot.chunk) in mine]
