r"""FullGrad on convolutional networks: what the input and every bias add to the target."""

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
    """What a target is made of.

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
        """What everything sums to, (batch,): the logit, where the network is made of rectifiers and linear maps."""
        parts = [self.image, *self.biases]
        return torch.stack([part.flatten(1).sum(dim=1) for part in parts]).sum(dim=0)


def decompose(model: Adapter, images: Tensor, targets: Sequence[Target]) -> list[Decomposition]:
    """Return what each target is made of, from one pass forward and one backward per target."""
    pixels = images.detach().clone().requires_grad_()
    with torch.enable_grad(), watch_biases() as terms:
        logits = model(pixels)
        scores = [target(logits) for target in targets]
    wanted = {"image": pixels} | {f"bias {index}": term.output for index, term in enumerate(terms)}
    # a part that the target does not depend on adds nothing to it
    every = model.gradients_each(scores, wanted, unused=True)
    return [Decomposition(g.pop("image") * images, tuple(g.values()), tuple(terms)) for g in every]


def full_grad_map(
    model: Adapter, images: Tensor, targets: Sequence[Target], variant: str = "paper", samples: int = 25, seed: int = 0
) -> list[Tensor]:
    r"""Return the FullGrad map of each target, (batch, H, W), from one pass forward and one backward per target.

    .. math:: A = \sum_c \psi(x \odot \nabla_x s) + \sum_\ell \sum_c \psi(b_\ell \odot \nabla_{z_\ell} s)

    over every bias :math:`b_\ell` of a feature map :math:`z_\ell`; :math:`\psi` takes absolute values, scales to [0, 1]
    and resizes to the image. ``paper`` scales each image's whole feature map, ``simple`` leaves :math:`b_\ell` out,
    ``pgc`` scales every channel by itself and the sum again, and sees plain `nn.Conv2d` and `nn.BatchNorm2d` modules
    only, as the package grad-cam does. ``smooth`` averages every term over noisy copies of the image before
    :math:`\psi`, and adds up the channels of the input's term first; it costs as many passes as there are `samples`.
    """
    if variant not in VARIANTS:
        raise RecipeError(f"got variant={variant!r}; FullGrad on a CNN knows {', '.join(VARIANTS)}")
    if variant == "smooth":
        return [_map(found, variant, None) for found in averaged(model, images, targets, samples, seed)]
    seen = _plain_owners(model) if variant == "pgc" else None
    return [_map(found, variant, seen) for found in decompose(model, images, targets)]


def averaged(model: Adapter, images: Tensor, targets: Sequence[Target], samples: int, seed: int) -> list[Decomposition]:
    """Return the mean of what each target is made of over noisy copies of the images."""
    sums: list[list[Tensor]] = [[] for _ in targets]
    terms: tuple[BiasTerm, ...] = ()
    for noisy, rows in noisy_batches(images, samples, NOISE, seed, model.batch):
        for index, found in enumerate(decompose(model, noisy, [target.take(rows) for target in targets])):
            parts = [x.unflatten(0, (len(images), -1)).sum(dim=1) / samples for x in (found.image, *found.gradients)]
            sums[index] = [a + b for a, b in zip(sums[index], parts, strict=True)] if sums[index] else parts
            terms = found.terms
    return [Decomposition(total[0], tuple(total[1:]), terms) for total in sums]


def _map(found: Decomposition, variant: str, owners: set[int] | None) -> Tensor:
    size = (found.image.shape[-2], found.image.shape[-1])
    total = _shown(found.image.sum(dim=1, keepdim=True) if variant == "smooth" else found.image, size, variant)
    values = found.gradients if variant == "simple" else found.biases
    for term, value in zip(found.terms, values, strict=True):
        if value.ndim == 4 and (owners is None or id(term.owner) in owners):
            total = total + _shown(value.movedim(-1, 1) if term.channels_last else value, size, variant)
    return _to_unit(total, (1, 2), 1e-7) if variant == "pgc" else total


def _shown(value: Tensor, size: tuple[int, int], variant: str) -> Tensor:
    """Scale, add up and resize a term's channels: (batch, channel, h, w) -> (batch, H, W).

    The sum comes before the resize, which is linear: one map is resized instead of hundreds.
    """
    own = variant == "pgc"
    scaled = _to_unit(value.abs(), (2, 3) if own else (1, 2, 3), 1e-7 if own else 1e-6).sum(dim=1, keepdim=True)
    return F.interpolate(scaled, size=size, mode="bilinear", align_corners=not own)[:, 0]


def _to_unit(values: Tensor, dims: tuple[int, ...], eps: float) -> Tensor:
    """Scale to [0, 1] over some axes."""
    values = values - values.amin(dim=dims, keepdim=True)
    return values / (values.amax(dim=dims, keepdim=True) + eps)


def _plain_owners(model: Adapter) -> set[int]:
    """Name the tensors by which calls of plain convolutions and batch norms with a bias are known."""
    plain = [m for m in model.modules if type(m) in (nn.Conv2d, nn.BatchNorm2d) and m.bias is not None]
    return {id(m.running_mean if isinstance(m, nn.BatchNorm2d) else m.weight) for m in plain}
