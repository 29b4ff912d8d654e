"""Scoring: from the images of a unit to one row per image and metric."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from sightline import api
from sightline.bench.prepared_batch import PreparedBatch, group_by_shape
from sightline.bench.store.rows import FAILED, failed_rows, make_row
from sightline.bench.unit import Unit, sentence_of
from sightline.methods.basis import SupportsBasis
from sightline.metrics.case import Case, Metric
from sightline.metrics.judge import judge
from sightline.models.adapter import Adapter
from sightline.models.passes import sharing
from sightline.models.targets import resolve_target
from sightline.models.tasks.reading import NEEDED as TASKS
from sightline.recipe import parse, parse_metric
from sightline.registry import spec_of
from sightline.targets.tasks import Box, Region
from sightline.types import Attribution, Enlarge, Logit, Method, PerImage, Target, check_enlarge

__all__ = ["score_unit"]

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Score:
    """What a metric says of one image."""

    value: float = float("nan")
    flag: str = ""
    curve: list[float] | None = None


def score_unit(
    unit: Unit, model: Adapter, batch: PreparedBatch, versions: str = "{}"
) -> tuple[list[Row], dict[str, Attribution]]:
    """Explain and score the images of a unit: one row per image and metric in the unit's order, and the maps to keep.

    Where the images cannot be done together they are done one by one, so that only those fail that must.
    """
    metrics = {name: parse_metric(name) for name in unit.metrics}
    scoring = _UnitScoring(unit, model, parse(unit.recipe), metrics, versions)
    scoring.failures.update(batch.failures)
    for indices in group_by_shape(batch.images):
        scoring.explain(batch.take(indices))
    for row in failed_rows(unit, scoring.failures, versions, batch.known_labels):
        scoring.rows.setdefault(row["image"], []).append(row)
    maps = {image: scoring.maps[image] for image in unit.images[: unit.maps] if image in scoring.maps}
    return [row for image in unit.images for row in scoring.rows[image]], maps


@dataclass(frozen=True)
class _UnitScoring:
    """One unit under way: what is needed, and by image what has come of it."""

    unit: Unit
    model: Adapter
    method: Method
    metrics: dict[str, Metric]
    versions: str
    rows: dict[str, list[Row]] = field(default_factory=dict)
    maps: dict[str, Attribution] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)

    def explain(self, batch: PreparedBatch) -> None:
        """Explain and score some images; each alone where they fail together; note the reason where one fails alone."""
        images, _ = batch.stacked()
        try:
            target = self._target(batch, images)
            attribution, seconds = self._explained(batch, target)
            pixels = attribution.pixels()
        except Exception as error:
            if len(images) == 1:
                self.failures[batch.ids[0]] = sentence_of(error)
            else:
                for index in range(len(images)):
                    self.explain(batch.take([index]))
            return
        cases = _Cases(self.model, images, target, pixels, batch, self.method, attribution.enlarge)
        scores, forward = _score_all(cases, self.metrics)
        shared = {
            "forward": attribution.passes.forward / len(images),
            "backward": attribution.passes.backward / len(images),
            "metric_forward": forward / len(images),
            "seconds": seconds / len(images),
        }
        for index, image in enumerate(batch.ids):
            self.maps[image] = replace(attribution[index], seen=None, details=None)
            explained = _class_of(target.take([index]), batch.targets[index])
            known = shared | {"label": batch.labels[index], "target": explained}
            self.rows[image] = [
                self._row(name, image, known, by_image[index], attribution.flags[index])
                for name, by_image in scores.items()
            ]

    def _target(self, batch: PreparedBatch, images: Tensor) -> Target:
        """Return the classes to explain, and those that the pictures show where that is known of all.

        Of a segmentation it is the region of each label, of a detector its surest box; the largest region and the
        surest box of all where the plan explains what is predicted.
        """
        if self.model.declared_output in TASKS:
            wanted = [None if self.unit.target == "predicted" else label for label in batch.targets]
            with api.ready(self.model):
                return resolve_target(wanted, self.model, images)
        shown = tuple(classes for classes in batch.classes if classes is not None)
        return Logit(tuple(batch.targets), classes=shown if len(shown) == len(batch.targets) else None)

    def _explained(self, batch: PreparedBatch, target: Target) -> tuple[Attribution, float]:
        """Return the attribution and the seconds it took."""
        if isinstance(self.method, SupportsBasis):
            found, seconds = self._basis(self.method.basis, batch, target)
            made = replace(self.method.from_basis(found), passes=found.passes, target=found.target, labels=found.labels)
            attribution = api.finished(made, self.method, self.model)
        else:
            attribution, seconds = self._timed(self.method, batch, target)
        enlarge = check_enlarge(self.unit.enlarge) if self.unit.enlarge else attribution.enlarge
        return replace(attribution, enlarge=enlarge), seconds

    def _basis(self, basis: Method, batch: PreparedBatch, target: Target) -> tuple[Attribution, float]:
        """Return the attribution that recipes have in common, computed for the first of them, and its seconds."""
        key = (basis, tuple(batch.ids))
        if key not in batch.found:
            batch.found[key] = self._timed(basis, batch, target)
        return batch.found[key]

    def _timed(self, method: Method, batch: PreparedBatch, target: Target) -> tuple[Attribution, float]:
        """Return the attribution and the seconds it takes, those of passes included that another method has run."""
        images, passes = batch.stacked()
        started, before = time.perf_counter(), passes.seconds
        with sharing(images, passes):
            attribution = api.explain(self.model, images, method, target=target)
        return attribution, time.perf_counter() - started + passes.seconds - before

    def _row(self, metric: str, image: str, known: Row, score: Score, flag: str) -> Row:
        """Return one row; what is wrong with the map is said once, and not beside a failure."""
        flags = (score.flag,) if flag in score.flag or score.flag.startswith(FAILED) else (flag, score.flag)
        scored = {"value": score.value, "flag": "; ".join(filter(None, flags)), "curve": score.curve}
        return make_row(self.unit, self.unit.key, metric, image, self.versions, **known, **scored)


def _class_of(target: Target, otherwise: int) -> int:
    """Return the label of the region or the box that was explained of one image."""
    if isinstance(target, PerImage):
        (target,) = target.targets
    if isinstance(target, Box):
        return target.label_of()
    label = target.label if isinstance(target, Region) else otherwise
    return label[0] if isinstance(label, tuple) else int(label)  # type: ignore[arg-type]


@dataclass(frozen=True)
class _Cases:
    """Maps to be scored, all together or a few of them."""

    model: Adapter
    images: Tensor
    target: Target
    pixels: Tensor
    batch: PreparedBatch
    method: Method
    enlarge: Enlarge

    def of(self, indices: Sequence[int]) -> Case:
        """Return the case of these images; with masks where all of them have one."""
        rows = list(indices)
        masks = [mask for row in rows if (mask := self.batch.masks[row]) is not None]
        given = torch.stack(masks) if len(masks) == len(rows) else None
        target, labels = self.target.take(rows), self._labels(rows)
        pixels, images = self.pixels[rows], self.images[rows]
        known = self.batch.known.setdefault(tuple(self.batch.ids[row] for row in rows), {})
        return Case(self.model, images, target, pixels, given, labels, self.method, self.enlarge, known)

    def _labels(self, indices: Sequence[int]) -> tuple[int, ...] | None:
        """Return the labels, the explained class where one is missing; None where all are."""
        labels = [self.batch.labels[index] for index in indices]
        if all(label is None for label in labels):
            return None
        return tuple(
            self.batch.targets[index] if label is None else label for index, label in zip(indices, labels, strict=True)
        )


def _score_all(cases: _Cases, metrics: dict[str, Metric]) -> tuple[dict[str, list[Score]], float]:
    """Score maps by every metric; return each metric's scores and the forward passes of all.

    All metrics share a case, and what it computes; those of masks are asked only about the images that have one.
    """
    every = list(range(len(cases.images)))
    masked = [index for index in every if cases.batch.masks[index] is not None]
    all_images = cases.of(every)
    masked_images = all_images if masked == every else cases.of(masked) if masked else None
    scores: dict[str, list[Score]] = {}
    forward = 0.0
    for name, metric in metrics.items():
        needs_masks = "masks" in spec_of(metric).needs
        case, indices = (masked_images, masked) if needs_masks else (all_images, every)
        scores[name] = [Score(flag="no mask")] * len(every)
        if case is None:
            continue
        measured, spent = _score(metric, case, indices, cases.of)
        for index, score in zip(indices, measured, strict=True):
            scores[name][index] = score
        forward += spent
    return scores, forward


def _score(
    metric: Metric, case: Case, indices: Sequence[int], case_of: Callable[[Sequence[int]], Case]
) -> tuple[list[Score], float]:
    """Score a case by one metric; each image alone where that fails."""
    try:
        with api.ready(case.model):
            scores = judge(case, metric)
    except Exception as error:
        if len(indices) == 1:
            return [Score(flag=FAILED + sentence_of(error))], 0.0
        single = [_score(metric, case_of([index]), [index], case_of) for index in indices]
        return [score for alone, _ in single for score in alone], sum(spent for _, spent in single)
    (measured,) = scores.measurements.values()
    values = measured.values.double().cpu().tolist()
    curves = [None] * len(values) if measured.curve is None else measured.curve.double().cpu().flatten(1).tolist()
    flags = [
        flag or ("not defined" if value != value else "") for flag, value in zip(measured.flags, values, strict=True)
    ]
    return [Score(*score) for score in zip(values, flags, curves, strict=True)], scores.passes.forward
