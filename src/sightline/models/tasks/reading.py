"""Read the output of a model for a task, by what the task is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from sightline.models.tasks.boxes import read_boxes
from sightline.models.tasks.dense import read_dense
from sightline.models.tasks.words import read_words
from sightline.types import Output

if TYPE_CHECKING:
    from sightline.models.adapter import Adapter

NEEDED: dict[Output, str] = {
    "dense": "logits of shape (batch, label, height, width) are needed",
    "boxes": "boxes, labels and scores of each image are needed, or boxes with the logits of every label",
    "text": "logits of shape (batch, place, token) are needed",
}


def read_task(output: Any, task: Output, model: Adapter, size: tuple[int, int] | None) -> Tensor | None:
    """Return the numbers of a task's output, one row per image in a shape of its own; None where there are none.

    `size` is that of the images, in whose pixels detectors give their boxes.
    """
    if task == "text":
        return read_words(output)
    return read_dense(output) if task == "dense" else read_boxes(output, model, size)
