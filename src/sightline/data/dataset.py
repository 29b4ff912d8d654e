"""Open a data set from a line of text, a table of a plan, or the path of a folder.

>>> open_dataset("shapes(count=3, seed=1)").ids
('shape-000000', 'shape-000001', 'shape-000002')

The text has the syntax of a Python call and holds literals only: ``imagenet(root='/data/imagenet', limit=100)``. A path
opens what lies there: a folder with labels.csv, folders of classes, plain images, a CSV file, a saved Hugging Face set.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch

from sightline.catalogue.options import default_text, hints_of, missing_options
from sightline.data.images import ImageSource
from sightline.data.selection import Dataset, Selection, select
from sightline.data.source import DATASETS, DatasetSpec, Sample
from sightline.errors import InputError, RecipeError
from sightline.recipe import Call, check_names, is_call, read_call
from sightline.registry import check_option, nearest

__all__ = ["DATASETS", "Dataset", "DatasetSpec", "Sample", "dataset_sources", "open_dataset", "options_of"]

HOME = "SIGHTLINE_DATA"  # the variable that names a folder of data sets, so that plans need not say where it is


def open_dataset(given: str | Path | Mapping[str, Any], *, base: Path | None = None) -> Dataset:
    """Open a data set.

    Args:
        given: text such as ``shapes(count=40)``, a mapping such as ``{"name": "shapes", "count": 40}``, or a path.
        base: the folder in which relative paths are looked up first; then in the current one, then in the one that the
            variable SIGHTLINE_DATA names.

    Raises:
        RecipeError: no such data set, or a wrong option.
        InputError: a path that does not exist, or a folder that does not hold what it should.
    """
    if isinstance(given, Mapping):
        options = dict(given)
        if not isinstance(name := options.pop("name", None), str):
            raise RecipeError("a data set given as a table needs name, for instance name = 'imagenet'")
        return _open(name, options, base)
    if isinstance(given, Path):
        return _open_path(str(given), {}, base)
    if not isinstance(given, str) or not given.strip():
        raise RecipeError(f"got {given!r} as a data set; write a name, or the path of a folder")
    registered = given.partition("(")[0].strip() in DATASETS
    call = is_call(given) or (registered and given.strip().endswith(")"))
    if not call or (not registered and _find(given, base) is not None):
        return _open_path(given, {}, base)
    return _open_call(read_call(given, "data set"), base)


def dataset_sources(dataset: Dataset, limit: int | None = None) -> list[ImageSource]:
    """Return the first images of a data set; a quad, which it lists once for each cell, comes once with four masks.

    >>> first, _ = dataset_sources(open_dataset("quads(of=shapes(count=8), side=64)"))
    >>> first.name, len(first.masks)
    ('quad-0000-top-left', 4)
    """
    found: list[ImageSource] = []
    for sample in dataset:
        image = _source(sample)
        if found and _same_pixels(image, found[-1]):
            found[-1] = replace(found[-1], masks=found[-1].masks + image.masks)
        elif limit is not None and len(found) == limit:
            break
        else:
            found.append(image)
    return found


def _source(sample: Sample) -> ImageSource:
    shown = sample.classes or (() if sample.label is None else (sample.label,))
    masks = () if sample.mask is None else (torch.as_tensor(sample.mask),)
    photograph = sample.image if sample.tensor is None else None
    known = (photograph, sample.tensor, tuple(dict.fromkeys(shown)), masks)
    return ImageSource(sample.id, sample.id, sample.id, *known)


def _same_pixels(one: ImageSource, other: ImageSource) -> bool:
    return one.pixels is not None and other.pixels is not None and torch.equal(one.pixels, other.pixels)


def options_of(spec: DatasetSpec) -> dict[str, str]:
    """Return the options of a data set with their defaults, as text; those that every set has come last."""
    options = {field.name: default_text(field) for field in fields(spec.build)}  # type: ignore[arg-type]
    options |= {field.name: default_text(field) for field in fields(Selection) if field.name not in options}
    return options | ({"protocol": "None"} if spec.protocols else {})


def _open_call(call: Call, base: Path | None) -> Dataset:
    registered = call.name in DATASETS or call.arguments  # a folder takes no values without a name
    own = fields(DATASETS[call.name].build) if registered else ()  # type: ignore[arg-type]
    return _open(call.name, call.bind([field.name for field in own]), base)


def _open(name: str, options: dict[str, Any], base: Path | None) -> Dataset:
    """Open a registered data set, or a folder of this name."""
    if _is_path(name, options, base):
        return _open_path(name, options, base)
    spec = DATASETS[name]
    options = _with_protocol(spec, options)
    check_names(name, options, options_of(spec))
    own_hints, common_hints = hints_of(spec.build), hints_of(Selection)
    own = {key: _checked(name, key, value, own_hints[key], base) for key, value in options.items() if key in own_hints}
    common = {
        key: _checked(name, key, value, common_hints[key], base) for key, value in options.items() if key not in own
    }
    if missing := missing_options(spec.build, own):
        raise RecipeError(f"{name} needs {missing[0]}, for instance {name}({missing[0]}='…')")
    return select(spec.build(**own), name, Selection(**common))


def _is_path(name: str, options: Mapping[str, Any], base: Path | None) -> bool:
    """Tell whether a name is that of a folder: it is no data set, or one that lacks what it needs to be opened."""
    if name in DATASETS:
        return bool(missing_options(DATASETS[name].build, options)) and _find(name, base) is not None
    return not name.isidentifier() or _find(name, base) is not None


def _with_protocol(spec: DatasetSpec, options: dict[str, Any]) -> dict[str, Any]:
    """Fill in what a paper's protocol fixes and the options leave open."""
    options = dict(options)
    wanted = options.pop("protocol", None)
    if wanted is None:
        return options
    if wanted not in spec.protocols:
        raise RecipeError(f"{spec.name} has no protocol {wanted!r}; it has {', '.join(spec.protocols) or 'none'}")
    fixed = {**spec.protocols[wanted], **options}
    if fixed.get("confidence") and fixed.get("predictions") is None:
        raise RecipeError(
            f"the protocol {wanted!r} keeps what its model classified surely; give predictions='table.csv' "
            "with the columns id, predicted and probability"
        )
    return fixed


