"""Response curves: the model's score as ever more pixels of an image are inserted or deleted.

Pixels change in the order of their importance, and what is removed becomes a fill. A curve costs little more than the
forward passes it consists of: each batch of perturbed images is written into one buffer by comparing the pixels' ranks
with a threshold, batches run across images, and the logits of the two endpoints, the image and the filled image, can be
given when they are known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from torch import Tensor

from sightline.errors import InputError, RecipeError, ShapeError, TargetError
from sightline.models.adapter import Adapter
from sightline.models.cnn.adapter import Convolutional
from sightline.models.passes import full_precision, in_batches, take_rows
from sightline.models.signature import WITHOUT_PROBABILITIES
from sightline.models.survey import IMAGENET_SIZE
from sightline.perturb.fill import Fill, InPaint
from sightline.seeds import generators
from sightline.targets.classes import Accuracy, LabelAccuracy
from sightline.targets.tasks import Box, Region
from sightline.targets.words import Word
from sightline.types import Link, Logit, LogProbability, PerImage, Probability, Target, Value

# ---- orders ---------------------------------------------------------------------------------------------------------


Tie = Literal["index", "random"]
Importance = Literal["value", "negative", "magnitude"]


def importance_order(maps: Tensor, tie: Tie = "index", seed: int = 0, by: Importance = "value") -> Tensor:
    """Return the row-major pixel indices of each map by falling importance, shape (batch, height·width).

    Important are high values, or low ones (``by="negative"``), or those far from zero (``by="magnitude"``).
    Pixels of equal value keep their row-major order (``tie="index"``) or are shuffled (``tie="random"``), by numbers
    that depend on the seed and the map alone, not on the batch.

    >>> importance_order(torch.tensor([[[1.0, 3.0], [3.0, 2.0]]]))
    tensor([[1, 2, 3, 0]])
    """
    if tie not in get_args(Tie):
        raise RecipeError(f"got tie={tie!r}; equal values are ordered by 'index' or 'random'")
    scores = {"value": maps, "negative": -maps, "magnitude": maps.abs()}[by]
    scores = finite_maps(scores).flatten(1)
    if tie == "index":
        return _falling(scores)
    shuffled = [torch.randperm(scores.shape[1], generator=generator) for generator in generators(seed, maps)]
    shuffle = torch.stack(shuffled).to(scores.device)
    return shuffle.gather(1, _falling(scores.gather(1, shuffle)))


def ranks(order: Tensor) -> Tensor:
    """Return the rank of each pixel in the order, 0 for the most important: the inverse permutation."""
    rising = torch.arange(order.shape[1], device=order.device).expand_as(order)
    return torch.empty_like(order).scatter_(1, order, rising)


def finite_maps(maps: Tensor) -> Tensor:
    """Return the maps, shape (batch, height, width), or say which one cannot be ordered."""
    if maps.ndim != 3 or maps.numel() == 0:
        raise InputError(
            f"got maps of shape {tuple(maps.shape)}; (batch, height, width) is needed, with a pixel at least"
        )
    bad = ~torch.stack(maps.flatten(1).aminmax(dim=1)).isfinite().all(dim=0)  # faster than to ask every pixel
    if bad.any():
        raise InputError(
            f"the map of image {int(bad.nonzero()[0])} holds NaN or infinite values; nothing can be ranked by it"
        )
    return maps


def _falling(scores: Tensor) -> Tensor:
    return scores.sort(dim=1, descending=True, stable=True).indices


# ---- curves ---------------------------------------------------------------------------------------------------------


STEP = IMAGENET_SIZE  # pixels that change at a time: one row of an image of the usual size
Direction = Literal["insert", "delete"]
Score = Literal["probability", "log_probability", "logit", "accuracy"]


@dataclass(frozen=True, slots=True)
class Curve:
    """The settings of a response curve; two metrics that agree on them share it.

    Attributes:
        direction: "insert" goes from the filled image to the image, "delete" from the image to the filled one.
        fill: what removed pixels become.
        step: how many pixels change at a time, most important first; the last step takes the remaining ones.
        score: what is read from the logits; see `scored`.
        tie: how pixels of equal importance are ordered.
        seed: of the shuffling when ties are random.
        by: what makes a pixel important: its value, its negative (the least important first), or its magnitude.
    """

    direction: Direction
    fill: Fill
    step: int = STEP
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

    def passes(self, model: Adapter) -> int:
        """Return the forward passes of one image: one for each point."""
        height, width = model.default_size
        return len(self.counts(height * width))


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
    followed = scored(target, curve.score, model)
    filled_images = curve.fill(model, images)
    endpoints = (
        (images, read_scores(model, followed, model.predict(images) if clean is None else clean)),
        (filled_images, read_scores(model, followed, model.predict(filled_images) if filled is None else filled)),
    )
    counts = curve.counts(pixels)[1:-1]
    return curve_between(model, endpoints, followed, curve.direction, ranks(order), counts, curve.fill)


def curve_between(
    model: Adapter,
    endpoints: tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]],
    target: Target,
    direction: Direction,
    pixel_ranks: Tensor,
    counts: Sequence[int],
    fill: Fill | None = None,
) -> Tensor:
    """Return the target's value from one endpoint to the other, both included, shape (batch, points).

    Args:
        model: the model.
        endpoints: the images and the filled images, each with its scores, shape (batch,).
        target: what is read from the logits.
        direction: "insert" starts at the filled images, "delete" at the images.
        pixel_ranks: each pixel's rank in the order, shape (batch, height·width); see `ranks`.
        counts: how many pixels have changed at the points between the endpoints.
        fill: what the filled images were made by; an in-painter is asked again at every point.
    """
    (before, first), (after, last) = endpoints if direction == "delete" else endpoints[::-1]
    if isinstance(fill, InPaint):
        between = painted_responses(model, endpoints[0][0], fill, target, direction, pixel_ranks, counts)
    else:
        between = responses(model, before, after, target, pixel_ranks, counts)
    return torch.cat([first[:, None], between, last[:, None]], dim=1)


def responses(
    model: Adapter, before: Tensor, after: Tensor, target: Target, pixel_ranks: Tensor, counts: Sequence[int]
) -> Tensor:
    """Return the target's value with the first `count` pixels taken from `after` and the rest from `before`.

    Args:
        model: the model.
        before: images, shape (batch, 3, height, width).
        after: images of the same shape.
        target: what is read from the logits.
        pixel_ranks: each pixel's rank in the order, shape (batch, height·width); see `ranks`.
        counts: how many pixels have changed, one number per point; the result has the shape (batch, points).
    """
    limits = torch.tensor(counts, dtype=torch.int32, device=before.device)
    # convolutions on a CPU take up to a quarter less time, by the network, when the channels of a pixel lie together
    together = isinstance(model, Convolutional) and before.device.type == "cpu" and model.takes_channels_last(before)
    paint = _painter(before, after, pixel_ranks, limits, torch.channels_last if together else torch.contiguous_format)
    points = len(counts)

    def work(pairs: slice) -> Tensor:
        rows = [index // points for index in range(pairs.start, pairs.stop)]
        return read_scores(model, target.take(rows), model(paint(pairs)))

    with torch.no_grad():
        scores = in_batches(work, len(before) * points, model.batch)
    return torch.cat(scores).unflatten(0, (len(before), points)) if scores else before.new_empty(len(before), 0)


def painted_responses(
    model: Adapter,
    images: Tensor,
    fill: InPaint,
    target: Target,
    direction: Direction,
    pixel_ranks: Tensor,
    counts: Sequence[int],
) -> Tensor:
    """Return the target's value with missing pixels painted by a user's in-painter, shape (batch, points).

    Missing are the first `count` pixels, or all others where the direction is "insert".
    """
    points = len(counts)
    limits = torch.tensor(counts, device=images.device)
    places = pixel_ranks.unflatten(1, images.shape[-2:])

    def work(pairs: slice) -> Tensor:
        rows = [index // points for index in range(pairs.start, pairs.stop)]
        each, ranked = limits.repeat(len(images))[pairs, None, None], take_rows(places, rows)
        removed = ranked < each if direction == "delete" else ranked >= each
        return read_scores(model, target.take(rows), model(fill.paint(model, take_rows(images, rows), removed)))

    with torch.no_grad():
        scores = in_batches(work, len(images) * points, model.batch)
    return torch.cat(scores).unflatten(0, (len(images), points)) if scores else images.new_empty(len(images), 0)


def _painter(
    before: Tensor, after: Tensor, pixel_ranks: Tensor, counts: Tensor, layout: torch.memory_format
) -> Callable[[slice], Tensor]:
    """Return a function that writes the perturbed images of consecutive (image, point) pairs into one buffer."""
    pixel_ranks = pixel_ranks.to(torch.int32).unflatten(1, before.shape[-2:])[:, None]
    buffer = before.new_empty(0)
    mask = torch.empty(0, dtype=torch.bool, device=before.device)

    def paint(pairs: slice) -> Tensor:
        nonlocal buffer, mask
        size = pairs.stop - pairs.start
        if len(buffer) < size:
            buffer = torch.empty(
                size, *before.shape[1:], dtype=before.dtype, device=before.device, memory_format=layout
            )
            mask = mask.new_empty(size, *pixel_ranks.shape[1:])
        for image, points, rows in _runs(pairs, len(counts)):
            changed = torch.lt(pixel_ranks[image], counts[points, None, None, None], out=mask[rows])
            torch.where(changed, after[image], before[image], out=buffer[rows])
        return buffer[:size]

    return paint


def _runs(pairs: slice, points: int) -> Iterator[tuple[int, slice, slice]]:
    """Split consecutive (image, point) pairs by image: the image, its points, their rows in the batch."""
    start = pairs.start
    while start < pairs.stop:
        image, first = divmod(start, points)
        length = min(points - first, pairs.stop - start)
        yield image, slice(first, first + length), slice(start - pairs.start, start - pairs.start + length)
        start += length


def read_scores(model: Adapter, target: Target, logits: Tensor) -> Tensor:
    """Return the target's value of sound logits, in single precision at least."""
    logits = model.check_logits(logits)
    if logits.shape[-1] == 1 and _needs_classes(target):
        _ = model.link  # refuses the softmax of a single number, which is always 1
    return target(full_precision(logits))


