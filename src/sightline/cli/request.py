"""What the user of a command asked for, and the models and images that it names."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from sightline.cli import console

if TYPE_CHECKING:
    import torch

    from sightline.errors import SightlineError
    from sightline.models.adapter import Adapter

__all__ = ["ErrorLog", "Request", "needed", "split_words"]

_SOME = ("bundled/shapes-vit", "timm/vit_base_patch16_224", "torchvision/resnet50", "package/efficientnet_lite0")


@dataclass(frozen=True)
class Request:
    """What was asked for, in the same words for every command that explains images.

    Attributes:
        paths: images, folders and patterns.
        models: model ids.
        methods: recipes; empty for the default panel.
        target: a class by number or label; None for the predicted one.
        out: the folder for what is written; None for none.
        seed: of every method that draws random numbers.
        step: pixels per step of insertion and deletion.
        classes: for a CLIP model, what to choose between.
        device: cpu, cuda or auto.
    """

    paths: tuple[str, ...]
    models: tuple[str, ...]
    methods: tuple[str, ...] = ()
    target: str | None = None
    out: Path | None = None
    seed: int | None = None
    step: int | None = None
    classes: tuple[str, ...] = ()
    device: str = "auto"

    def command(self, name: str) -> str:
        """Return the command line that asks for this again."""
        words = ["sightline", name, *self.paths]
        for model in self.models:
            words += ["--model", model]
        for recipe in self.methods:
            words += ["--method", recipe]
        options = {
            "target": self.target,
            "seed": self.seed,
            "metric-step": self.step,
            "classes": ", ".join(self.classes) or None,
        }
        for option, value in options.items():
            words += [] if value is None else [f"--{option}", str(value)]
        return shlex.join(words)

    def files(self, report: Callable[[str, SightlineError], None]) -> list[Path]:
        """List the images that paths, folders and patterns name, each once; `report` hears of those that name none."""
        from sightline.data.images import find_images
        from sightline.errors import InputError

        files: dict[Path, Path] = {}
        for path in self.paths:
            try:
                for file in find_images(path):
                    files.setdefault(file.resolve(), file)
            except InputError as error:
                report(path, error)
        return list(files.values())

    def open_model(self, model_id: str) -> Adapter:
        """Load a model by its id and put it on the device; `classes` make a CLIP model a classifier."""
        from torch import nn

        from sightline.models import zoo

        device = _device(self.device)
        with console.waiting(f"loading {model_id}"):
            adapter = zoo.load(model_id, classes=list(self.classes) or None)
            if isinstance(adapter.model, nn.Module) and device.type != "cpu":
                adapter.model.to(device)
        return adapter

    def target_of(self, model: Adapter) -> int | None:
        """Return the class that is asked for, None for the predicted one."""
        from sightline.models.targets import find_class

        return None if self.target is None else find_class(model, self.target)


class ErrorLog(list[dict[str, str]]):
    """The errors of a command, as plain data."""

    def add(self, path: object, error: SightlineError, recipe: str = "") -> None:
        """Record that something failed, and say so in a sentence."""
        where = str(path)
        sentence = str(error) if where in str(error) else f"{where}: {error}"
        console.note(f"{recipe} on {sentence}" if recipe else sentence, "error")
        self.append({"path": where, "error": str(error)} | ({"recipe": recipe} if recipe else {}))


def needed(model: str | None) -> str:
    """Return the model id, or say how to give one."""
    if not model:
        raise typer.BadParameter(
            f"name a model with --model, or set SIGHTLINE_MODEL; for instance {', '.join(_SOME)}; "
            "`sightline list models` shows more"
        )
    return model


def split_words(text: str | None) -> tuple[str, ...]:
    """Return the words of a list such as 'cat, dog'."""
    return tuple(word.strip() for word in (text or "").split(",") if word.strip())


def _device(wanted: str) -> torch.device:
    import torch

    if wanted == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(wanted)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError):
        raise typer.BadParameter(f"there is no device {wanted!r} here; give cpu, cuda or auto") from None
    return device
