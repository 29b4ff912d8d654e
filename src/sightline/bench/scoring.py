"""Scoring: from a block of images to one row per image and metric."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from sightline import api
from sightline.bench.chunk import Fed, alike
from sightline.bench.store.rows import FAILED, failed_rows, row
from sightline.bench.unit import Unit, sentence_of
from sightline.metrics.case import Case, Metric
from sightline.metrics.judge import judge
from sightline.models.adapter import Adapter
from sightline.recipe import parse, parse_metric
from sightline.registry import spec_of
from sightline.types import Logit, Method

__all__ = ["work"]

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Score:
    """What a metric says of one image."""

    value: float = float("nan")
    flag: str = ""
    curve: list[float] | None = None


def work(unit: Unit, model: Adapter, block: Fed, versions: str = "{}") -> tuple[list[Row], dict[str, Tensor]]:
    """Explain and judge the images of a unit: one row per image and metric in the unit's order, and the maps to keep.

    Where the images cannot be done together they are done one by one, so that only those fail that must.
    """
    desk = _Desk(unit, model, parse(unit.recipe), {name: parse_metric(name) for name in unit.metrics}, versions)
    desk.failures.update(block.failures)
    for together in alike(block.images):
        desk.explain(block.take(together))
    for line in failed_rows(unit, desk.failures, versions, block.known):
        desk.rows.setdefault(line["image"], []).append(line)
    maps = {image: desk.maps[image] for image in unit.images[: unit.maps] if image in desk.maps}
    return [line for image in unit.images for line in desk.rows[image]], maps


@dataclass(frozen=True)
class _Desk:
    """One unit under way: what is needed, and by image what has come of it."""

    unit: Unit
    model: Adapter
    method: Method
    metrics: dict[str, Metric]
    versions: str
    rows: dict[str, list[Row]] = field(default_factory=dict)
    maps: dict[str, Tensor] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)

    def explain(self, part: Fed) -> None:
        """Do some images; each alone where they fail together; note the reason where one fails alone."""
        images, target = torch.stack(part.images), Logit(tuple(part.targets))
        started = time.perf_counter()
        try:
            attribution = api.explain(self.model, images, self.method, target=target)
            pixels = attribution.pixels()
        except Exception as error:
            if len(images) == 1:
                self.failures[part.ids[0]] = sentence_of(error)
            else:
                for place in range(len(images)):
                    self.explain(part.take([place]))
            return
        seconds = time.perf_counter() - started
        scores, forward = _measure(_Cases(self.model, images, target, pixels, part, self.method), self.metrics)
        shared = {
            "forward": attribution.passes.forward / len(images),
            "backward": attribution.passes.backward / len(images),
            "metric_forward": forward / len(images),
            "seconds": seconds / len(images),
        }
        for place, image in enumerate(part.ids):
            self.maps[image] = attribution.map[place]
            known = shared | {"label": part.labels[place], "target": part.targets[place]}
            self.rows[image] = [
                self._row(name, image, known, found[place], attribution.flags[place]) for name, found in scores.items()
            ]

    def _row(self, metric: str, image: str, known: Row, score: Score, flag: str) -> Row:
        """Return one row; what is wrong with the map is said once, and not beside a failure."""
        flags = (score.flag,) if flag in score.flag or score.flag.startswith(FAILED) else (flag, score.flag)
        found = {"value": score.value, "flag": "; ".join(filter(None, flags)), "curve": score.curve}
        return row(self.unit, self.unit.key, metric, image, self.versions, **known, **found)


@dataclass(frozen=True)
class _Cases:
    """Maps to be judged, all together or a few of them."""

    model: Adapter
    images: Tensor
    target: Logit
    pixels: Tensor
    part: Fed
    method: Method

    def of(self, places: Sequence[int]) -> Case:
        """Return the case of these images; with masks where all of them have one."""
        rows = list(places)
        masks = [mask for row in rows if (mask := self.part.masks[row]) is not None]
        given = torch.stack(masks) if len(masks) == len(rows) else None
        target, labels = self.target.take(rows), self._labels(rows)
        return Case(self.model, self.images[rows], target, self.pixels[rows], given, labels, self.method)

    def _labels(self, rows: Sequence[int]) -> tuple[int, ...] | None:
        """Return the labels, the explained class where one is missing; None where all are."""
        labels = [self.part.labels[row] for row in rows]
        if all(label is None for label in labels):
            return None
        return tuple(
            self.part.targets[row] if label is None else label for row, label in zip(rows, labels, strict=True)
        )


def _measure(cases: _Cases, metrics: dict[str, Metric]) -> tuple[dict[str, list[Score]], float]:
    """Judge maps by every metric; return each metric's scores and the forward passes of all.

    All metrics share a case, and what it computes; those of masks are asked only about the images that have one.
    """
    every = list(range(len(cases.images)))
    masked = [place for place in every if cases.part.masks[place] is not None]
    whole = cases.of(every)
    sighted = whole if masked == every else cases.of(masked) if masked else None
    scores: dict[str, list[Score]] = {}
    forward = 0.0
    for name, metric in metrics.items():
        blind = "masks" not in spec_of(metric).needs
        case, places = (whole, every) if blind else (sighted, masked)
        scores[name] = [Score(flag="no mask")] * len(every)
        if case is None:
            continue
        found, spent = _ask(metric, case, places, cases.of)
        for place, score in zip(places, found, strict=True):
            scores[name][place] = score
        forward += spent
    return scores, forward


def _ask(
    metric: Metric, case: Case, places: Sequence[int], alone: Callable[[Sequence[int]], Case]
) -> tuple[list[Score], float]:
    """Ask one metric about a case; about each image alone where that fails."""
    try:
        with api.ready(case.model):
            scores = judge(case, metric)
    except Exception as error:
        if len(places) == 1:
            return [Score(flag=FAILED + sentence_of(error))], 0.0
        single = [_ask(metric, alone([place]), [place], alone) for place in places]
        return [score for found, _ in single for score in found], sum(spent for _, spent in single)
    (measured,) = scores.measurements.values()
    values = measured.values.double().cpu().tolist()
    curves = [None] * len(values) if measured.curve is None else measured.curve.double().cpu().flatten(1).tolist()
    flags = [
        flag or ("not defined" if value != value else "") for flag, value in zip(measured.flags, values, strict=True)
    ]
    return [Score(*one) for one in zip(values, flags, curves, strict=True)], scores.passes.forward
