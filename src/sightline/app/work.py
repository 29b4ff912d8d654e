"""The work of a job: make and score the maps of one picture, step by step, and tell what comes of it."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor

from sightline.api.explain import attribute, check_needs, describe
from sightline.app.jobs import Clock, Job
from sightline.app.maps import KeptMap, MapCache
from sightline.app.models import Models
from sightline.app.pictures import png
from sightline.app.question import Question
from sightline.audit.fills import Judge
from sightline.audit.panel import (
    STEPS,
    ExplainedImage,
    Failure,
    ScoredMap,
    explain_image,
    judge_map,
    map_cost,
    metric_step,
    metrics_of,
    ranked,
    score_map,
    without_warnings,
)
from sightline.errors import SightlineError
from sightline.models.adapter import Adapter
from sightline.models.inputs import as_batch, seen_pixels
from sightline.models.passes import ready
from sightline.models.targets import resolve_target
from sightline.models.tasks.dense import predicted_labels
from sightline.models.tasks.objects import FoundObject, found_objects
from sightline.models.vision_language.adapter import VisionLanguage
from sightline.recipe import text
from sightline.targets.tasks import target_mask
from sightline.types import Logit, Method, Passes, Target

__all__ = ["answer"]

SCORING = 2.0 * (STEPS - 1)  # forward passes


def answer(question: Question, models: Models, cache: MapCache, job: Job) -> Iterator[None]:
    """Do the work of a job; it pauses after every step, so that others get their turn."""
    photograph = question.picture.open()
    with without_warnings():
        model = models.asked(question)
        question = job.question = _with_word(question, model)
        batch = as_batch(model, photograph)
        image = explain_image(model, batch, [], question.wanted, photograph=photograph, name=question.picture.name)
        with ready(model):
            resolved = _resolved(question.wanted, image.target.index, model, batch)
            logits = model.predict(batch)
    job.fills = {name: png(Image.fromarray(pixels)) for name, pixels in image.inputs.items()}
    job.image = image
    job.tell("image", _facts(model, logits, image, batch, job))
    yield
    methods = question.methods(image.target.index)
    costs = [map_cost(method, model, fills=question.fills) for method in methods]
    work = _Work(model, batch, resolved, logits, question, cache, job, Clock(sum(costs)))
    for method, cost in zip(methods, costs, strict=True):
        try:
            yield from work.map(method, cost)
        except SightlineError as error:
            work.failures.append(Failure(text(method), error))
            job.tell("failure", {"recipe": text(method), "error": str(error)})
    rooms = () if work.judge is None else work.judge.rooms
    job.image = replace(image, maps=ranked(work.scored), failures=tuple(work.failures), rooms=rooms)
    job.tell("verdict", _verdict(job.image))


def _facts(model: Adapter, logits: Tensor, image: ExplainedImage, batch: Tensor, job: Job) -> dict[str, Any]:
    """Return what the page shows of the image before there is a map: classes, objects, the target's place."""
    objects = found_objects(model, logits)
    if model.declared_output == "dense":
        job.labels = predicted_labels(logits, model)[0].cpu().numpy()
    return {
        **image.target_json(),
        "top": [each.json() for each in image.top],
        "name": image.name,
        "size": list(batch.shape[-2:]),
        "metric_step": image.step,
        "objects": [each.json() for each in objects],
        "labels_size": None if job.labels is None else list(job.labels.shape),
        "chosen": _chosen(objects, job.question),
        **_answered(model),
    }


def _with_word(question: Question, model: Adapter) -> Question:
    """Return the question of one word where none was named: the longest of the answer, the first of several."""
    if not isinstance(model, VisionLanguage) or question.target is not None:
        return question
    words = [word for word, _ in model.words]
    return replace(question, target=words.index(max(words, key=len)))


def _answered(model: Adapter) -> dict[str, Any]:
    """Return what a vision-language model was asked and the words of its answer."""
    if not isinstance(model, VisionLanguage):
        return {"prompt": None, "words": []}
    return {"prompt": model.prompt, "words": [word for word, _ in model.words]}


def _chosen(objects: Sequence[FoundObject], question: Question) -> int | None:
    """Return which of the objects is explained, by its index: by default the surest box, or the largest region."""
    if question.box is not None or question.target is not None:
        return question.target if question.box is None else question.box
    return objects[0].index if objects else None


def _verdict(image: ExplainedImage) -> dict[str, Any]:
    """Return the verdict, and what every map was ranked by."""
    verdict = image.verdict
    return {
        "headline": verdict.headline,
        "reason": verdict.reason,
        "best": verdict.best,
        "withheld": verdict.withheld,
        "order": [each.recipe for each in image.maps],
        "fills": [room.fill for room in image.rooms],
        "judged": [{"recipe": each.recipe, "control": each.control, **each.judged_json()} for each in image.maps],
    }


