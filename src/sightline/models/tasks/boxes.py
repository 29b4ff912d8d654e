"""Boxes: read from whatever a detector returns, and one of them found again in the output for another image.

A detector's output becomes one tensor, (batch, box, 5 + label): x1, y1, x2, y2 in shares of the image's sides, how sure
the detector is that there is an object, and the probability of each label.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sightline.errors import TargetError, UnsupportedModel
from sightline.targets.boxes import non_maximum_suppression, overlap
from sightline.targets.classes import Link, probabilities
from sightline.targets.tasks import OBJECT, Box

if TYPE_CHECKING:
    from sightline.models.adapter import Adapter

MOST = 100  # boxes of an image that are kept, where a detector returns as many as it finds
NAMELESS = 128  # labels that a detector may have where nothing says how many
SURE = 0.05  # the least score of a box that counts as found
SAME = 0.5  # boxes that overlap by more than this show the same object
NEAR = 0.1  # a box must overlap this much with the one that was asked for


# ---- reading --------------------------------------------------------------------------------------------------------


def read_boxes(output: Any, model: Adapter, size: tuple[int, int] | None) -> Tensor | None:
    """Return what a detector found, (batch, box, 5 + label), best first where it says how good; None for no boxes.

    Read are transformers' ``logits`` and ``pred_boxes``; a list of dictionaries with ``boxes``, ``labels`` and
    ``scores``, as torchvision's; and one dictionary, or a tuple in this order, of ``boxes`` (batch, box, 4) with either
    ``logits`` (batch, box, label), which become probabilities by a sigmoid, or ``labels`` and ``scores``. Boxes are
    x1, y1, x2, y2 in pixels, but for transformers' own.
    """
    predicted = getattr(output, "pred_boxes", None)
    if isinstance(predicted, Tensor):
        return _queries(output.logits, predicted, model)
    if isinstance(output, list) and all(isinstance(each, Mapping) and "boxes" in each for each in output):
        return _found(output, model, size)
    if isinstance(output, tuple) and len(output) == 3:
        output = dict(zip(("boxes", "labels", "scores"), output, strict=True))
    if not isinstance(output, Mapping) or not isinstance(output.get("boxes"), Tensor):
        return None
    if "logits" in output:
        return _joined(_shares(output["boxes"], size), _probabilities(output["logits"], "sigmoid"))
    rows = zip(output["boxes"], output["labels"], output["scores"], strict=True)
    each = [{"boxes": boxes, "labels": labels, "scores": scores} for boxes, labels, scores in rows]
    return _found(each, model, size)


def _queries(logits: Tensor, boxes: Tensor, model: Adapter) -> Tensor:
    """Return the boxes of transformers' detectors: centres and sides in shares, a query with or without "no object"."""
    labels = getattr(getattr(model.model, "config", None), "num_labels", logits.shape[-1])
    centre, side = boxes[..., :2], boxes[..., 2:]
    corners = torch.cat([centre - side / 2, centre + side / 2], dim=-1)
    if logits.shape[-1] == labels + 1:
        probability = _probabilities(logits, "softmax")[..., :-1]
        return torch.cat([corners, probability.sum(dim=-1, keepdim=True), probability], dim=-1)
    return _joined(corners, _probabilities(logits, "sigmoid"))


def _probabilities(logits: Tensor, link: Link) -> Tensor:
    """Return probabilities of (batch, box, label), over two axes: `libra` takes those of three for attention, gates."""
    return probabilities(logits.flatten(0, -2), link).view_as(logits)


def _joined(boxes: Tensor, probability: Tensor) -> Tensor:
    return torch.cat([boxes, probability.amax(dim=-1, keepdim=True), probability], dim=-1)


def _shares(boxes: Tensor, size: tuple[int, int] | None) -> Tensor:
    if size is None:
        raise UnsupportedModel("the size of the images is not known, in whose pixels the boxes are; run the adapter")
    height, width = size
    return boxes / torch.tensor([width, height, width, height], dtype=boxes.dtype, device=boxes.device)


def _found(output: Sequence[Mapping[str, Tensor]], model: Adapter, size: tuple[int, int] | None) -> Tensor:
    """Return boxes with one label each, the best of each image, and rows of zeros where there are fewer."""
    count = label_count(model)
    rows = []
    for each in output:
        best = each["scores"].argsort(descending=True, stable=True)[:MOST]
        boxes, labels, scores = each["boxes"][best], each["labels"][best].long(), each["scores"][best]
        if len(labels) and int(labels.max()) >= count:
            raise UnsupportedModel(
                f"{model.name} returned label {int(labels.max())} of {count}; say adapt(model, labels=[…]) with "
                "the name of every label"
            )
        one_hot = torch.nn.functional.one_hot(labels, count).to(scores) * scores[:, None]
        row = torch.cat([_shares(boxes.to(scores), size), scores[:, None], one_hot], dim=1)
        rows.append(torch.nn.functional.pad(row, (0, 0, 0, MOST - len(row))))
    return torch.stack(rows)


