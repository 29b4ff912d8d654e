"""Blocks: the images of a unit read, prepared and aimed, with a reason for each that cannot be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from sightline import api
from sightline.bench.prepare import feed
from sightline.bench.unit import Unit, sentence_of
from sightline.data.dataset import Dataset
from sightline.errors import InputError
from sightline.models.adapter import Adapter

__all__ = ["Fed", "alike", "read_block"]


@dataclass(frozen=True, eq=False)
class Fed:
    """The images of a unit that can be scored, and what is wrong with the others.

    Attributes:
        ids: of the images.
        images: normalised, (3, height, width) each.
        masks: of the same size, None where there is none.
        labels: None where unknown.
        targets: the classes to explain.
        failures: by id, why an image cannot be scored.
        known: by id, the label of every image that could be read.
    """

    ids: list[str] = field(default_factory=list)
    images: list[Tensor] = field(default_factory=list)
    masks: list[Tensor | None] = field(default_factory=list)
    labels: list[int | None] = field(default_factory=list)
    targets: list[int] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)
    known: dict[str, int | None] = field(default_factory=dict)

    def take(self, rows: Sequence[int]) -> Fed:
        """Return these images alone."""
        lists = (self.ids, self.images, self.masks, self.labels, self.targets)
        return Fed(*([one[row] for row in rows] for one in lists))  # type: ignore[arg-type]

    def drop(self, reasons: dict[int, str]) -> Fed:
        """Return the block without these images, their failure noted."""
        kept = self.take([row for row in range(len(self.images)) if row not in reasons])
        kept.failures.update(self.failures | {self.ids[row]: reason for row, reason in reasons.items()})
        kept.known.update(self.known)
        return kept


def read_block(unit: Unit, model: Adapter, dataset: Dataset) -> Fed:
    """Read the images of a unit, prepare them, and ask the model for the classes; what cannot be done is noted."""
    block = Fed()
    for image in unit.images:
        try:
            sample = dataset.read(image)
            block.known[image] = sample.label
            if unit.target == "label" and sample.label is None:
                raise InputError(f"{image} has no label, and the plan explains labels; write target = 'predicted'")
            fed, mask = feed(model, sample, unit.resize)
            fed = model.accept(fed[None])[0]
        except Exception as error:
            block.failures[image] = sentence_of(error)
            continue
        block.ids.append(image)
        block.images.append(fed)
        block.masks.append(mask)
        block.labels.append(sample.label)
    return _aimed(unit, model, block)


def _aimed(unit: Unit, model: Adapter, block: Fed) -> Fed:
    """Fill in the classes to explain; drop images that the model gives no numbers for."""
    reasons: dict[int, str] = {}
    predicted: dict[int, int] = {}
    for rows in alike(block.images):
        found, failed = _answers(model, block.images, rows)
        predicted.update(found)
        reasons.update(failed)
    block.targets.extend(
        predicted.get(row, -1) if unit.target == "predicted" else int(block.labels[row] or 0)
        for row in range(len(block.images))
    )
    return block.drop(reasons)


def alike(images: Sequence[Tensor]) -> list[list[int]]:
    """Group images of the same size, in order: only those go through a model together."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for place, image in enumerate(images):
        groups.setdefault(tuple(image.shape), []).append(place)
    return list(groups.values())


def _answers(model: Adapter, images: Sequence[Tensor], rows: list[int]) -> tuple[dict[int, int], dict[int, str]]:
    """Return the predicted class of each image, and why there is none for the others."""
    try:
        with api.ready(model):
            logits = model.predict(torch.stack([images[row] for row in rows]))
    except Exception as error:
        if len(rows) == 1:
            return {}, {rows[0]: sentence_of(error)}
        parts = [_answers(model, images, [row]) for row in rows]
        return {k: v for found, _ in parts for k, v in found.items()}, {
            k: v for _, bad in parts for k, v in bad.items()
        }
    finite = torch.isfinite(logits).all(dim=-1).tolist()
    classes = logits.argmax(dim=-1).tolist()
    reason = f"{model.name} returned NaN or infinite logits; check its weights and its precision"
    found = {row: int(index) for row, index, good in zip(rows, classes, finite, strict=True) if good}
    return found, {row: reason for row, good in zip(rows, finite, strict=True) if not good}
