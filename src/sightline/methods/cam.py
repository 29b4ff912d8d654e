"""Class activation maps: a weighted sum of a layer's channels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from sightline.errors import SiteError, UnsupportedMethod
from sightline.methods.gradient import values_and_gradients
from sightline.methods.several import Sharing
from sightline.models.adapter import Adapter
from sightline.models.cnn import Convolutional
from sightline.models.vit import VisionTransformer
from sightline.registry import METHODS
from sightline.types import Attribution, Passes, Target, map_grid


def activation_and_gradients(
    model: Adapter, images: Tensor, targets: Sequence[Target], layer: str | int | None
) -> tuple[Tensor, list[Tensor]]:
    """Return a layer's output and each target's gradient there, all (batch, channel, height, width)."""
    site = model.layer(layer)
    if isinstance(model, Convolutional):
        activation, found = model.activation_and_gradients(images, site, targets)
    else:
        with model.capture(site, gradient=True) as seen:
            logits = model(images)
            scores = [target(logits) for target in targets]
        found = [model.to_map(site, g[site], images) for g in model.gradients_each(scores, seen)]
        activation = model.to_map(site, seen[site].detach(), images)
    if not any(gradient.any() for gradient in found):
        raise SiteError(
            f"the target has no gradient at any cell of {site}: the patches no longer feed the output there; "
            f"leave out layer= and {model.layer()} is taken"
        )
    return activation, found


@METHODS.register(
    "grad_cam",
    family="cam",
    cite="selvaraju2017",
    cost="1 forward, backward from the output to the layer",
    needs=("gradient", "layers"),
    parity="grad-cam GradCAM, CNN and ViT, 1e-5",
)
@dataclass(frozen=True, slots=True)
class GradCam(Sharing):
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

    def several(
        self, model: Adapter, images: Tensor, targets: Sequence[Target], *, every_layer: bool = False
    ) -> list[Attribution]:
        if every_layer or self.variant == "stream":
            return self._streams(model, images, targets)
        activation, gradients = activation_and_gradients(model, images, targets, self.layer)
        maps = [(gradient.mean(dim=(2, 3), keepdim=True) * activation).sum(dim=1) for gradient in gradients]
        return [Attribution(values[None], map_grid(values, images)) for values in maps]

    def _streams(self, model: Adapter, images: Tensor, targets: Sequence[Target]) -> list[Attribution]:
        """Weight the tokens that enter each block, all from one pass back."""
        if not isinstance(model, VisionTransformer):
            raise UnsupportedMethod(f"grad_cam has one layer on {model.name}; layers are summed on transformers only")
        found, grid = values_and_gradients(model, images, targets, "tokens")
        scores = [[(g.mean(dim=1, keepdim=True) * x).sum(dim=-1) for x, g in pairs] for pairs in found]
        return [Attribution(grid.to_map(torch.stack(layers)), grid) for layers in scores]

    def several_cost(self, model: Adapter, count: int, *, every_layer: bool = False) -> Passes:
        whole = every_layer or self.variant == "stream"
        return Passes(1, count * (1 if whole else model.remaining(model.layer(self.layer))))