class _Work:
    """The maps of one job: each is made, scored and, where that was asked for, judged under several fills."""

    def __init__(
        self, model: Adapter, batch: Tensor, target: Target, logits: Tensor, question: Question, cache: MapCache,
        job: Job, clock: Clock,
    ) -> None:  # fmt: skip
        self.model, self.batch, self.target = model, batch, target
        self.question, self.cache, self.job, self.clock = question, cache, job, clock
        self.metrics = metrics_of(model, target, metric_step(batch))
        self.known: dict[Hashable, tuple[Any, Passes]] = {"clean": (logits, Passes())}
        with ready(model):
            self.judge = Judge(model, batch, target, logits, self.metrics) if question.fills else None
        self.scored: list[ScoredMap] = []
        self.failures: list[Failure] = []

    def map(self, method: Method, cost: float) -> Iterator[None]:
        """Make and score one map, and pause after each step; what is known of it is only told."""
        index, key = len(self.job.maps), self._key(method)
        judging = cost - map_cost(method, self.model, fills=False)
        kept = self.cache.find(key)
        if kept is None:
            yield from self._made_and_scored(method, cost - judging)
            kept = self.job.maps[index]
        else:
            self.clock.skip(cost - judging)
            self.job.maps.append(kept if self.judge is not None else _by_main_fills(kept))
            self._tell(index)
        if self.judge is None or kept.scored is None or kept.scored.fills is not None:
            self.clock.skip(judging)
        else:
            yield
            with self._timed():
                judged = judge_map(self.model, self.batch, kept.scored, self.target, self.judge)
            kept = self.job.maps[index] = replace(kept, scored=judged)
            self._tell(index, judging)
        self.cache.keep(key, kept)
        final = self.job.maps[index].scored
        self.scored += [] if final is None else [final]
        yield

    def _made_and_scored(self, method: Method, cost: float) -> Iterator[None]:
        index, begun = len(self.job.maps), time.perf_counter()
        making = max(0.0, cost - SCORING)
        with self._timed():
            kept = _made(self.model, self.batch, method, self.target)
        seconds = time.perf_counter() - begun
        self.job.maps.append(kept)
        self._tell(index, making)
        yield
        with self._timed():
            measured = score_map(
                self.model, self.batch, method, self.target, self.metrics, attribution=kept.attribution,
                known=self.known,
            )  # fmt: skip
        self.job.maps[index] = replace(kept, scored=replace(measured, seconds=seconds))
        self._tell(index, cost - making)

    @contextmanager
    def _timed(self) -> Iterator[None]:
        """Hold the model ready for a piece of work, whose time counts."""
        self.clock.start()
        with ready(self.model):
            yield

    def _key(self, method: Method) -> tuple[str, ...]:
        asked = self.question
        place = target_mask(self.target, (self.batch.shape[-2], self.batch.shape[-1]))
        where = "" if place is None else hashlib.sha256(place.numpy().tobytes()).hexdigest()
        said = (self.model.prompt, self.model.answer) if isinstance(self.model, VisionLanguage) else ()
        return (asked.picture.digest, asked.model, *said, repr(self.target), where, text(method))

    def _tell(self, index: int, cost: float | None = None) -> None:
        """Tell the map as it is now, and how far the job is after a piece of work of this cost."""
        kept = self.job.maps[index]
        self.job.tell("map", {"index": index, **kept.json()})
        if cost is not None:
            self.job.tell("progress", {"recipe": kept.attribution.recipe, **self.clock.stop(cost)})


def _by_main_fills(kept: KeptMap) -> KeptMap:
    """Return a map without what it scored under several fills, which somebody else asked for."""
    return kept if kept.scored is None else replace(kept, scored=replace(kept.scored, fills=None))


def _made(model: Adapter, batch: Tensor, method: Method, target: Target) -> KeptMap:
    check_needs(method, model)
    with without_warnings(), ready(model):
        attribution = attribute(model, batch, method, target)
        labels, seen = describe(target, model, 1), seen_pixels(model, batch)
    shares = _shares(attribution.details)
    kept = replace(attribution, target=target, labels=labels, seen=seen, details=None)
    return KeptMap(kept, shares=shares)


def _shares(details: Any) -> tuple[tuple[int, ...], Any] | None:
    """Return the classes and the share of each at every pixel, where a method gives them."""
    distribution = getattr(details, "distribution", None)
    if not isinstance(distribution, Tensor):
        return None
    return tuple(details.classes[0].tolist()), np.asarray(distribution[:, 0, 0].float().cpu().numpy(), dtype="<f4")


def _resolved(wanted: Any, index: int | None, model: Adapter, batch: Tensor) -> Target:
    """Return the target; the predicted class is known by now."""
    if wanted is None and index is not None and model.output in ("softmax", "sigmoid"):
        return Logit(index)
    return resolve_target(wanted, model, batch)
