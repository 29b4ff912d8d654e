"""FullGrad on convolutional networks: input times gradient plus bias times gradient, summed at image size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sightline.errors import RecipeError
from sightline.models.adapter import Adapter
from sightline.models.backward.biases import BiasTerm, watch_biases
from sightline.perturb.noise import noisy_batches
from sightline.types import Target

VARIANTS = ("paper", "simple", "smooth", "pgc")
NOISE = 0.15  # of the smooth variant, as a share of the image's range


@dataclass(frozen=True, eq=False, slots=True)
class Decomposition:
    """The terms of FullGrad on a CNN, which add up to the logit where it is made of ReLUs and linear layers.

    Attributes:
        image: input times gradient, (batch, 3, height, width).
        gradients: at every bias term, in the order in which they ran.
        terms: the bias terms.
    """

    image: Tensor
    gradients: tuple[Tensor, ...]
    terms: tuple[BiasTerm, ...]

    @property
    def biases(self) -> tuple[Tensor, ...]:
        """Bias times gradient, of every term."""
        return tuple(gradient * term.bias for gradient, term in zip(self.gradients, self.terms, strict=True))

    @property
    def total(self) -> Tensor:
        """The sum of all terms, (batch,)."""
        parts = [self.image, *self.biases]
        return torch.stack([part.flatten(1).sum(dim=1) for part in parts]).sum(dim=0)


def decompose(model: Adapter, images: Tensor, targets: Sequence[Target]) -> list[Decomposition]:
    """Return the terms of each target, from one forward pass and one backward pass per target."""
    pixels = images.detach().clone().requires_grad_()
    with torch.enable_grad(), watch_biases() as terms:
        logits = model(pixels)
        scores = [target(logits) for target in targets]
    wanted = {"image": pixels} | {f"bias {index}": term.output for index, term in enumerate(terms)}
    gradients = model.gradients_each(scores, wanted, unused=True)  # zeros where the target does not depend on a term
    return [
        Decomposition(of_target.pop("image") * images, tuple(of_target.values()), tuple(terms))
        for of_target in gradients
    ]


def full_grad_map(
    model: Adapter, images: Tensor, targets: Sequence[Target], variant: str = "paper", samples: int = 25, seed: int = 0
) -> list[Tensor]:
    r"""Return the FullGrad map of each target, (batch, H, W), from one forward pass and one backward pass per target.

    .. math:: A = \sum_c \psi(x \odot \nabla_x s) + \sum_\ell \sum_c \psi(b_\ell \odot \nabla_{z_\ell} s)

    over every bias :math:`b_\ell` of a feature map :math:`z_\ell`; :math:`\psi` takes absolute values, scales to [0, 1]
    and resizes to the image. ``paper`` scales each image's feature map over all channels, ``simple`` leaves
    :math:`b_\ell` out, ``pgc`` scales every channel and the sum again, and sees plain `nn.Conv2d` and `nn.BatchNorm2d`
    modules only, as the package grad-cam does. ``smooth`` averages every term over noisy copies of the image before
    :math:`\psi`, and sums the channels of the input's term first; it costs as many passes as there are `samples`.
    """
    if variant not in VARIANTS:
        raise RecipeError(f"got variant={variant!r}; FullGrad on a CNN knows {', '.join(VARIANTS)}")
    if variant == "smooth":
        return [_map(terms, variant, None) for terms in averaged(model, images, targets, samples, seed)]
    owners = _plain_owners(model) if variant == "pgc" else None
    return [_map(terms, variant, owners) for terms in decompose(model, images, targets)]


def averaged(model: Adapter, images: Tensor, targets: Sequence[Target], samples: int, seed: int) -> list[Decomposition]:
    """Return the mean of each target's terms over noisy copies of the images."""
    sums: list[list[Tensor]] = [[] for _ in targets]
    terms: tuple[BiasTerm, ...] = ()
    for noisy, rows in noisy_batches(images, samples, NOISE, seed, model.batch):
        for index, noisy_terms in enumerate(decompose(model, noisy, [target.take(rows) for target in targets])):
            values = (noisy_terms.image, *noisy_terms.gradients)
            parts = [value.unflatten(0, (len(images), -1)).sum(dim=1) / samples for value in values]
            sums[index] = [a + b for a, b in zip(sums[index], parts, strict=True)] if sums[index] else parts
            terms = noisy_terms.terms
    return [Decomposition(total[0], tuple(total[1:]), terms) for total in sums]


def _map(terms: Decomposition, variant: str, owners: set[int] | None) -> Tensor:
    image = terms.image.sum(dim=1, keepdim=True) if variant == "smooth" else terms.image
    size = (image.shape[-2], image.shape[-1])
    total = _psi(image, size, variant)
    values = terms.gradients if variant == "simple" else terms.biases
    for term, value in zip(terms.terms, values, strict=True):
        if value.ndim == 4 and (owners is None or id(term.owner) in owners):
            total = total + _psi(value.movedim(-1, 1) if term.channels_last else value, size, variant)
    return _min_max(total, (1, 2), 1e-7) if variant == "pgc" else total


def _psi(value: Tensor, size: tuple[int, int], variant: str) -> Tensor:
    """Scale a term to [0, 1], sum its channels and resize it: (batch, channel, h, w) -> (batch, H, W).

    The sum comes before the resize, which is linear: one map is resized instead of hundreds.
    """
    pgc = variant == "pgc"
    scaled = _min_max(value.abs(), (2, 3) if pgc else (1, 2, 3), 1e-7 if pgc else 1e-6).sum(dim=1, keepdim=True)
    return F.interpolate(scaled, size=size, mode="bilinear", align_corners=not pgc)[:, 0]


def _min_max(values: Tensor, dims: tuple[int, ...], eps: float) -> Tensor:
    """Scale to [0, 1] over some axes."""
    values = values - values.amin(dim=dims, keepdim=True)
    return values / (values.amax(dim=dims, keepdim=True) + eps)


def _plain_owners(model: Adapter) -> set[int]:
    """Return the ids of the tensors by which calls of plain convolutions and batch norms with a bias are known."""
    plain = [m for m in model.modules if type(m) in (nn.Conv2d, nn.BatchNorm2d) and m.bias is not None]
    return {id(m.running_mean if isinstance(m, nn.BatchNorm2d) else m.weight) for m in plain}
