"""Keys of units as numbers: found where they are, in any order, also where they begin alike."""

import numpy as np
import pytest
from tests.bench.test_unit import CHUNKS, manifest

from sightline.bench.store.packed_units import PackColumns, PackedUnit, PackedUnits
from sightline.bench.unit_keys import KeyTable, text_of, words_of, words_of_characters
from sightline.bench.unit_slots import each_slot, slots_of

HALF = "0123456789abcdef"


def keys(count: int, seed: int = 0) -> list[str]:
    return [bytes(line).hex() for line in np.random.default_rng(seed).integers(0, 256, (count, 16), dtype=np.uint8)]


def test_texts_come_back():
    texts = keys(100)
    assert list(text_of(words_of(texts))) == texts
    characters = np.frombuffer("".join(texts).encode(), dtype=np.uint8).reshape(-1, 32)
    assert (words_of_characters(characters) == words_of(texts)).all()
    with pytest.raises(ValueError, match="hexadecimal"):
        words_of_characters(np.frombuffer(("g" * 32).encode(), dtype=np.uint8).reshape(1, 32))


def test_what_is_no_key_is_left_out():
    texts = keys(3)
    others = ["notes", "g" * 32, texts[0].upper().replace("0", "A"), texts[0] + " ", texts[0][:-1] + "\n", "a" * 31]
    assert list(text_of(words_of([*texts, *others]))) == texts
    table = KeyTable(words_of(texts))
    assert not any(other in table for other in [*others, 7, None])
    assert PackedUnits().holds([*texts, *others]).tolist() == [False] * 9


def test_keys_are_found_also_where_they_begin_alike():
    alike = [HALF + text[16:] for text in keys(20)]
    texts = [*keys(200, 1), *alike, *keys(50, 2), *alike[:5]]  # the last are there twice
    table = KeyTable(words_of(texts))
    asked = [*alike, *keys(30, 3), *texts, HALF + "0" * 16]
    wanted = [texts.index(text) if text in texts else -1 for text in asked]
    assert table.find(words_of(asked)).tolist() == wanted
    assert [table.place(text) for text in asked] == wanted
    assert table.is_first().tolist() == [texts.index(text) == place for place, text in enumerate(texts)]
    assert list(table) == texts
    assert KeyTable(words_of([])).find(words_of(texts[:3])).tolist() == [-1] * 3


def columns(name: str, texts: list[str], rows: int) -> PackColumns:
    count = len(texts)
    return PackColumns(name, words_of(texts), np.full(count, rows), np.full(count, 2), np.arange(count))


def test_packed_units_are_a_mapping_in_which_the_first_pack_counts():
    texts = keys(9)
    units = PackedUnits([columns("a", texts[:5], 4), columns("b", texts[3:8], 6)])
    assert len(units) == 8
    assert list(units) == texts[:8]
    assert (units[texts[3]], units[texts[5]]) == (PackedUnit("a", 4, 2), PackedUnit("b", 6, 2))
    assert (texts[7] in units, texts[8] in units) == (True, False)
    assert units.holds([texts[8], texts[0], "notes"]).tolist() == [False, True, False]
    assert units.own("b").tolist() == [False, False, True, True, True]
    with pytest.raises(KeyError):
        units[texts[8]]


def test_some_slots_know_their_place_as_all_do():
    one = manifest(CHUNKS, models=2)
    slots, every = slots_of(one), list(each_slot(one))
    assert list(slots) == every
    assert (slots[0], slots[-1], list(slots[1:4])) == (every[0], every[-1], every[1:4])
    odd = slots.chosen(np.arange(len(every)) % 2 == 1)
    assert list(odd) == every[1::2]
    assert odd.models.tolist() == [slot.model for slot in every[1::2]]
    assert odd.chunks.tolist() == [slot.chunk for slot in every[1::2]]
    with pytest.raises(IndexError):
        slots[len(every)]
