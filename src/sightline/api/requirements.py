"""Methods as they are given, and what each needs of a model before it can run."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from sightline.errors import RecipeError, SightlineWarning, UnsupportedModel
from sightline.methods.foreign import Foreign
from sightline.models.adapter import Adapter
from sightline.recipe import parse, parts
from sightline.registry import METHODS, is_registered, spec_of
from sightline.types import Method

__all__ = ["as_method", "check_needs", "ready", "working"]


def as_method(method: Any) -> Method:
    """Build a method from a recipe, or take one as it is."""
    if isinstance(method, str):
        return parse(method)
    if hasattr(method, "attribute"):
        return Foreign(method)
    if isinstance(method, Method):
        return method
    raise RecipeError(
        f"got {type(method).__name__} as a method; a recipe such as 'ixg', a method, or an object with "
        ".attribute is needed"
    )


_IN_WORDS = {
    "attention": "attention maps",
    "cuts": "layers to cut at",
    "gradient": "gradients",
    "layers": "layers with a grid to look into",
}


def check_needs(method: Method, model: Adapter) -> None:
    """Refuse a method that needs what the model lacks, and name those that work."""
    if any("gradient" in spec_of(part).needs for part in parts(method) if is_registered(part)):
        _check_that_gradients_flow(model)
    for part in parts(method):
        missing = sorted(spec_of(part).needs - model.offers) if is_registered(part) else []
        if missing:
            raise UnsupportedModel(
                f"{spec_of(part).name} needs {_IN_WORDS.get(missing[0], missing[0])}; {model.name} has none. "
                f"Methods that work: {', '.join(working(model))}"
            )


def _check_that_gradients_flow(model: Adapter) -> None:
    if isinstance(model.model, nn.Module) and any(weight.is_inference() for weight in model.model.parameters()):
        raise UnsupportedModel(
            f"the weights of {model.name} were made in torch.inference_mode(), where no gradient can be taken; "
            "build or load the model outside it"
        )


def working(model: Adapter) -> list[str]:
    """Return the names of the methods that run on a model."""
    return [name for name in METHODS if METHODS[name].needs <= model.offers]


@contextmanager
def ready(model: Adapter) -> Iterator[None]:
    """Hold the model in eval mode with no graph being built; say so when it was training."""
    if any(module.training for module in model.modules):
        warnings.warn(
            f"{model.name} is in train mode; it is explained in eval mode and given its own mode back",
            SightlineWarning,
            stacklevel=4,
        )
    with torch.inference_mode(False), torch.no_grad(), model.evaluating():
        yield
