"""Turn what a user gives as a target into a target that fits the model and the batch."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sightline.errors import TargetError
from sightline.models.adapter import Adapter
from sightline.models.inputs import as_batch
from sightline.models.tasks.boxes import resolve_box
from sightline.models.tasks.dense import resolve_region
from sightline.models.tasks.reading import NEEDED as TASKS
from sightline.models.tasks.words import resolve_word
from sightline.targets.tasks import Box, Region, Similarity
from sightline.targets.words import Word
from sightline.types import (
    Custom,
    FinerContrast,
    Indices,
    Logit,
    LogProbability,
    Neuron,
    PerImage,
    Probability,
    ResidualSoftmax,
    Target,
    TextSimilarity,
    Value,
)

NEEDED = "a class index or name, one per image, or a Target is needed"


def resolve_target(target: Any, model: Adapter, images: Tensor) -> Target:
    """Return a target for these images.

    None is each image's predicted class, or the one value of a regression, and costs one forward pass; an int or a
    label is a class for all images; a tensor or list of them is a class per image; a list of targets is one per image;
    any other callable maps logits to one number per image. Probabilities become those of the model's own output.
    """
    if isinstance(target, Neuron):
        return _of_unit(target, model)
    if model.declared_output in TASKS or isinstance(target, Box | Region | Similarity | Word):
        return resolve_task(target, model, images)
    if target is None:
        return _predicted(model, images)
    if isinstance(target, Tensor | np.ndarray):
        target = target.tolist()
    if isinstance(target, str):
        target = find_class(model, target)
    if _is_class(target):
        return _checked(Logit(int(target)), model, images)
    if isinstance(target, list | tuple):
        return _per_image(target, model, images)
    if isinstance(target, TextSimilarity) and not target.embedding:
        return TextSimilarity(target.text, tuple(model.encode_text([target.text])[0].tolist()))
    if hasattr(target, "take") and callable(target):
        return _checked(target, model, images)
    if callable(target):
        return Custom(target)
    shown = repr(target) if isinstance(target, bool) else type(target).__name__
    raise TargetError(f"got {shown} as a target; {NEEDED}")


def _of_unit(target: Neuron, model: Adapter) -> Neuron:
    """Return a neuron where the model ends in it; every other model answers something else."""
    if getattr(model, "neuron", None) == target:
        return target
    raise TargetError(
        f"got {target} among targets of {model.name}; give one Neuron for all images to explain() or evaluate()"
    )


def resolve_task(target: Any, model: Adapter, images: Tensor) -> Target:
    """Return a target for a segmentation, a detector or an answer, or the likeness to an embedding."""
    if isinstance(target, Similarity):
        return _resolve_similarity(target, model)
    text = model.declared_output == "text"
    if isinstance(target, list | tuple):
        words = [Word(each) if text and isinstance(each, str | int) else each for each in target]
        return _per_image(words, model, images)
    if isinstance(target, PerImage):
        return _checked(target, model, images)
    if text and (target is None or isinstance(target, str | Word) or _is_class(target)):
        return resolve_word(target, model, images)
    dense = model.declared_output == "dense"
    if target is None or isinstance(target, str) or _is_class(target):
        target = Region(target) if dense else Box(label=target)
    if isinstance(target, Region) and dense:
        return resolve_region(target, model, images)
    if isinstance(target, Box) and model.declared_output == "boxes":
        return resolve_box(target, model, images)
    if hasattr(target, "take") and callable(target) and not isinstance(target, Custom):
        raise TargetError(
            f"got {type(target).__name__} as a target, and {model.name} returns {_RETURNS[model.output][0]} "
            f"(output {model.output!r}); give {_RETURNS[model.output][1]}"
        )
    if callable(target):
        return target if isinstance(target, Custom) else _of_task(target, model, images)
    raise TargetError(f"got {type(target).__name__} as a target; a label, Region, Box or Word is needed")


_ADAPT = "a class, or say adapt(model, output='dense') of a segmentation and 'boxes' of a detector"
_RETURNS: dict[str, tuple[str, str]] = {
    "dense": ("a class per pixel", "Region(label, mask=None)"),
    "boxes": ("boxes", "Box(index or (x1, y1, x2, y2), label=None)"),
    "text": ("the tokens of an answer", "Word(number or text of a word)"),
    "softmax": ("logits of classes", _ADAPT),
    "sigmoid": ("logits of labels", _ADAPT),
    "value": ("values", "Value(index)"),
    "embedding": ("an embedding", "Similarity(image)"),
}


def _of_task(function: Any, model: Adapter, images: Tensor) -> Target:
    """Return a user's function of the output in its own shape as a target."""
    model.predict(images[:1])
    shape = model.output_shape
    return Custom(lambda logits: function(logits.unflatten(1, shape)))


