"""Guided backpropagation, which keeps only positive gradients at every ReLU, deconvnet and Guided Grad-CAM."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from sightline.errors import UnsupportedModel
from sightline.methods.multi_target import MultiTarget
from sightline.models.adapter import Adapter
from sightline.models.backward.relu import Guided
from sightline.registry import METHODS
from sightline.types import Attribution, Passes, Target, pixel_grid


@dataclass(frozen=True, slots=True)
class GuidedPass:
    """One forward pass of a model whose ReLUs can be guided in the backward pass, or not.

    Attributes:
        model: the model.
        pixels: the images, as a leaf of the graph.
        logits: the model's output.
        seen: the captured sites.
        relus: the ReLUs that ran.
    """

    model: Adapter
    pixels: Tensor
    logits: Tensor
    seen: Mapping[str, Tensor]
    relus: Guided

    def guided_gradient(self, target: Target, *, last: bool = False) -> Tensor:
        """Return the guided gradient at the pixels, its channels summed; after the `last` the graph is given up."""
        return self._backward(target, {"image": self.pixels}, guiding=True, last=last)["image"].sum(dim=1)

    def guided_gradients(self, targets: Sequence[Target]) -> list[Tensor]:
        """Return the guided gradient of each target; the graph is given up."""
        return [self.guided_gradient(target, last=number == len(targets)) for number, target in enumerate(targets, 1)]

    def gradients(self, target: Target) -> dict[str, Tensor]:
        """Return the gradients at the captured sites."""
        return self._backward(target, self.seen, guiding=False)

    def _backward(
        self, target: Target, seen: Mapping[str, Tensor], *, guiding: bool, last: bool = False
    ) -> dict[str, Tensor]:
        self.relus.guiding = guiding
        with torch.enable_grad():
            return self.model.gradients(target(self.logits), seen, retain=not last)


def guided_pass(model: Adapter, images: Tensor, variant: str, *sites: str, gated: bool = True) -> GuidedPass:
    """Run a model forward once, ready for guided backpropagation or, not `gated`, for a deconvnet's."""
    pixels = images.detach().clone().requires_grad_()
    with ExitStack() as stack:
        seen = stack.enter_context(model.capture(*sites, gradient=True)) if sites else {}
        stack.enter_context(torch.enable_grad())
        relus = stack.enter_context(Guided(capped=variant == "paper", gated=gated))
        logits = model(pixels)
    if not relus.count and variant == "paper":
        raise UnsupportedModel(
            f"{'guided backpropagation' if gated else 'a deconvnet'} changes ReLUs, and {model.name} has none: "
            "use gradient, which is what it would be here"
        )
    return GuidedPass(model, pixels, logits, seen, relus)


@METHODS.register(
    "guided_backprop",
    family="gradient",
    cite="springenberg2015",
    cost="1 forward, 1 backward",
    needs=("gradient", "cuts"),
    parity="captum GuidedBackprop and zennit GuidedBackprop on three CNNs, 1e-9",
)
@dataclass(frozen=True, slots=True)
class GuidedBackprop(MultiTarget):
    r"""Guided backpropagation: the gradient with negative signals set to zero at every ReLU.

    .. math:: A_i = \sum_c g_{i,c}, \qquad
        g_{\text{in}} = \max(g_{\text{out}}, 0)\,[0 < z < m] \quad\text{at every ReLU } \min(\max(z, 0), m)

    and the ordinary gradient everywhere else. ReLU and ReLU6 are guided, as modules or as functions, shared or in
    place; GELU, SiLU and Hardswish are not, so a network that has nothing else is refused. The maps are sharp, but
    depend little on the class and on the weights of upper layers: they resemble an edge detector.

    Attributes:
        variant: "paper", or "captum", which guides ReLU alone: on a network of other activations it is the plain
            gradient. A ReLU that is a function is guided here, and not in captum, which sees modules only.
    """

    variant: Literal["paper", "captum"] = "paper"

    def multi_target(
        self, model: Adapter, images: Tensor, targets: Sequence[Target], *, every_layer: bool = False
    ) -> list[Attribution]:
        run = guided_pass(model, images, self.variant)
        return [Attribution(values[None], pixel_grid(images)) for values in run.guided_gradients(targets)]

    def multi_target_cost(self, model: Adapter, count: int, *, every_layer: bool = False) -> Passes:
        return Passes(1, count)


