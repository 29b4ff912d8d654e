"""Occlusion and feature ablation: the drop in score when a window or a superpixel is replaced by a fill."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from sightline.errors import RecipeError
from sightline.methods.sampling.coalitions import (
    FillOption,
    SegmentMethod,
    check_fill,
    coalition_scores,
    fill_images,
    masked_scores,
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
    parity="captum Occlusion, 1e-5, its own precision; PAIR saliency Occlusion, float64, 1e-9",
)
@dataclass(frozen=True, slots=True)
class Occlusion(SegmentMethod):
    r"""Occlusion: the drop in score when a sliding window is replaced by a fill, averaged over windows per pixel.

    .. math:: A_p = \frac{1}{|\{w \ni p\}|} \sum_{w \ni p} \bigl[s(x) - s(x_{\setminus w})\bigr]

    with windows :math:`w` a stride apart; the last is clipped at the border. With `segments` each superpixel is
    replaced in turn instead, as by ``feature_ablation``. A black-box method for any model; all classes share the
    passes. At 224 pixels the default has 27×27 windows. Captum assigns this value to each of the three channels: their
    sum is threefold.

    Attributes:
        window: side of the window: an int in pixels, a float as a share of the image's side.
        stride: from one window to the next, likewise.
        fusion: of the windows that cover a pixel: mean, or sum as PAIR's.
        segments: None for windows; else the superpixels that are replaced: grid, slic, quickshift or felzenszwalb, or
            one of these with its numbers, such as ('slic', 60), or a small label map, such as ((0, 0, 1), (2, 2, 1)),
            stretched over the image. Python may bring its own, `Occlusion(segments=labels)`: whole numbers, (height,
            width) or (image, height, width), or a function from an image to them.
        blank: the fill: mean, the mean colour of the training set, black, white, blur, segment, a superpixel's own mean
            colour, or a number, that value after normalisation.
        score: the score of the class: logit, probability or log_probability; None for the target itself.
    """

    window: Length = 16
    stride: Length = 8
    fusion: Fusion = "mean"
    segments: Option | None = None
    blank: FillOption = "mean"
    score: Score | None = None

    def __post_init__(self) -> None:
        check_fill(self.blank, segments=self.segments is not None)
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
        fill = fill_images(model, images, self.blank)
        return self.with_fill(model, images, fill, targets)

    def with_fill(self, model: Adapter, images: Tensor, fill: Tensor, targets: Sequence[Target]) -> list[Attribution]:
        """Explain with windows that are replaced by given pixels, of the shape of the images."""
        rows, columns = (
            spans(side, _pixels(self.window, side), _pixels(self.stride, side)) for side in images.shape[-2:]
        )
        # the windows along each axis; their products are the windows
        sides = zip((rows, columns), images.shape[-2:], strict=True)
        down, along = (_inside(windows, side).to(images.device) for windows, side in sides)
        count = len(rows) * len(columns)

        def masks(_: int, part: slice) -> Tensor:
            index = torch.arange(part.start, part.stop, device=images.device)  # 0 is the image itself
            window = (index - 1).clamp(min=0)
            covered = down[window // len(columns), :, None] & along[window % len(columns), None, :]
            return ~covered | (index == 0)[:, None, None]

        score_targets = [scored(target, self.score, model) for target in targets]
        scores = torch.stack(masked_scores(model, images, fill, [1 + count] * len(images), masks, score_targets), dim=1)
        drops = (scores[..., :1] - scores[..., 1:]).unflatten(-1, (len(rows), len(columns)))
        down, along = (x.to(drops) for x in (down, along))
        total = torch.einsum("tbij,iy,jx->tbyx", drops, down, along)
        if self.fusion == "mean":
            total = total / (down.sum(dim=0)[:, None] * along.sum(dim=0)).clamp(min=1)
        return [Attribution(of_target[None], pixel_grid(images)) for of_target in total]

    def values(
        self, model: Adapter, images: Tensor, targets: Sequence[Target], pieces: Sequence[Segments]
    ) -> list[Tensor]:
        return drops_without_each(model, images, self.blank, pieces, [scored(t, self.score, model) for t in targets])

    def multi_target_cost(self, model: Adapter, count: int, *, every_layer: bool = False) -> Passes:
        size = model.default_size
        if self.segments is not None:
            return Passes(1 + about(self.segments, size))
        return Passes(
            1 + math.prod(len(spans(side, _pixels(self.window, side), _pixels(self.stride, side))) for side in size)
        )


def spans(side: int, window: int, stride: int) -> list[tuple[int, int]]:
    """Return where windows start and end along a side; the last reaches its end, and is clipped there.

    >>> spans(10, 4, 4)
    [(0, 4), (4, 8), (8, 10)]
    """
    count = 1 + math.ceil(max(side - window, 0) / stride)
    return [(start, min(start + window, side)) for start in range(0, count * stride, stride)]


def _pixels(length: Length, side: int) -> int:
    return length if isinstance(length, int) else max(1, round(length * side))


def _inside(windows: Sequence[tuple[int, int]], side: int) -> Tensor:
    """Return which pixels of a side lie in each window, shape (window, pixel), bool."""
    pixels = torch.arange(side)
    return torch.stack([(pixels >= start) & (pixels < end) for start, end in windows])


@METHODS.register(
    "feature_ablation",
    family="sampling",
    cite="zeiler2014",
    cost="1 forward, and 1 per superpixel",
    parity="captum FeatureAblation with the same feature mask, float64, 1e-9",
)
@dataclass(frozen=True, slots=True)
class FeatureAblation(SegmentMethod):
    r"""Feature ablation: the drop in score when each superpixel in turn is replaced by a fill.

    .. math:: A_p = s(x) - s(x_{\setminus S}) \quad\text{for every pixel } p \text{ of the superpixel } S

    A black-box method for any model; all classes share the passes. ``occlusion`` slides a window instead. A superpixel
    whose evidence also lies elsewhere gets nothing: Shapley values (``kernel_shap``) share it.

    Attributes:
        segments: the superpixels: grid, slic, quickshift or felzenszwalb, or one of these with its numbers, such as
            ('grid', 14) or ('slic', 60), or a small label map, such as ((0, 0, 1), (2, 2, 1)), stretched over the
            image. Python may bring its own, `FeatureAblation(segments=labels)`: whole numbers, (height, width) or
            (image, height, width), or a function from an image to them.
        blank: the fill of a removed superpixel: mean, the mean colour of the training set, black, white, blur, segment,
            its own mean colour, or a number, that value after normalisation.
        score: the score of the class: logit, probability or log_probability; None for the target itself.
    """

    segments: Option = "grid"
    blank: FillOption = "mean"
    score: Score | None = None

    def __post_init__(self) -> None:
        check_fill(self.blank)
        object.__setattr__(self, "segments", as_option(self.segments))

    def values(
        self, model: Adapter, images: Tensor, targets: Sequence[Target], pieces: Sequence[Segments]
    ) -> list[Tensor]:
        return drops_without_each(model, images, self.blank, pieces, [scored(t, self.score, model) for t in targets])

    def multi_target_cost(self, model: Adapter, count: int, *, every_layer: bool = False) -> Passes:
        return Passes(1 + about(self.segments, model.default_size))


def drops_without_each(
    model: Adapter, images: Tensor, blank: FillOption, pieces: Sequence[Segments], targets: Sequence[Target]
) -> list[Tensor]:
    """Return the drop of each target without each segment of each image, shape (target, segment)."""
    fill = fill_images(model, images, blank, pieces)
    all_but_one = [torch.ones(1 + piece.count, piece.count, dtype=torch.bool) for piece in pieces]
    for coalitions in all_but_one:
        coalitions[1:].fill_diagonal_(False)
    scores = coalition_scores(model, images, fill, pieces, all_but_one, targets)
    return [own[:, :1] - own[:, 1:] for own in scores]
