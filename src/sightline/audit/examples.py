"""Examples: single images with what is explained in them, and a mask of the evidence where one is known."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sightline.api.prepare import prepare
from sightline.audit.ranking import single_images
from sightline.data.dataset import Dataset
from sightline.errors import InputError, ShapeError
from sightline.models.adapter import Adapter

__all__ = ["Example", "examples_of"]


@dataclass(frozen=True, eq=False)
class Example:
    """One image.

    Attributes:
        batch: prepared for the model, (1, 3, height, width).
        target: what is explained in it; None for the predicted class.
        mask: (height, width), 1 evidence, 0 background, -1 ignored; None where there is none.
    """

    batch: Tensor
    target: Any = None
    mask: Tensor | None = None


def examples_of(model: Adapter, images: Any, target: Any = None, masks: Tensor | None = None) -> list[Example]:
    """Return the images one by one.

    Those of a data set bring their masks, and their labels are explained unless a target is given; others are as
    `explain` takes them, with masks of all of them or none.
    """
    if isinstance(images, Dataset):
        if masks is not None:
            raise InputError(f"got masks beside {images.name}, a data set, which brings its own; give images instead")
        return list(_from_dataset(model, images, target))
    batches = [batch for _, _, batch in single_images(model, images)]
    if masks is None:
        return [Example(batch, target) for batch in batches]
    given = torch.as_tensor(masks)
    if given.ndim != 3 or len(given) != len(batches):
        raise ShapeError(
            f"got masks of shape {tuple(given.shape)} for {len(batches)} images; "
            f"({len(batches)}, height, width) is needed"
        )
    return [Example(batch, target, mask) for batch, mask in zip(batches, given, strict=True)]


def _from_dataset(model: Adapter, dataset: Dataset, target: Any) -> Iterator[Example]:
    for sample in dataset:
        prepared, mask = prepare(model, sample)
        yield Example(prepared[None], sample.label if target is None else target, mask)
