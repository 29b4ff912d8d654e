"""Turn what a user gives as a target into a target that fits the model and the batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np
from torch import Tensor

from sightline.errors import TargetError
from sightline.models.adapter import Adapter
from sightline.types import Custom, Logit, PerImage, Target, TextSimilarity


def resolve_target(target: Any, model: Adapter, images: Tensor) -> Target:
    """Return a target for these images.

    None is each image's predicted class and costs one forward pass; an int is a class for all images; a tensor or
    list of ints is a class per image; a list of targets is one per image; any other callable maps logits to one
    number per image.
    """
    if target is None:
        return Logit(tuple(model.check_logits(model.predict(images)).argmax(dim=-1).tolist()))
    if isinstance(target, Tensor | np.ndarray):
        target = target.tolist()
    if isinstance(target, (bool, str)):
        raise TargetError(f"got {target!r} as a target; a class index, one index per image, or a Target is needed")
    if isinstance(target, int | np.integer):
        return _checked(Logit(int(target)), model, len(images))
    if isinstance(target, list | tuple):
        return _one_each(target, model, images)
    if isinstance(target, TextSimilarity) and not target.embedding:
        return TextSimilarity(target.text, tuple(model.encode_text([target.text])[0].tolist()))
    if hasattr(target, "take") and callable(target):
        return _checked(target, model, len(images))
    if callable(target):
        return Custom(target)
    raise TargetError(
        f"got {type(target).__name__} as a target; a class index, one index per image, or a Target is needed"
    )


def _one_each(target: Sequence[Any], model: Adapter, images: Tensor) -> Target:
    if len(target) == 1:
        return resolve_target(target[0], model, images)
    if len(target) != len(images):
        raise TargetError(f"got {len(target)} targets for {len(images)} images; give one, or one per image")
    if all(isinstance(item, int | np.integer) and not isinstance(item, bool) for item in target):
        return _checked(Logit(tuple(int(item) for item in target)), model, len(images))
    return PerImage(tuple(resolve_target(item, model, images[row : row + 1]) for row, item in enumerate(target)))


def _checked(target: Target, model: Adapter, count: int) -> Target:
    """Refuse classes the model does not have, and lists of another length than the batch."""
    if isinstance(target, PerImage) and len(target.targets) != count:
        raise TargetError(f"got {len(target.targets)} targets for {count} images; give one per image")
    for index in _indices(target):
        listed = index if isinstance(index, tuple) else (index,)
        if len(listed) != 1 and len(listed) != count:
            raise TargetError(f"got {len(listed)} target classes for {count} images; give one, or one per image")
        for value in listed:
            if value < 0 or (model.num_classes is not None and value >= model.num_classes):
                known = f"0 to {model.num_classes - 1}" if model.num_classes is not None else "0 upwards"
                raise TargetError(f"got class {value}; {model.name} has classes {known}")
    return target


def _indices(target: Any) -> list[Any]:
    """Return the class indices a target of ours holds."""
    if type(target).__module__ != Logit.__module__ or isinstance(target, TextSimilarity | PerImage | Custom):
        return []
    return [getattr(target, field.name) for field in fields(target) if field.name != "link"]