@METHODS.register(
    "deconvnet",
    family="gradient",
    cite="zeiler2014",
    cost="1 forward, 1 backward",
    needs=("gradient", "cuts"),
    parity="captum Deconvolution on three CNNs, 1e-9",
)
@dataclass(frozen=True, slots=True)
class Deconvnet(MultiTarget):
    r"""Deconvnet: the gradient with every ReLU of the network replaced, backward, by a ReLU of the gradient itself.

    .. math:: A_i = \sum_c g_{i,c}, \qquad g_{\text{in}} = \max(g_{\text{out}}, 0) \quad\text{at every ReLU}

    and the ordinary gradient everywhere else, so max pools keep their switches. Guided backpropagation also asks that
    the ReLU was active. As there, ReLU and ReLU6 are changed, as modules or as functions, and a network that has
    neither is refused; the maps depend little on the class.

    Attributes:
        variant: "paper", or "captum", which changes ReLU alone; as for ``guided_backprop``.
    """

    variant: Literal["paper", "captum"] = "paper"

    def multi_target(
        self, model: Adapter, images: Tensor, targets: Sequence[Target], *, every_layer: bool = False
    ) -> list[Attribution]:
        run = guided_pass(model, images, self.variant, gated=False)
        return [Attribution(values[None], pixel_grid(images)) for values in run.guided_gradients(targets)]

    def multi_target_cost(self, model: Adapter, count: int, *, every_layer: bool = False) -> Passes:
        return Passes(1, count)


@METHODS.register(
    "guided_grad_cam",
    family="gradient",
    cite="selvaraju2017",
    cost="1 forward, 1 backward and the layer's share of another",
    needs=("gradient", "cuts", "layers"),
    parity="captum GuidedGradCam on three CNNs and EfficientNet-Lite0, 1e-9",
)
@dataclass(frozen=True, slots=True)
class GuidedGradCam(MultiTarget):
    r"""Guided Grad-CAM: guided backpropagation times Grad-CAM, after a ReLU and upsampled to the image.

    .. math:: A_i = \Bigl(\sum_c g_{i,c}\Bigr)\,
        \operatorname{up}\Bigl(\max\Bigl(0, \sum_k \overline{\tfrac{\partial s}{\partial F_k}}\, F_k\Bigr)\Bigr)_i

    with :math:`g` the guided gradient at the pixels, :math:`F` the layer's feature map and the bar its mean over cells.

    Attributes:
        layer: a site's name or an index; by default the last feature map.
        mode: how Grad-CAM is upsampled to the image, bilinear (the paper) or nearest.
        variant: as for ``guided_backprop``; ``variant='captum', mode='nearest'`` is captum's default.
    """

    layer: str | int | None = None
    mode: Literal["bilinear", "nearest"] = "bilinear"
    variant: Literal["paper", "captum"] = "paper"

    def multi_target(
        self, model: Adapter, images: Tensor, targets: Sequence[Target], *, every_layer: bool = False
    ) -> list[Attribution]:
        site = model.layer(self.layer)
        run = guided_pass(model, images, self.variant, site)
        activation = model.to_map(site, run.seen[site].detach(), images)
        maps = []
        for target in targets:
            cam = self._grad_cam(activation, model.to_map(site, run.gradients(target)[site], images), images)
            maps.append(Attribution((run.guided_gradient(target) * cam)[None], pixel_grid(images)))
        return maps

    def _grad_cam(self, activation: Tensor, gradient: Tensor, images: Tensor) -> Tensor:
        cam = (gradient.mean(dim=(2, 3), keepdim=True) * activation).sum(dim=1, keepdim=True).clamp(min=0)
        return F.interpolate(cam, size=images.shape[-2:], mode=self.mode)[:, 0]

    def multi_target_cost(self, model: Adapter, count: int, *, every_layer: bool = False) -> Passes:
        return Passes(1, count * (1 + model.remaining(model.layer(self.layer))))
