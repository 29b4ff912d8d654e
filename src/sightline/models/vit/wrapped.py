"""A user's own module around a known transformer: the inner sites can be captured, the whole is run as it is."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from torch import Tensor, nn

from sightline.errors import UnsupportedModel
from sightline.models.attention_layers import AttentionLayer, AttentionLayers
from sightline.models.tasks.reading import NEEDED
from sightline.models.vit.adapter import VisionTransformer


class WrappedTransformer(VisionTransformer):
    """A module that wraps a known transformer: it is run whole; blocks, attention and grid are the inner one's.

    Whatever the wrapper does after the blocks is its own, so they cannot be run apart from it: `finish` refuses.
    """

    offers = frozenset({"gradient", "layers", "attention"})

    def __init__(self, model: nn.Module, inner: VisionTransformer, **facts: Any) -> None:
        # the wrapper may normalise inside, so the inner model's preprocessing is not taken for its own
        said = {"mean": inner.mean, "std": inner.std} if inner.knows_normalisation else {}
        defaults: dict[str, Any] = {**said, "input_size": inner.input_size}
        super().__init__(model, **defaults | facts)
        self.inner = inner
        self.blocks, self.entry, self.final_norm = inner.blocks, inner.entry, inner.final_norm
        self.prefix, self.patch = inner.prefix, inner.patch
        self.blocks_see_positions = inner.blocks_see_positions

    @property
    def pool(self) -> str:
        """As the inner model's; a segmentation or a detector reads the patches, whatever its backbone was made for."""
        return "mean" if self.declared_output in NEEDED else self.inner.pool

    @property
    def attention_layers(self) -> AttentionLayers | None:  # type: ignore[override]
        """Of a segmentation or a detector, whose output reads each place at the patches there."""
        if self.declared_output not in ("dense", "boxes"):
            return None
        names = self.every("attention")
        layers = [
            AttentionLayer(name, block.attention, "tokens", self._cells)
            for name, block in zip(names, self.blocks, strict=True)
        ]
        return AttentionLayers(tuple(layers), "place", before=self.prefix)

    def _cells(self, size: tuple[int, int]) -> tuple[int, int]:
        grid = self.grid_for(size)
        return grid.height, grid.width

    @property
    def pooling_attention(self) -> nn.Module | None:
        return self.inner.pooling_attention

    def interceptable(self) -> AbstractContextManager[None]:
        return self.inner.interceptable()

    def step(self, tokens: Tensor, index: int, keep: Tensor | None) -> Tensor:
        self.inner._size = self._size or self.inner._size  # rotary positions depend on it
        return self.inner.step(tokens, index, keep)

    def finish(self, tokens: Tensor) -> Tensor:
        raise UnsupportedModel(
            f"{self.name} wraps a {self.inner.name}, and what it does after the blocks cannot be run alone; "
            "explain the inner model, or use a method that runs the whole model"
        )