def label_count(model: Adapter) -> int:
    """Return how many labels a detector has, where its output does not say."""
    if model.labels:
        return len(model.labels)
    for module in model.modules:
        if isinstance(count := getattr(module, "num_classes", None), int):
            return count
        if isinstance(scores := getattr(module, "cls_score", None), torch.nn.Linear):
            return scores.out_features
    return NAMELESS


# ---- which box ------------------------------------------------------------------------------------------------------


def resolve_box(target: Box, model: Adapter, images: Tensor) -> Box:
    """Return a box target that knows the box, its objectness and label probabilities in each image; one pass."""
    if target.reference is not None:
        if len(target.reference) not in (1, len(images)):
            raise TargetError(f"got a Box of {len(target.reference)} images for {len(images)}; give one per image")
        return target
    logits = model.check_logits(model.predict(images))
    found = logits.unflatten(1, model.output_shape)
    label = _label(target.label, model, found.shape[-1] - OBJECT - 1)
    size = (images.shape[-2], images.shape[-1])
    rows = [_reference(target, label, each, model, row, size) for row, each in enumerate(found)]
    return replace(target, label=label, reference=torch.stack(rows), size=size)


def _label(label: int | str | None, model: Adapter, count: int) -> int | None:
    from sightline.models.targets import find_class

    number = find_class(model, label) if isinstance(label, str) else label
    if number is not None and not 0 <= number < count:
        raise TargetError(f"got label {number} of a box; {model.name} has labels 0 to {count - 1}")
    return number


def _reference(
    target: Box, label: int | None, found: Tensor, model: Adapter, row: int, size: tuple[int, int]
) -> Tensor:
    """Return the row of one image's detections, (box, 5 + label), that a target means."""
    scores = _scores(found, label)
    if isinstance(target.box, tuple):
        return _at(target.box, label, found, scores, model, row, size)
    kept = kept_boxes(found, scores)
    index = target.box or 0
    what = "object" if label is None else model.label(label)
    if not len(kept):
        raise TargetError(
            f"{model.name} finds no {what} in image {row}; give another image, or Box((x1, y1, x2, y2), label)"
        )
    if not 0 <= index < len(kept):
        raise TargetError(f"got box {index} of image {row}; {model.name} finds {len(kept)}, counted from 0, best first")
    return found[kept[index]]


def kept_boxes(found: Tensor, scores: Tensor) -> Tensor:
    """Return which of one image's detections, (box, 5 + label), count as found by these scores, best first."""
    sure = (scores >= SURE).nonzero()[:, 0]
    kept: Tensor = sure[non_maximum_suppression(found[sure, :4], scores[sure], SAME)]
    return kept


def _scores(found: Tensor, label: int | None) -> Tensor:
    probabilities = found[:, OBJECT + 1 :]
    return probabilities.amax(dim=1) if label is None else probabilities[:, label]


def _at(
    box: tuple[float, ...],
    label: int | None,
    found: Tensor,
    scores: Tensor,
    model: Adapter,
    row: int,
    size: tuple[int, int],
) -> Tensor:
    """Return the detection nearest to a box that was given, with the corners that were given."""
    height, width = size
    x1, y1, x2, y2 = box
    if not (0 <= x1 < x2 <= width and 0 <= y1 < y2 <= height):
        raise TargetError(
            f"got the box {box} for an image of {width}×{height} pixels; x1 < x2 and y1 < y2 inside it are needed"
        )
    corners = found.new_tensor([x1 / width, y1 / height, x2 / width, y2 / height])
    shared = overlap(corners, found[:, :4])
    best = int((shared * scores).argmax())
    if label is None and float(shared[best]) < NEAR:
        raise TargetError(
            f"{model.name} finds nothing in the box {box} of image {row}; give its label, Box({box}, label), or "
            "another box"
        )
    rest = found[best, 4:] if label is None else _certain(found[best, 4:], label)
    return torch.cat([corners, rest])


def _certain(rest: Tensor, label: int) -> Tensor:
    """Return objectness and label probabilities of an object that certainly has this label."""
    wanted = torch.zeros_like(rest)
    wanted[[0, 1 + label]] = 1.0
    return wanted
