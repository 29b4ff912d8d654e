r"""Integrands of iterated integrals: functions of representations and of the target's gradients there.

Every integrand is given the interpolated representations :math:`v^1 \dots v^l` and the gradients
:math:`\partial s/\partial v^j` of the same shapes, in the model's order; the last of them is the layer of the map. Axis
0 is the point.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor

from sightline.errors import RecipeError

Integrand = Callable[[Sequence[Tensor], Sequence[Tensor]], Tensor]
IntegrandName = Literal["gradient", "activation_gradient", "gradient_rollout"]
Joining = Literal["product", "sum"]


def gradient(values: Sequence[Tensor], gradients: Sequence[Tensor]) -> Tensor:
    r"""Return :math:`\partial s/\partial v^l`, the integrand of integrated gradients."""
    return gradients[-1]


def activation_gradient(values: Sequence[Tensor], gradients: Sequence[Tensor]) -> Tensor:
    r"""Return :math:`v^l \odot \partial s/\partial v^l`, activation times gradient."""
    return values[-1] * gradients[-1]


def gradient_rollout(values: Sequence[Tensor], gradients: Sequence[Tensor], rollout: Joining = "product") -> Tensor:
    r"""Return the rollout of attention times gradient over all blocks, from each start block on.

    Attention is (point, head, to, from); the rollout (point, start, to, from).
    """
    return joined([row_normalised(weighted(v, g)) for v, g in zip(values, gradients, strict=True)], rollout)


INTEGRANDS: dict[str, Integrand] = {
    "gradient": gradient,
    "activation_gradient": activation_gradient,
    "gradient_rollout": gradient_rollout,
}


def as_integrand(integrand: str | Integrand) -> Integrand:
    """Return an integrand by its name, or one's own, checked each time for the shape of what it returns."""
    if isinstance(integrand, str):
        return INTEGRANDS[integrand]

    def checked(values: Sequence[Tensor], gradients: Sequence[Tensor]) -> Tensor:
        found = integrand(values, gradients)
        if not isinstance(found, Tensor) or found.shape != gradients[-1].shape:
            came = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise RecipeError(
                f"the integrand returned {came} for gradients of shape {tuple(gradients[-1].shape)}; return a tensor "
                "of that shape"
            )
        return found

    return checked


def weighted(attention: Tensor, gradient: Tensor) -> Tensor:
    """Return the positive part of attention times gradient, averaged over heads: (point, to, from)."""
    return (attention * gradient).clamp_(min=0).mean(dim=1)


def row_normalised(matrix: Tensor) -> Tensor:
    """Add the identity, for the residual connection, and divide every row by its sum."""
    mixed = matrix + torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    return mixed / mixed.sum(dim=-1, keepdim=True)


def joined(matrices: Sequence[Tensor], rollout: Joining) -> Tensor:
    """Multiply or add (point, to, from) matrices from each start block to the last: (point, start, to, from)."""
    rollouts = [matrices[-1]]
    for matrix in reversed(matrices[:-1]):
        rollouts.append(rollouts[-1] @ matrix if rollout == "product" else rollouts[-1] + matrix)
    return torch.stack(rollouts[::-1], dim=1)
