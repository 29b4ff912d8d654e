"""What the user of a command asked for: the images and models that it names, and the folder that it writes into.

The files of a command are written all or none: everything goes into a hidden folder first and is moved to its place
when the run is done. A run that fails, or that Ctrl-C stops, leaves the output folder as it was.
"""

from __future__ import annotations

import secrets
import shlex
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from sightline.cli import console
from sightline.errors import OutputError
from sightline.files import free_name, png_file, sweep

if TYPE_CHECKING:
    import torch
    from PIL import Image

    from sightline.data.images import ImageSource
    from sightline.errors import SightlineError
    from sightline.models.adapter import Adapter
    from sightline.types import Enlarge

__all__ = ["ErrorLog", "Request", "StagedOutput", "staged_output"]

_SOME = ("bundled/shapes-vit", "timm/vit_base_patch16_224", "torchvision/resnet50", "package/efficientnet_lite0")


@dataclass(frozen=True)
class Request:
    """What was asked for, in the same words for every command that explains images.

    Attributes:
        paths: images, folders and patterns.
        models: model ids.
        methods: recipes; empty for the default panel.
        targets: classes by number or label, regions or boxes; empty for what the data set shows, or is predicted.
        out: the folder for what is written; None for none.
        seed: of every method that draws random numbers.
        step: pixels per step of insertion and deletion.
        classes: for a CLIP model, what to choose between.
        device: cpu, cuda, mps or auto.
        texts: for a CLIP model, texts to explain one by one.
        templates: sentences with a place for each of the classes.
        num_classes: how many classes a model is built with; None for its own number.
        labels: a file of class names.
        output: what the model's numbers are; None for what the model says.
        pretrained: with trained weights.
        data: a data set in place of paths, or beside them: text, or a table of a plan.
        base: the folder in which its relative paths are looked up first.
        limit: how many of its images.
        enlarge: how maps become pixels; None as each method says.
        prompt: for a vision-language model, what to ask.
        answer: for a vision-language model, what is explained; None for what it answers.
        command: the command line that asks for this again, where the command has one.
    """

    paths: tuple[str, ...]
    models: tuple[str, ...]
    methods: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    out: Path | None = None
    seed: int | None = None
    step: int | None = None
    classes: tuple[str, ...] = ()
    device: str = "auto"
    texts: tuple[str, ...] = ()
    templates: tuple[str, ...] = ()
    num_classes: int | None = None
    labels: Path | None = None
    output: str | None = None
    pretrained: bool = True
    data: str | Mapping[str, Any] | None = None
    base: Path | None = None
    limit: int | None = None
    enlarge: Enlarge | None = None
    prompt: str | None = None
    answer: str | None = None
    command: str = ""

    @classmethod
    def of(
        cls,
        paths: Sequence[str] | None,
        models: str | Sequence[str] | None,
        methods: Sequence[str] | None,
        classes: str | None,
        *,
        command: str = "",
        needs_images: bool = False,
        **options: Any,
    ) -> Request:
        """Take a request from the command line.

        Lists may be missing, `classes` are words such as 'cat, dog', and `target` among the options is one or several.
        A command that `needs_images` is refused where it names neither images nor a data set; `command` is its name.
        """
        if needs_images and not paths and options.get("data") is None:
            raise typer.BadParameter("name images to explain, or a data set with --data")
        if not models:
            raise typer.BadParameter(
                f"name a model with --model, or set SIGHTLINE_MODEL; for instance {', '.join(_SOME)}; "
                "`sightline list models` shows more"
            )
        target = options.pop("target", None)
        options["targets"] = (target,) if isinstance(target, str) else tuple(target or ())
        enlarge = options.get("enlarge")
        options["enlarge"] = None if enlarge is None else str(enlarge)
        for name in ("texts", "templates"):
            options[name] = tuple(options.get(name) or ())
        if options["texts"] and classes:
            raise typer.BadParameter("give --text or --classes, not both; --classes puts its words into a sentence")
        if options.get("answer") and not options.get("prompt"):
            raise typer.BadParameter("got --answer without --prompt; say what is asked")
        request = cls(
            paths=tuple(paths or ()),
            models=(models,) if isinstance(models, str) else tuple(models),
            methods=tuple(methods or ()),
            classes=tuple(word.strip() for word in (classes or "").split(",") if word.strip()),
            **options,
        )
        return replace(request, command=request._line(command)) if command else request

    def _line(self, name: str) -> str:
        """Return the command line that asks for this again."""
        words = ["sightline", name, *self.paths]
        for model in self.models:
            words += ["--model", model]
        for recipe in self.methods:
            words += ["--method", recipe]
        options = {
            "seed": self.seed,
            "metric-step": self.step,
            "classes": ", ".join(self.classes) or None,
            "num-classes": self.num_classes,
            "labels": self.labels,
            "output": self.output,
            "data": self.data,
            "limit": self.limit if self.data else None,
            "enlarge": self.enlarge,
            "prompt": self.prompt,
            "answer": self.answer,
        }
        for option, several in (("target", self.targets), ("text", self.texts), ("template", self.templates)):
            for text in several:
                words += [f"--{option}", text]
        words += [] if self.pretrained else ["--no-pretrained"]
        for option, value in options.items():
            words += [] if value is None else [f"--{option}", str(value)]
        return shlex.join(words)

    def sources(self, errors: ErrorLog) -> list[ImageSource]:
        """List the images that are named, files and samples of a data set; what names none is reported."""
        from sightline.data.dataset import dataset_sources, open_dataset
        from sightline.data.images import image_sources

        sources, failed = image_sources(self.paths)
        if self.data is not None:
            sources += dataset_sources(open_dataset(self.data, base=self.base), self.limit)
        for path, error in failed:
            errors.add(path, error)
        return sources

    def files(self, report: Callable[[str, SightlineError], None]) -> list[Path]:
        """List the images that paths, folders and patterns name, each once; `report` hears of those that name none."""
        from sightline.data.images import image_files

        files, failed = image_files(self.paths)
        for path, error in failed:
            report(path, error)
        return files

    def opened(self) -> tuple[Adapter, list[Any]]:
        """Load the model, the first where there are several, and return also what is asked for of each image."""
        model = self.open_model(self.models[0])
        return model, self.targets_of(model)

    def open_model(self, model_id: str) -> Adapter:
        """Load a model by its id and put it on the device; `classes` or `texts` make a CLIP model a classifier."""
        from torch import nn

        from sightline.models import zoo

        device = _device(self.device)
        with console.waiting(f"loading {model_id}"):
            adapter = _described(zoo.load(model_id, self.pretrained, **self._load_options()), self.labels, self.output)
            if len(self.texts) == 1 and adapter.output == "softmax":
                raise typer.BadParameter(
                    f"one --text leaves {model_id} nothing to choose between; give a second, such as --text 'a photo'"
                )
            if isinstance(adapter.model, nn.Module) and device.type != "cpu":
                adapter.model.to(device)
        return adapter

    def _load_options(self) -> dict[str, Any]:
        """Return what is handed to `load` beside the id."""
        templates = ["{}"] if self.texts else list(self.templates)
        options: dict[str, Any] = {"classes": list(self.texts or self.classes), "templates": templates}
        options |= {"num_classes": self.num_classes, "prompt": self.prompt, "answer": self.answer}
        return {name: value for name, value in options.items() if value}

    def targets_of(self, model: Adapter) -> list[Any]:
        """Return what is asked for of each image: classes, regions, boxes, else every text; empty for nothing named."""
        from sightline.models.targets import read_target

        named = [read_target(model, target) for target in self.targets]
        return named or list(range(len(self.texts)))


