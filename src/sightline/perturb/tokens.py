"""True token masking: patches are removed by dropping their tokens, instead of filling pixels.

Tokens are dropped after the positions were added, so the rest keep their positions; the prefix tokens always stay. It
is defined for plain transformers only :cite:p:`skipplus2024`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sightline.errors import InputError
from sightline.models.vit.adapter import VisionTransformer
from sightline.perturb.curve import Tie, importance_order


def run_on_tokens(model: VisionTransformer, tokens: Tensor, keep: Tensor) -> Tensor:
    """Return the logits when only some patches are there, in whatever gradient mode the caller is in.

    Args:
        model: a transformer.
        tokens: X_0 as `model.start` gives it, shape (batch, token, channel).
        keep: the patches that stay, row-major indices on the grid, shape (batch, kept); any order, none twice.
    """
    return run_kept(model, tokens, _checked(model, tokens, keep))


def run_kept(model: VisionTransformer, tokens: Tensor, keep: Tensor) -> Tensor:
    """Return the same for patches that are known to be there, sorted in each row: to look would be to wait for them."""
    if keep.shape[1] == 0 and model.pool in ("mean", "cls+mean", "map"):
        raise InputError(
            f"got no patch to keep; the classifier of {model.name} reads the patches, so leave one at least"
        )
    prefix, patches = tokens[:, : model.prefix], tokens[:, model.prefix :]
    kept = patches.gather(1, keep[..., None].expand(-1, -1, tokens.shape[-1]))
    return model.logits_of(torch.cat([prefix, kept], dim=1), keep=keep)


def _checked(model: VisionTransformer, tokens: Tensor, keep: Tensor) -> Tensor:
    patches = tokens.shape[1] - model.prefix
    if keep.ndim != 2 or len(keep) != len(tokens):
        raise InputError(f"got keep of shape {tuple(keep.shape)} for {len(tokens)} images; (batch, kept) is needed")
    keep = keep.to(tokens.device).sort(dim=1).values
    if keep.numel() and (keep[:, 0].min() < 0 or keep[:, -1].max() >= patches):
        raise InputError(f"got patches {int(keep.min())} to {int(keep.max())}; there are 0 to {patches - 1}")
    if (keep.diff(dim=1) == 0).any():
        raise InputError("got the same patch twice in keep; name each patch once")
    return keep


def keep_top(maps: Tensor, fraction: float, tie: Tie = "index", seed: int = 0) -> Tensor:
    """Return the most important fraction of the cells, in row-major order, shape (batch, ⌊cells·fraction⌋).

    >>> keep_top(torch.tensor([[[0.1, 0.4], [0.3, 0.2]]]), 0.5)
    tensor([[1, 2]])
    """
    order = importance_order(maps, tie, seed)
    return order[:, : _count(order.shape[1], fraction)].sort(dim=1).values


def drop_top(maps: Tensor, fraction: float, tie: Tie = "index", seed: int = 0) -> Tensor:
    """Return what is left without the most important fraction of the cells: the complement of `keep_top`."""
    order = importance_order(maps, tie, seed)
    return order[:, _count(order.shape[1], fraction) :].sort(dim=1).values


def _count(cells: int, fraction: float) -> int:
    if not 0 <= fraction <= 1:
        raise InputError(f"got fraction={fraction}; a number from 0 to 1 is needed")
    return int(cells * fraction + 1e-9)  # 100 · 0.29 is 28.999…, and means 29
