"""`shapes` scenes with several objects: a segmentation and a detection set whose masks and boxes are exact.

Each image shows two or three shapes of different classes among small distractors on cluttered ground, drawn by the code
that draws `shapes`. Image i of a seed is always the same.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sightline.data.shapes import SMALLEST
from sightline.data.shapes_drawing import CLASSES, draw_objects
from sightline.errors import InputError

__all__ = ["Scene", "SceneBatch", "ShapesScenes"]

Corners = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True, eq=False)
class Scene:
    """One image with its objects.

    Attributes:
        image: (height, width, 3), uint8.
        labels: of the objects, indices into CLASSES, all different.
        masks: one (height, width) each, the visible part.
    """

    image: NDArray[np.uint8]
    labels: tuple[int, ...]
    masks: tuple[NDArray[np.bool_], ...]

    @property
    def boxes(self) -> tuple[Corners, ...]:
        """The smallest box around each mask: x1, y1, x2, y2 in pixels, the last two excluded."""
        return tuple(map(_box, self.masks))

    @property
    def segmentation(self) -> NDArray[np.int64]:
        """The label of each pixel, (height, width): 0 for the background, 1 + label for an object."""
        labels = np.zeros(self.image.shape[:2], dtype=np.int64)
        for label, mask in zip(self.labels, self.masks, strict=True):
            labels[mask] = 1 + label
        return labels


@dataclass(frozen=True, slots=True, eq=False)
class SceneBatch:
    """Scenes stacked: images in 0..1, (batch, 3, height, width), the label of each pixel, and the scenes themselves."""

    images: Tensor
    segmentation: Tensor
    scenes: tuple[Scene, ...]


@dataclass(frozen=True, slots=True)
class ShapesScenes:
    """An endless set of scenes, drawn when asked for.

    Attributes:
        seed: another seed gives other scenes.
        size: height and width in pixels.
    """

    seed: int = 0
    size: int = 64

    def __post_init__(self) -> None:
        if self.size < SMALLEST:
            raise InputError(f"scenes of {self.size} pixels cannot be told apart; size must be {SMALLEST} or more")

    def __getitem__(self, index: int) -> Scene:
        if index < 0:
            raise InputError(f"scenes are endless and have no image {index}; count from 0")
        random = np.random.default_rng([self.seed, index, 2])
        chosen = random.permutation(len(CLASSES))[: random.integers(2, 4)]
        pixels, masks = draw_objects(random, self.size, chosen.tolist())
        image = (np.clip(pixels, 0, 1) * 255 + 0.5).astype(np.uint8)
        seen = [number for number, mask in enumerate(masks) if mask.any()]
        return Scene(image, tuple(int(chosen[number]) for number in seen), tuple(masks[number] for number in seen))

    def draw(self, count: int, start: int = 0) -> SceneBatch:
        """Draw scenes start, start + 1, … as one batch."""
        if count < 1:
            raise InputError(f"a batch of {count} scenes was asked for; draw at least 1")
        scenes = tuple(self[index] for index in range(start, start + count))
        images = torch.from_numpy(np.stack([scene.image for scene in scenes])).permute(0, 3, 1, 2).float() / 255
        labels = torch.from_numpy(np.stack([scene.segmentation for scene in scenes]))
        return SceneBatch(images.contiguous(), labels, scenes)


def _box(mask: NDArray[np.bool_]) -> Corners:
    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    return int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1
