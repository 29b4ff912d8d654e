"""Designs: which cells each of many masks keeps, so that the cells' effects do not blur one another.

In independent masks two cells are correlated by chance, and the effect of one is partly read as that of the other. In
an orthogonal array every cell is kept in half of the masks, and every two or three cells in all their combinations
equally often: what single cells add to a score, and pairs of them, then leaves no error in the effect of another cell.
Its columns are flipped and chosen at random, so each single mask is made of independent fair coins, and a mean over
masks has the same expectation as before.

Masks that keep given numbers of cells, as Shapley values need them, make no such array. `balanced_masks` brings drawn
ones near to it by exchanges of cells.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from sightline.errors import RecipeError
from sightline.seeds import uniform

Design = Literal["independent", "orthogonal"]
SWEEPS = 3  # over the masks; more gained little (docs/guide/speed.md)


def check_design(design: Design, *, antithetic: bool, variant: str) -> None:
    """Refuse a design together with another way to draw masks: pairs, or another program's random numbers."""
    if design == "orthogonal" and antithetic:
        raise RecipeError("got antithetic=True with design='orthogonal', which comes in such pairs already; give one")
    if variant != "image" and (antithetic or design == "orthogonal"):
        asked = "antithetic=True" if antithetic else f"design={design!r}"
        raise RecipeError(f"got {asked} with variant={variant!r}, which draws all masks itself; choose one of them")


def orthogonal_masks(samples: int, cells: int, generator: torch.Generator) -> Tensor:
    """Draw which cells are kept, (sample, cell), bool: randomised orthogonal arrays of strength 3, one below the other.

    Rows come in pairs, of which the second is the complement of the first. An array has twice as many rows as the next
    power of two from the number of cells; of the last one only as many pairs are there as samples ask for.
    """
    arrays = -(-samples // (2 * _side(cells)))
    return torch.cat([_array(cells, generator) for _ in range(arrays)])[:samples]


def _side(cells: int) -> int:
    """Return the next power of two: the rows and columns of the Hadamard matrix that an array is made of."""
    return 1 << max(cells - 1, 0).bit_length()


def _array(cells: int, generator: torch.Generator) -> Tensor:
    """Draw one array: columns of a Hadamard matrix in random order, each flipped or not; rows and complements."""
    side = _side(cells)
    columns, rows = (torch.randperm(side, generator=generator) for _ in range(2))
    signs = _parity(rows[:, None] & columns[:cells]) ^ (uniform((cells,), generator) < 0.5)
    return torch.stack([signs, ~signs], dim=1).flatten(0, 1)


def _parity(numbers: Tensor) -> Tensor:
    """Tell whether an odd number of bits is set; in Sylvester's Hadamard matrix that of i & j decides the sign."""
    for shift in (32, 16, 8, 4, 2, 1):
        numbers = numbers ^ (numbers >> shift)
    return (numbers & 1).bool()


def balanced_masks(masks: Tensor, weights: Tensor, generator: torch.Generator) -> Tensor:
    r"""Exchange cells within masks, (mask, cell), bool, until any two cells are kept together about equally often.

    Every mask keeps as many cells as before, none becomes another or another's complement, and the columns are put in
    random order at the end, so that all masks of a size are equally likely, as they are when drawn independently.

    Cell after cell is exchanged where that lowers :math:`\sum_{rs} w_r w_s (\tilde z_r \cdot \tilde z_s)^2`, with
    :math:`\tilde z_r` mask r minus its mean. The trace of :math:`\sum_r w_r \tilde z_r \tilde z_r^\top` is given by the
    sizes, and the sum is least where that matrix, by which a weighted regression divides, is a multiple of its
    expectation: the regression is then unbiased, and of least variance.
    """
    masks, cells = masks.clone(), masks.shape[1]
    centred = masks.double() - masks.double().mean(dim=1, keepdim=True)
    taken = {row.numpy().tobytes() for both in (masks, ~masks) for row in both}
    gram = (centred * weights[:, None]).T @ centred
    rounding = 1e-9 * gram.trace()
    for row in [row for _ in range(SWEEPS) for row in torch.randperm(len(masks), generator=generator).tolist()]:
        mask, own, weight = masks[row], centred[row], weights[row]
        others = gram - weight * torch.outer(own, own)
        gradient, diagonal = others @ own, others.diagonal()
        change = 2 * (gradient - gradient[:, None]) + diagonal + diagonal[:, None] - 2 * others  # (out, in)
        change.masked_fill_(~mask[:, None] | mask, math.inf)
        out, new = divmod(int(change.argmin()), cells)
        exchanged = mask.clone()
        exchanged[out], exchanged[new] = False, True
        if change[out, new] >= -rounding or exchanged.numpy().tobytes() in taken:
            continue
        taken -= {mask.numpy().tobytes(), (~mask).numpy().tobytes()}
        taken |= {exchanged.numpy().tobytes(), (~exchanged).numpy().tobytes()}
        masks[row] = exchanged
        own = centred[row] = exchanged.double() - exchanged.double().mean()
        gram = others + weight * torch.outer(own, own)
    return masks[:, torch.randperm(cells, generator=generator)]
