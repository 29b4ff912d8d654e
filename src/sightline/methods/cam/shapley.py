"""ShapleyCAM: Grad-CAM's weights with a second-order correction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from sightline.errors import SiteError
from sightline.methods.cam.base import LayerByLayerCam, weighted
from sightline.models.adapter import Adapter
from sightline.models.memory import held
from sightline.models.passes import spend
from sightline.models.vit.adapter import VisionTransformer
from sightline.registry import METHODS
from sightline.types import Passes, Target

ATTENTION = 10  # times that of the blocks behind the layer: of the pass, of its gradient and of the second one
BACKWARD = 3  # passes: one for the gradient, and two for the derivative of that pass


@METHODS.register(
    "shapley_cam",
    family="cam",
    cite="cai2025",
    cost="1 forward, 3 backward from the output to the layer",
    needs=("gradient", "layers"),
    parity="grad-cam ShapleyCAM, CNN, 1e-5; finite differences on a ViT, 1e-6; closed form on a quadratic head",
)
@dataclass(frozen=True, slots=True)
class ShapleyCam(LayerByLayerCam):
    r"""ShapleyCAM: channels weighted by their mean gradient less half of the Hessian times the activation.

    .. math:: A_{ij} = \sum_k \Bigl(\frac{1}{hw} \sum_{uv} \bigl(g - \tfrac12 H F\bigr)_{kuv}\Bigr) F_{kij}

    where :math:`g` is the gradient of the target at the layer's activation :math:`F` and :math:`H` its Hessian there,
    taken as a Hessian-vector product. A second-order estimate of the channels' Shapley values; where the score is
    linear in the activation it is Grad-CAM. The paper explains the ReST score, ``target=ResidualSoftmax(class)``.

    Attributes:
        variant: "paper", channels weighted by their mean; or "elementwise", without the mean over cells, as HiResCAM.
    """

    variant: Literal["paper", "elementwise"] = "paper"

    def maps_of(self, model: Adapter, images: Tensor, targets: Sequence[Target], site: str) -> list[Tensor]:
        if site not in model.sites:
            raise SiteError(f"{site!r} of {model.name} is no module's output, which shapley_cam needs; choose another")
        # fused attention has no second derivative
        with sdpa_kernel(SDPBackend.MATH), model.capture(site, gradient=True) as seen:
            logits = model(images)
            corrected = [_corrected(target(logits), seen[site]) for target in targets]
        spend(backward=BACKWARD * len(targets) * len(images) * model.remaining(site))
        activation = model.to_map(site, seen[site].detach(), images)
        flat = activation.flatten(2)
        maps = []
        for values in corrected:
            slopes = model.to_map(site, values, images).flatten(2)
            cells = weighted(slopes.mean(dim=-1), flat) if self.variant == "paper" else (slopes * flat).sum(dim=1)
            maps.append(cells.unflatten(1, activation.shape[-2:]))
        return maps

    def peak(self, model: Adapter) -> int:
        """Return the bytes held for one image: behind the layer the graph and that of its gradient, with attention."""
        share = max(model.remaining(site) for site in self.sites(model))
        attention = ATTENTION * share
        if isinstance(model, VisionTransformer) and model.shortens_last_block:
            attention -= ATTENTION / model.depth  # that of the prefix takes no room
        return max(held(model, forwards=1), held(model, graphs=2 * share, attention=max(attention, 0.0)))

    def cost_at(self, model: Adapter, count: int, sites: Sequence[str]) -> Passes:
        return Passes(len(sites), BACKWARD * count * sum(model.remaining(site) for site in sites))


def _corrected(score: Tensor, activation: Tensor) -> Tensor:
    """Return the gradient less half of the Hessian times the activation; the graph is kept for other scores."""
    (gradient,) = torch.autograd.grad(score.sum(), activation, create_graph=True)
    if not gradient.requires_grad:  # linear in the activation
        return gradient
    (product,) = torch.autograd.grad(
        gradient, activation, grad_outputs=activation.detach(), retain_graph=True, allow_unused=True
    )
    return gradient.detach() if product is None else gradient.detach() - product / 2
