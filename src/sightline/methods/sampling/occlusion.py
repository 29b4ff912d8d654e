"""Occlusion: how far the score falls when a window, or a superpixel, is covered."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from sightline.errors import RecipeError
from sightline.methods.sampling.coalitions import (
    Absent,
    OnSegments,
    absent_images,
    check_absent,
    coalition_scores,
    mixed_scores,
    usual_size,
)
from sightline.methods.scored import Score, scored
from sightline.models.adapter import Adapter
from sightline.perturb.segments import Segments
from sightline.perturb.superpixels import Option, about, as_option
from sightline.registry import METHODS
from sightline.types import Attribution, Passes, Target, pixel_grid

Fusion = Literal["mean", "sum"]
Length = int | float


@METHODS.register(
    "occlusion",
    family="sampling",
    cite="zeiler2014",
    cost="1 forward, and 1 per window",
    parity="captum Occlusion and FeatureAblation, PAIR saliency Occlusion, float64, 1e-9",
)
@dataclass(frozen=True, slots=True)
class Occlusion(OnSegments):
    r"""Occlusion: the mean fall of the score over the windows that cover a pixel.

    .. math:: A_p = \frac{1}{|\{w \ni p\}|} \sum_{w \ni p} \bigl[s(x) - s(x_{\setminus w})\bigr]

    with windows :math:`w` that lie a stride apart; the last is cut off at the border. With `segments` each superpixel
    is covered in turn instead (feature ablation). It runs on any model, and all classes share the passes. At 224 pixels
    the default has 27×27 windows. captum gives this value to each of the three channels: their sum is threefold.

    Attributes:
        window: side of the window: an int in pixels, a float as a share of the image's side.
        stride: from one window to the next, likewise.
        fusion: of the windows that cover a pixel: mean, or sum as PAIR's.
        segments: None for windows; else the superpixels that are covered: grid, slic, quickshift or felzenszwalb, or
            one of these with its numbers, such as ('slic', 60), or a small label map, such as ((0, 0, 1), (2, 2, 1)),
            stretched over the image. Python may bring its own, `Occlusion(segments=labels)`: whole numbers, (height,
            width) or (image, height, width), or a function from an image to them.
        blank: what covers: mean, the mean colour of the training set, black, white, blur, segment, a superpixel's own
            mean colour, or a number, that value after normalisation.
        score: what is read of the class: logit, probability or log_probability; None for whatever the target says.
    """

    window: Length = 16
    stride: Length = 8
    fusion: Fusion = "mean"
    segments: Option | None = None
    blank: Absent = "mean"
    score: Score | None = None

    def __post_init__(self) -> None:
        check_absent(self.blank, segments=self.segments is not None)
        if self.segments is not None:
            object.__setattr__(self, "segments", as_option(self.segments))
        for name, length in (("window", self.window), ("stride", self.stride)):
            if length < 1 if isinstance(length, int) else not 0 < length <= 1:
                raise RecipeError(f"got {name}={length}; give 1 pixel or more, or a share above 0.0 and up to 1.0")

    def multi_target(
        self, model: Adapter, images: Tensor, targets: Sequence[Target], *, every_layer: bool = False
    ) -> list[Attribution]:
        if self.segments is not None:
            return self.on(model, images, targets, self.segments)
        absent = absent_images(model, images, self.blank)
        return self.covering(model, images, absent, targets)

    def covering(self, model: Adapter, images: Tensor, absent: Tensor, targets: Sequence[Target]) -> list[Attribution]:
        """Explain with windows onto an image of one's own, of the shape of the images."""
        rows, columns = (
            spans(side, _pixels(self.window, side), _pixels(self.stride, side)) for side in images.shape[-2:]
        )
        # the windows at one height and at one place along it; their products are the windows
        down, along = (_inside(x, side) for x, side in zip((rows, columns), images.shape[-2:], strict=True))
        count = len(rows) * len(columns)

        def masks(_: int, part: slice) -> Tensor:
            index = torch.arange(part.start, part.stop)  # 0 is the image itself
            window = (index - 1).clamp(min=0)
            covered = down[window // len(columns), :, None] & along[window % len(columns), None, :]
            return (~covered | (index == 0)[:, None, None]).to(images.device)

        read = [scored(target, self.score, model) for target in targets]
        scores = torch.stack(mixed_scores(model, images, absent, [1 + count] * len(images), masks, read), dim=1)
        falls = (scores[..., :1] - scores[..., 1:]).unflatten(-1, (len(rows), len(columns)))
        down, along = (x.to(falls) for x in (down, along))
        total = torch.einsum("tbij,iy,jx->tbyx", falls, down, along)
        if self.fusion == "mean":
            total = total / (down.sum(dim=0)[:, None] * along.sum(dim=0)).clamp(min=1)
        return [Attribution(one[None], pixel_grid(images)) for one in total]

    def values(
        self, model: Adapter, images: Tensor, targets: Sequence[Target], pieces: Sequence[Segments]
    ) -> list[Tensor]:
        absent = absent_images(model, images, self.blank, pieces)
        everyone_but = [torch.ones(1 + p.count, p.count, dtype=torch.bool) for p in pieces]
        for coalitions in everyone_but:
            coalitions[1:].fill_diagonal_(False)
        read = [scored(target, self.score, model) for target in targets]
        scores = coalition_scores(model, images, absent, pieces, everyone_but, read)
        return [each[:, :1] - each[:, 1:] for each in scores]

    def multi_target_cost(self, model: Adapter, count: int, *, every_layer: bool = False) -> Passes:
        size = usual_size(model)
        if self.segments is not None:
            return Passes(1 + about(self.segments, size))
        return Passes(
            1 + math.prod(len(spans(side, _pixels(self.window, side), _pixels(self.stride, side))) for side in size)
        )


def spans(side: int, window: int, stride: int) -> list[tuple[int, int]]:
    """Return where windows start and end along a side; the last reaches its end, and is cut off there.

    >>> spans(10, 4, 4)
    [(0, 4), (4, 8), (8, 10)]
    """
    count = 1 + math.ceil(max(side - window, 0) / stride)
    return [(start, min(start + window, side)) for start in range(0, count * stride, stride)]


def _pixels(length: Length, side: int) -> int:
    return length if isinstance(length, int) else max(1, round(length * side))


def _inside(where: Sequence[tuple[int, int]], side: int) -> Tensor:
    """Return which pixels of a side lie in each window, shape (window, pixel), bool."""
    pixels = torch.arange(side)
    return torch.stack([(pixels >= start) & (pixels < end) for start, end in where])
