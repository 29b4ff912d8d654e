r"""Raw attention, rollout and GAE on models whose attention layers differ: class attention, coarser maps, detectors.

Every layer's matrix is laid out over all tokens of the layer, the tokens that do not attend in it staying as they are,
and the matrices are multiplied to the row that the output reads. An encoder with a decoder is in `encoder_decoder`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from sightline.errors import RecipeError, TargetError, UnsupportedModel
from sightline.methods.attention import encoder_decoder
from sightline.methods.attention.token_matrices import identity, rows_to_one, with_identity
from sightline.models.adapter import Adapter
from sightline.models.attention_layers import MAP, AttentionLayer, AttentionLayers
from sightline.targets.tasks import Box, Region, target_mask
from sightline.types import Attribution, Target, TokenGrid


def layer_raw_attention(model: Adapter, images: Tensor, targets: Sequence[Target], layer: int) -> list[Attribution]:
    """Return the row of the last attention that the output reads, mean over heads; one forward pass."""
    attention = _attention_of(model)
    if layer != -1:
        raise RecipeError(f"got layer={layer}; of {model.name} only the last attention is read: write raw_attention")
    with attention.capture(model) as seen:
        logits = model(images)
    last = attention.layers[-1]
    matrix = _over_tokens(last, seen[last.name].mean(dim=1), stays=1.0)
    grid = _grid(last, seen, images)
    rows = [(_reader(attention, matrix, target, logits, grid) @ matrix)[:, 0] for target in targets]
    return [_map(attention, row, grid) for row in rows]


def layer_rollout(model: Adapter, images: Tensor, target: Target) -> Attribution:
    """Return the product of the attention matrices, each mixed with the identity where there is a residual path."""
    attention = _attention_of(model)
    with attention.capture(model) as seen:
        logits = model(images)
    means = {layer.name: seen[layer.name].mean(dim=1) for layer in attention.layers}
    if _has_decoder(attention):
        row = encoder_decoder.rollout(attention.layers, means)
        return _map(attention, _rows_of(row, _query(target, logits)), _grid(attention.layers[0], seen, images))

    def mixed(layer: AttentionLayer) -> Tensor:
        matrix = _over_tokens(layer, means[layer.name], stays=1.0)
        return rows_to_one(matrix) if layer.role == "coarser" else with_identity(matrix)

    return _product(attention, mixed, seen, images, target, logits)


def layer_gae(
    model: Adapter, images: Tensor, targets: Sequence[Target], start: int, *, every_layer: bool
) -> list[Attribution]:
    """Return, for each target, the product of the attention matrices weighted by their positive gradients."""
    attention = _attention_of(model)
    if start or every_layer:
        raise UnsupportedModel(
            f"{model.name} is no plain vision transformer, so gae is defined from its first attention to its last "
            "alone; write gae without start and without plus, skip_plus or layers"
        )
    with attention.capture(model, gradient=True) as seen:
        logits = model(images)
        scores = [target(logits) for target in targets]
    inside = {name: value for name, value in seen.items() if name != MAP}
    each = model.gradients_each(scores, inside, unused=True)
    maps = []
    for target, gradients in zip(targets, each, strict=True):
        weighted = {n: (p.detach() * gradients[n]).clamp(min=0).mean(dim=1) for n, p in inside.items()}
        maps.append(_gae(attention, weighted, seen, images, target, logits.detach()))
    return maps


def _gae(
    attention: AttentionLayers,
    weighted: Mapping[str, Tensor],
    seen: Mapping[str, Tensor],
    images: Tensor,
    target: Target,
    logits: Tensor,
) -> Attribution:
    if _has_decoder(attention):
        row = encoder_decoder.generic_attention(attention.layers, weighted)
        return _map(attention, _rows_of(row, _query(target, logits)), _grid(attention.layers[0], seen, images))

    def added(layer: AttentionLayer) -> Tensor:
        matrix = _over_tokens(layer, weighted[layer.name], stays=0.0)
        return matrix if layer.role == "coarser" else identity(matrix) + matrix

    return _product(attention, added, seen, images, target, logits)


# ---- matrices and rows ----------------------------------------------------------------------------------------------


def _product(
    attention: AttentionLayers,
    matrix_of: Callable[[AttentionLayer], Tensor],
    seen: Mapping[str, Tensor],
    images: Tensor,
    target: Target,
    logits: Tensor,
) -> Attribution:
    """Multiply the layers' matrices from the last down to the first, to the row that the output reads."""
    row: Tensor | None = None
    grid = _grid(attention.layers[0], seen, images)
    for layer in reversed(attention.layers):
        matrix = _with_class_token(attention, layer, matrix_of(layer))
        row = _reader(attention, matrix, target, logits, grid) if row is None else row
        row = row @ matrix
    assert row is not None
    return _map(attention, row[:, 0], grid)


