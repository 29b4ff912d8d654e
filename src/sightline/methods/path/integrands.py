r"""What an iterated integral sums up at each point: a function of representations and the target's gradients there.

Every integrand is given the interpolated representations :math:`v^1 \dots v^l` that were looked at and the gradients
:math:`\partial s/\partial v^j` of the same shapes, in the model's order; the last of them is the layer the map is made
at. Axis 0 is the point.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor

Integrand = Callable[[Sequence[Tensor], Sequence[Tensor]], Tensor]
IntegrandName = Literal["gradient", "activation_gradient", "gradient_rollout"]
Joining = Literal["product", "sum"]


def gradient(values: Sequence[Tensor], gradients: Sequence[Tensor]) -> Tensor:
    r"""Return :math:`\partial s/\partial v^l`, what integrated gradients sum up."""
    return gradients[-1]


def activation_gradient(values: Sequence[Tensor], gradients: Sequence[Tensor]) -> Tensor:
    r"""Return :math:`v^l \odot \partial s/\partial v^l`: large where a filter answers and the answer matters."""
    return values[-1] * gradients[-1]


def gradient_rollout(values: Sequence[Tensor], gradients: Sequence[Tensor], rollout: Joining = "product") -> Tensor:
    r"""Follow attention times its gradient through all blocks, from each start block on.

    Attention is (point, head, to, from); the answer (point, start, to, from).
    """
    return joined([row_normalised(weighted(v, g)) for v, g in zip(values, gradients, strict=True)], rollout)


INTEGRANDS: dict[str, Integrand] = {
    "gradient": gradient,
    "activation_gradient": activation_gradient,
    "gradient_rollout": gradient_rollout,
}


def weighted(attention: Tensor, gradient: Tensor) -> Tensor:
    """Return the positive part of attention times gradient, averaged over heads: (point, to, from)."""
    return (attention * gradient).clamp(min=0).mean(dim=1)


def row_normalised(matrix: Tensor) -> Tensor:
    """Add the identity, for the residual stream, and let every row sum to one."""
    mixed = matrix + torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    return mixed / mixed.sum(dim=-1, keepdim=True)


def joined(matrices: Sequence[Tensor], rollout: Joining) -> Tensor:
    """Multiply or add (point, to, from) matrices from each start block to the last: (point, start, to, from)."""
    found = [matrices[-1]]
    for matrix in reversed(matrices[:-1]):
        found.append(found[-1] @ matrix if rollout == "product" else found[-1] + matrix)
    return torch.stack(found[::-1], dim=1)
