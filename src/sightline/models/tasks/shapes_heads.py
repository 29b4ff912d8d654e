"""The bundled models of tasks: a segmentation and a detection head on the frozen bundled classifiers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["ShapesDetector", "ShapesSegmenter"]

CELLS = 8  # a side of the feature maps of both backbones
LABELS = 8  # of shapes


class ShapesSegmenter(nn.Module):
    """A segmentation of shapes: the last feature map of ``shapes-cnn`` to a class, or background, per pixel.

    Each cell of the map gives the logits of 4×4 places, which are enlarged bilinearly to the image.
    """

    def __init__(self, backbone: nn.Module) -> None:
        super().__init__()
        self.backbone: Any = backbone
        self.head = nn.Sequential(
            nn.Conv2d(128, 96, 3, padding=1), nn.ReLU(), nn.Conv2d(96, 96, 3, padding=1), nn.ReLU(),
            nn.Conv2d(96, (1 + LABELS) * 16, 1), nn.PixelShuffle(4),
        )  # fmt: skip

    def features(self, images: Tensor) -> Tensor:
        """Return the last feature map, (batch, 128, 8, 8)."""
        return self.backbone.forward_features(images)  # type: ignore[no-any-return]

    def forward(self, images: Tensor) -> Tensor:
        logits = self.head(self.features(images))
        return F.interpolate(logits, images.shape[-2:], mode="bilinear", align_corners=False)


class ShapesDetector(nn.Module):
    """A detector of shapes: every patch token of ``shapes-vit`` to a box around its centre and the logits of 8 labels.

    A token says how far the sides of the box are from its own centre, in shares of the image.
    """

    def __init__(self, backbone: nn.Module) -> None:
        super().__init__()
        self.backbone: Any = backbone
        self.head = nn.Sequential(
            nn.Conv2d(96, 96, 3, padding=1), nn.ReLU(), nn.Conv2d(96, 96, 3, padding=1), nn.ReLU(),
            nn.Conv2d(96, LABELS + 4, 1),
        )  # fmt: skip
        nn.init.constant_(self.head[-1].bias[:LABELS], -3.0)  # type: ignore[index]  # most tokens show no object

    def features(self, images: Tensor) -> Tensor:
        """Return the last patch tokens on their grid, (batch, 96, 8, 8)."""
        tokens: Tensor = self.backbone.forward_features(images)[:, 1:]
        grid: Tensor = tokens.transpose(1, 2).unflatten(2, (CELLS, CELLS))
        return grid

    def boxes(self, raw: Tensor) -> Tensor:
        """Return the corners in shares of the image, (batch, cell, 4), from what the head says of each cell."""
        middle = (torch.arange(CELLS, dtype=raw.dtype, device=raw.device) + 0.5) / CELLS
        y, x = torch.meshgrid(middle, middle, indexing="ij")
        left, top, right, bottom = (F.softplus(raw[:, LABELS + side]) / 4 for side in range(4))
        corners = torch.stack([x - left, y - top, x + right, y + bottom], dim=-1)
        return corners.flatten(1, 2)

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        """Return boxes in pixels, (batch, 64, 4), and logits, (batch, 64, 8)."""
        raw = self.head(self.features(images))
        height, width = images.shape[-2:]
        pixels = torch.tensor([width, height, width, height], dtype=raw.dtype, device=raw.device)
        return {"boxes": self.boxes(raw) * pixels, "logits": raw[:, :LABELS].flatten(2).transpose(1, 2)}
