"""Units: a model, a recipe and a block of images, keyed by everything that determines their rows.

A run is written down as a :class:`Manifest`; its units follow from that alone, without a model or an image at hand.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = ["Block", "Described", "Manifest", "Setting", "Unit", "key_of", "sentence_of"]


@dataclass(frozen=True, slots=True)
class Setting:
    """What every unit of a run shares, and all a worker needs to be told before its first one.

    Attributes:
        dataset: as `open_dataset` takes it.
        base: the folder relative paths are looked up in, empty for the current one.
        target: the class explained, "predicted" or "label".
        seed: of the run, in every row.
        threads: of a worker; together with the block of images it decides the last digits.
        device: cpu or cuda.
        resize: "model" for its own preprocessing, or "squash".
        classes: for CLIP models, what to choose between.
    """

    dataset: str | dict[str, Any]
    base: str = ""
    target: str = "predicted"
    seed: int = 0
    threads: int = 1
    device: str = "cpu"
    resize: str = "model"
    classes: tuple[str, ...] = ()

    def json(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {**asdict(self), "classes": list(self.classes)}

    @classmethod
    def of(cls, data: dict[str, Any]) -> Setting:
        """Read it back."""
        return cls(**{**data, "classes": tuple(data["classes"])})


@dataclass(frozen=True, slots=True)
class Unit:
    """The smallest thing that is done, stored and resumed as a whole.

    Attributes:
        run: the plan's name.
        model: its id.
        weights: digest of its weights.
        recipe: canonical recipe of the method.
        metrics: canonical recipes of the metrics.
        images: ids of the block's images.
        dataset: its name.
        data: digest of the block: the data set's options, and the images' ids and labels.
        target: the class explained, "predicted" or "label".
        seed: of the run.
        threads: of the worker.
        device: cpu or cuda.
        resize: "model" or "squash".
        classes: for CLIP models.
        maps: how many images of the block keep their maps, from the first on.
        version: of sightline.
    """

    run: str
    model: str
    weights: str
    recipe: str
    metrics: tuple[str, ...]
    images: tuple[str, ...]
    dataset: str
    data: str
    target: str
    seed: int
    threads: int
    device: str
    resize: str
    classes: tuple[str, ...]
    maps: int
    version: str

    @property
    def key(self) -> str:
        """Digest of all of it: another setting, another key."""
        return key_of(self.json())

    def json(self) -> dict[str, Any]:
        """Return it as plain data."""
        lists = {"metrics": list(self.metrics), "images": list(self.images), "classes": list(self.classes)}
        return asdict(self) | lists

    @classmethod
    def of(cls, data: dict[str, Any]) -> Unit:
        """Read it back."""
        return cls(**data | {name: tuple(data[name]) for name in ("metrics", "images", "classes")})


def key_of(data: Any) -> str:
    """Return the digest of plain data, 32 hexadecimal digits, the same on every machine."""
    text = json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


@dataclass(frozen=True, slots=True)
class Described:
    """What loading a model told: its weights, and what of the plan runs on it.

    Attributes:
        model: its id.
        weights: digest of its weights.
        recipes: those that run on it.
        metrics: those that run on it.
        left_out: (recipe or metric, why it does not run).
    """

    model: str
    weights: str
    recipes: tuple[str, ...]
    metrics: tuple[str, ...]
    left_out: tuple[tuple[str, str], ...] = ()

    def json(self) -> dict[str, Any]:
        """Return it as plain data."""
        return asdict(self)

    @classmethod
    def of(cls, data: dict[str, Any]) -> Described:
        """Read it back from plain data."""
        left_out = tuple((name, reason) for name, reason in data["left_out"])
        return cls(data["model"], data["weights"], tuple(data["recipes"]), tuple(data["metrics"]), left_out)


@dataclass(frozen=True, slots=True)
class Block:
    """Images that go through a unit together.

    Attributes:
        images: their ids.
        data: digest of the data set's options and of these images' ids and labels; what else the set holds does not
            matter, so that a longer run finds what a shorter one has done.
    """

    images: tuple[str, ...]
    data: str


@dataclass(frozen=True)
class Manifest:
    """Everything the units of a run follow from; the store's ``plan.json``.

    Attributes:
        plan: the plan as plain data, overrides included.
        setting: what workers are told.
        dataset: the data set's name.
        blocks: the chosen images, in order.
        models: what each model told.
        skipped: (id, reason) of images that the data set left out.
        version: of sightline.
        command: what to type to run it again.
    """

    plan: dict[str, Any]
    setting: Setting
    dataset: str
    blocks: tuple[Block, ...]
    models: tuple[Described, ...]
    skipped: tuple[tuple[str, str], ...] = ()
    version: str = ""
    command: str = field(default="", compare=False)

    @property
    def name(self) -> str:
        """The run's name."""
        return str(self.plan["name"])

    def units(self) -> Iterator[Unit]:
        """Yield every unit: model by model, block by block, all recipes of a block together.

        So the recipes stay comparable while the run is under way, and a worker reads each block once.
        """
        for model in self.models:
            kept = len(self.images) if self.plan["maps"] is True else int(self.plan["maps"])
            for block in self.blocks:
                maps = min(kept, len(block.images))
                kept -= maps
                for recipe in model.recipes:
                    yield self._unit(model, recipe, block, maps)

    @property
    def images(self) -> tuple[str, ...]:
        """The ids of all images."""
        return tuple(image for block in self.blocks for image in block.images)

    def _unit(self, model: Described, recipe: str, block: Block, maps: int) -> Unit:
        setting = self.setting
        return Unit(
            run=self.name,
            model=model.model,
            weights=model.weights,
            recipe=recipe,
            metrics=model.metrics,
            images=block.images,
            dataset=self.dataset,
            data=block.data,
            target=setting.target,
            seed=setting.seed,
            threads=setting.threads,
            device=setting.device,
            resize=setting.resize,
            classes=setting.classes,
            maps=maps,
            version=self.version,
        )

    def json(self) -> dict[str, Any]:
        """Return it as plain data: the plan's own settings first, what was found out under ``resolved``."""
        resolved = {
            "setting": self.setting.json(),
            "dataset": self.dataset,
            "blocks": [asdict(block) for block in self.blocks],
            "models": [model.json() for model in self.models],
            "skipped": [list(one) for one in self.skipped],
            "version": self.version,
            "command": self.command,
        }
        return {**self.plan, "resolved": resolved}

    @classmethod
    def of(cls, data: dict[str, Any]) -> Manifest:
        """Read it back."""
        plan, found = {key: value for key, value in data.items() if key != "resolved"}, data["resolved"]
        return cls(
            plan=plan,
            setting=Setting.of(found["setting"]),
            dataset=found["dataset"],
            blocks=tuple(Block(tuple(block["images"]), block["data"]) for block in found["blocks"]),
            models=tuple(map(Described.of, found["models"])),
            skipped=tuple((name, reason) for name, reason in found["skipped"]),
            version=found["version"],
            command=found["command"],
        )


def sentence_of(error: BaseException) -> str:
    """Return what went wrong in one line."""
    from sightline.errors import SightlineError

    line = " ".join(str(error).split())
    return line if isinstance(error, SightlineError) and line else f"{type(error).__name__}: {line}".removesuffix(": ")
