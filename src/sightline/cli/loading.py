"""Open what a command is pointed at: models by id, images by path."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import torch
import typer
from torch import nn

from sightline.cli import console
from sightline.data.images import find_images
from sightline.errors import InputError, SightlineError
from sightline.models import zoo
from sightline.models.adapter import Adapter

__all__ = ["gather", "open_model"]


def open_model(model_id: str, device: str = "auto", classes: Sequence[str] = ()) -> Adapter:
    """Load a model by its id and put it on a device; `classes` make a CLIP model a classifier."""
    place = _device(device)
    with console.waiting(f"loading {model_id}"):
        adapter = zoo.load(model_id, classes=list(classes) or None)
        if isinstance(adapter.model, nn.Module) and place.type != "cpu":
            adapter.model.to(place)
    return adapter


def gather(paths: Iterable[str], complain: Callable[[str, SightlineError], None]) -> list[Path]:
    """List the images that paths, folders and patterns name, each once; `complain` hears of those that name none."""
    found: dict[Path, Path] = {}
    for path in paths:
        try:
            for file in find_images(path):
                found.setdefault(file.resolve(), file)
        except InputError as error:
            complain(path, error)
    return list(found.values())


def _device(wanted: str) -> torch.device:
    if wanted == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        place = torch.device(wanted)
        torch.empty(0, device=place)
    except (RuntimeError, AssertionError):
        raise typer.BadParameter(f"there is no device {wanted!r} here; give cpu, cuda or auto") from None
    return place
