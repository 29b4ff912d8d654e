"""Find the adapter for a model.

A family is a function ``recognise(model, facts) -> Adapter | None``. The built-in ones are tried in order, after those
that `register_family` added; the first adapter returned is used. A module that no family recognises is searched for a
transformer inside it that some family does; failing that, it is a generic convolutional network if it has convolutions,
else opaque.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any, cast

from torch import nn

from sightline.errors import SightlineWarning, UnsupportedModel
from sightline.models.adapter import Adapter
from sightline.models.blackbox import BlackBox, Opaque
from sightline.models.cnn.generic import recognise_generic
from sightline.models.vit.adapter import VisionTransformer
from sightline.models.vit.wrapped import WrappedTransformer

Recognise = Callable[[nn.Module, dict[str, Any]], Adapter | None]
BUILT_IN = ("vit.timm", "vit.torchvision", "vit.transformers", "vit.openclip", "cnn.families")
_registered: list[Recognise] = []


def register_family(recognise: Recognise) -> Recognise:
    """Add a family of your own; it is tried before the built-in ones."""
    _registered.insert(0, recognise)
    return recognise


def adapt(model: Any, **facts: Any) -> Adapter:
    """Return the adapter of an `nn.Module` or of a callable images -> logits; an adapter is returned as it is.

    `facts` (name, labels, preprocess, mean, std, input_size, batch, output, link) say more than the model itself does:
    ``output="sigmoid"`` that several labels may be true at once, ``"value"`` that it is a regression;
    ``link="identity"`` that a function already returns probabilities.
    """
    if isinstance(model, Adapter):
        return model.with_facts(**facts) if facts else model
    if isinstance(model, nn.Module):
        return _recognise(_unwrap(model), facts)
    if callable(model):
        facts.setdefault("name", getattr(model, "__name__", "") or type(model).__name__)
        return BlackBox(model, **facts)
    raise UnsupportedModel(
        f"got {type(model).__name__} as a model; an nn.Module, an adapter or a function images -> logits is needed"
    )


def _unwrap(model: nn.Module) -> nn.Module:
    if hasattr(model, "_orig_mod"):  # torch.compile's wrapper: hooks inside a compiled graph would not run
        warnings.warn(
            "the model is compiled; sightline explains the original module inside", SightlineWarning, stacklevel=4
        )
        return _unwrap(cast(nn.Module, model._orig_mod))
    if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
        return _unwrap(model.module)
    return model


def _families() -> Iterator[Recognise]:
    yield from _registered
    for name in BUILT_IN:
        yield importlib.import_module(f"sightline.models.{name}").recognise


def _recognise(model: nn.Module, facts: dict[str, Any]) -> Adapter:
    for recognise in _families():
        if (adapter := recognise(model, facts)) is not None:
            return adapter
    return _inside(model, facts) or recognise_generic(model, facts) or Opaque(model, **facts)


def _inside(model: nn.Module, facts: dict[str, Any]) -> Adapter | None:
    """Look for the one transformer that a user's own module is built around."""
    for module in model.modules():
        if module is model:
            continue
        for recognise in _families():
            adapter = recognise(module, {})
            if isinstance(adapter, VisionTransformer):
                return WrappedTransformer(model, adapter, **facts)
    return None
