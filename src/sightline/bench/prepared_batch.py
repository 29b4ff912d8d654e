"""Batches: the images of a unit read, prepared for the model and given a target, with a reason for each that cannot."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from sightline import api
from sightline.api.prepare import prepare
from sightline.bench.unit import Unit, sentence_of
from sightline.data.dataset import Dataset
from sightline.errors import InputError
from sightline.models.adapter import Adapter
from sightline.models.passes import SharedPasses
from sightline.types import Attribution, Passes, probabilities

__all__ = ["PreparedBatch", "group_by_shape", "prepare_batch"]


@dataclass(frozen=True, eq=False)
class PreparedBatch:
    """The images of a unit that can be scored, and why the others cannot.

    Attributes:
        ids: of the images.
        images: normalised, (3, height, width) each.
        masks: of the same size, None where there is none.
        labels: None where unknown.
        targets: the classes to explain.
        classes: the classes that each picture shows, None where unknown.
        failures: by id, why an image cannot be scored.
        known_labels: by id, the label of every image that could be read.
        found: what recipes have in common, computed once for the units of these images; see `SupportsBasis`.
        shared: by the ids of some of these images, they themselves as one tensor, and what methods have computed of
            them; see `SharedPasses`.
        known: by the ids of some of these images, what metrics have computed of them whatever the map; see `Case`.
    """

    ids: list[str] = field(default_factory=list)
    images: list[Tensor] = field(default_factory=list)
    masks: list[Tensor | None] = field(default_factory=list)
    labels: list[int | None] = field(default_factory=list)
    targets: list[int] = field(default_factory=list)
    classes: list[tuple[int, ...] | None] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)
    known_labels: dict[str, int | None] = field(default_factory=dict)
    found: dict[Any, tuple[Attribution, float]] = field(default_factory=dict)
    shared: dict[tuple[str, ...], tuple[Tensor, SharedPasses]] = field(default_factory=dict)
    known: dict[tuple[str, ...], dict[Hashable, tuple[Any, Passes]]] = field(default_factory=dict)

    def stacked(self) -> tuple[Tensor, SharedPasses]:
        """Return all images as one tensor, the same for every unit, and what methods have computed of it."""
        key = tuple(self.ids)
        if key not in self.shared:
            self.shared[key] = torch.stack(self.images), SharedPasses()
        return self.shared[key]

    def take(self, indices: Sequence[int]) -> PreparedBatch:
        """Return these images alone."""
        columns = (self.ids, self.images, self.masks, self.labels, self.targets, self.classes)
        chosen = PreparedBatch(*([column[index] for index in indices] for column in columns))  # type: ignore[arg-type]
        return replace(chosen, found=self.found, shared=self.shared, known=self.known)

    def drop(self, reasons: dict[int, str]) -> PreparedBatch:
        """Return the batch without these images, their failure noted."""
        kept = self.take([index for index in range(len(self.images)) if index not in reasons])
        kept.failures.update(self.failures | {self.ids[index]: reason for index, reason in reasons.items()})
        kept.known_labels.update(self.known_labels)
        return kept


def prepare_batch(unit: Unit, model: Adapter, dataset: Dataset) -> PreparedBatch:
    """Read the images of a unit, prepare them, and ask the model for the classes; what cannot be done is noted."""
    batch = PreparedBatch()
    for image in unit.images:
        try:
            sample = dataset.read(image)
            batch.known_labels[image] = sample.label
            if unit.target == "label" and sample.label is None:
                raise InputError(f"{image} has no label, and the plan explains labels; write target = 'predicted'")
            prepared, mask = prepare(model, sample, unit.resize)
            prepared = model.accept(prepared[None])[0]
        except Exception as error:
            batch.failures[image] = sentence_of(error)
            continue
        batch.ids.append(image)
        batch.images.append(prepared)
        batch.masks.append(mask)
        batch.labels.append(sample.label)
        batch.classes.append(sample.classes)
    return _with_targets(unit, model, batch)


def _with_targets(unit: Unit, model: Adapter, batch: PreparedBatch) -> PreparedBatch:
    """Fill in the classes to explain; drop images that the model gives no numbers for."""
    reasons: dict[int, str] = {}
    predicted: dict[int, int] = {}
    for indices in group_by_shape(batch.images):
        logits, failed = _predict(model, batch.images, indices)
        predicted.update({index: int(row.argmax()) for index, row in logits.items()})
        reasons.update(failed)
        for index, row in logits.items():
            batch.classes[index] = _likely(batch.classes[index], row, unit.confidence, model)
    batch.targets.extend(
        predicted.get(index, -1) if unit.target == "predicted" else int(batch.labels[index] or 0)
        for index in range(len(batch.images))
    )
    return batch.drop(reasons)


def group_by_shape(images: Sequence[Tensor]) -> list[list[int]]:
    """Group images of the same size, in order: only those go through a model together."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for index, image in enumerate(images):
        groups.setdefault(tuple(image.shape), []).append(index)
    return list(groups.values())


def _likely(
    classes: tuple[int, ...] | None, logits: Tensor, confidence: float, model: Adapter
) -> tuple[int, ...] | None:
    """Return the classes of a picture that the model finds as probable as the plan asks."""
    if classes is None or not confidence:
        return classes
    probable = probabilities(logits[None].double(), model.link)[0]
    return tuple(index for index in classes if probable[index] >= confidence)


def _predict(model: Adapter, images: Sequence[Tensor], indices: list[int]) -> tuple[dict[int, Tensor], dict[int, str]]:
    """Return the logits of each image, and why there are none for the others."""
    try:
        with api.ready(model):
            logits = model.predict(torch.stack([images[index] for index in indices]))
    except Exception as error:
        if len(indices) == 1:
            return {}, {indices[0]: sentence_of(error)}
        parts = [_predict(model, images, [index]) for index in indices]
        return {k: v for known, _ in parts for k, v in known.items()}, {
            k: v for _, failed in parts for k, v in failed.items()
        }
    finite = torch.isfinite(logits).all(dim=-1).tolist()
    reason = f"{model.name} returned NaN or infinite logits; check its weights and its precision"
    known = {index: row for index, row, good in zip(indices, logits, finite, strict=True) if good}
    return known, {index: reason for index, good in zip(indices, finite, strict=True) if not good}
