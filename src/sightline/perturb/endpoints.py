"""Endpoints of insertion and deletion: the image, a blur in which the class is not recognised, a blank image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sightline.models.adapter import Adapter
from sightline.perturb.curve import read_scores
from sightline.perturb.fill import Blur
from sightline.types import Target

BLURS = range(31, 102, 2)  # sides of the blur's window in pixels, tried in turn until the class is not recognised
UNRECOGNISED = 0.01  # the largest score at which a class counts as not recognised


@dataclass(frozen=True, slots=True, eq=False)
class Endpoints:
    """An image, the blurred image where insertion starts, the blank image where deletion ends, and their scores.

    Attributes:
        image: the image itself, (channel, height, width).
        blurred: where insertion starts.
        blank: where deletion ends: zero after normalisation.
        full: the score of the image.
        blur: the score of the blurred image.
        empty: the score of the blank image.
        side: side of the blur's window, in pixels.
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
        for row, (image, score, side) in enumerate(blur_until_unrecognised(model, images, target))
    ]


def blur_until_unrecognised(
    model: Adapter, images: Tensor, target: Target, sides: Sequence[int] = BLURS
) -> list[tuple[Tensor, float, int]]:
    """Blur each image until its score is at most a hundredth; return the blurred image, its score and the blur's side.

    Where no blur gets that far the last is returned. Every blur that is tried costs one pass. Scores need not fall as
    the blur widens, so all sides are tried in turn.
    """
    last: dict[int, tuple[Tensor, float, int]] = {}
    rows = list(range(len(images)))
    for side in sides:
        blurred = Blur(side // 2, side)(model, images[rows])
        scores = read_scores(model, target.take(rows), model.predict(blurred)).tolist()
        last |= {row: (image, score, side) for row, image, score in zip(rows, blurred, scores, strict=True)}
        rows = [row for row in rows if last[row][1] > UNRECOGNISED]
        if not rows:
            break
    return [last[row] for row in range(len(images))]
