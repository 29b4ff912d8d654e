"""Endpoints of insertion and deletion: the image, where insertion starts, and where deletion ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from sightline.models.adapter import Adapter
from sightline.perturb.curve import read_scores
from sightline.perturb.fill import Blur, make_fill
from sightline.types import Target

BLURS = range(31, 102, 2)  # sides of the blur's window in pixels, tried in turn until the class is not recognised
UNRECOGNISED = 0.01  # the largest score at which a class counts as not recognised
Baseline = Literal["blur", "zero", "black"]


@dataclass(frozen=True, slots=True, eq=False)
class Endpoints:
    """An image, the image where insertion starts, the image where deletion ends, and their scores.

    Attributes:
        image: the image itself, (channel, height, width).
        blurred: where insertion starts, by default a blur in which the class is not recognised.
        blank: where deletion ends, by default zero after normalisation.
        full: the score of the image.
        blur: the score of the image where insertion starts.
        empty: the score of the image where deletion ends.
        side: side of the blur's window, in pixels; 0 where neither is blurred.
    """

    image: Tensor
    blurred: Tensor
    blank: Tensor
    full: float
    blur: float
    empty: float
    side: int

    @property
    def scores(self) -> tuple[float, float, float]:
        """The scores of the image, of where insertion starts and of where deletion ends."""
        return self.full, self.blur, self.empty


def find_endpoints(
    model: Adapter, images: Tensor, target: Target, start: Baseline = "blur", end: Baseline = "zero"
) -> list[Endpoints]:
    """Return the endpoints of each image and their scores.

    Each costs one pass, and one more for every wider blur that is tried: an image is blurred until its score is at
    most a hundredth, or as much as can be.

    Args:
        model: the model.
        images: shape (batch, channel, height, width).
        target: what is scored.
        start: where insertion starts: blur, zero (after normalisation) or black.
        end: where deletion ends, likewise.
    """
    full = read_scores(model, target, model.predict(images)).tolist()
    found = {kind: _baseline(model, images, target, kind) for kind in dict.fromkeys((end, start))}
    pairs = zip(found[start], found[end], strict=True)
    return [
        Endpoints(images[row], first[0], last[0], full[row], first[1], last[1], max(first[2], last[2]))
        for row, (first, last) in enumerate(pairs)
    ]


def _baseline(model: Adapter, images: Tensor, target: Target, kind: Baseline) -> list[tuple[Tensor, float, int]]:
    """Return each image's baseline, its score and the side of its blur, 0 where it is none."""
    if kind == "blur":
        return blur_until_unrecognised(model, images, target)
    filled = make_fill(kind)(model, images)
    scores = read_scores(model, target, model.predict(filled)).tolist()
    return [(image, score, 0) for image, score in zip(filled, scores, strict=True)]


def blur_until_unrecognised(
    model: Adapter, images: Tensor, target: Target, sides: Sequence[int] = BLURS, *, below: bool = False
) -> list[tuple[Tensor, float, int]]:
    """Blur each image until its score is at most a hundredth; return the blurred image, its score and the blur's side.

    Where no blur gets that far the last is returned. Every blur that is tried costs one pass. Scores need not fall as
    the blur widens, so all sides are tried in turn. With `below` the score must be less than a hundredth.
    """
    last: dict[int, tuple[Tensor, float, int]] = {}
    rows = list(range(len(images)))
    for side in sides:
        blurred = Blur(side // 2, side)(model, images[rows])
        scores = read_scores(model, target.take(rows), model.predict(blurred)).tolist()
        last |= {row: (image, score, side) for row, image, score in zip(rows, blurred, scores, strict=True)}
        rows = [row for row in rows if last[row][1] > UNRECOGNISED or (below and last[row][1] == UNRECOGNISED)]
        if not rows:
            break
    return [last[row] for row in range(len(images))]
