"""The allocator is told once what to keep, where it can be told."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

import pytest

from sightline.app.memory import KEPT, LARGEST_BLOCK, keep_freed_memory


def test_freed_memory_is_kept_up_to_a_bound(monkeypatch):
    told = {}
    library = SimpleNamespace(mallopt=lambda option, value: told.update({option: value}) or 1)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: library)
    assert keep_freed_memory()
    assert told == {-1: KEPT, -3: LARGEST_BLOCK}


@pytest.mark.parametrize("library", [SimpleNamespace(), SimpleNamespace(mallopt=lambda option, value: 0)])
def test_another_c_library_is_left_as_it_is(monkeypatch, library):
    monkeypatch.setattr(ctypes, "CDLL", lambda name: library)
    assert not keep_freed_memory()
