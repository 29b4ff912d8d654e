"""Response curves: what a model says as ever more pixels of an image are inserted or deleted.

A curve costs little more than the forward passes it consists of: each batch of perturbed images is painted into one
buffer by comparing the pixels' ranks with a threshold, batches run across images, and the two ends, the image itself
and its filled counterpart, can be handed in when they are known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from sightline.errors import RecipeError, ShapeError, TargetError
from sightline.models.adapter import Adapter
from sightline.models.batch import in_batches
from sightline.models.precision import full_precision
from sightline.perturb.fill import Fill
from sightline.perturb.order import Importance, Tie, ranks
from sightline.types import Indices, Logit, LogProbability, PerImage, Probability, Target

Direction = Literal["insert", "delete"]
Score = Literal["probability", "log_probability", "logit", "accuracy"]


@dataclass(frozen=True, slots=True)
class Curve:
    """The settings of a response curve; two metrics that agree on them share it.

    Attributes:
        direction: "insert" goes from the filled image to the image, "delete" from the image to the filled one.
        fill: what missing pixels are.
        step: how many pixels change at a time, most important first; the last step takes what is left.
        score: what is read of the logits; see `scored`.
        tie: how pixels of equal importance are ordered.
        seed: of the shuffling when ties are random.
        by: what makes a pixel important: its value, its negative (the least important first), or its magnitude.
    """

    direction: Direction
    fill: Fill
    step: int = 224
    score: Score = "probability"
    tie: Tie = "index"
    seed: int = 0
    by: Importance = "value"

    def __post_init__(self) -> None:
        if self.step < 1:
            raise RecipeError(f"got step={self.step}; at least one pixel changes at a time, so step is 1 or more")
        for name, allowed in (("direction", Direction), ("score", Score), ("tie", Tie), ("by", Importance)):
            if getattr(self, name) not in get_args(allowed):
                raise RecipeError(f"got {name}={getattr(self, name)!r}; choose from {', '.join(get_args(allowed))}")

    def counts(self, pixels: int) -> list[int]:
        """Return how many pixels have changed at each point of the curve, from 0 to all.

        >>> from sightline.perturb.fill import Zero
        >>> Curve("delete", Zero(), step=4).counts(10)
        [0, 4, 8, 10]
        """
        return [*range(0, pixels, self.step), pixels]


def response_curve(
    model: Adapter,
    images: Tensor,
    target: Target,
    order: Tensor,
    curve: Curve,
    *,
    clean: Tensor | None = None,
    filled: Tensor | None = None,
) -> Tensor:
    """Return the score as pixels change in this order, shape (batch, points).

    Args:
        model: the model.
        images: shape (batch, 3, height, width).
        target: what is explained.
        order: pixel indices, most important first, shape (batch, height·width); see `importance_order`.
        curve: direction, step, fill and score.
        clean: the logits of the images, when they are known.
        filled: the logits of the filled images, when they are known.
    """
    pixels = images.shape[-2] * images.shape[-1]
    if order.shape != (len(images), pixels):
        raise ShapeError(f"got an order of shape {tuple(order.shape)} for {len(images)} images of {pixels} pixels")
    read = scored(target, curve.score)
    substrate = curve.fill(model, images)
    ends = [
        read_scores(model, read, model.predict(images) if clean is None else clean),
        read_scores(model, read, model.predict(substrate) if filled is None else filled),
    ]
    pair = (images, substrate)
    if curve.direction == "insert":
        ends, pair = ends[::-1], pair[::-1]
    between = responses(model, *pair, read, ranks(order), curve.counts(pixels)[1:-1])
    return torch.cat([ends[0][:, None], between, ends[1][:, None]], dim=1)


def responses(
    model: Adapter, before: Tensor, after: Tensor, target: Target, places: Tensor, counts: Sequence[int]
) -> Tensor:
    """Return the target's value with the first `count` pixels taken from `after` and the rest from `before`.

    Args:
        model: the model.
        before: images, shape (batch, 3, height, width).
        after: images of the same shape.
        target: what is read of the logits.
        places: each pixel's place in the order, shape (batch, height·width); see `ranks`.
        counts: how many pixels have changed, one number per point; the result has the shape (batch, points).
    """
    paint = _painter(before, after, places, torch.tensor(counts, dtype=torch.int32, device=before.device))
    points = len(counts)

    def work(pairs: slice) -> Tensor:
        rows = [index // points for index in range(pairs.start, pairs.stop)]
        return read_scores(model, target.take(rows), model(paint(pairs)))

    with torch.no_grad():
        found = in_batches(work, len(before) * points, model.batch)
    return torch.cat(found).unflatten(0, (len(before), points)) if found else before.new_empty(len(before), 0)


def _painter(before: Tensor, after: Tensor, places: Tensor, counts: Tensor) -> Callable[[slice], Tensor]:
    """Return a function that paints the perturbed images of consecutive (image, point) pairs into one buffer."""
    places = places.to(torch.int32).unflatten(1, before.shape[-2:])[:, None]
    canvas = before.new_empty(0)
    mask = torch.empty(0, dtype=torch.bool, device=before.device)

    def paint(pairs: slice) -> Tensor:
        nonlocal canvas, mask
        size = pairs.stop - pairs.start
        if len(canvas) < size:
            canvas, mask = before.new_empty(size, *before.shape[1:]), mask.new_empty(size, *places.shape[1:])
        for image, points, spot in _runs(pairs, len(counts)):
            changed = torch.lt(places[image], counts[points, None, None, None], out=mask[spot])
            torch.where(changed, after[image], before[image], out=canvas[spot])
        return canvas[:size]

    return paint


def _runs(pairs: slice, points: int) -> Iterator[tuple[int, slice, slice]]:
    """Split consecutive (image, point) pairs by image: the image, its points, their places in the batch."""
    start = pairs.start
    while start < pairs.stop:
        image, first = divmod(start, points)
        length = min(points - first, pairs.stop - start)
        yield image, slice(first, first + length), slice(start - pairs.start, start - pairs.start + length)
        start += length


def read_scores(model: Adapter, target: Target, logits: Tensor) -> Tensor:
    """Return the target's value of sound logits, in single precision at least."""
    logits = model.check_logits(logits)
    return target(full_precision(logits))


