"""Units: a model, a recipe and a chunk of images, keyed by everything that determines their rows.

A run is described by a :class:`Manifest`; its units follow from that alone, without a model or an image at hand.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = [
    "Chunk",
    "Manifest",
    "ModelInfo",
    "Package",
    "RunConfig",
    "SourceDigests",
    "Unit",
    "key_of",
    "sentence_of",
]


@dataclass(frozen=True, slots=True)
class RunConfig:
    """What every unit of a run shares, and all a worker needs to be told before its first one.

    Attributes:
        dataset: as `open_dataset` takes it.
        base: the folder relative paths are looked up in, empty for the current one.
        target: the class explained, "predicted" or "label".
        seed: of the run, in every row.
        threads: of a worker; together with the chunk of images it decides the last digits.
        device: cpu or cuda.
        resize: "model" for its own preprocessing, "squash" or "crop".
        classes: for CLIP models, what to choose between.
        enlarge: how maps become pixels; empty as each method says.
        confidence: the least probability of a class that counts as shown by the picture.
    """

    dataset: str | dict[str, Any]
    base: str = ""
    target: str = "predicted"
    seed: int = 0
    threads: int = 1
    device: str = "cpu"
    resize: str = "model"
    classes: tuple[str, ...] = ()
    enlarge: str = ""
    confidence: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {**_without_defaults(asdict(self), "enlarge", "confidence"), "classes": list(self.classes)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> RunConfig:
        """Read it back."""
        return cls(**{**data, "classes": tuple(data["classes"])})


@dataclass(frozen=True, slots=True)
class Unit:
    """The smallest piece of work: it is computed, stored and resumed as one.

    Attributes:
        run: the plan's name.
        model: its id.
        weights: digest of its weights.
        recipe: canonical recipe of the method.
        metrics: canonical recipes of the metrics.
        images: ids of the chunk's images.
        dataset: its name.
        data: digest of the chunk: the data set's options, and the images' ids and labels.
        target: the class explained, "predicted" or "label".
        seed: of the run.
        threads: of the worker.
        device: cpu or cuda.
        resize: "model", "squash" or "crop".
        classes: for CLIP models.
        maps: how many images of the chunk keep their maps, from the first on.
        version: of sightline.
        source: digests of the source behind the recipe and behind each of the metrics, in this order; empty in a store
            of a version that did not record them.
        enlarge: how maps become pixels; empty as the method says.
        confidence: the least probability of a class that counts as shown by the picture.
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
    source: tuple[str, ...] = ()
    enlarge: str = ""
    confidence: float = 0.0

    @property
    def key(self) -> str:
        """Digest of all of it: another value of any attribute, another key."""
        return key_of(self.to_json())

    def source_of(self, metric: str) -> tuple[str, str]:
        """Return the digests of the source behind the recipe and behind one of the metrics; empty where unknown."""
        if not self.source:
            return "", ""
        return self.source[0], self.source[1 + self.metrics.index(metric)]

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data; what versions before it did not record is left out where it says nothing."""
        plain = {name: getattr(self, name) for name in self.__slots__}
        lists = {name: list(plain[name]) for name in ("metrics", "images", "classes", "source")}
        return _without_defaults(plain | lists, "source", "enlarge", "confidence")

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Unit:
        """Read it back."""
        lists = {name: tuple(data.get(name, ())) for name in ("metrics", "images", "classes", "source")}
        return cls(**data | lists)


def _without_defaults(data: dict[str, Any], *names: str) -> dict[str, Any]:
    """Leave out those of the named entries that are empty, so that keys stay what they were before there were any."""
    return {name: value for name, value in data.items() if name not in names or value}


def key_of(data: Any) -> str:
    """Return the digest of plain data, 32 hexadecimal digits, the same on every machine."""
    text = json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What loading a model revealed: its weights, and what of the plan runs on it.

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

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> ModelInfo:
        """Read it back from plain data."""
        left_out = tuple((name, reason) for name, reason in data["left_out"])
        return cls(data["model"], data["weights"], tuple(data["recipes"]), tuple(data["metrics"]), left_out)


@dataclass(frozen=True, slots=True)
class Chunk:
    """The images of a unit.

    Attributes:
        images: their ids.
        data: digest of the data set's options and of these images' ids and labels; what else the set holds does not
            matter, so that a longer run reuses the units of a shorter one.
    """

    images: tuple[str, ...]
    data: str


@dataclass(frozen=True, slots=True, order=True)
class Package:
    """A package whose code took part in a run.

    Attributes:
        name: of the distribution, such as sightline or that of a plug-in.
        version: as installed, empty where unknown.
        digest: of the source files that took part.
    """

    name: str
    version: str
    digest: str


@dataclass(frozen=True)
class SourceDigests:
    """The code of a run: a digest for every recipe and metric, and the packages it came from.

    Attributes:
        recipes: recipe of a method -> digest of the source behind it.
        metrics: recipe of a metric -> likewise.
        packages: all that took part, by name.
    """

    recipes: Mapping[str, str] = field(default_factory=dict)
    metrics: Mapping[str, str] = field(default_factory=dict)
    packages: tuple[Package, ...] = ()

    def of(self, recipe: str, metrics: tuple[str, ...]) -> tuple[str, ...]:
        """Return the digests of a recipe and of metrics, in this order; empty where they were not recorded."""
        if recipe not in self.recipes:
            return ()
        return (self.recipes[recipe], *(self.metrics.get(metric, "") for metric in metrics))

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        packages = [asdict(package) for package in self.packages]
        return {"recipes": dict(self.recipes), "metrics": dict(self.metrics), "packages": packages}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> SourceDigests:
        """Read it back."""
        return cls(data["recipes"], data["metrics"], tuple(Package(**package) for package in data["packages"]))


@dataclass(frozen=True)
class Manifest:
    """Everything the units of a run follow from; the store's ``plan.json``.

    Attributes:
        plan: the plan as plain data, overrides included.
        config: what workers are told.
        dataset: the data set's name.
        chunks: the chosen images, in order.
        models: what loading each model revealed.
        skipped: (id, reason) of images that the data set left out.
        version: of sightline.
        command: what to type to run it again.
        source: the code that computes it; nothing in a store of a version that did not record it.
        environment: digest of what the models and their recipes were found in, see `digest_environment`; empty where
            that cannot be told.
        modules: of sightline that count in it, by name.
    """

    plan: dict[str, Any]
    config: RunConfig
    dataset: str
    chunks: tuple[Chunk, ...]
    models: tuple[ModelInfo, ...]
    skipped: tuple[tuple[str, str], ...] = ()
    version: str = ""
    command: str = field(default="", compare=False)
    source: SourceDigests = field(default_factory=SourceDigests)
    environment: str = field(default="", compare=False)
    modules: tuple[str, ...] = field(default=(), compare=False)

    @property
    def name(self) -> str:
        """The run's name."""
        return str(self.plan["name"])

    @property
    def packages(self) -> tuple[Package, ...]:
        """The packages whose code took part; none where they were not recorded."""
        return self.source.packages

    @property
    def images(self) -> tuple[str, ...]:
        """The ids of all images."""
        return tuple(image for chunk in self.chunks for image in chunk.images)

    @property
    def unit_count(self) -> int:
        """How many units there are."""
        return len(self.chunks) * sum(len(model.recipes) for model in self.models)

    def units(self) -> Iterator[Unit]:
        """Yield every unit: model by model, chunk by chunk, all recipes of a chunk together.

        So the recipes stay comparable while the run is under way, and a worker reads each chunk once.
        """
        for model in self.models:
            for chunk, maps in zip(self.chunks, self.kept_maps(), strict=True):
                for recipe in model.recipes:
                    yield self.unit(model, recipe, chunk, maps)

    def kept_maps(self) -> list[int]:
        """Return how many images of each chunk keep their maps: the first ones of the run."""
        wanted, kept, before = self.plan["maps"], [], 0
        for chunk in self.chunks:
            count = len(chunk.images)
            kept.append(count if wanted is True else min(max(int(wanted) - before, 0), count))
            before += count
        return kept

    def unit(self, model: ModelInfo, recipe: str, chunk: Chunk, maps: int) -> Unit:
        """Return one unit; `maps` is how many of the chunk's images keep their maps."""
        config = self.config
        return Unit(
            run=self.name,
            model=model.model,
            weights=model.weights,
            recipe=recipe,
            metrics=model.metrics,
            images=chunk.images,
            dataset=self.dataset,
            data=chunk.data,
            target=config.target,
            seed=config.seed,
            threads=config.threads,
            device=config.device,
            resize=config.resize,
            classes=config.classes,
            maps=maps,
            version=self.version,
            source=self.source.of(recipe, model.metrics),
            enlarge=config.enlarge,
            confidence=config.confidence,
        )

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data: the plan's own settings first, what was found out under ``resolved``.

        The names under ``resolved`` are those of the store's format, the same in every version.
        """
        resolved = {
            "setting": self.config.to_json(),
            "dataset": self.dataset,
            "blocks": [asdict(chunk) for chunk in self.chunks],
            "models": [model.to_json() for model in self.models],
            "skipped": [list(image) for image in self.skipped],
            "version": self.version,
            "command": self.command,
            "source": self.source.to_json(),
            "environment": self.environment,
            "modules": list(self.modules),
        }
        return {**self.plan, "resolved": resolved}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Manifest:
        """Read it back, also as a version wrote it that did not record the source."""
        plan, resolved = {key: value for key, value in data.items() if key != "resolved"}, data["resolved"]
        return cls(
            plan=plan,
            config=RunConfig.from_json(resolved["setting"]),
            dataset=resolved["dataset"],
            chunks=tuple(Chunk(tuple(chunk["images"]), chunk["data"]) for chunk in resolved["blocks"]),
            models=tuple(map(ModelInfo.from_json, resolved["models"])),
            skipped=tuple((image, reason) for image, reason in resolved["skipped"]),
            version=resolved["version"],
            command=resolved["command"],
            source=SourceDigests.from_json(resolved["source"]) if "source" in resolved else SourceDigests(),
            environment=resolved.get("environment", ""),
            modules=tuple(resolved.get("modules", ())),
        )


def sentence_of(error: BaseException) -> str:
    """Return what went wrong in one line."""
    from sightline.errors import SightlineError

    line = " ".join(str(error).split())
    return line if isinstance(error, SightlineError) and line else f"{type(error).__name__}: {line}".removesuffix(": ")
