"""transformers' SigLIP 2 of flexible resolution, whose images are given as rows of patches with their grid's shape.

Its checkpoints of a fixed resolution are SigLIP models, and read as such (transformers.py).
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from sightline.models.adapter import Preprocess
from sightline.models.signature import is_a
from sightline.models.vit.adapter import VisionTransformer
from sightline.models.vit.transformers import SIGLIP, SIGLIP_CLASSIFIER, Head, TransformersVit

HEADS = {
    "Siglip2Model": SIGLIP,
    "Siglip2VisionModel": SIGLIP,
    "Siglip2ForImageClassification": SIGLIP_CLASSIFIER,
}


class TransformersSiglip2(TransformersVit):
    """SigLIP 2: images of any size, cut into patches before they enter the model."""

    def __init__(self, model: Any, head: Head, *, processor: Any = None, **facts: Any) -> None:
        if processor is not None:
            facts = {"preprocess": whole_images(processor), **facts}
        super().__init__(model, head, processor=processor, **facts)

    @property
    def _any_size(self) -> bool:
        return True

    @property
    def _own_size(self) -> tuple[int, int]:
        side = int(self.trunk.config.num_patches**0.5) * int(self.trunk.config.patch_size)
        return side, side

    @cached_property
    def _own_channels(self) -> int:
        return int(self.trunk.config.num_channels)  # its patch embedding is linear

    def forward(self, images: Tensor) -> Any:
        patches = to_patches(images, self.patch)
        grid = self.grid_of(images)
        shapes = torch.tensor([[grid.height, grid.width]] * len(images), device=images.device)
        inputs = {"pixel_values": patches, "pixel_attention_mask": None, "spatial_shapes": shapes}
        if self.head.classifier:
            return self.model(**inputs)
        return self.trunk(**inputs, return_dict=True).pooler_output


def to_patches(images: Tensor, patch: tuple[int, int]) -> Tensor:
    """Cut images into patches row by row, (batch, patch, pixel · channel)."""
    rows, columns = images.shape[-2] // patch[0], images.shape[-1] // patch[1]
    # (batch, channel, row, y, column, x)
    cut: Tensor = images.unflatten(3, (columns, patch[1])).unflatten(2, (rows, patch[0]))
    return cut.permute(0, 2, 4, 3, 5, 1).flatten(3).flatten(1, 2)


def from_patches(patches: Tensor, grid: tuple[int, int], side: int) -> Tensor:
    """Lay one image's patches, (patch, pixel · channel), as (channel, height, width)."""
    cut: Tensor = patches[: grid[0] * grid[1]].unflatten(1, (side, side, -1)).unflatten(0, grid)
    return cut.permute(4, 0, 2, 1, 3).flatten(3, 4).flatten(1, 2)


def whole_images(processor: Any) -> Preprocess:
    """Return the preprocessing of a processor that cuts images into patches, with the patches put together again."""
    pictures = getattr(processor, "image_processor", processor)

    def prepare(image: Any) -> Tensor:
        made = pictures(images=image, return_tensors="pt")
        rows, columns = made["spatial_shapes"][0].tolist()
        return from_patches(made["pixel_values"][0], (rows, columns), int(pictures.patch_size))

    return prepare


def recognise(model: nn.Module, facts: dict[str, Any]) -> VisionTransformer | None:
    """Adapt SigLIP 2's model, image tower and classifier; a tower without its pooling is declined."""
    for name, head in HEADS.items():
        if is_a(model, "transformers.models", name):
            adapter = TransformersSiglip2(model, head, **facts)
            return adapter if head is SIGLIP_CLASSIFIER or hasattr(adapter.trunk, "head") else None
    return None
