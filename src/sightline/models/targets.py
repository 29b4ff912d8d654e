"""Turn what a user gives as a target into a target that fits the model and the batch."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
from torch import Tensor

from sightline.errors import TargetError
from sightline.models.adapter import Adapter
from sightline.types import Custom, Indices, Logit, LogProbability, PerImage, Probability, Target, TextSimilarity, Value

NEEDED = "a class index or name, one per image, or a Target is needed"


def resolve_target(target: Any, model: Adapter, images: Tensor) -> Target:
    """Return a target for these images.

    None is each image's predicted class, or the one value of a regression, and costs one forward pass; an int or a
    label is a class for all images; a tensor or list of them is a class per image; a list of targets is one per image;
    any other callable maps logits to one number per image. Probabilities become those of the model's own output.
    """
    model.check_supported()
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


def _predicted(model: Adapter, images: Tensor) -> Target:
    """Return the class with the largest logit, or the value of a regression that has only one."""
    if model.declared_output == "embedding":
        raise TargetError(
            f"{model.name} returns an embedding and no classes, so it predicts none; give TextSimilarity(text), "
            "Value(index), a function of the output, or a model with a class head"
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
    if all(map(_is_class, targets)):
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
    if isinstance(target, Probability | LogProbability) and target.link is None:
        return _linked(target, model, images)
    return target


def _check_index(model: Adapter, index: int, kind: str = "class") -> None:
    count = model.num_classes
    if index < 0 or (count is not None and index >= count):
        known = "0 upwards" if count is None else f"0 to {count - 1}"
        raise TargetError(f"got {kind} {index}; {model.name} has {_PLURAL[kind]} {known}")


_PLURAL = {"class": "classes", "value": "values"}


def _linked(target: Probability | LogProbability, model: Adapter, images: Tensor) -> Target:
    if model.has_probabilities and model.output_size is None:
        model.predict(images[:1])  # a function that has not run yet: how many numbers are there?
    return replace(target, link=model.link)


def _indices(target: Any) -> dict[str, Indices]:
    """Return the indices that a target of ours holds, by field."""
    if type(target).__module__ != Logit.__module__ or isinstance(target, TextSimilarity | PerImage | Custom):
        return {}
    return {field.name: getattr(target, field.name) for field in fields(target) if field.name != "link"}


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


def _folded(label: str) -> str:
    return label.strip().casefold()
