"""Explain images: methods run on a model, in parts that it can take."""

from __future__ import annotations

from collections.abc import Sequence, Sized
from dataclasses import replace
from functools import partial
from typing import Any, overload

import torch
from torch import Tensor

from sightline.errors import NumericalError, RecipeError, SightlineError, TargetError, UnsupportedModel, warn
from sightline.methods.basis import SupportsBasis
from sightline.methods.foreign import Foreign
from sightline.methods.multi_target import MultiTarget
from sightline.models.adapter import Adapter
from sightline.models.cnn.adapter import Convolutional
from sightline.models.cnn.layout import in_either_layout
from sightline.models.inputs import adapt, as_batch, batches_of, is_batches, seen_pixels
from sightline.models.neuron import of_target
from sightline.models.passes import all_finite, counting, full_precision, modules_of, ready
from sightline.models.targets import resolve_target, with_classes
from sightline.perturb.superpixels import CustomSegments
from sightline.progress import progress_bar
from sightline.recipe import parse, parts, specs_of, text
from sightline.registry import METHODS
from sightline.targets.tasks import Box, Region
from sightline.targets.words import Word
from sightline.types import (
    Attribution,
    Contrast,
    Enlarge,
    FinerContrast,
    Logit,
    LogProbability,
    Method,
    Neuron,
    Passes,
    PerImage,
    Probability,
    ResidualSoftmax,
    Target,
    TextSimilarity,
    Value,
    check_enlarge,
)

__all__ = [
    "as_method", "attribute", "check_needs", "describe", "explain", "finished", "working",
]  # fmt: skip


@overload
def explain(
    model: Any,
    images: Any,
    method: str | Method | Any,
    target: Any = None,
    *,
    classes: Any = None,
    batch_size: int | None = None,
    enlarge: Enlarge | None = None,
    progress: bool = False,
) -> Attribution: ...


@overload
def explain(
    model: Any,
    images: Any,
    method: list[Any] | tuple[Any, ...],
    target: Any = None,
    *,
    classes: Any = None,
    batch_size: int | None = None,
    enlarge: Enlarge | None = None,
    progress: bool = False,
) -> list[Attribution]: ...


