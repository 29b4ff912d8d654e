"""The three images between which insertion and deletion happen: the image, a blur without the class, a blank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sightline.models.adapter import Adapter
from sightline.perturb.curve import read_scores
from sightline.perturb.fill import Blur
from sightline.types import Target

BLURS = range(31, 102, 2)  # sides of the blur's window in pixels, tried in turn until the class is gone
GONE = 0.01  # the score at which it is


@dataclass(frozen=True, slots=True, eq=False)
class Endpoints:
    """An image, where its insertion starts, where its deletion ends, and the score of each.

    Attributes:
        image: the image itself, (channel, height, width).
        blurred: where insertion starts.
        blank: where deletion ends: zero after normalisation.
        full: the score of the image.
        blur: the score of the blurred image.
        empty: the score of the blank image.
        side: of the blur's window, in pixels.
    """

    image: Tensor
    blurred: Tensor
    blank: Tensor
    full: float
    blur: float
    empty: float
    side: int


def find_endpoints(model: Adapter, images: Tensor, target: Target) -> list[Endpoints]:
    """Blur each image until its score is at most a hundredth, or as much as can be; score all three images.

    Each costs one pass, and one more for every wider blur that is tried.
    """
    blank = torch.zeros_like(images)
    full, empty = (read_scores(model, target, model.predict(each)).tolist() for each in (images, blank))
    return [
        Endpoints(images[row], image, blank[row], full[row], score, empty[row], side)
        for row, (image, score, side) in enumerate(blur_until_gone(model, images, target))
    ]


def blur_until_gone(
    model: Adapter, images: Tensor, target: Target, sides: Sequence[int] = BLURS
) -> list[tuple[Tensor, float, int]]:
    """Return of each image the first blur whose score is at most a hundredth, else the last: image, score, side.

    Every blur that is tried costs one pass. It may leave the class as it was, and a wider blur may bring it back: all
    are tried in turn.
    """
    found: dict[int, tuple[Tensor, float, int]] = {}
    rows = list(range(len(images)))
    for side in sides:
        blurred = Blur(side // 2, side)(model, images[rows])
        scores = read_scores(model, target.take(rows), model.predict(blurred)).tolist()
        found |= {row: (image, score, side) for row, image, score in zip(rows, blurred, scores, strict=True)}
        rows = [row for row in rows if found[row][1] > GONE]
        if not rows:
            break
    return [found[row] for row in range(len(images))]