def _over_tokens(layer: AttentionLayer, matrix: Tensor, *, stays: float) -> Tensor:
    """Lay the row of a class token over class token and patches, (batch, 1, from), as a square matrix.

    The rows of the patches, which do not attend, are those of the identity times `stays`.
    """
    if layer.role != "class":
        return matrix
    patches = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)[1:] * stays
    return torch.cat([matrix, patches.expand(len(matrix), -1, -1)], dim=1)


def _with_class_token(attention: AttentionLayers, layer: AttentionLayer, matrix: Tensor) -> Tensor:
    """Add a class token that stays as it is to a matrix of patches, where one joins later."""
    if attention.reader != "class" or layer.role == "class":
        return matrix
    whole = F.pad(matrix, (1, 0, 1, 0))
    whole[:, 0, 0] = 1.0
    return whole


def _reader(attention: AttentionLayers, matrix: Tensor, target: Target, logits: Tensor, grid: TokenGrid) -> Tensor:
    """Return how much the output reads of each token of the last layer, (batch, 1, token)."""
    batch, tokens = matrix.shape[:2]
    if attention.reader == "mean":
        return matrix.new_full((batch, 1, tokens), 1 / tokens)
    row = matrix.new_zeros(batch, 1, tokens)
    if attention.reader == "class":
        row[:, 0, 0] = 1.0
        return row
    if attention.reader == "place":
        row[:, 0, attention.before : attention.before + grid.cells] = _place(target, grid, batch).to(row)
        return row
    of_layer = _query(target, logits) + (0 if _has_decoder(attention) else tokens - _queries(logits, target))
    row[torch.arange(batch), 0, of_layer] = 1.0
    return row


def _place(target: Target, grid: TokenGrid, count: int) -> Tensor:
    """Return the share of each cell in the place of a region or box, (batch, cell), summing to one."""
    if not isinstance(target, Box | Region):
        raise TargetError(
            f"got {type(target).__name__} as a target; attention is read at the place of a region or a box: give "
            "Region(label) to a segmentation, Box(0) to a detector"
        )
    inside = [target_mask(target.take([row]), grid.image) for row in range(count)]
    masks = torch.stack([mask for mask in inside if mask is not None]).float()
    cells = F.adaptive_avg_pool2d(masks[:, None], (grid.height, grid.width)).flatten(1)
    return cells / cells.sum(dim=1, keepdim=True)


def _query(target: Target, logits: Tensor) -> Tensor:
    """Return the query that found the object of each image, (batch,)."""
    if not isinstance(target, Box):
        raise TargetError(
            f"got {type(target).__name__} as a target; the attention of a detector is read at the query that found an "
            "object: give Box(0), or another box"
        )
    return target.matched(logits)


def _queries(logits: Tensor, target: Target) -> int:
    assert isinstance(target, Box)
    assert target.reference is not None
    return logits.shape[1] // target.reference.shape[-1]


def _rows_of(matrix: Tensor, rows: Tensor) -> Tensor:
    """Return one row, (batch, from), of each image's (batch, to, from) matrix."""
    return matrix[torch.arange(len(matrix), device=matrix.device), rows]


def _map(attention: AttentionLayers, row: Tensor, grid: TokenGrid) -> Attribution:
    first = 1 if attention.reader == "class" else attention.before
    return Attribution(grid.to_map(row[None, :, first : first + grid.cells]), grid)


def _grid(layer: AttentionLayer, seen: Mapping[str, Tensor], images: Tensor) -> TokenGrid:
    """Return the grid of the patches that a layer attends to."""
    size = (images.shape[-2], images.shape[-1])
    height, width = seen[MAP].shape[-2:] if layer.grid is None else layer.grid(size)
    return TokenGrid(height, width, image=size)


def _has_decoder(attention: AttentionLayers) -> bool:
    return any(layer.role == "cross" for layer in attention.layers)


def _attention_of(model: Adapter) -> AttentionLayers:
    assert model.attention_layers is not None
    return model.attention_layers