def explain(
    model: Any,
    images: Any,
    method: Any,
    target: Any = None,
    *,
    classes: Any = None,
    batch_size: int | None = None,
    enlarge: Enlarge | None = None,
    progress: bool = False,
) -> Attribution | list[Attribution]:
    """Explain what a model looked at.

    The model is held in eval mode and in its own precision, whatever gradient mode or `torch.autocast` the caller is
    in, and left as it was. Threads that explain one model take turns.

    Args:
        model: an `nn.Module`, an adapter, or a function from images to logits.
        images: a normalised (batch, channel, height, width) float tensor or array, of as many channels as the model
            takes; or, when the model's preprocessing is known, a PIL image, a path, a (height, width, 3) uint8 array,
            or a list of them; or an iterable of batches, such as a `DataLoader`, whose items are images or tuples that
            begin with them.
        method: a recipe such as ``"skip_plus(ixg)"``, a built method, or an object with Captum's ``.attribute``; or a
            list of them.
        target: what is explained: None for the predicted class, a class by number or name, one per image, or a
            `Target`.
        classes: the classes that each picture shows, by number or name, for ``var(…, classes='picture')``: a list for
            all images, or a list of lists, one per image, of any lengths.
        batch_size: images at once; the result does not depend on it.
        enlarge: how cells become pixels, in `pixels()`, metrics and pictures: nearest, bilinear or bicubic; by default
            as the method says, nearest for what is constant on patches or segments and bilinear else.
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
    adapter = of_target(adapt(model), target)
    if enlarge is not None:
        check_enlarge(enlarge)
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
            shown = classes[first : first + len(tensor)] if in_batches and _is_per_image(classes) else classes
            work = partial(_explain, adapter, tensor, methods, wanted, shown, batch_size)
            network = isinstance(adapter, Convolutional)
            explained.append(in_either_layout(adapter.model, work) if network else work())
            first += len(tensor)
            advance(1, f"{first} images")
    if isinstance(target, list | tuple | Tensor) and in_batches and len(target) not in (1, first):
        raise TargetError(f"got {len(target)} targets for {first} images; give one, or one per image")
    joined = [Attribution.join(of_method) for of_method in zip(*explained, strict=True)]
    if enlarge is not None:
        joined = [replace(each, enlarge=enlarge).made_by(each.source) for each in joined]
    return joined if several else joined[0]


def _is_per_image(classes: Any) -> bool:
    """Tell whether classes were given as one list per image."""
    return isinstance(classes, list | tuple) and all(isinstance(each, list | tuple) for each in classes)


def _of_batch(target: Any, first: int, count: int) -> Any:
    """Return the targets of one of several batches."""
    if not isinstance(target, list | tuple | Tensor) or len(target) == 1:
        return target
    if len(target) < first + count:
        raise TargetError(f"got {len(target)} targets for {first + count} images or more; give one, or one per image")
    return target[first : first + count]


def _explain(
    adapter: Adapter, batch: Tensor, methods: Sequence[Method], target: Any, classes: Any, batch_size: int | None
) -> list[Attribution]:
    """Explain one batch with every method; the target is found once."""
    with ready(adapter):
        with counting() as choosing:
            resolved = resolve_target(target, adapter, batch)
        if classes is not None:
            resolved = with_classes(resolved, classes, adapter, len(batch))
        labels = describe(resolved, adapter, len(batch))
        seen = seen_pixels(adapter, batch)
        attributions: list[Attribution] = []
        found: dict[Method, Attribution] = {}
        for method in methods:
            attribution = attribute(adapter, batch, method, resolved, batch_size, found)
            spent = attribution.passes + (Passes() if attributions else choosing.passes)
            complete = replace(attribution, passes=spent, target=resolved, labels=labels, seen=seen)
            attributions.append(complete.made_by(method.source if isinstance(method, Foreign) else None))
    return attributions


def attribute(
    adapter: Adapter,
    batch: Tensor,
    method: Method,
    target: Target,
    batch_size: int | None = None,
    found: dict[Method, Attribution] | None = None,
) -> Attribution:
    """Run one method on a batch and check what it gives.

    What `explain` finds out first is at hand: the batch is the model's own, the target is resolved, the model `ready`.
    What methods have in common is run once and noted in `found`; its passes count with each of them.
    """
    if not isinstance(method, SupportsBasis):
        return finished(_run(adapter, batch, method, target, batch_size), method, adapter)
    noted = {} if found is None else found
    if method.basis not in noted:
        noted[method.basis] = _run(adapter, batch, method.basis, target, batch_size)
    basis = noted[method.basis]
    return finished(replace(method.from_basis(basis), passes=basis.passes), method, adapter)


def _run(adapter: Adapter, batch: Tensor, method: Method, target: Target, batch_size: int | None) -> Attribution:
    """Run one method on a batch, in parts that the model can take."""
    size = len(batch)
    if size > 1 and not _holds_something_per_image(method):
        size = batch_size or adapter.images_at_once(lambda: _peak(method, adapter))
    if size >= len(batch):
        with counting() as meter:
            whole = _call(method, adapter, batch, target)
        return replace(whole, passes=meter.passes)
    with counting() as meter:
        attributions = [
            _call(
                method, adapter, batch[first : first + size], target.take(range(first, min(first + size, len(batch))))
            )
            for first in range(0, len(batch), size)
        ]
    joined = Attribution.join([replace(part, flags=_own_flags(part)) for part in attributions])
    return replace(joined, passes=meter.passes)


def _call(method: Method, adapter: Adapter, images: Tensor, target: Target) -> Attribution:
    """Run one method; one that explains several targets at once, and has no call of its own, gets a list of one."""
    if isinstance(method, MultiTarget) and type(method).__call__ is MultiTarget.__call__:
        return method.multi_target(adapter, images, [target])[0]
    return method(adapter, images, target)


def _peak(method: Method, adapter: Adapter) -> int:
    """Return the bytes that a method declares to hold for one image, 0 where it does not know."""
    try:
        return method.cost(adapter).peak
    except SightlineError:  # an object from outside; or a method that will refuse the model in its own words
        return 0


def finished(attribution: Attribution, method: Method, model: Adapter) -> Attribution:
    """Check the numbers of a method's attribution, and give it its recipe and flags."""
    recipe = text(method)
    values, flags = _finished(attribution.values.detach(), attribution.own, recipe, model)
    own = _own_flags(attribution)
    flags = tuple(flag or said for flag, said in zip(flags, own, strict=True))
    return replace(attribution, values=values, recipe=recipe, flags=flags)


def _own_flags(part: Attribution) -> tuple[str, ...]:
    """Return what the method itself says of each image, empty texts where it says nothing."""
    count = part.values.shape[1]
    return part.flags if len(part.flags) == count else ("",) * count


