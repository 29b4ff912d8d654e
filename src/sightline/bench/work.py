"""Work: one unit, from its images to its rows. This is what every engine's workers do."""

from __future__ import annotations

import hashlib
import json
import platform
import random
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from safetensors.numpy import save
from torch import Tensor, nn

from sightline import __version__, api
from sightline.bench.chunk import Fed, read_block
from sightline.bench.images import open_images
from sightline.bench.scoring import work
from sightline.bench.store.rows import Result, encode, failed_rows
from sightline.bench.unit import Described, Setting, Unit, sentence_of
from sightline.data.dataset import Dataset
from sightline.errors import UnsupportedMethod, UnsupportedModel, WeightsError
from sightline.models import zoo
from sightline.models.adapter import Adapter
from sightline.recipe import parse, parse_metric
from sightline.registry import load_plugins, spec_of

__all__ = ["Result", "Worker", "digest_weights", "use_threads", "versions", "work"]


class Worker:
    """Does units one after the other and keeps the model, and the block of images, for the next."""

    def __init__(self, setting: Setting) -> None:
        load_plugins()  # a model or a family may come from outside
        self.setting = setting
        self._dataset: Dataset | None = None
        self._model: tuple[str, Adapter, str] | None = None
        self._block: tuple[Any, Fed] | None = None

    def describe(self, model_id: str, recipes: Sequence[str], metrics: Sequence[str]) -> Described:
        """Load a model and find out which recipes and metrics run on it.

        Raises:
            SightlineError: it cannot be loaded, or none of them does.
        """
        with use_threads(self.setting.threads):
            model, weights = self._load(model_id)
        kept: dict[str, list[str]] = {"recipes": [], "metrics": []}
        left_out: list[tuple[str, str]] = []
        for recipe in recipes:
            try:
                method = parse(recipe)
                api.check_needs(method, model)
                method.cost(model)  # asks deeper: an operator may find nothing to work on
                kept["recipes"].append(recipe)
            except (UnsupportedModel, UnsupportedMethod) as error:
                left_out.append((recipe, str(error).partition(" Methods that work")[0]))
        for metric in metrics:
            lacking = sorted(spec_of(parse_metric(metric)).needs - model.offers - {"masks", "method"})
            if lacking:
                left_out.append((metric, f"{metric} needs {lacking[0]}, which {model.name} does not offer"))
            else:
                kept["metrics"].append(metric)
        for kind, found in kept.items():
            if not found:
                raise UnsupportedModel(f"none of the plan's {kind} runs on {model_id}: {left_out[0][1]}")
        return Described(model_id, weights, tuple(kept["recipes"]), tuple(kept["metrics"]), tuple(left_out))

    def work(self, unit: Unit) -> Result:
        """Do a unit; whatever goes wrong is in its rows."""
        maps: dict[str, Tensor] = {}
        with use_threads(unit.threads), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _settle(unit.key)
            try:
                model = self._loaded(unit)
                rows, maps = work(unit, model, self._fed(unit, model), versions())
            except Exception as error:
                rows = failed_rows(unit, dict.fromkeys(unit.images, sentence_of(error)), versions())
        return Result(unit.key, encode(rows), _packed(maps) if maps else None)

    def _load(self, model_id: str) -> tuple[Adapter, str]:
        """Return a model and the digest of its weights; only one is held at a time."""
        if self._model is None or self._model[0] != model_id:
            self._model = self._block = None
            classes = self.setting.classes if model_id.startswith("openclip/") else ()
            model = zoo.load(model_id, classes=list(classes) or None)
            if isinstance(model.model, nn.Module) and self.setting.device != "cpu":
                model.model.to(self.setting.device)
            self._model = (model_id, model, digest_weights(model))
        return self._model[1:]

    def _loaded(self, unit: Unit) -> Adapter:
        model, weights = self._load(unit.model)
        if weights != unit.weights:
            raise WeightsError(
                f"the weights of {unit.model} that this worker found ({weights[:8]}…) are not those of the run "
                f"({unit.weights[:8]}…); give all machines the same, or run the plan again"
            )
        return model

    def _fed(self, unit: Unit, model: Adapter) -> Fed:
        """Return the unit's images, read once for all recipes; read again where one of them failed."""
        same = (unit.model, unit.images, unit.target, unit.resize)
        if self._block is not None and self._block[0] == same:
            return self._block[1]
        if self._dataset is None:
            self._dataset = open_images(self.setting.dataset, self.setting.base)
        block = read_block(unit, model, self._dataset)
        self._block = None if block.failures else (same, block)
        return block


def _settle(key: str) -> None:
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


def versions() -> str:
    """Return the versions that decide a result, as JSON: ours, and those of the libraries that took part."""
    libraries = ("torch", "torchvision", "timm", "transformers", "open_clip", "PIL", "numpy")
    loaded = {name: getattr(sys.modules.get(name), "__version__", None) for name in libraries}
    found = {name: str(version) for name, version in loaded.items() if version}
    return json.dumps({"sightline": __version__, "python": platform.python_version(), **found}, sort_keys=True)


def _packed(maps: dict[str, Tensor]) -> bytes:
    """Write maps as safetensors: each divided by its largest size, which float16 could not hold otherwise."""
    arrays = {}
    for image, values in maps.items():
        largest = float(values.abs().max())
        arrays[image] = (values / largest if largest > 0 else values).to(torch.float16).cpu().contiguous().numpy()
    packed: bytes = save(arrays)
    return packed
