"""Workers: one unit after the other, from its images to its rows. Every engine runs the same ones."""

from __future__ import annotations

import hashlib
import json
import random
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from safetensors.numpy import save
from torch import nn

from sightline import api
from sightline.bench.images import open_images
from sightline.bench.prepared_batch import PreparedBatch, prepare_batch
from sightline.bench.scoring import score_unit
from sightline.bench.source_digest import digest_sources
from sightline.bench.store.rows import UnitResult, encode, failed_rows
from sightline.bench.unit import ModelInfo, RunConfig, Unit, sentence_of
from sightline.data.dataset import Dataset
from sightline.errors import InputError, RecipeError, UnsupportedMethod, UnsupportedModel, WeightsError
from sightline.models import zoo
from sightline.models.adapter import Adapter
from sightline.models.zoo.ids import versions
from sightline.recipe import parse, parse_metric
from sightline.registry import load_plugins, spec_of
from sightline.types import Attribution

__all__ = ["Worker", "digest_weights", "use_threads"]


class Worker:
    """Computes units one after the other and keeps the model, and the images of a chunk, for the next."""

    def __init__(self, config: RunConfig) -> None:
        load_plugins()  # a model or a family may come from outside
        self.config = config
        self._dataset: Dataset | None = None
        self._model: tuple[str, Adapter, str] | None = None
        self._batch: tuple[Any, PreparedBatch] | None = None

    def describe(self, model_id: str, recipes: Sequence[str], metrics: Sequence[str]) -> ModelInfo:
        """Load a model and find out which recipes and metrics run on it.

        Raises:
            SightlineError: it cannot be loaded, or none of them does.
        """
        with use_threads(self.config.threads):
            model, weights = self._load(model_id)
        supported: dict[str, list[str]] = {"recipes": [], "metrics": []}
        left_out: list[tuple[str, str]] = []
        for recipe in recipes:
            method = parse(recipe)
            try:
                api.check_needs(method, model)
                method.cost(model)  # asks deeper: an operator may find nothing to work on, or a block that is not there
                supported["recipes"].append(recipe)
            except (UnsupportedModel, UnsupportedMethod, RecipeError) as error:
                left_out.append((recipe, str(error).partition(" Methods that work")[0]))
        for metric in metrics:
            lacking = sorted(spec_of(parse_metric(metric)).needs - model.offers - {"masks", "method"})
            if lacking:
                left_out.append((metric, f"{metric} needs {lacking[0]}, which {model.name} does not offer"))
            else:
                supported["metrics"].append(metric)
        for part, names in supported.items():
            if not names:
                raise UnsupportedModel(f"none of the plan's {part} runs on {model_id}: {left_out[0][1]}")
        return ModelInfo(model_id, weights, tuple(supported["recipes"]), tuple(supported["metrics"]), tuple(left_out))

    def compute(self, unit: Unit) -> UnitResult:
        """Compute the rows of a unit; whatever goes wrong is in them."""
        maps: dict[str, Attribution] = {}
        with use_threads(unit.threads), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _seed_global_generators(unit.key)
            try:
                _check_source(unit)
                model = self._checked_model(unit)
                rows, maps = score_unit(unit, model, self._prepared(unit, model), _versions())
            except Exception as error:
                rows = failed_rows(unit, dict.fromkeys(unit.images, sentence_of(error)), _versions())
        return UnitResult(unit.key, encode(rows), _pack_maps(maps) if maps else None)

    def _load(self, model_id: str) -> tuple[Adapter, str]:
        """Return a model and the digest of its weights; only one is held at a time."""
        if self._model is None or self._model[0] != model_id:
            self._model = self._batch = None
            classes = self.config.classes if model_id.startswith("openclip/") else ()
            model = zoo.load(model_id, classes=list(classes) or None)
            if isinstance(model.model, nn.Module) and self.config.device != "cpu":
                model.model.to(self.config.device)
            self._model = (model_id, model, digest_weights(model))
        return self._model[1:]

    def _checked_model(self, unit: Unit) -> Adapter:
        """Return the unit's model; refuse one whose weights are not those the unit is keyed by."""
        model, weights = self._load(unit.model)
        if weights != unit.weights:
            raise WeightsError(
                f"the weights of {unit.model} that this worker found ({weights[:8]}…) are not those of the run "
                f"({unit.weights[:8]}…); give all machines the same, or run the plan again"
            )
        return model

    def _prepared(self, unit: Unit, model: Adapter) -> PreparedBatch:
        """Return the unit's images, read once for all recipes; read again where one of them failed."""
        same = (unit.model, unit.images, unit.target, unit.resize)
        if self._batch is not None and self._batch[0] == same:
            return self._batch[1]
        if self._dataset is None:
            self._dataset = open_images(self.config.dataset, self.config.base)
        batch = prepare_batch(unit, model, self._dataset)
        self._batch = None if batch.failures else (same, batch)
        return batch


def _versions() -> str:
    """Return the versions as a row holds them; asked once the model is loaded, and its library with it."""
    return json.dumps(versions(), sort_keys=True)


def _check_source(unit: Unit) -> None:
    """Refuse a unit that is keyed by other code than this process has loaded; one without a digest is an old one."""
    if not unit.source:
        return
    loaded = digest_sources([unit.recipe], unit.metrics).of(unit.recipe, unit.metrics)
    for name, own, wanted in zip((unit.recipe, *unit.metrics), loaded, unit.source, strict=True):
        if own != wanted:
            raise InputError(
                f"the source of {name} that this worker loaded ({own[:8]}…) is not that of the run ({wanted[:8]}…); "
                "install the same packages on all machines, or run the plan again"
            )


def _seed_global_generators(key: str) -> None:
    """Seed what draws from the global generators, so that even careless plugins give the same rows twice."""
    seed = int(key[:8], 16)
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


@contextmanager
def use_threads(count: int) -> Iterator[None]:
    """Hold torch at a number of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def digest_weights(model: Adapter) -> str:
    """Return the digest of a model's weights: names, types, shapes and bytes, in the order of names."""
    if not isinstance(model.model, nn.Module):
        return ""
    digest = hashlib.blake2b(digest_size=16)
    for name, value in sorted(model.model.state_dict().items()):
        tensor = value.detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)};".encode())
        if tensor.numel():
            digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _pack_maps(maps: dict[str, Attribution]) -> bytes:
    """Write maps as safetensors: each divided by its largest size, which float16 could not hold otherwise.

    The header says how they are enlarged.
    """
    arrays = {}
    for image, attribution in maps.items():
        values = attribution.map[0]
        largest = float(values.abs().max())
        arrays[image] = (values / largest if largest > 0 else values).to(torch.float16).cpu().contiguous().numpy()
    packed: bytes = save(arrays, metadata={"enlarge": next(iter(maps.values())).enlarge})
    return packed
