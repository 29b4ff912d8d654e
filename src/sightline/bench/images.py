"""Which images a plan means: its data set opened, cut to the limit, split into chunks."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from sightline.bench.plan import Plan
from sightline.bench.unit import Chunk
from sightline.data.dataset import DATASETS, Dataset, open_dataset

__all__ = ["dataset_of", "open_images", "split"]

Given = str | dict[str, Any]


def open_images(given: Given, base: str = "") -> Dataset:
    """Open what `dataset_of` returned; relative paths are looked up in `base` first."""
    return open_dataset(given, base=Path(base) if base else None)


def dataset_of(plan: Plan) -> Given:
    """Return a plan's data set with the plan's limit and seed as options, so that no more is listed than is needed.

    What the data set says itself comes first; a set that has a seed of its own, such as shapes, keeps it. Where models
    are asked which images to take, the limit is theirs (`sightline.bench.sure_images`).
    """
    asked = plan.asks_models
    wanted = {"limit": None if asked else plan.limit, "seed": plan.seed}
    options = {key: value for key, value in wanted.items() if value is not None}
    given = plan.dataset
    if isinstance(given, Mapping):
        name = str(given.get("name", ""))
        return {**{key: value for key, value in options.items() if _means_images(name, key)}, **given}
    name = given.partition("(")[0].strip()
    if name not in DATASETS:
        return {"name": given, **options} if options else given
    return _with_options(given, {key: value for key, value in options.items() if _means_images(name, key)})


def _with_options(text: str, options: dict[str, int]) -> str:
    """Add options to the text of a call, those that it does not have itself.

    >>> _with_options("folder(root='/data/limit=3/x')", {"limit": 2})
    "folder(root='/data/limit=3/x', limit=2)"
    """
    try:
        node = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return text  # its own mistake is said when it is opened
    call = ast.Call(node, [], []) if isinstance(node, ast.Name) else node
    if not isinstance(call, ast.Call):
        return text
    given = {keyword.arg for keyword in call.keywords}
    added = [ast.keyword(key, ast.Constant(value)) for key, value in options.items() if key not in given]
    call.keywords += added
    return ast.unparse(call if call.args or call.keywords else call.func)


def _means_images(name: str, option: str) -> bool:
    """Tell whether an option of a data set chooses images, and is not something of its own."""
    return name not in DATASETS or option not in {field.name for field in fields(DATASETS[name].build)}  # type: ignore[arg-type]


def split(dataset: Dataset, size: int, limit: int | None) -> tuple[Chunk, ...]:
    """Split a data set into chunks of images."""
    ids = dataset.ids[:limit]
    return tuple(_chunk(dataset, ids[first : first + size]) for first in range(0, len(ids), size))


def _chunk(dataset: Dataset, images: tuple[str, ...]) -> Chunk:
    part = replace(dataset, entries={image: dataset.entries[image] for image in images})
    return Chunk(images, part.digest())
