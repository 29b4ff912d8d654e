"""PAMI: partition input and aggregate outputs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sightline.errors import RecipeError
from sightline.extras import require
from sightline.methods.multi_target import MultiTarget
from sightline.methods.sampling.coalitions import (
    FillOption,
    check_fill,
    coalition_scores,
    fill_images,
    segment_attributions,
)
from sightline.methods.scored import Score, scored
from sightline.models.adapter import Adapter
from sightline.perturb.fill import Blur
from sightline.perturb.superpixels import (
    CustomSegments,
    Given,
    Option,
    Size,
    about,
    as_option,
    cells_of_cut,
    check_cut,
    is_cut,
    segments_of,
)
from sightline.registry import METHODS
from sightline.seeds import generators
from sightline.types import Attribution, Passes, Target, pixel_grid

USUAL = 224  # pixels, for which the authors chose their lengths
SHIFTS = tuple(
    (sign * length if down else 0, 0 if down else sign * length)
    for length in (36, 30, 24)
    for sign in (1, -1)
    for down in (True, False)
)
FELZENSZWALB, SLIC, WATERSHED = (250, 200, 150, 100, 70, 50), range(10, 90, 10), (10, 20, 30)
SMALLEST = 28 * 28  # pixels of a Felzenszwalb segment


@METHODS.register(
    "pami",
    family="sampling",
    cite="shi2023",
    cost="at most 1 forward per segment, segmentation and shift: some 9000 as the authors, a few hundred on one grid",
    parity="the definition written out with scikit-image's segmentations, 1e-12; no reference numbers",
)
@dataclass(frozen=True, slots=True)
class PartitionAndAggregate(MultiTarget):
    r"""PAMI, partition input and aggregate outputs: the class score of each segment alone, the rest being blurred.

    .. math:: A_i = \frac1N \sum_{n=1}^{N} p\bigl(x \odot R_n(i) + b(x) \odot (1 - R_n(i))\bigr)

    :math:`R_n(i)` is the segment of segmentation n that contains pixel i and :math:`b` a strong blur, computed on pixel
    values with black padding. The image is also shifted cyclically, segmented and scored there, and the map shifted
    back. The authors' program takes twenty segmentations and thirteen shifts; three of its segmentations, SEEDS of
    OpenCV's extra modules, are not among ours. A black-box method for any model; all classes share the passes. Never
    negative.

    Attributes:
        segments: the segmentations, such as ``(('slic', 50), ('grid', 7))``; by default the authors': Felzenszwalb's at
            six scales, SLIC at eight, watersheds at three, which need scikit-image. Python may bring its own label maps
            or functions of the image among them.
        samples: how many shifts, the unshifted image included.
        seed: of the shifts; None takes the authors', 36, 30 and 24 of 224 pixels to each side.
        blank: the fill around the segment: blur, mean, black, white, or a number, that value after normalisation.
        score: the score of the class: probability, as the authors, logit or log_probability; None for the target
            itself.
    """

    segments: tuple[Option, ...] | None = None
    samples: int = 13
    seed: int | None = None
    blank: FillOption = "blur"
    score: Score | None = "probability"

    def __post_init__(self) -> None:
        check_fill(self.blank, segments=False)
        if self.segments is not None:
            if not isinstance(self.segments, list | tuple) or any(isinstance(x, int | float) for x in self.segments):
                raise RecipeError(f"got segments={self.segments!r}; give a tuple of cuts, such as (('slic', 50),)")
            object.__setattr__(self, "segments", tuple(map(as_option, self.segments)))
        if self.segments == ():
            raise RecipeError("got segments=(); give a tuple of cuts, such as (('slic', 50),)")
        if self.samples < 1 or (self.seed is None and self.samples > 1 + len(SHIFTS)):
            raise RecipeError(
                f"got samples={self.samples}; give 1 to {1 + len(SHIFTS)}, or a seed, with which there can be more"
            )

    def multi_target(
        self, model: Adapter, images: Tensor, targets: Sequence[Target], *, every_layer: bool = False
    ) -> list[Attribution]:
        return self.on(model, images, targets, self.segments or authors_cuts((images.shape[-2], images.shape[-1])))

    def multi_target_cost(self, model: Adapter, count: int, *, every_layer: bool = False) -> Passes:
        size = model.default_size
        return Passes(self.samples * sum(most_segments(cut, size) for cut in self.segments or authors_cuts(size)))

    def on(
        self, model: Adapter, images: Tensor, targets: Sequence[Target], segments: Sequence[Given | CustomSegments]
    ) -> list[Attribution]:
        """Explain with given segmentations, each as `segments_of` takes it.

        Label maps stay in place when the image is shifted; give functions of the image where they should follow it.
        """
        score_targets = [scored(target, self.score, model) for target in targets]
        total: Tensor | float = 0.0
        for shifts in self._shifts(images):
            shifted = _shifted(images, shifts)
            fill = self._fill(model, shifted)
            for cut in segments:
                pieces = segments_of(model, shifted, cut)
                alone = [torch.eye(piece.count, dtype=torch.bool) for piece in pieces]
                scores = coalition_scores(model, shifted, fill, pieces, alone, score_targets)
                maps = torch.stack([each.map for each in segment_attributions(images, pieces, scores)], dim=1)
                total = total + _shifted(maps, [(-down, -right) for down, right in shifts])
        assert isinstance(total, Tensor)
        mean = total / (self.samples * len(segments))
        return [Attribution(of_target[None], pixel_grid(images)) for of_target in mean.unbind(dim=1)]

    def _fill(self, model: Adapter, images: Tensor) -> Tensor:
        if self.blank != "blur":
            return fill_images(model, images, self.blank)
        radius = max(1, round(24 * min(images.shape[-2:]) / USUAL))
        return model.normalise(Blur(radius, 100 * radius / 24)(model, model.denormalise(images)))

    def _shifts(self, images: Tensor) -> Iterator[list[tuple[int, int]]]:
        """Yield the shift of each image, down and to the right, once for each sample."""
        height, width = images.shape[-2:]
        yield [(0, 0)] * len(images)
        if self.seed is None:
            for down, right in SHIFTS[: self.samples - 1]:
                yield [(-round(down * height / USUAL), -round(right * width / USUAL))] * len(images)
            return
        drawn = generators(self.seed, images)
        for _ in range(self.samples - 1):
            yield [tuple(int(torch.randint(n, (), generator=g)) for n in (height, width)) for g in drawn]  # type: ignore[misc]


def _shifted(images: Tensor, shifts: Sequence[tuple[int, int]]) -> Tensor:
    """Shift each image of a batch cyclically."""
    return torch.stack([x.roll(shift, dims=(-2, -1)) for x, shift in zip(images, shifts, strict=True)])


class Watershed:
    """Watersheds of the gradient of an image, from about this many markers."""

    def __init__(self, markers: int) -> None:
        self.markers = markers

    def __call__(self, raw: Tensor) -> Tensor:
        skimage: Any = require("skimage")
        grey = skimage.color.rgb2gray(raw.double().clamp(0, 1).movedim(0, -1).cpu().numpy())
        labels = skimage.segmentation.watershed(skimage.filters.sobel(grey), markers=self.markers, compactness=1e-4)
        return torch.from_numpy(labels).long()


def authors_cuts(size: Size) -> list[Given | CustomSegments]:
    """Return the authors' segmentations, the smallest segment being the same share of any image."""
    smallest = max(1, round(SMALLEST * size[0] * size[1] / USUAL**2))
    felzenszwalb: list[Given | CustomSegments] = [("felzenszwalb", scale, 0.8, smallest) for scale in FELZENSZWALB]
    return [*felzenszwalb, *[("slic", count, 20.0) for count in SLIC], *map(Watershed, WATERSHED)]


def most_segments(cut: Given | CustomSegments, size: Size) -> int:
    """Return how many segments a cut may have."""
    if isinstance(cut, Watershed):
        return 2 * cut.markers + 1
    assert isinstance(cut, str | tuple | CustomSegments)
    if not is_cut(cut) or cells_of_cut(cut, size):
        return about(cut, size)
    name, numbers = check_cut(cut)
    pixels = size[0] * size[1]
    if name == "slic":  # none is smaller than half the size asked for
        return min(pixels, 2 * int(numbers[0]) + 1)
    return pixels // max(1, int(numbers[2])) if name == "felzenszwalb" else pixels
