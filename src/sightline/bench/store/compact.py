"""Compaction: finished units folded into packs, so that a store of a hundred thousand units opens in seconds.

>>> compact("runs/imagenet").units  # doctest: +SKIP
99840

Safe at every moment and beside running drivers: rows are written into a pack, synced and listed in its index before a
unit's own file is removed, and readers take each unit from one place alone. Units with failed images stay as they are,
since `resume` computes them again.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from itertools import compress
from typing import Any

from sightline.bench.store.claims import Claims
from sightline.bench.store.pack_writer import new_pack
from sightline.bench.store.packs import FOLDER, INDEX, ROWS, Pack, index_schema
from sightline.bench.store.rows import FAILED, complete_columns, open_parquet, schema
from sightline.bench.store.store import Store
from sightline.bench.unit_keys import text_of
from sightline.errors import OutputError
from sightline.extras import require
from sightline.files import STALE

__all__ = ["Compaction", "compact", "fold"]

CLAIM = "compaction"
PER_PACK = 8192  # units folded at a time
SMALL, LARGE = 128 * 2**20, 512 * 2**20  # bytes: packs below the first are merged, up to about the second
BLOCK = 2**20


@dataclass
class Compaction:
    """What a compaction has done, as plain data.

    Attributes:
        store: its url.
        units: that were folded into packs now.
        packed: units in packs altogether.
        packs: that there are now.
        left: units that stay in files of their own, for instance because images failed.
        damaged: packs that could not be read and were moved to ``corrupt/``; `resume` computes their units again.
        busy: whether another process was compacting, so that nothing was done.
        seconds: that it took.
    """

    store: str
    units: int = 0
    packed: int = 0
    packs: int = 0
    left: int = 0
    damaged: list[str] = field(default_factory=list)
    busy: bool = False
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        return asdict(self)


def compact(url: str, *, check: bool = True) -> Compaction:
    """Fold the finished units of a store into packs, and merge small packs.

    Args:
        url: of the store.
        check: whether the digest of every pack is compared first, which reads all of it.

    Raises:
        InputError: it is no store.
        OutputError: it cannot be written; nothing is lost.
    """
    store, started = Store(url), time.monotonic()
    if not store.packs.refresh().units and next(store.each_loose_key(), None) is None:
        store.manifest()  # says what is wrong
    done = Compaction(store.url)
    with Claims(store) as claims:
        done.busy = not claims.take(CLAIM)
        if not done.busy:
            try:
                done.damaged = _put_damaged_aside(store, check=check)
                done.units = fold(store)
                _merge(store)
                _remove_unlisted(store)
            except OSError as error:
                raise OutputError(f"cannot compact the store {url}: {error}; nothing is lost") from error
    index = store.packs.refresh()
    done.packed, done.packs = len(index.units), len(index.packs)
    done.left = int((~index.units.holds(sorted(store.loose_keys()))).sum())
    done.seconds = time.monotonic() - started
    return done


def fold(store: Store, most: int | None = None) -> int:
    """Fold units that are in files of their own into packs, and return how many; `most` at a time are enough."""
    loose = sorted(store.loose_keys())
    packed = store.packs.refresh().units.holds(loose)
    _remove(store, compress(loose, packed))  # left by a compaction that was stopped
    todo = list(compress(loose, ~packed))[:most]
    return sum(_fold(store, todo[first : first + PER_PACK]) for first in range(0, len(todo), PER_PACK))


def _fold(store: Store, keys: list[str]) -> int:
    tables = _foldable(store, keys)
    first = next(tables, None)
    if first is None:
        return 0
    folded = []
    with new_pack(store) as pack:
        for key, table in _chain(first, tables):
            pack.add(table)
            folded.append(key)
    _remove(store, compress(folded, store.packs.refresh().units.holds(folded)))
    return len(folded)


def _chain(first: Any, others: Iterable[Any]) -> Iterator[Any]:
    yield first
    yield from others


def _foldable(store: Store, keys: Iterable[str]) -> Iterator[tuple[str, Any]]:
    """Read units, and yield those that are sound and whose every image was scored."""
    for key in keys:
        try:
            table = store.read_loose(key)
        except FileNotFoundError:
            continue
        if table is None or not len(table) or set(table["unit"].to_pylist()) != {key}:
            continue
        lines = list(zip(table["image"].to_pylist(), table["metric"].to_pylist(), strict=True))
        if len(set(lines)) == len(lines) and not any(flag.startswith(FAILED) for flag in table["flag"].to_pylist()):
            yield key, complete_columns(table)


def _remove(store: Store, keys: Iterable[str]) -> None:
    for key in keys:
        store.remove(f"units/{key[:2]}/{key}.parquet")


# ---- packs ---------------------------------------------------------------------------------------------------------


def _put_damaged_aside(store: Store, *, check: bool) -> list[str]:
    """Move packs that are not what was written to ``corrupt/``, and return their names."""
    index = store.packs.refresh()
    changed = [pack.name for pack in index.packs.values() if check and _digest(store, pack) != pack.digest]
    damaged = sorted({*index.damaged, *changed})
    for name in damaged:
        store.quarantine_pack(name)
    index.refresh()
    return damaged


def _digest(store: Store, pack: Pack) -> str:
    digest = hashlib.blake2b(digest_size=16)
    with store.files.open(store.path(pack.rows_name), "rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()


def _merge(store: Store) -> None:
    """Merge small packs, some at a time; the old ones go when the new one is there."""
    index = store.packs.refresh()
    small = sorted((pack for pack in index.packs.values() if pack.size < SMALL), key=lambda pack: pack.size)
    group: list[Pack] = []
    for pack in small:
        group.append(pack)
        if sum(each.size for each in group) >= LARGE:
            _merge_group(store, group)
            group = []
    _merge_group(store, group)


def _merge_group(store: Store, packs: list[Pack]) -> None:
    if len(packs) < 2:
        return
    arrow, compute = require("pyarrow"), require("pyarrow.compute")
    entries = arrow.concat_tables(_own_entries(store, pack).cast(index_schema()) for pack in packs)
    with new_pack(store, entries) as new:
        for pack in packs:
            units = arrow.array(_own_keys(store, pack), "string")
            with store.files.open(store.path(pack.rows_name), "rb") as file:
                source = open_parquet(file)
                for place in range(source.num_row_groups):
                    table = source.read_row_group(place, use_threads=False).select(schema().names).cast(schema())
                    new.add(table.filter(compute.is_in(table["unit"], value_set=units)))
    if new.name in store.packs.refresh().packs:
        for pack in packs:
            store.remove(pack.index_name)
            store.remove(pack.rows_name)


def _own_keys(store: Store, pack: Pack) -> list[str]:
    """Return the keys of a pack's units without those that count in another one."""
    return list(text_of(pack.columns.words[store.packs.units.own(pack.name)]))


def _own_entries(store: Store, pack: Pack) -> Any:
    """Return the entries of those units."""
    own = store.packs.units.own(pack.name)[pack.columns.places]
    entries = store.packs.entries(pack.name).replace_schema_metadata(None)
    return entries.filter(require("pyarrow").array(own))


def _remove_unlisted(store: Store) -> None:
    """Remove rows files without an index, which writers that died left a day ago or more."""
    sizes = store.packs.sizes()
    for name in sizes:
        path = f"{FOLDER}/{name}"
        if name.endswith(ROWS) and name.removesuffix(ROWS) + INDEX not in sizes and store.age(path) > STALE:
            store.remove(path)
