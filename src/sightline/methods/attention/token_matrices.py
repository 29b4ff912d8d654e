"""Matrices from tokens to tokens, (batch, to, from), as rollout and its relatives multiply them."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def identity(like: Tensor) -> Tensor:
    """Return the identity matrix of a (batch, to, from) tensor's size."""
    return torch.eye(like.shape[-1], dtype=like.dtype, device=like.device)


def rows_to_one(matrix: Tensor) -> Tensor:
    """Divide each row of a non-negative matrix by its sum; a row of zeros stays zero."""
    total = matrix.sum(dim=-1, keepdim=True)
    return matrix / total.where(total > 0, 1.0)


def with_identity(attention: Tensor) -> Tensor:
    """Add the identity for the residual connection, and divide each row of (batch, to, from) by its sum."""
    mixed = attention + identity(attention)
    return mixed / mixed.sum(dim=-1, keepdim=True)


def square(rows: Tensor) -> Tensor:
    """Add rows of zeros below the first rows of a square matrix, (..., to, from)."""
    missing = rows.shape[-1] - rows.shape[-2]
    return F.pad(rows, (0, 0, 0, missing)) if missing else rows