def _checked(name: str, key: str, value: Any, hint: Any, base: Path | None) -> Any:
    """Check an option against its annotation; find a path, open a data set inside."""
    if hint is Dataset:
        if isinstance(value, Call):
            return _open_call(value, base)
        return value if isinstance(value, Dataset) else open_dataset(value, base=base)
    if isinstance(value, Call):
        raise RecipeError(f"{name} got {key}={value}; options are literals, write a text in quotes")
    if Path in (hint, *getattr(hint, "__args__", ())):
        if value is None:
            return None
        if not isinstance(value, str | Path):
            raise RecipeError(f"{name} got {key}={value!r}; give the path as text")
        if not str(value).strip():
            raise RecipeError(f"{name} got {key}={value!r}; give the path, '.' for the current folder")
        path = _find(value, base)
        if path is None:
            raise InputError(f"{name} got {key}={str(value)!r}, which does not exist; check the path, or set {HOME}")
        return path
    return check_option(name, key, tuple(value) if isinstance(value, list) else value, hint)


def _find(given: str | Path, base: Path | None) -> Path | None:
    """Return where a path leads: below `base`, the current folder or $SIGHTLINE_DATA; None where nothing is there."""
    try:
        path = Path(given).expanduser()
        tops = [base, Path(), Path(os.environ[HOME]) if os.environ.get(HOME) else None]
        return next((top / path for top in tops if top is not None and (top / path).exists()), None)
    except (OSError, ValueError, RuntimeError):  # too long, a null byte, a user that does not exist
        return None


def _open_path(given: str, options: dict[str, Any], base: Path | None) -> Dataset:
    path = _find(given, base)
    if path is None:
        near = nearest(given.partition("(")[0].strip(), DATASETS)
        hint = f"did you mean {near!r}?" if near else "see `sightline list datasets`"
        raise InputError(f"{given!r} is neither a data set nor a path that exists; {hint}")
    return _open(_layout(path), {"root": path, **options}, base)


def _layout(path: Path) -> str:
    """Tell by what lies at a path how it is read."""
    if path.is_file():
        if path.suffix.lower() != ".csv":
            raise InputError(f"{path} is a file; give a folder of images, or a .csv file that lists them")
        return "csv"
    if (path / "labels.csv").is_file():
        return "labelled"
    if any((path / name).is_file() for name in ("dataset_info.json", "dataset_dict.json")):
        return "hub"
    return "folder"