def _holds_something_per_image(method: Method) -> bool:
    """Tell whether a method was given superpixels for each image, which cutting the batch up would mix up."""
    given = [getattr(part, "segments", None) for part in parts(method)]
    segments = [each for option in given for each in (option if isinstance(option, tuple) else (option,))]
    return any(isinstance(each, CustomSegments) and each.per_image for each in segments)


def _finished(values: Tensor, own: int, recipe: str, model: Adapter) -> tuple[Tensor, tuple[str, ...]]:
    """Check the numbers, lift half precision, and turn constant maps into zeros, saying so."""
    values = full_precision(values)
    if not all_finite(values):
        raise NumericalError(
            f"{recipe} gave NaN or infinite values on {model.name}; check its weights, or try float32 "
            "instead of half precision"
        )
    flat = values[own].flatten(1)
    constant = flat.amax(dim=1) == flat.amin(dim=1)
    if values.shape[-1] * values.shape[-2] > 1 and constant.any():
        values = torch.where(constant[:, None, None], torch.zeros_like(values), values)
        warn(
            f"{recipe} gave a constant map for {int(constant.sum())} of {len(constant)} images; it says "
            "nothing there and is "
            "returned as zeros",
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
        case Logit(index) | Probability(index) | LogProbability(index) | ResidualSoftmax(index):
            return label(index)
        case Neuron():
            return target.words
        case Value(index):
            return f"value {index if isinstance(index, int) else index[0]}"
        case Contrast(a, b):
            return f"{label(a)} rather than {label(b)}"
        case FinerContrast(index, others):
            return f"{label(index)} rather than {', '.join(map(label, others[0]))}"
        case TextSimilarity(text=words) if words:
            return words
        case Region(index) if index is not None:
            return f"region of {index if isinstance(index, str) else label(index)}"
        case Box(reference=reference) if reference is not None:
            return _box_words(target, model)
        case Word(text=text) if text:
            return text
        case PerImage(targets):
            return _words(targets[0], model)
    return getattr(getattr(target, "function", target), "__name__", type(target).__name__)


def _box_words(target: Box, model: Adapter) -> str:
    x1, y1, x2, y2 = (round(side) for side in target.corners())
    return f"{model.label(target.label_of())} in the box {x1}, {y1}, {x2}, {y2}"


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
    "language": "a vision-language model with an answer",
    "layers": "layers with a grid to look into",
}


def check_needs(method: Method, model: Adapter) -> None:
    """Refuse a method that needs what the model lacks, and name those that work."""
    specs = specs_of(method)
    if any("gradient" in spec.needs for spec in specs):
        _check_that_gradients_flow(model)
    for spec in specs:
        if missing := model.lacks(spec.name, spec.needs):
            raise UnsupportedModel(_refusal(spec.name, missing[0], model))


_FIRST_CHOICES = ("grad_cam", "caap", "ixg", "rise", "occlusion")


def _refusal(method: str, need: str, model: Adapter) -> str:
    """Say why a method cannot run on a model: it has no such thing, or it has and sightline cannot read it."""
    words = _IN_WORDS.get(need, need)
    if need == "attention" and model.no_attention:
        return f"{method} needs {words}; {model.name} {model.no_attention}. Methods that work: " + ", ".join(
            working(model)
        )
    if need not in model.unread:
        return f"{method} needs {words}; {model.name} has none. Methods that work: {', '.join(working(model))}"
    first, second, third, *_ = [name for name in _FIRST_CHOICES if not model.lacks(name, METHODS[name].needs)] + [
        "centre"
    ]
    return (
        f"{method} needs {words}, and sightline cannot read {model.name} that far yet; {first}, {second} and {third} "
        "work now, and sightline.register_family adds a family"
    )


def _check_that_gradients_flow(model: Adapter) -> None:
    for module in modules_of(model.model):
        for weight in module._parameters.values():
            if weight is not None and weight.is_inference():
                raise UnsupportedModel(
                    f"the weights of {model.name} were made in torch.inference_mode(), where no gradient can be "
                    "taken; build or load the model outside it"
                )


def working(model: Adapter) -> list[str]:
    """Return the names of the methods that run on a model as they are, those that people try first at the front."""
    names = [name for name in METHODS if not model.lacks(name, METHODS[name].needs)]
    if model.declared_output == "dense" and isinstance(model, Convolutional) and model.cut_layer != model.cam_layer:
        names = [name for name in names if "cuts" not in METHODS[name].needs]  # they work at a layer that one names
    return [name for name in _FIRST_CHOICES if name in names] + [name for name in names if name not in _FIRST_CHOICES]
