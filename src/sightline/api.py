"""The two questions: what did the model look at, and how far can that be trusted?"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sightline.data.images import read_image
from sightline.errors import InputError, NumericalError, RecipeError, SightlineWarning, UnsupportedModel
from sightline.methods.foreign import Foreign
from sightline.metrics.case import Case
from sightline.metrics.judge import Scores, judge
from sightline.metrics.protocols import protocol_metrics
from sightline.models.adapter import Adapter
from sightline.models.families import adapt
from sightline.models.passes import counting
from sightline.models.precision import full_precision
from sightline.models.targets import resolve_target
from sightline.perturb.superpixels import Own
from sightline.recipe import parse, parts, text
from sightline.registry import METHODS, is_registered, spec_of
from sightline.types import Attribution, Method


def explain(
    model: Any, images: Any, method: str | Method | Any, target: Any = None, *, batch_size: int | None = None
) -> Attribution:
    """Say what a model looked at.

    Args:
        model: an `nn.Module`, an adapter, or a function from images to logits.
        images: a normalised (batch, 3, height, width) float tensor; or a PIL image, a path, or a list of them, when the
            model's preprocessing is known.
        method: a recipe such as ``"skip_plus(ixg)"``, a built method, or an object with Captum's ``.attribute``.
        target: what is explained: None for the predicted class, a class, one class per image, or a `Target`.
        batch_size: images at once; the result does not depend on it.

    Returns:
        The attribution: ``values`` (layer, batch, height, width), signed and unscaled.
    """
    adapter = adapt(model)
    chosen = as_method(method)
    check_needs(chosen, adapter)
    batch = as_batch(adapter, images)
    with counting() as meter, ready(adapter):
        aim = resolve_target(target, adapter, batch)
        size = len(batch) if _holds_something_per_image(chosen) else batch_size or adapter.batch
        found = [
            chosen(adapter, batch[first : first + size], aim.take(range(first, min(first + size, len(batch)))))
            for first in range(0, len(batch), size)
        ]
    recipe = text(chosen)
    values = torch.cat([part.values for part in found], dim=1).detach()
    values, flags = _finished(values, recipe, adapter)
    details = found[0].details if len(found) == 1 else [part.details for part in found]
    return replace(found[0], values=values, recipe=recipe, passes=meter.passes, flags=flags, details=details)


def _holds_something_per_image(method: Method) -> bool:
    """Tell whether a method was given superpixels for each image, which cutting the batch up would mix up."""
    given = [getattr(part, "segments", None) for part in parts(method)]
    several = [one for each in given for one in (each if isinstance(each, tuple) else (each,))]
    return any(isinstance(one, Own) and one.per_image for one in several)


def evaluate(
    model: Any,
    images: Any,
    attribution: Attribution | Tensor,
    metrics: str | Sequence[str] | None = None,
    target: Any = None,
    masks: Tensor | None = None,
    *,
    labels: Any = None,
    method: str | Method | Any = None,
    protocol: str | None = None,
) -> Scores:
    """Judge an attribution: one number per image and metric, never a mean.

    Args:
        model: as for `explain`.
        images: as for `explain`, the same images.
        attribution: what `explain` returned, or any (batch, H, W) tensor at image size.
        metrics: names or recipes, such as ``["insertion", "deletion(step=448)"]``.
        target: as for `explain`, the same target.
        masks: (batch, H, W) integers, 1 evidence, 0 background, -1 ignore; only localisation metrics need them.
        labels: the true class of each image, where a metric asks whether the model is right; by default the target's.
        method: what made the maps, where a metric asks it again; by default the attribution's own recipe.
        protocol: the metrics of a paper, such as ``"caap"``, beside those that are named; those that need masks or a
            method are left out where there is none. What else it fixes is in ``PROTOCOLS`` of
            `sightline.metrics.protocols`.
    """
    adapter = adapt(model)
    batch = as_batch(adapter, images)
    maps = attribution.pixels() if isinstance(attribution, Attribution) else attribution
    made_by = _made_by(attribution) if method is None else as_method(method)
    named = [metrics] if isinstance(metrics, str) else list(metrics or ())
    if protocol is not None:
        named += protocol_metrics(protocol, masks=masks is not None, method=made_by is not None)
    with ready(adapter):
        aim = resolve_target(target, adapter, batch)
        truth = None if labels is None else tuple(int(label) for label in torch.as_tensor(labels).reshape(-1))
        return judge(Case(adapter, batch, aim, maps, masks, truth, made_by), named)


def _made_by(attribution: Attribution | Tensor) -> Method | None:
    """Return the method an attribution's recipe names, if there is one and it can be built."""
    if not isinstance(attribution, Attribution) or not attribution.recipe:
        return None
    try:
        return parse(attribution.recipe)
    except RecipeError:
        return None


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


def as_batch(model: Adapter, images: Any) -> Tensor:
    """Return a batch the model can be fed, from a tensor, a PIL image, a path, or a list of the latter two."""
    if isinstance(images, Tensor):
        with torch.inference_mode(False):
            return model.accept(images.clone() if images.is_inference() else images)
    given = list(images) if isinstance(images, list | tuple) else [images]
    if not given:
        raise InputError("got no images; give at least one")
    if all(isinstance(image, Tensor) for image in given):
        return as_batch(model, torch.stack(given))
    if model.preprocess is None:
        raise InputError(
            f"{model.name} does not say how its images are prepared; give a normalised (batch, 3, height, "
            "width) tensor, "
            "or adapt(model, preprocess=…)"
        )
    opened = [read_image(image) if isinstance(image, str | Path) else image for image in given]
    for image in opened:
        if not hasattr(image, "convert"):
            raise InputError(f"got {type(image).__name__} as an image; a tensor, a PIL image or a path is needed")
    return model.accept(torch.stack([model.preprocess(image.convert("RGB")) for image in opened]))


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


def _finished(values: Tensor, recipe: str, model: Adapter) -> tuple[Tensor, tuple[str, ...]]:
    """Check the numbers, lift half precision, and turn constant maps into zeros, saying so."""
    values = full_precision(values)
    if not torch.isfinite(values).all():
        raise NumericalError(
            f"{recipe} gave NaN or infinite values on {model.name}; check its weights, or try float32 "
            "instead of half precision"
        )
    flat = values[0].flatten(1)
    constant = flat.amax(dim=1) == flat.amin(dim=1)
    if values.shape[-1] * values.shape[-2] > 1 and constant.any():
        values = torch.where(constant[:, None, None], torch.zeros_like(values), values)
        warnings.warn(
            f"{recipe} gave a constant map for {int(constant.sum())} of {len(constant)} images; it says "
            "nothing there and is "
            "returned as zeros",
            SightlineWarning,
            stacklevel=3,
        )
        return values, tuple("constant map" if bad else "" for bad in constant.tolist())
    return values, ("",) * len(constant)
