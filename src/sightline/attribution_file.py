"""Attributions in files: safetensors, with everything that is no tensor as JSON in the file's header."""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from os import PathLike
from pathlib import Path
from typing import Any, cast

from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from sightline.errors import InputError
from sightline.files import write_output
from sightline.types import (
    Attribution,
    Contrast,
    Logit,
    LogProbability,
    Passes,
    PerImage,
    Probability,
    Target,
    TextSimilarity,
    TokenGrid,
    Value,
)

KEY = "sightline.attribution"  # in the header of the file
FORMAT = 1
TARGETS: dict[str, Any] = {
    cls.__name__: cls for cls in (Contrast, Logit, LogProbability, Probability, TextSimilarity, Value)
}


def save_attribution(attribution: Attribution, path: str | PathLike[str]) -> Path:
    """Write an attribution into a safetensors file, whole or not at all.

    `details` are not written, nor is a target that is a function of the user's own: its label is.
    """
    tensors = {"values": attribution.values.detach().cpu().contiguous()}
    if attribution.seen is not None:
        tensors["seen"] = attribution.seen.detach().cpu().contiguous()
    header = {
        "format": FORMAT,
        "recipe": attribution.recipe,
        "grid": asdict(attribution.grid),
        "passes": asdict(attribution.passes),
        "flags": attribution.flags,
        "labels": attribution.labels,
        "target": _written(attribution.target),
    }
    return write_output(path, save(tensors, metadata={KEY: json.dumps(header)}))


def load_attribution(path: str | PathLike[str]) -> Attribution:
    """Read an attribution from the file that `save_attribution` wrote."""
    path = Path(path)
    if not path.is_file():
        raise InputError(f"{path} does not exist; give the file that attribution.save wrote")
    try:
        with safe_open(path, framework="pt") as file:
            header = json.loads((file.metadata() or {})[KEY])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        raise InputError(
            f"{path} holds no attribution ({type(error).__name__}); give a file that attribution.save wrote"
        ) from error
    if header["format"] != FORMAT:
        raise InputError(f"{path} has format {header['format']}, this version reads {FORMAT}; update sightline")
    grid = header["grid"]
    return Attribution(
        values=tensors["values"],
        grid=TokenGrid(**grid | {"image": tuple(grid["image"])}),
        recipe=header["recipe"],
        passes=Passes(**header["passes"]),
        flags=tuple(header["flags"]),
        labels=tuple(header["labels"]),
        target=_read(header["target"]),
        seen=tensors.get("seen"),
    )


def _written(target: Target | None) -> Any:
    """Return a target of ours as plain data; None for any other."""
    if isinstance(target, PerImage):
        each = [_written(inner) for inner in target.targets]
        return None if None in each else {"PerImage": each}
    if type(target).__name__ not in TARGETS or type(target) is not TARGETS[type(target).__name__]:
        return None
    return {type(target).__name__: {field.name: getattr(target, field.name) for field in fields(cast(Any, target))}}


def _read(written: Any) -> Target | None:
    if written is None:
        return None
    ((name, content),) = written.items()
    if name == "PerImage":
        return PerImage(tuple(target for each in content if (target := _read(each)) is not None))
    values = {key: tuple(value) if isinstance(value, list) else value for key, value in content.items()}
    return cast(Target, TARGETS[name](**values))
