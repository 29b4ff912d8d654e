"""Which images a plan means: its data set opened, cut to the limit, dealt into blocks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from sightline.bench.plan import Plan
from sightline.bench.unit import Block
from sightline.data.dataset import DATASETS, Dataset, open_dataset

__all__ = ["chosen", "deal", "open_images"]

Given = str | dict[str, Any]


def open_images(given: Given, base: str = "") -> Dataset:
    """Open what `chosen` returned; relative paths are looked up in `base` first."""
    return open_dataset(given, base=Path(base) if base else None)


def chosen(plan: Plan) -> Given:
    """Return a plan's data set with the plan's limit and seed as options, so that no more is listed than is needed.

    What the data set says itself comes first; a set that has a seed of its own, such as shapes, keeps it.
    """
    wanted = {"limit": plan.limit, "seed": plan.seed}
    more = {key: value for key, value in wanted.items() if value is not None}
    given = plan.dataset
    if isinstance(given, Mapping):
        name = str(given.get("name", ""))
        return {**{key: value for key, value in more.items() if _takes(name, key)}, **given}
    name, called, options = given.strip().partition("(")
    name = name.strip()
    if name not in DATASETS:
        return {"name": given, **more} if more else given
    added = [f"{key}={value}" for key, value in more.items() if _takes(name, key) and f"{key}=" not in options]
    if called and not options.endswith(")"):
        return given  # its own mistake is said when it is opened
    inner = [options[:-1].strip()] if called and options[:-1].strip() else []
    return f"{name}({', '.join([*inner, *added])})" if inner or added else name


def _takes(name: str, key: str) -> bool:
    """Tell whether the option of a data set means the choice of images, and not something of its own."""
    return name not in DATASETS or key not in {field.name for field in fields(DATASETS[name].build)}  # type: ignore[arg-type]


def deal(dataset: Dataset, size: int, limit: int | None) -> tuple[Block, ...]:
    """Cut a data set into blocks of images."""
    ids = dataset.ids[:limit]
    return tuple(_block(dataset, ids[first : first + size]) for first in range(0, len(ids), size))


def _block(dataset: Dataset, images: tuple[str, ...]) -> Block:
    part = replace(dataset, entries={image: dataset.entries[image] for image in images})
    return Block(images, part.digest())