def _resolve_similarity(target: Similarity, model: Adapter) -> Similarity:
    """Return a likeness to an embedding, which one pass finds where an image was given."""
    if isinstance(target.to, Tensor) and target.to.ndim <= 2 and target.to.is_floating_point():
        return target
    if isinstance(target.to, list | tuple) and target.to and all(isinstance(x, int | float) for x in target.to):
        return Similarity(torch.tensor(target.to))
    return Similarity(model.check_logits(model.predict(as_batch(model, target.to))))


def _predicted(model: Adapter, images: Tensor) -> Target:
    """Return the class with the largest logit, or the value of a regression that has only one."""
    if model.declared_output == "embedding":
        raise TargetError(
            f"{model.name} returns an embedding and no classes, so it predicts none; give TextSimilarity(text), "
            "Similarity(image), Value(index), a function of the output, or a model with a class head"
        )
    logits = model.check_logits(model.predict(images))
    if model.declared_output != "value":
        return Logit(tuple(logits.argmax(dim=-1).tolist()))
    if logits.shape[-1] > 1:
        raise TargetError(
            f"{model.name} returns {logits.shape[-1]} values; say which one is explained with Value(index)"
        )
    return Value(0)


def _is_class(target: Any) -> bool:
    return isinstance(target, int | np.integer) and not isinstance(target, bool)


def _per_image(targets: Sequence[Any], model: Adapter, images: Tensor) -> Target:
    if len(targets) == 1:
        return resolve_target(targets[0], model, images)
    if len(targets) != len(images):
        raise TargetError(f"got {len(targets)} targets for {len(images)} images; give one, or one per image")
    targets = [find_class(model, target) if isinstance(target, str) else target for target in targets]
    if all(map(_is_class, targets)) and model.declared_output not in TASKS:
        return _checked(Logit(tuple(int(target) for target in targets)), model, images)
    rows = [resolve_target(target, model, images[row : row + 1]) for row, target in enumerate(targets)]
    return PerImage(tuple(map(_for_any_row, rows)))


def _for_any_row(target: Target) -> Target:
    """Return a target of one image with its indices as plain numbers, which hold wherever the image stands."""
    return replace(target, **{name: index[0] for name, index in _indices(target).items() if isinstance(index, tuple)})  # type: ignore[type-var]


# ---- checking ------------------------------------------------------------------------------------------------------


def _checked(target: Target, model: Adapter, images: Tensor) -> Target:
    """Refuse indices the model does not have and lists of another length than the batch; fill in the link."""
    if isinstance(target, PerImage):
        if len(target.targets) != len(images):
            raise TargetError(f"got {len(target.targets)} targets for {len(images)} images; give one per image")
        return PerImage(tuple(_checked(inner, model, images) for inner in target.targets))
    for index in _indices(target).values():
        listed = index if isinstance(index, tuple) else (index,)
        if len(listed) != 1 and len(listed) != len(images):
            raise TargetError(f"got {len(listed)} target classes for {len(images)} images; give one, or one per image")
        for value in listed:
            _check_index(model, value, "value" if isinstance(target, Value) else "class")
    if isinstance(target, FinerContrast):
        for other in {other for others in target.others for other in others}:
            _check_index(model, other)
    if isinstance(target, Probability | LogProbability | ResidualSoftmax) and target.link is None:
        return _linked(target, model, images)
    return target


def _check_index(model: Adapter, index: int, kind: str = "class") -> None:
    count = model.num_classes
    if index < 0 or (count is not None and index >= count):
        known = "0 upwards" if count is None else f"0 to {count - 1}"
        raise TargetError(f"got {kind} {index}; {model.name} has {_PLURAL[kind]} {known}")


_PLURAL = {"class": "classes", "value": "values"}


def _linked(target: Probability | LogProbability | ResidualSoftmax, model: Adapter, images: Tensor) -> Target:
    if model.has_probabilities and model.output_size is None:
        model.predict(images[:1])  # a function that has not run yet: how many numbers are there?
    return replace(target, link=model.link)