@dataclass(frozen=True, slots=True)
class Logits:
    """Not one number of the logits but all of them, (batch, class), so that what is read can be chosen afterwards."""

    def __call__(self, logits: Tensor) -> Tensor:
        return logits

    def take(self, rows: Sequence[int]) -> Logits:
        return self


@dataclass(frozen=True, slots=True)
class Accuracy:
    """One where the class is the model's first choice, zero elsewhere."""

    index: Indices

    def __call__(self, logits: Tensor) -> Tensor:
        wanted = torch.as_tensor(self.index, device=logits.device)
        return (logits.argmax(dim=-1) == wanted).to(logits.dtype)

    def take(self, rows: Sequence[int]) -> Accuracy:
        return self if isinstance(self.index, int) else Accuracy(tuple(self.index[row] for row in rows))


_OF_CLASS: dict[Score, Callable[[Indices], Target]] = {
    "probability": Probability,
    "log_probability": LogProbability,
    "logit": Logit,
    "accuracy": Accuracy,
}


def scored(target: Target, score: Score) -> Target:
    """Return what a curve reads of the logits when this target is explained.

    For a target that names a class (`Logit`, `Probability`, `LogProbability`) it is that class's probability, log
    probability, logit or accuracy, whichever of them was explained. Any other target (`Contrast`, `TextSimilarity`, a
    function) has no class to ask for and is followed itself; accuracy then has no meaning and raises.
    """
    if isinstance(target, PerImage):
        return PerImage(tuple(scored(one, score) for one in target.targets))
    if isinstance(target, Logit | Probability | LogProbability):
        return _OF_CLASS[score](target.index)
    if score == "accuracy":
        raise TargetError(f"got {type(target).__name__} as a target; score='accuracy' needs a class")
    return target
