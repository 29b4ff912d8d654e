"""How vision-language models take a picture, and where its tokens lie in it.

A processor turns a picture into one image (LLaVA, PaliGemma), into a sequence of patches (Qwen-VL), or into tiles and
an overview (Idefics3, SmolVLM). A format says how that becomes one image of (3, height, width), how such an image
becomes what the model is given, step by step with gradients, and in which order the image's tokens stand among the
language model's tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from sightline.errors import UnsupportedModel

Size = tuple[int, int]


class OneImage:
    """One image of a fixed size, given as it is; its tokens come row by row, perhaps after a class token."""

    fixed = True

    def __init__(self, config: Any, processor: Any) -> None:
        self.patch = _patch(config)

    def pixels(self, inputs: Mapping[str, Any]) -> Tensor:
        """Return the picture as the processor made it, (3, height, width)."""
        pixels: Tensor = inputs["pixel_values"]
        if pixels.ndim != 4 or len(pixels) != 1:
            raise UnsupportedModel(
                f"the processor made a tensor of shape {tuple(pixels.shape)} of one picture; sightline reads "
                "(1, 3, height, width), the patches of Qwen-VL and the tiles of Idefics3"
            )
        return pixels[0]

    def inputs(self, images: Tensor) -> dict[str, Tensor]:
        """Return what the model is given for images, (batch, 3, height, width)."""
        return {"pixel_values": images}

    def cells(self, size: Size, count: int) -> tuple[Size, Tensor]:
        """Return height and width of the grid of tokens, and which of the `count` image tokens lie on it, by rows."""
        grid = size[0] // self.patch, size[1] // self.patch
        step = max(1, round((grid[0] * grid[1] / count) ** 0.5))  # where patches are pooled before they become tokens
        grid = grid[0] // step, grid[1] // step
        extra = count - grid[0] * grid[1]
        if extra not in (0, 1):
            raise UnsupportedModel(
                f"got {count} image tokens for a grid of {grid[0]}×{grid[1]}; sightline cannot lay them on the image"
            )
        return grid, torch.arange(extra, count)


class Patches:
    """The patches of an image of any size as rows of numbers, in groups that become one token each (Qwen-VL)."""

    fixed = False

    def __init__(self, config: Any, processor: Any) -> None:
        pictures = processor.image_processor
        self.side, self.merge = int(pictures.patch_size), int(pictures.merge_size)
        self.frames = int(pictures.temporal_patch_size)
        self.patch = self.side * self.merge

    def pixels(self, inputs: Mapping[str, Any]) -> Tensor:
        _, height, width = inputs["image_grid_thw"][0].tolist()
        merge, side = self.merge, self.side
        rows: Tensor = inputs["pixel_values"]
        parts = rows.reshape(height // merge, width // merge, merge, merge, -1, self.frames, side, side)
        first = parts[..., 0, :, :]  # a picture is a film of the same frame
        return first.permute(4, 0, 2, 5, 1, 3, 6).reshape(-1, height * side, width * side)

    def inputs(self, images: Tensor) -> dict[str, Tensor]:
        count, channels, height, width = images.shape
        merge, side = self.merge, self.side
        down, across = height // side, width // side
        parts = images.reshape(count, channels, down // merge, merge, side, across // merge, merge, side)
        parts = parts.permute(0, 2, 5, 3, 6, 1, 4, 7).unsqueeze(6)
        rows = parts.expand(*parts.shape[:6], self.frames, side, side).reshape(count * down * across, -1)
        grid = torch.tensor([[1, down, across]] * count, device=images.device)
        return {"pixel_values": rows, "image_grid_thw": grid}

    def cells(self, size: Size, count: int) -> tuple[Size, Tensor]:
        return (size[0] // self.patch, size[1] // self.patch), torch.arange(count)


class Tiles:
    """Square tiles of a large image and, where there are several, an overview of it (Idefics3, SmolVLM).

    The overview is computed from the tiles with the processor's own filter, so it is what the processor makes of the
    picture up to the rounding to whole grey values. Its tokens have no place of their own on the grid of tiles.
    """

    def __init__(self, config: Any, processor: Any) -> None:
        pictures = processor.image_processor
        self.fixed = not pictures.do_image_splitting
        self.tile = int(pictures.max_image_size["longest_edge"])
        self.resample = int(pictures.resample)
        self.patch = _patch(config) * int(config.scale_factor)

    def pixels(self, inputs: Mapping[str, Any]) -> Tensor:
        tiles: Tensor = inputs["pixel_values"][0]
        if len(tiles) == 1:
            return tiles[0]
        rows, columns = int(inputs["rows"][0][0]), int(inputs["cols"][0][0])
        grid = tiles[:-1].reshape(rows, columns, *tiles.shape[1:])
        return grid.permute(2, 0, 3, 1, 4).reshape(tiles.shape[1], rows * self.tile, columns * self.tile)

    def inputs(self, images: Tensor) -> dict[str, Tensor]:
        rows, columns = images.shape[-2] // self.tile, images.shape[-1] // self.tile
        tiles = images.reshape(len(images), -1, rows, self.tile, columns, self.tile).permute(0, 2, 4, 1, 3, 5)
        tiles = tiles.flatten(1, 2)
        if rows * columns > 1:
            tiles = torch.cat([tiles, self._overview(images)[:, None]], dim=1)
        # the model drops tiles of zeros, which stand for no image: the smallest number keeps a blank one
        blank = (tiles == 0).flatten(2).all(dim=2)[..., None, None, None]
        return {"pixel_values": tiles + blank * torch.finfo(tiles.dtype).tiny}

    def _overview(self, images: Tensor) -> Tensor:
        down = _resizing(images.shape[-2], self.tile, self.resample).to(images)
        across = _resizing(images.shape[-1], self.tile, self.resample).to(images)
        return down @ images @ across.T

    def cells(self, size: Size, count: int) -> tuple[Size, Tensor]:
        height, width = size[0] // self.patch, size[1] // self.patch
        side = self.tile // self.patch
        y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
        tile = (y // side) * (width // side) + x // side
        return (height, width), (tile * side * side + (y % side) * side + x % side).flatten()


ImageFormat = OneImage | Patches | Tiles


def image_format(config: Any, processor: Any) -> ImageFormat:
    """Return how a model takes pictures, read off its processor."""
    pictures = processor.image_processor
    if hasattr(pictures, "merge_size"):
        return Patches(config, processor)
    if hasattr(pictures, "do_image_splitting") and hasattr(config, "scale_factor"):
        return Tiles(config, processor)
    return OneImage(config, processor)


def _patch(config: Any) -> int:
    side = getattr(config.vision_config, "patch_size", None)
    if not isinstance(side, int):
        raise UnsupportedModel(
            f"got patches of {side} pixels; sightline reads vision-language models of square patches"
        )
    return side


@lru_cache(maxsize=16)
def _resizing(before: int, after: int, resample: int) -> Tensor:
    """Return the matrix, (after, before), that resizes a column of pixels as Pillow does."""
    identity = Image.fromarray(np.eye(before, dtype=np.float32))
    return torch.from_numpy(np.array(identity.resize((before, after), Image.Resampling(resample))))
