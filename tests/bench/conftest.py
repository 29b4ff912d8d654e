"""Fixtures of the benchmark: a folder of small labelled images, a small model from outside, a plan."""

from __future__ import annotations

import importlib
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from sightline.bench.plan import Plan, make_plan
from sightline.bench.store.store import read_rows
from sightline.data.source import DATASETS
from sightline.models.zoo import ids as zoo
from sightline.registry import METHODS, METRICS

PLUGIN = Path(__file__).parent / "faulty_plugin.py"
COUNT = 6
VARYING = ["seconds", "versions"]  # columns that may differ between two runs of the same plan


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Install the faulty plugin for this test and its workers, and forget it afterwards."""
    assert min(map(len, (METHODS, METRICS, DATASETS)))  # whatever is there is there before the copies are made
    for registry in (METHODS, METRICS):
        monkeypatch.setattr(registry, "_specs", dict(registry._specs))
    monkeypatch.setattr(zoo, "LIBRARIES", dict(zoo.LIBRARIES))
    home = tmp_path / "site"
    facts = home / "faulty_plugin-1.0.dist-info"
    facts.mkdir(parents=True)
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: faulty_plugin\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text("[sightline.plugins]\nfaulty = faulty_plugin\n")
    shutil.copy(PLUGIN, home)
    monkeypatch.syspath_prepend(str(home))
    importlib.import_module("faulty_plugin")
    yield home
    sys.modules.pop("faulty_plugin", None)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Six labelled images of 40×48 pixels with masks; the last has none."""
    folder = tmp_path / "photos"
    for name in ("images", "masks"):
        (folder / name).mkdir(parents=True)
    random = np.random.default_rng(4)
    lines = ["file,label"]
    for index in range(COUNT):
        blocks = random.integers(0, 200, (5, 6, 3), dtype=np.uint8).repeat(8, axis=0).repeat(8, axis=1)
        Image.fromarray(blocks).save(folder / "images" / f"photo{index}.png")
        mask = np.zeros((40, 48), dtype=np.uint8)
        mask[8 : 8 + 4 * (index + 1), 16:32] = 255
        if index < COUNT - 1:
            Image.fromarray(mask).save(folder / "masks" / f"photo{index}.png")
        lines.append(f"photo{index}.png,{index % 5}")
    (folder / "labels.csv").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture
def white(photos: Path) -> Callable[[int], Path]:
    """Make one of the photos white."""

    def whiten(index: int) -> Path:
        path = photos / "images" / f"photo{index}.png"
        Image.new("RGB", (48, 40), "white").save(path)
        return path

    return whiten


@pytest.fixture
def settings(outside: Path, photos: Path) -> dict[str, Any]:
    """A plan of seconds: one small model, two methods, three metrics, six images in three blocks."""
    return {
        "name": "small",
        "models": ["tests/small"],
        "methods": ["ixg", "smooth_grad(samples=2)"],
        "metrics": ["insertion(step=128)", "deletion(step=128)", "average_precision"],
        "dataset": str(photos),
        "batch": 2,
        "controls": False,
    }


@pytest.fixture
def plan(settings: dict[str, Any]) -> Callable[..., Plan]:
    """Make the small plan, with changes."""

    def make(**changes: Any) -> Plan:
        return make_plan({**settings, **changes})

    return make


def rows_of(store: Any) -> Any:
    """Return the rows of a store without what may differ between two runs, as plain lists."""
    frame = read_rows(store).drop(columns=VARYING).astype(object)
    frame["curve"] = [None if curve is None else tuple(curve) for curve in frame["curve"]]
    return list(frame.where(frame.notna(), "none").itertuples(index=False, name=None))


@pytest.fixture
def rows() -> Callable[[Any], Any]:
    return rows_of
