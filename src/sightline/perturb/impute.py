"""Imputation: missing pixels as the weighted mean of their neighbours, known or missing :cite:p:`rong2022`."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import coo_array, csc_array
from scipy.sparse.linalg import splu
from torch import Tensor

Floats = NDArray[np.float64]
Missing = NDArray[np.bool_]

SIDES, DIAGONALS = 1 / 6, 1 / 12  # the weights of a pixel's neighbours; at the border those that exist share them
OFFSETS = {
    (down, right): SIDES if 0 in (down, right) else DIAGONALS
    for down in (-1, 0, 1)
    for right in (-1, 0, 1)
    if (down, right) != (0, 0)
}
OUTSIDE, KNOWN = -2, -1


def impute(image: Tensor, missing: Tensor) -> Tensor:
    """Fill the missing pixels, (height, width), of an image, (channel, height, width), from around them.

    Each becomes the weighted mean of its eight neighbours, all at once: one sparse linear system, solved for every
    channel together. An image of which nothing is known becomes its mean colour.

    >>> impute(torch.tensor([[[0.0, 9.0, 2.0]]]), torch.tensor([[False, True, False]]))
    tensor([[[0., 1., 2.]]])
    """
    holes = missing.cpu().numpy()
    if not holes.any():
        return image.clone()
    if holes.all():
        return image.mean(dim=(1, 2), keepdim=True).expand_as(image).clone()
    system, known = _equations(image.detach().cpu().double().numpy(), holes)
    # the matrix is symmetric and diagonally dominant, so rows may be ordered for little fill-in and need no pivoting
    solver = splu(system, permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options={"SymmetricMode": True})
    filled = image.clone()
    filled[:, missing] = torch.from_numpy(solver.solve(known).T.copy()).to(image)
    return filled


def _equations(image: Floats, holes: Missing) -> tuple[csc_array, Floats]:
    """Return the system's matrix, (hole, hole), and what the known neighbours add, (hole, channel)."""
    count = int(holes.sum())
    number = np.full(holes.shape, KNOWN)
    number[holes] = np.arange(count)
    around, picture = np.pad(number, 1, constant_values=OUTSIDE), np.pad(image, ((0, 0), (1, 1), (1, 1)))
    own, known = np.zeros(count), np.zeros((count, len(image)))
    rows, columns, weights = [], [], []
    for offset, weight in OFFSETS.items():
        there = tuple(slice(1 + shift, 1 + shift + length) for shift, length in zip(offset, holes.shape, strict=True))
        other = around[there][holes]
        own += weight * (other != OUTSIDE)
        known += weight * (other == KNOWN)[:, None] * picture[:, there[0], there[1]][:, holes].T
        also = other >= 0
        rows.append(np.flatnonzero(also))
        columns.append(other[also])
        weights.append(np.full(int(also.sum()), -weight))
    each = np.arange(count)
    coordinates = (np.concatenate([*rows, each]), np.concatenate([*columns, each]))
    return coo_array((np.concatenate([*weights, own]), coordinates), shape=(count, count)).tocsc(), known
