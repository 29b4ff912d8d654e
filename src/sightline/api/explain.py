"""Explain images: methods run on a model, in parts that it can take."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence, Sized
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, overload

import torch
from torch import Tensor, nn

from sightline.errors import NumericalError, RecipeError, SightlineWarning, TargetError, UnsupportedModel
from sightline.methods.foreign import Foreign
from sightline.models.adapter import Adapter
from sightline.models.families import adapt
from sightline.models.inputs import as_batch, batches_of, is_batches, seen_pixels
from sightline.models.passes import counting
from sightline.models.precision import full_precision
from sightline.models.targets import resolve_target
from sightline.perturb.superpixels import CustomSegments
from sightline.progress import progress_bar
from sightline.recipe import parse, parts, text
from sightline.registry import METHODS, is_registered, spec_of
from sightline.types import (
    Attribution,
    Contrast,
    Logit,
    LogProbability,
    Method,
    Passes,
    PerImage,
    Probability,
    Target,
    TextSimilarity,
    Value,
)

__all__ = ["as_method", "check_needs", "describe", "explain", "ready", "working"]


@overload
def explain(
    model: Any,
    images: Any,
    method: str | Method | Any,
    target: Any = None,
    *,
    batch_size: int | None = None,
    progress: bool = False,
) -> Attribution: ...


@overload
def explain(
    model: Any,
    images: Any,
    method: list[Any] | tuple[Any, ...],
    target: Any = None,
    *,
    batch_size: int | None = None,
    progress: bool = False,
) -> list[Attribution]: ...


def explain(
    model: Any,
    images: Any,
    method: Any,
    target: Any = None,
    *,
    batch_size: int | None = None,
    progress: bool = False,
) -> Attribution | list[Attribution]:
    """Explain what a model looked at.

    Args:
        model: an `nn.Module`, an adapter, or a function from images to logits.
        images: a normalised (batch, 3, height, width) float tensor or array; or, when the model's preprocessing is
            known, a PIL image, a path, a (height, width, 3) uint8 array, or a list of them; or an iterable of batches,
            such as a `DataLoader`, whose items are images or tuples that begin with them.
        method: a recipe such as ``"skip_plus(ixg)"``, a built method, or an object with Captum's ``.attribute``; or a
            list of them.
        target: what is explained: None for the predicted class, a class by number or name, one per image, or a
            `Target`.
        batch_size: images at once; the result does not depend on it.
        progress: show a progress bar on stderr.

    Returns:
        The attribution: ``values`` (layer, batch, height, width), signed and unscaled. For a list of methods, a list of
        attributions; the forward pass that finds the predicted class is shared by all of them.

    >>> import sightline, torch
    >>> model = sightline.load("bundled/shapes-cnn")
    >>> images = model.normalise(torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(0)))
    >>> sightline.explain(model, images, "grad_cam", target="star")
    Attribution(grad_cam: 2 images, 8×8; 2 forward, 4.316e-05 backward)
    """
    adapter = adapt(model)
    several = isinstance(method, list | tuple)
    methods = [as_method(each) for each in (method if several else [method])]
    if not methods:
        raise RecipeError("got an empty list of methods; name one at least, for instance 'ixg'")
    for chosen in methods:
        check_needs(chosen, adapter)
    in_batches = is_batches(images)
    batches = batches_of(images) if in_batches else [images]
    total = len(images) if in_batches and isinstance(images, Sized) else None if in_batches else 1
    explained: list[list[Attribution]] = []
    first = 0
    with progress_bar(total, "explaining", enabled=progress) as advance:
        for batch in batches:
            tensor = as_batch(adapter, batch)
            wanted = _of_batch(target, first, len(tensor)) if in_batches else target
            explained.append(_explain(adapter, tensor, methods, wanted, batch_size))
            first += len(tensor)
            advance(1, f"{first} images")
    if isinstance(target, list | tuple | Tensor) and in_batches and len(target) not in (1, first):
        raise TargetError(f"got {len(target)} targets for {first} images; give one, or one per image")
    joined = [Attribution.join(of_method) for of_method in zip(*explained, strict=True)]
    return joined if several else joined[0]


def _of_batch(target: Any, first: int, count: int) -> Any:
    """Return the targets of one of several batches."""
    if not isinstance(target, list | tuple | Tensor) or len(target) == 1:
        return target
    if len(target) < first + count:
        raise TargetError(f"got {len(target)} targets for {first + count} images or more; give one, or one per image")
    return target[first : first + count]


def _explain(
    adapter: Adapter, batch: Tensor, methods: Sequence[Method], target: Any, batch_size: int | None
) -> list[Attribution]:
    """Explain one batch with every method; the target is found once."""
    with ready(adapter):
        with counting() as choosing:
            resolved = resolve_target(target, adapter, batch)
        labels = describe(resolved, adapter, len(batch))
        seen = seen_pixels(adapter, batch)
        attributions: list[Attribution] = []
        for method in methods:
            attribution = _attribute(adapter, batch, method, resolved, batch_size)
            spent = attribution.passes + (Passes() if attributions else choosing.passes)
            complete = replace(attribution, passes=spent, target=resolved, labels=labels, seen=seen)
            attributions.append(complete.made_by(method.source if isinstance(method, Foreign) else None))
    return attributions


def _attribute(adapter: Adapter, batch: Tensor, method: Method, target: Target, batch_size: int | None) -> Attribution:
    """Run one method on a batch, in parts that the model can take, and check what it gives."""
    size = len(batch) if _holds_something_per_image(method) else batch_size or adapter.batch
    recipe = text(method)
    with counting() as meter:
        attributions = [
            method(adapter, batch[first : first + size], target.take(range(first, min(first + size, len(batch)))))
            for first in range(0, len(batch), size)
        ]
    joined = Attribution.join([replace(part, flags=()) for part in attributions])
    values, flags = _finished(joined.values.detach(), recipe, adapter)
    return replace(joined, values=values, recipe=recipe, passes=meter.passes, flags=flags)


def _holds_something_per_image(method: Method) -> bool:
    """Tell whether a method was given superpixels for each image, which cutting the batch up would mix up."""
    given = [getattr(part, "segments", None) for part in parts(method)]
    segments = [each for option in given for each in (option if isinstance(option, tuple) else (option,))]
    return any(isinstance(each, CustomSegments) and each.per_image for each in segments)


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
            stacklevel=4,
        )
        return values, tuple("constant map" if bad else "" for bad in constant.tolist())
    return values, ("",) * len(constant)


def describe(target: Target, model: Adapter, count: int) -> tuple[str, ...]:
    """Return what is explained in words, one text per image."""
    return tuple(_words(target.take([row]), model) for row in range(count))


def _words(target: Any, model: Adapter) -> str:
    """Return the target of one image in words."""

    def label(index: Any) -> str:
        return model.label(index if isinstance(index, int) else index[0])

    match target:
        case Logit(index) | Probability(index) | LogProbability(index):
            return label(index)
        case Value(index):
            return f"value {index if isinstance(index, int) else index[0]}"
        case Contrast(a, b):
            return f"{label(a)} rather than {label(b)}"
        case TextSimilarity(text=words) if words:
            return words
        case PerImage(targets):
            return _words(targets[0], model)
    return getattr(getattr(target, "function", target), "__name__", type(target).__name__)


# ---- methods as they are given, and what they need ------------------------------------------------------------------


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
