"""Dense outputs, a class per pixel: read from whatever a segmentation model returns, and regions found in them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sightline.errors import TargetError
from sightline.targets.tasks import Region
from sightline.types import Link

if TYPE_CHECKING:
    from sightline.models.adapter import Adapter

BACKGROUND = frozenset({"background", "__background__"})  # labels that no region is looked for of its own accord
NAMES = ("out", "logits", "masks", "pred_masks")  # of the logits in dictionaries and output objects, by priority


def read_dense(output: Any) -> Tensor | None:
    """Return the logits of a segmentation, (batch, label, height, width); None where there are none to be found.

    The output is a tensor, a tuple that begins with one, or a dictionary or object that holds it under one of NAMES or
    as its only tensor of four axes.
    """
    if isinstance(output, Tensor):
        return output if output.ndim == 4 else output[:, None] if output.ndim == 3 else None
    if isinstance(output, list | tuple) and not hasattr(output, "_fields"):
        return read_dense(output[0]) if output else None
    held = output if isinstance(output, Mapping) else {name: getattr(output, name, None) for name in NAMES}
    maps = {name: value for name, value in held.items() if isinstance(value, Tensor) and value.ndim == 4}
    named = next((maps[name] for name in NAMES if name in maps), None)
    return next(iter(maps.values())) if named is None and len(maps) == 1 else named


def dense_link(model: Adapter, labels: int) -> Link:
    """Return how the logits of a pixel become probabilities: a softmax over labels, a sigmoid of a single one."""
    if model.stated_link is not None:
        return model.stated_link
    if model.ending.activation is not None:
        return "identity"
    return "softmax" if labels > 1 else "sigmoid"


def resolve_region(target: Region, model: Adapter, images: Tensor) -> Region:
    """Return a region with its label as a number, and its mask: where the model predicts the label, if none is given.

    Costs one forward pass, which also tells the shape of the output.
    """
    if target.shape is not None and target.mask is not None:
        return _of_batch(target, len(images))
    logits = model.check_logits(model.predict(images))
    channels, height, width = model.output_shape
    dense = logits.unflatten(1, (channels, height, width))
    link = target.link or dense_link(model, channels)
    predicted = _predicted(dense, link)
    label = _label(target.label, model, channels, predicted)
    if target.mask is None:
        labels = torch.as_tensor(label, device=dense.device).reshape(-1, 1, 1)
        mask = predicted == labels
    else:
        mask = _given(target.mask, images)
    found = replace(target, label=label, mask=mask, link=link, shape=(channels, height, width))
    _refuse_empty(found, model, predicted=target.mask is None)
    return _of_batch(found, len(images))


def predicted_labels(logits: Tensor, model: Adapter) -> Tensor:
    """Return the label of each cell of a segmentation, (batch, height, width), from flat logits; -1 where none is."""
    dense: Tensor = logits.unflatten(1, model.output_shape)
    return _predicted(dense, dense_link(model, dense.shape[1]))


def _of_batch(target: Region, count: int) -> Region:
    sizes = [len(target.label)] if isinstance(target.label, tuple) else []
    sizes += [len(target.mask)] if target.mask is not None and target.mask.ndim == 3 else []
    for size in sizes:
        if size not in (1, count):
            raise TargetError(f"got a Region of {size} images for {count}; give one, or one per image")
    single = isinstance(target.label, tuple) and len(target.label) == 1
    return replace(target, label=target.label[0]) if single else target  # type: ignore[index]


def _predicted(dense: Tensor, link: Link) -> Tensor:
    """Return the label of each cell, (batch, height, width); of a single label, 0 where it is likely and -1 elsewhere.

    Where every label has a sigmoid of its own, it is the likeliest of them, or -1 where none is likely.
    """
    best = dense.argmax(dim=1)
    if link == "softmax" or (link == "identity" and dense.shape[1] > 1):
        return best
    likely = dense.amax(dim=1) > (0.5 if link == "identity" else 0.0)
    return best.where(likely, -1)


def _label(
    label: int | str | tuple[int, ...] | None, model: Adapter, channels: int, predicted: Tensor
) -> int | tuple[int, ...]:
    """Return the number of a label, or of the label that covers most of each image."""
    from sightline.models.targets import find_class

    if label is None:
        return tuple(_largest(each, model) for each in predicted)
    number = find_class(model, label) if isinstance(label, str) else label
    for one in number if isinstance(number, tuple) else (number,):
        if not 0 <= one < channels:
            raise TargetError(f"got label {one} of a region; {model.name} has labels 0 to {channels - 1}")
    return number


def _largest(predicted: Tensor, model: Adapter) -> int:
    labels, counts = predicted.unique(return_counts=True)
    sizes: dict[int, int] = {
        label: size
        for label, size in zip(labels.tolist(), counts.tolist(), strict=True)
        if label >= 0 and model.label(label).casefold() not in BACKGROUND
    }
    if not sizes:
        raise TargetError(
            f"{model.name} sees nothing but background in this image, so no region is predicted; "
            "give Region(label, mask)"
        )
    return max(sizes, key=lambda label: (sizes[label], -label))


def _given(mask: Any, images: Tensor) -> Tensor:
    mask = torch.as_tensor(mask)
    if mask.ndim not in (2, 3):
        raise TargetError(
            f"got a mask of shape {tuple(mask.shape)} for a Region; (height, width) or (batch, height, width) is needed"
        )
    if mask.is_floating_point() or mask.is_complex():
        raise TargetError(f"got a mask of {mask.dtype} for a Region; give booleans, true inside the region")
    inside: Tensor = (mask > 0).to(images.device)
    return inside


def _refuse_empty(target: Region, model: Adapter, *, predicted: bool) -> None:
    assert target.mask is not None
    empty = ~target.mask.reshape(-1, *target.mask.shape[-2:]).flatten(1).any(dim=1)
    if not empty.any():
        return
    row = int(empty.nonzero()[0])
    if not predicted:
        raise TargetError(f"the mask of image {row} is empty; a Region needs a pixel at least")
    label = target.label[row] if isinstance(target.label, tuple) else int(target.label)  # type: ignore[arg-type]
    raise TargetError(
        f"{model.name} predicts {model.label(label)!r} nowhere in image {row}, so the region is empty; "
        "choose another label, or give Region(label, mask)"
    )
