"""Search over composites of images, many images side by side.

A search is a generator: it yields composites to be scored and is sent their scores. `side_by_side` gathers the
questions of all unfinished searches, so batches are full even where a single image asks for few, and the result of an
image does not depend on the others in the batch.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from sightline.models.adapter import Adapter
from sightline.models.passes import in_batches
from sightline.perturb.curve import read_scores
from sightline.perturb.segments import Segments
from sightline.types import Target

T = TypeVar("T")


class Composite:
    """An image under construction: some segments of the clean image, the rest blank."""

    def __init__(self, clean: Tensor, blank: Tensor, segments: Segments) -> None:
        self.clean = clean
        self.canvas = blank.clone()
        self.segments = segments

    def paste(self, segment: int) -> None:
        self.segments.paste(self.canvas, self.clean, segment)

    def draw(self, canvas: Tensor, more: Sequence[int]) -> None:
        """Draw the composite with a few more segments."""
        canvas.copy_(self.canvas)
        for segment in more:
            self.segments.paste(canvas, self.clean, segment)


@dataclass(frozen=True, slots=True, eq=False)
class Measure:
    """What is the score of the composite with each of these groups of segments pasted in?"""

    composite: Composite
    groups: Sequence[Sequence[int]]


Search = Generator[Measure, Tensor, T]


def side_by_side(model: Adapter, target: Target, searches: Sequence[Search[T]]) -> list[T]:
    """Run one search per image to its end; return the result of each.

    Args:
        model: the model.
        target: what is read from the logits, one row per search.
        searches: one per image.
    """
    results: dict[int, T] = {}
    questions: dict[int, Measure] = {}
    canvas = _Canvas()

    def send(row: int, scores: Tensor | None) -> None:
        try:
            questions[row] = next(searches[row]) if scores is None else searches[row].send(scores)
        except StopIteration as end:
            questions.pop(row, None)
            results[row] = end.value

    for row in range(len(searches)):
        send(row, None)
    while questions:
        for row, scores in measure(model, target, dict(questions), canvas).items():
            send(row, scores)
    return [results[row] for row in range(len(searches))]


def measure(model: Adapter, target: Target, questions: Mapping[int, Measure], canvas: _Canvas) -> dict[int, Tensor]:
    """Answer the questions of several images in common batches."""
    jobs = [(row, group) for row, question in questions.items() for group in question.groups]
    batches = -(-len(jobs) // model.batch)
    size = -(-len(jobs) // batches)  # equal batches: two of 14 run faster than one of 16 and one of 12

    def work(part: slice) -> Tensor:
        images = canvas.take(part.stop - part.start, questions[jobs[part.start][0]].composite.canvas)
        for image, (row, group) in zip(images, jobs[part], strict=True):
            questions[row].composite.draw(image, group)
        return read_scores(model, target.take([row for row, _ in jobs[part]]), model(images))

    with torch.no_grad():
        scores = torch.cat(in_batches(work, len(jobs), size))
    return dict(zip(questions, scores.split([len(question.groups) for question in questions.values()]), strict=True))


class _Canvas:
    """One buffer for all batches."""

    def __init__(self) -> None:
        self.images = torch.empty(0)

    def take(self, count: int, like: Tensor) -> Tensor:
        if len(self.images) < count:
            self.images = like.new_empty(count, *like.shape)
        return self.images[:count]
