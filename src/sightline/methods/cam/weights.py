"""Class activation maps that weigh channels by their gradients: one weight per channel, the same in every cell."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from sightline.methods.cam.base import GradientCam, Where, gated, weighted
from sightline.methods.cam.fusion import Fusion, Layers, check_layers
from sightline.registry import METHODS


@METHODS.register(
    "grad_cam_pp",
    family="cam",
    cite="chattopadhay2018",
    cost="1 forward, backward from the output to the layer",
    needs=("gradient", "layers"),
    parity="grad-cam GradCAMPlusPlus, CNN and ViT, 1e-5",
)
@dataclass(frozen=True, slots=True)
class GradCamPlusPlus(GradientCam):
    r"""Grad-CAM++: channels weighted by their positive gradients, each cell counted by its curvature.

    .. math::
        A_{ij} = \sum_k \Bigl(\sum_{uv} \alpha_{kuv} \bigl[g_{kuv}\bigr]^+\Bigr) F_{kij}, \qquad
        \alpha_{kuv} = \frac{g_{kuv}^2}{2 g_{kuv}^2 + g_{kuv}^3 \sum_{ab} F_{kab} + 10^{-6}}

    where :math:`g = \partial s / \partial F`. The paper explains :math:`e^s`; that factor is one positive number per
    image and left out. Made for activations that are not negative: where :math:`\sum F` is, the denominator can come
    near zero and one channel take over.

    Attributes:
        layer: a site's name or an index; by default the right one for the model; or a tuple of them, deepest last.
        variant: "paper", or "stream" for the tokens that enter each block, prefix included in every sum, or "iia", as
            the repository of :cite:t:`iia2023` runs it: gradients as before the last rectifier, and in the denominator
            :math:`\sum_{ab} g_{kab}^3 F_{kab}`, each cell's own product.
        fusion: of several layers, each rectified: mean of the maps scaled to [0, 1], as the package grad-cam; tanh
            scales all but the last by tanh(2 m / max m) and takes the largest, as Layer-CAM.
    """

    layer: Layers = None
    variant: Literal["paper", "stream", "iia"] = "paper"
    fusion: Fusion = "mean"

    def __post_init__(self) -> None:
        check_layers(self.layer)

    def scores(self, activation: Tensor, gradient: Tensor) -> Tensor:
        if self.variant == "iia":
            gradient = gated(activation, gradient)
            below = 2 * gradient**2 + (activation * gradient**3).sum(dim=-1, keepdim=True)
            alpha = gradient**2 / (below.where(below != 0, 1.0) + 1e-6)
        else:
            total, squared = activation.sum(dim=-1, keepdim=True), gradient**2
            alpha = squared / (2 * squared + total * squared * gradient + 1e-6)
        return weighted((alpha * gradient.clamp(min=0)).sum(dim=-1), activation)


@METHODS.register(
    "xgrad_cam",
    family="cam",
    cite="fu2020",
    cost="1 forward, backward from the output to the layer",
    needs=("gradient", "layers"),
    parity="grad-cam XGradCAM, CNN and ViT, 1e-5; Fu0511/XGrad-CAM, 1e-5",
)
@dataclass(frozen=True, slots=True)
class XGradCam(GradientCam):
    r"""XGrad-CAM: channels weighted by their gradients, averaged where the channel is active.

    .. math:: A_{ij} = \sum_k \frac{\sum_{uv} g_{kuv} F_{kuv}}{\varepsilon + \sum_{uv} F_{kuv}}\, F_{kij}

    where :math:`g = \partial s / \partial F`. The map sums to :math:`\sum g F`, and so to the score itself where the
    rest of the model is linear. Made for activations that are not negative: a channel whose values cancel gets a weight
    without bound; `xgrad_cam_plus` does not.

    Attributes:
        layer: a site's name or an index; by default the right one for the model; or a tuple of them, deepest last.
        variant: "paper" with ε = 1e-7, "authors" with 1e-6 as in their program, "stream" for the tokens that enter
            each block, prefix included in every sum, or "iia", as the repository of :cite:t:`iia2023` runs it:
            gradients as before the last rectifier, and multiplied in once more, cell by cell.
        fusion: of several layers, each rectified: mean of the maps scaled to [0, 1], as the package grad-cam; tanh
            scales all but the last by tanh(2 m / max m) and takes the largest, as Layer-CAM.
    """

    layer: Layers = None
    variant: Literal["paper", "authors", "stream", "iia"] = "paper"
    fusion: Fusion = "mean"

    def __post_init__(self) -> None:
        check_layers(self.layer)

    def scores(self, activation: Tensor, gradient: Tensor) -> Tensor:
        epsilon = 1e-6 if self.variant == "authors" else 1e-7
        weights = (gradient * activation).sum(dim=-1) / (activation.sum(dim=-1) + epsilon)
        return weighted(weights, gated(activation, gradient) * activation if self.variant == "iia" else activation)


@METHODS.register(
    "xgrad_cam_plus",
    family="cam",
    cite="libragrad2025",
    cost="1 forward, backward from the output to the layer",
    needs=("gradient", "layers"),
    parity="closed form; xgrad_cam where no activation is negative, 1e-12",
)
@dataclass(frozen=True, slots=True)
class XGradCamPlus(GradientCam):
    r"""XGrad-CAM+: channels weighted by their gradients, averaged by how strongly the channel answers, either way.

    .. math:: A_{ij} = \sum_k \frac{\sum_{uv} g_{kuv} |F_{kuv}|}{10^{-7} + \sum_{uv} |F_{kuv}|}\, F_{kij}

    where :math:`g = \partial s / \partial F`. Every weight lies between the channel's smallest and largest gradient, so
    nothing blows up where activations have both signs, as on tokens.

    Attributes:
        layer: a site's name or an index; by default the right one for the model; or a tuple of them, deepest last.
        variant: "paper", or "stream" for the tokens that enter each block, prefix included in every sum.
        fusion: of several layers, each rectified: mean of the maps scaled to [0, 1], as the package grad-cam; tanh
            scales all but the last by tanh(2 m / max m) and takes the largest, as Layer-CAM.
    """

    layer: Layers = None
    variant: Where = "paper"
    fusion: Fusion = "mean"

    def __post_init__(self) -> None:
        check_layers(self.layer)

    def scores(self, activation: Tensor, gradient: Tensor) -> Tensor:
        size = activation.abs()
        return weighted((gradient * size).sum(dim=-1) / (size.sum(dim=-1) + 1e-7), activation)
