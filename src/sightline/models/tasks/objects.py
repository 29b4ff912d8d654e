"""Objects and regions that a detector or a segmentation finds in an image: what a person can choose as a target."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor

from sightline.models.adapter import Adapter
from sightline.models.tasks.boxes import kept_boxes
from sightline.models.tasks.dense import BACKGROUND, predicted_labels
from sightline.targets.tasks import OBJECT

__all__ = ["FoundObject", "found_objects"]


@dataclass(frozen=True, slots=True)
class FoundObject:
    """A detection, or the region of a label.

    Attributes:
        index: of a detection its rank, 0 for the surest, as `Box` takes it; of a region its label, as `Region` does.
        label: its name.
        score: of a detection its probability; of a region the share of the image that it covers.
        box: left, upper, right and lower edge in shares of the image's sides.
    """

    index: int
    label: str
    score: float
    box: tuple[float, float, float, float]

    def json(self) -> dict[str, Any]:
        """Return the object as plain data."""
        return asdict(self)


def found_objects(model: Adapter, logits: Tensor) -> list[FoundObject]:
    """Return what a detector or a segmentation finds in the first image of these logits; nothing for other models."""
    if model.declared_output == "boxes":
        return _detections(model, logits[0].unflatten(0, model.output_shape))
    if model.declared_output == "dense":
        return _regions(model, predicted_labels(logits[:1], model)[0])
    return []


def _detections(model: Adapter, found: Tensor) -> list[FoundObject]:
    probabilities = found[:, OBJECT + 1 :]
    rows = kept_boxes(found, probabilities.amax(dim=1)).tolist()
    return [
        FoundObject(
            rank, model.label(int(probabilities[row].argmax())), float(probabilities[row].max()), _inside(found[row])
        )
        for rank, row in enumerate(rows)
    ]


def _regions(model: Adapter, labels: Tensor) -> list[FoundObject]:
    """Return the region of every label, the largest first, background left out."""
    height, width = labels.shape
    found = []
    for label in labels.unique().tolist():
        if label < 0 or model.label(label).casefold() in BACKGROUND:
            continue
        rows, columns = (labels == label).nonzero(as_tuple=True)
        edges = (columns.min() / width, rows.min() / height, (columns.max() + 1) / width, (rows.max() + 1) / height)
        share = len(rows) / (height * width)
        found.append(FoundObject(label, model.label(label), share, tuple(map(float, edges))))  # type: ignore[arg-type]
    return sorted(found, key=lambda each: (-each.score, each.index))


def _inside(detection: Tensor) -> tuple[float, float, float, float]:
    """Return the corners of a detection, cut at the edges of the image."""
    x1, y1, x2, y2 = detection[:OBJECT].clamp(0, 1).tolist()
    return x1, y1, x2, y2
