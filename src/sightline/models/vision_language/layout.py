"""Where the tokens of picture and text stand in a language model's sequence, and what its layers are called with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sightline.models.vision_language.image_formats import ImageFormat, Size
from sightline.models.vision_language.token_order import text_first


@dataclass(frozen=True, eq=False)
class Layout:
    """What the model reads beside the image, for images of one size.

    Attributes:
        text: the inputs that hold a number per token, batch 1.
        positions: in the model's sequence, of the text tokens and of the image tokens by rows, (1, token).
        grid: height and width of the grid of image tokens.
    """

    text: dict[str, Tensor]
    positions: Tensor
    grid: Size

    @property
    def prefix(self) -> int:
        """How many tokens have no place in the image."""
        return self.positions.shape[1] - self.grid[0] * self.grid[1]

    def kept(self, keep: Tensor | None) -> Tensor:
        """Return the positions of the tokens left when only some image tokens are kept, (1 or batch, token)."""
        if keep is None:
            return self.positions
        keep = keep.cpu() if keep.ndim == 2 else keep.cpu()[None]
        text = self.positions[:, : self.prefix].expand(len(keep), -1)
        return torch.cat([text, self.positions[0, self.prefix :][keep]], dim=1)


def make_layout(text: dict[str, Tensor], is_image: Tensor, form: ImageFormat, size: Size) -> Layout:
    """Lay the image tokens of a text on the grid of images of this size."""
    places = is_image.nonzero()[:, 0]
    grid, on_grid = form.cells(size, len(places))
    return Layout(text, text_first(places[on_grid], len(is_image)), grid)


def layer_arguments(call: Mapping[str, Any], left: Tensor | None) -> dict[str, Any]:
    """Return what a layer is called with beside the tokens, for one image; `left` are the positions of tokens left."""
    arguments = {name: value for name, value in call.items() if name != "hidden_states"}
    arguments |= {"past_key_values": None, "use_cache": False}
    mask, positions, tables = (call.get(name) for name in ("attention_mask", "position_ids", "position_embeddings"))
    if mask is not None:
        arguments["attention_mask"] = _left(mask[:1], left, (-2, -1), batch=0)
    if positions is not None:
        arguments["position_ids"] = _left(positions[..., :1, :], left, (-1,), batch=-2)
    if tables is not None:
        arguments["position_embeddings"] = tuple(_left(table[..., :1, :, :], left, (-2,), batch=-3) for table in tables)
    return arguments


def _left(values: Tensor, left: Tensor | None, axes: tuple[int, ...], batch: int) -> Tensor:
    """Return the entries of the tokens that are left, (1 or batch, token), along some axes."""
    if left is None:
        return values
    each = []
    for row in left.to(values.device):
        picked = values
        for axis in axes:
            picked = picked.index_select(axis, row)
        each.append(picked)
    return torch.cat(each, dim=batch)
