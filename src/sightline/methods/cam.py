"""Class activation maps: a weighted sum of a layer's channels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from sightline.errors import SiteError, UnsupportedMethod, UnsupportedModel
from sightline.models.adapter import Adapter
from sightline.models.vit import VisionTransformer
from sightline.registry import METHODS
from sightline.types import Attribution, Passes, Target, map_grid


def activation_and_gradient(
    model: Adapter, images: Tensor, target: Target, layer: str | int | None
) -> tuple[Tensor, Tensor]:
    """Return a layer's output and the target's gradient there, both (batch, channel, height, width)."""
    if not model.offers & {"attention", "tokens", "cuts"}:
        raise UnsupportedModel(f"class activation maps need a layer with a spatial grid; {model.name} shows none")
    site = model.layer(layer)
    with model.capture(site, gradient=True) as seen:
        score = target(model(images))
    gradient = model.gradients(score, seen)[site]
    activation, gradient = (model.to_map(site, x, images) for x in (seen[site].detach(), gradient))
    if not gradient.any():
        raise SiteError(
            f"the target has no gradient at any cell of {site}: the patches no longer feed the output there; "
            f"leave out layer= and {model.layer()} is taken"
        )
    return activation, gradient


@METHODS.register(
    "grad_cam",
    family="cam",
    cite="selvaraju2017",
    cost="1 forward, backward from the output to the layer",
    needs=("gradient",),
    parity="grad-cam GradCAM, CNN and ViT, 1e-5",
)
@dataclass(frozen=True, slots=True)
class GradCam:
    r"""Grad-CAM: channels weighted by their average gradient.

    .. math:: A_{ij} = \sum_k \Bigl(\frac{1}{hw} \sum_{uv} \frac{\partial s}{\partial F_{kuv}}\Bigr)\, F_{kij}

    where :math:`F` is the last feature map of a CNN, or the last block's first norm on a transformer, prefix tokens
    left out. Signed: write ``rectify(grad_cam)`` for the usual clipped map. On a class-token transformer it is an
    affine copy of the mean gradient at the last attention.

    Attributes:
        layer: a site's name or an index; by default the right one for the model.
        variant: "paper", or "stream" for the block's input with weights averaged over all tokens, prefix included.
    """

    layer: str | int | None = None
    variant: Literal["paper", "stream"] = "paper"

    def __call__(self, model: Adapter, images: Tensor, target: Target) -> Attribution:
        if self.variant == "stream":
            return self.at_every_layer(model, images, target)
        activation, gradient = activation_and_gradient(model, images, target, self.layer)
        values = (gradient.mean(dim=(2, 3), keepdim=True) * activation).sum(dim=1)
        return Attribution(values[None], map_grid(values, images))

    def at_every_layer(self, model: Adapter, images: Tensor, target: Target) -> Attribution:
        """Weight the tokens that enter each block, all from one pass back."""
        if not isinstance(model, VisionTransformer):
            raise UnsupportedMethod(f"grad_cam has one layer on {model.name}; layers are summed on transformers only")
        with model.capture(*model.every("input"), gradient=True) as seen:
            score = target(model(images))
        gradients = model.gradients(score, seen)
        scores = [(gradients[name].mean(dim=1, keepdim=True) * seen[name]).sum(dim=-1).detach() for name in seen]
        grid = model.grid_of(images)
        return Attribution(grid.to_map(torch.stack(scores)), grid)

    def cost(self, model: Adapter) -> Passes:
        return Passes(1, 1 if self.variant == "stream" else model.remaining(model.layer(self.layer)))

    def layers_cost(self, model: Adapter) -> Passes:
        return Passes(1, 1)