def _needs_classes(target: Target) -> bool:
    if isinstance(target, PerImage):
        return any(map(_needs_classes, target.targets))
    return isinstance(target, Accuracy | Probability | LogProbability)


def scored(target: Target, score: Score, model: Adapter) -> Target:
    """Return what a metric reads from the logits when this target is explained.

    For a target that names a class (`Logit`, `Probability`, `LogProbability`) it is that class's probability, log
    probability, logit or accuracy, whichever of them was explained, as the model's output defines them: a softmax over
    classes, or a sigmoid per label, of which one is right where its probability is a half or more. A value, and any
    number of a model without probabilities, can only be followed itself, as a logit. Any other target (`Contrast`,
    `TextSimilarity`, a function) has no class and is followed itself; accuracy then has no meaning and raises.
    """
    if isinstance(target, PerImage):
        return PerImage(tuple(scored(each, score, model) for each in target.targets))
    if isinstance(target, Box | Region | Word) and score != "accuracy":
        return replace(target, score=score)
    if isinstance(target, Value) and score != "logit":
        raise TargetError(f"got Value as a target, which has {_no(score)}")
    if isinstance(target, Logit | Probability | LogProbability):
        return Logit(target.index) if score == "logit" else _class_score(target, score, model)
    if score == "accuracy":
        raise TargetError(f"got {type(target).__name__} as a target; score='accuracy' needs a class")
    return target


def _class_score(target: Logit | Probability | LogProbability, score: Score, model: Adapter) -> Target:
    link: Link | None = None if isinstance(target, Logit) else target.link
    if link is None and model.output in WITHOUT_PROBABILITIES:
        returned = f"{WITHOUT_PROBABILITIES[model.output]} (output {model.output!r})"
        raise TargetError(f"{model.name} returns {returned}, which has {_no(score)}")
    link = link or model.link
    if score == "log_probability":
        return LogProbability(target.index, link)
    probability = Probability(target.index, link)
    if score == "probability":
        return probability
    return LabelAccuracy(probability) if "sigmoid" in (link, model.output) else Accuracy(target.index)


def _no(score: Score) -> str:
    return f"no {score.replace('_', ' ')}; follow the number itself, as insertion(score='logit') does"
