"""Attributions in files: safetensors, with everything that is no tensor as JSON in the file's header."""

from __future__ import annotations

import base64
import json
from dataclasses import asdict, fields
from os import PathLike
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from sightline.errors import InputError
from sightline.files import write_output
from sightline.targets.tasks import Box, Region, Similarity
from sightline.targets.words import Word
from sightline.types import (
    Attribution,
    Contrast,
    FinerContrast,
    Logit,
    LogProbability,
    Neuron,
    Passes,
    PerImage,
    Probability,
    ResidualSoftmax,
    Target,
    TextSimilarity,
    TokenGrid,
    Value,
)

KEY = "sightline.attribution"  # in the header of the file
FORMAT = 1
TARGETS: dict[str, Any] = {
    cls.__name__: cls
    for cls in (
        Box,
        Contrast,
        FinerContrast,
        Logit,
        LogProbability,
        Neuron,
        Probability,
        Region,
        ResidualSoftmax,
        Similarity,
        TextSimilarity,
        Value,
        Word,
    )
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
        "layers": attribution.layers,
        "own": attribution.own,
        "enlarge": attribution.enlarge,
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
        layers=tuple(header.get("layers", ())),
        own=header.get("own", 0),
        enlarge=header.get("enlarge", "bilinear"),
    )


def _written(target: Target | None) -> Any:
    """Return a target of ours as plain data; None for any other."""
    if isinstance(target, PerImage):
        each = [_written(inner) for inner in target.targets]
        return None if None in each else {"PerImage": each}
    if type(target).__name__ not in TARGETS or type(target) is not TARGETS[type(target).__name__]:
        return None
    content = {field.name: _plain(getattr(target, field.name)) for field in fields(cast(Any, target))}
    if content.get("classes", ()) is None:
        del content["classes"]  # so that versions which do not know it read the file
    return {type(target).__name__: content}


def _read(written: Any) -> Target | None:
    if written is None:
        return None
    ((name, content),) = written.items()
    if name == "PerImage":
        return PerImage(tuple(target for each in content if (target := _read(each)) is not None))
    return cast(Target, TARGETS[name](**{key: _as_tuple(value) for key, value in content.items()}))


def _plain(value: Any) -> Any:
    """Return a tensor as its shape and text: the bits of a mask, the numbers of an embedding."""
    if not isinstance(value, Tensor):
        return value
    held = value.detach().cpu()
    content = np.packbits(held.numpy()) if held.dtype is torch.bool else held.float().numpy()
    kind = "bool" if held.dtype is torch.bool else "float32"
    return {"tensor": kind, "shape": list(held.shape), "base64": base64.b64encode(content.tobytes()).decode()}


def _tensor(written: dict[str, Any]) -> Tensor:
    content, shape = base64.b64decode(written["base64"]), written["shape"]
    if written["tensor"] != "bool":
        return torch.from_numpy(np.frombuffer(content, dtype=np.float32).copy()).reshape(shape)
    bits = np.unpackbits(np.frombuffer(content, dtype=np.uint8), count=int(np.prod(shape)))
    return torch.from_numpy(bits.astype(np.bool_)).reshape(shape)


def _as_tuple(value: Any) -> Any:
    """Return a list, and those inside, as tuples; a tensor as one."""
    if isinstance(value, dict):
        return _tensor(value)
    return tuple(map(_as_tuple, value)) if isinstance(value, list) else value
