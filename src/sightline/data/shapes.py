"""`shapes`: synthetic images whose evidence is known to the pixel.

Each image shows one shape of a class among two to four distractors on cluttered ground. Colour, texture, size,
rotation and position are independent of the class, so the shape alone is evidence, and its mask is exact: a pixel
belongs to the mask when the shape changed it. Image i of a seed is the same in every batch, and the three variants
share their scenes.

========  =====================================================================================================
clean     no watermark anywhere
shortcut  half of the images of SHORTCUT_CLASS lose their shape and carry a corner watermark instead: there the
          watermark is the evidence; no other class ever carries it. The bundled models are trained on this
conflict  a shape of another class, with the watermark in a corner: a model that learned the shortcut is pulled to
          SHORTCUT_CLASS, and an attribution of that class should land on the watermark
========  =====================================================================================================
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from sightline.data.shapes_drawing import CLASSES, MOST_DISTRACTORS, Canvas, ShapesSample, draw_scene
from sightline.errors import InputError
from sightline.registry import check_options

__all__ = [
    "CLASSES",
    "MEAN",
    "MOST_DISTRACTORS",
    "SHORTCUT_CLASS",
    "STD",
    "VARIANTS",
    "Batch",
    "Shapes",
    "ShapesSample",
    "Variant",
    "normalise",
]

Variant = Literal["clean", "shortcut", "conflict"]

MEAN = (0.5, 0.5, 0.5)
STD = (0.5, 0.5, 0.5)
VARIANTS: tuple[Variant, ...] = get_args(Variant)
SMALLEST = 32  # pixels; below this the textures and the watermark are no longer drawn faithfully
SHORTCUT_CLASS: int = CLASSES.index("star")


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Samples stacked into tensors.

    Attributes:
        images: (batch, 3, height, width), float32 in 0..1; `normalise` them for the bundled models.
        labels: (batch,), int64.
        evidence: (batch, height, width), bool.
        distractors: (batch, MOST_DISTRACTORS, height, width), bool; all False beyond the last distractor.
        shortcut: (batch, height, width), bool.
    """

    images: Tensor
    labels: Tensor
    evidence: Tensor
    distractors: Tensor
    shortcut: Tensor

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, slots=True)
class Shapes:
    """An endless set of images, drawn when asked for.

    Attributes:
        seed: another seed gives other images.
        size: height and width in pixels.
        variant: "clean", "shortcut" or "conflict"; see the top of this file.
    """

    seed: int = 0
    size: int = 64
    variant: Variant = "clean"

    def __post_init__(self) -> None:
        check_options(self, "shapes got")
        if self.size < SMALLEST:
            raise InputError(f"shapes of {self.size} pixels cannot be told apart; size must be {SMALLEST} or more")

    def __getitem__(self, index: int) -> ShapesSample:
        canvas, label, shaped, corner = self._scene(index)
        if corner is not None:
            canvas.stamp(corner)
        return canvas.sample(label, evidence=canvas.evidence if shaped else canvas.shortcut)

    def without(
        self, index: int, *, evidence: bool = False, distractors: Collection[int] = (), shortcut: bool = False
    ) -> ShapesSample:
        """Draw an image without some of its parts, everything else being the same to the pixel.

        Args:
            index: of the image.
            evidence: leave out the shape of the label.
            distractors: which to leave out, by their place in the sample's `distractors`.
            shortcut: leave out the watermark.
        """
        canvas, label, shaped, corner = self._scene(index)
        if corner is not None:
            canvas.stamp(corner)
        visible = [number for number, mask in enumerate(canvas.distractors) if (mask & ~canvas.shortcut).any()]
        random = np.random.default_rng([self.seed, index, 0])
        random.integers(len(CLASSES))
        omit = {visible[number] for number in distractors}
        left = draw_scene(random, self.size, label, shape=shaped and not evidence, omit=omit)
        if corner is not None and not shortcut:
            left.stamp(corner)
        return left.sample(label, evidence=left.evidence if shaped else left.shortcut)

    def _scene(self, index: int) -> tuple[Canvas, int, bool, int | None]:
        """Draw a scene; return it with its label, whether the label's shape is in it, and the watermark's corner."""
        if index < 0:
            raise InputError(f"shapes is endless and has no image {index}; count from 0")
        random = np.random.default_rng([self.seed, index, 0])
        label = int(random.integers(len(CLASSES)))
        # the watermark's choices have a generator of their own, so every variant draws the same scene
        choice = np.random.default_rng([self.seed, index, 1])
        if self.variant == "conflict" and label == SHORTCUT_CLASS:
            label = (SHORTCUT_CLASS + int(choice.integers(1, len(CLASSES)))) % len(CLASSES)
        if self.variant == "shortcut" and label == SHORTCUT_CLASS and choice.random() < 0.5:
            return draw_scene(random, self.size, label, shape=False), label, False, int(choice.integers(4))
        canvas = draw_scene(random, self.size, label, shape=True)
        if self.variant != "conflict":
            return canvas, label, True, None
        free = [corner for corner in range(4) if not canvas.covers(corner)]
        return canvas, label, True, free[int(choice.integers(len(free)))]

    def draw(self, count: int, start: int = 0) -> Batch:
        """Draw images start, start + 1, … as one batch."""
        if count < 1:
            raise InputError(f"a batch of {count} images was asked for; draw at least 1")
        return _stack([self[index] for index in range(start, start + count)])


def normalise(images: Tensor) -> Tensor:
    """Scale images in 0..1 to what the bundled models take: (image − MEAN) / STD."""
    mean, std = (torch.tensor(value, dtype=images.dtype, device=images.device).view(3, 1, 1) for value in (MEAN, STD))
    return (images - mean) / std


def _stack(samples: Sequence[ShapesSample]) -> Batch:
    images = torch.from_numpy(np.stack([sample.image for sample in samples]))
    height, width = images.shape[1:3]
    distractors = np.zeros((len(samples), MOST_DISTRACTORS, height, width), dtype=np.bool_)
    for row, sample in zip(distractors, samples, strict=True):
        for slot, mask in zip(row, sample.distractors, strict=False):
            slot[:] = mask
    return Batch(
        images=images.permute(0, 3, 1, 2).contiguous().float() / 255,
        labels=torch.tensor([sample.label for sample in samples]),
        evidence=torch.from_numpy(np.stack([sample.evidence for sample in samples])),
        distractors=torch.from_numpy(distractors),
        shortcut=torch.from_numpy(np.stack([sample.shortcut for sample in samples])),
    )