def _indices(target: Any) -> dict[str, Indices]:
    """Return the indices that a target of ours holds, by field."""
    if type(target).__module__ != Logit.__module__ or isinstance(target, TextSimilarity | PerImage | Custom):
        return {}
    names = [field.name for field in fields(target) if field.name in ("index", "a", "b")]
    return {name: getattr(target, name) for name in names}


def with_classes(target: Target, classes: Any, model: Adapter, count: int) -> Target:
    """Return a target that knows which classes each picture shows.

    Args:
        target: of one class per image.
        classes: numbers or labels: one list for all images, or a list of lists, one per image, of any lengths.
        model: says which classes there are, and what they are called.
        count: how many images.
    """
    if not isinstance(target, Logit | Probability | LogProbability):
        raise TargetError(
            f"got classes= with the target {type(target).__name__}, which is not of one class; give a class, Logit, "
            "Probability or LogProbability"
        )
    if isinstance(classes, Tensor | np.ndarray):
        classes = classes.tolist()
    if isinstance(classes, str) or not isinstance(classes, Sequence) or not classes:
        raise TargetError(f"got classes={classes!r}; give a list of classes, or a list of them for each image")
    nested = [not isinstance(each, str) and isinstance(each, Sequence) for each in classes]
    if any(nested) and not all(nested):
        raise TargetError("got classes= with both classes and lists of them; give one list, or one for each image")
    sets = [_known_classes(each, model) for each in (classes if all(nested) else [classes])]
    if all(nested) and len(sets) != count:
        raise TargetError(f"got {len(sets)} sets of classes for {count} images; give one list, or one for each image")
    return replace(target, classes=tuple(sets))


def _known_classes(given: Sequence[Any], model: Adapter) -> tuple[int, ...]:
    """Return the classes that numbers and labels name, each once, in order."""
    found = []
    for wanted in given:
        if not isinstance(wanted, str) and not _is_class(wanted):
            raise TargetError(f"got {wanted!r} among classes=; give numbers or labels of classes")
        index = find_class(model, wanted) if isinstance(wanted, str) else int(wanted)
        _check_index(model, index)
        found.append(index)
    return tuple(dict.fromkeys(found))


# ---- classes by name -----------------------------------------------------------------------------------------------


def find_class(model: Adapter, wanted: str) -> int:
    """Return the class that a number or a label names; case does not matter, and one of several synonyms will do."""
    if wanted.strip().removeprefix("-").isdecimal():
        index = int(wanted)
        _check_index(model, index)
        return index
    if not model.labels:
        raise TargetError(f"got the target {wanted!r}, and {model.name} does not name its classes; give a number")
    names = {_folded(label): index for index, label in reversed(list(enumerate(model.labels)))}
    for index, label in enumerate(model.labels):  # "tabby, tabby cat" answers to both; a whole label goes before a part
        for synonym in label.split(","):
            names.setdefault(_folded(synonym), index)
    asked = _folded(wanted)
    if asked in names:
        return names[asked]
    near = difflib.get_close_matches(asked, names, n=1, cutoff=0.6) or [name for name in names if asked in name]
    hint = f"did you mean {near[0]!r}?" if near else f"its {len(model.labels)} classes begin with {model.labels[0]!r}"
    raise TargetError(f"{model.name} has no class called {wanted!r}; {hint}")


def read_target(model: Adapter, words: str) -> Any:
    """Return the target that a command line names: a class by number or label, a region or a box.

    ``region:LABEL`` is where a segmentation predicts a label, ``region:`` the largest region, background aside.
    A word of a vision-language model's answer is named by number or as it is written.
    ``box:0`` is a detector's surest box, ``box:LABEL`` its surest box of a label, ``box:X1,Y1,X2,Y2`` a box in pixels.
    """
    if model.declared_output == "text":
        return int(words) if words.isdecimal() else words
    task, colon, named = words.partition(":")
    named = named.strip()
    if not colon or task not in ("region", "box"):
        return words if model.declared_output in TASKS else find_class(model, words)
    if task == "region":
        return Region(int(named) if named.isdecimal() else named or None)
    if named.isdecimal():
        return Box(int(named))
    try:
        return Box(tuple(float(each) for each in named.split(",")))  # type: ignore[arg-type]
    except ValueError:
        return Box(label=named or None)


def _folded(label: str) -> str:
    return label.strip().casefold()