class ErrorLog(list[dict[str, str]]):
    """The errors of a command, as plain data."""

    def add(self, path: object, error: SightlineError, recipe: str = "") -> None:
        """Record that something failed, and say so in a sentence."""
        where = str(path)
        sentence = str(error) if where in str(error) else f"{where}: {error}"
        console.note(f"{recipe} on {sentence}" if recipe else sentence, "error")
        self.append({"path": where, "error": str(error)} | ({"recipe": recipe} if recipe else {}))


def _device(wanted: str) -> torch.device:
    import torch

    if wanted == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(wanted)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError):
        raise typer.BadParameter(f"there is no device {wanted!r} here; give cpu, cuda, mps or auto") from None
    return device


def _described(adapter: Adapter, labels: Path | None, output: str | None) -> Adapter:
    """Give an adapter the class names of a file, and what its numbers are."""
    from sightline.errors import InputError
    from sightline.models.zoo.labels_file import read_labels

    facts: dict[str, Any] = {} if output is None else {"output": output}
    try:
        if labels is not None:
            facts["labels"] = read_labels(labels, adapter.num_classes)
        return adapter.with_facts(**facts) if facts else adapter
    except InputError as error:
        raise typer.BadParameter(str(error)) from error


# ---- what a command writes ------------------------------------------------------------------------------------------


@dataclass
class StagedOutput:
    """Files that are staged for a folder.

    Attributes:
        folder: where they will be.
        staging: where they are until then.
        taken: names of subfolders already given away, in lower case.
    """

    folder: Path
    staging: Path
    taken: set[str] = field(default_factory=lambda: {"index.html"})

    def subfolder(self, name: str) -> str:
        """Return a name for a subfolder that no other image of the run has."""
        return free_name(name, self.taken)

    def png(self, name: str, picture: Image.Image, facts: dict[str, str]) -> Path:
        """Write a picture, which carries in its metadata what it shows; return the path it will have."""
        return self.write(name, png_file(picture, facts))

    def write(self, name: str, data: bytes) -> Path:
        """Write a file, and return the path it will have."""
        path = self.staging / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise OutputError(f"cannot write {path}: {reason}; choose a folder that can be written") from error
        return self.folder / name

    def commit(self) -> None:
        """Move every file to its place, and remove the pictures of an earlier run that they replace."""
        fresh = [path.relative_to(self.staging) for path in sorted(self.staging.rglob("*")) if path.is_file()]
        try:
            for name in fresh:
                (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
                (self.staging / name).replace(self.folder / name)
        except OSError as error:
            raise OutputError(f"cannot write into {self.folder}: {(error.strerror or str(error)).lower()}") from error
        for parent in {name.parent for name in fresh if len(name.parts) > 1}:
            sweep(self.folder / parent, {name.name for name in fresh if name.parent == parent})


@contextmanager
def staged_output(folder: Path) -> Iterator[StagedOutput]:
    """Stage files for a folder; they are moved there if the block ends well, and removed if it does not."""
    made = [parent for parent in (folder, *folder.parents) if not parent.exists()]
    output = StagedOutput(folder, folder / f".sightline-{secrets.token_hex(6)}.part")
    try:
        _make(output.staging, folder)
        yield output
        output.commit()
    finally:
        shutil.rmtree(output.staging, ignore_errors=True)
        for parent in made:  # innermost first; a folder that holds something stays
            with suppress(OSError):
                parent.rmdir()


def _make(staging: Path, folder: Path) -> None:
    try:
        staging.mkdir(parents=True)
    except OSError as error:
        blocked = isinstance(error, FileExistsError | NotADirectoryError)
        reason = "it is a file, or lies in one" if blocked else (error.strerror or str(error)).lower()
        raise OutputError(f"cannot write into {folder}: {reason}; choose another --out") from error
