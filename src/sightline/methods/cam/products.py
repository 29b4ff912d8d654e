"""Class activation maps that multiply activation and gradient cell by cell: no weight is shared between cells."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from sightline.methods.cam.base import GradientCam, Where
from sightline.methods.cam.fusion import Fusion, Layers, check_layers
from sightline.registry import METHODS


@METHODS.register(
    "hires_cam",
    family="cam",
    cite="draelos2020",
    cost="1 forward, backward from the output to the layer",
    needs=("gradient", "layers"),
    parity="grad-cam HiResCAM, CNN and ViT, 1e-5",
)
@dataclass(frozen=True, slots=True)
class HiResCam(GradientCam):
    r"""HiResCAM: gradient times activation, summed over channels.

    .. math:: A_{ij} = \sum_k \frac{\partial s}{\partial F_{kij}}\, F_{kij}

    Where one linear layer, pooled or not, follows the feature map, the map sums to the logit less its bias; after a
    pool of means it equals Grad-CAM. The sign is kept.

    Attributes:
        layer: a site's name or an index; by default the right one for the model; or a tuple of them, deepest last.
        variant: "paper", or "stream" for the tokens that enter each block.
        fusion: of several layers, each rectified: mean of the maps scaled to [0, 1], as the package grad-cam; tanh
            scales all but the last by tanh(2 m / max m) and takes the largest, as Layer-CAM.
    """

    layer: Layers = None
    variant: Where = "paper"
    fusion: Fusion = "mean"

    def __post_init__(self) -> None:
        check_layers(self.layer)

    def scores(self, activation: Tensor, gradient: Tensor) -> Tensor:
        return (gradient * activation).sum(dim=1)


@METHODS.register(
    "layer_cam",
    family="cam",
    cite="jiang2021",
    cost="1 forward, backward from the output to the layer",
    needs=("gradient", "layers"),
    parity="PengtaoJiang/LayerCAM-jittor, 1e-6; grad-cam LayerCAM, CNN and ViT, 1e-5",
)
@dataclass(frozen=True, slots=True)
class LayerCam(GradientCam):
    r"""Layer-CAM: activations weighted, cell by cell, by the positive part of their gradients.

    .. math:: A_{ij} = \sum_k \Bigl[\frac{\partial s}{\partial F_{kij}}\Bigr]^+ F_{kij}

    It stays readable in early layers, where averaging gradients does not: try ``layer_cam(layer=-2)``, or several at
    once. Negative only where the activations are.

    Attributes:
        layer: a site's name or an index; by default the right one for the model; or a tuple of them, deepest last.
        variant: "paper", or "stream" for the tokens that enter each block.
        fusion: of several layers, each rectified: tanh scales all but the last by tanh(2 m / max m), which brings out
            what is weak there, and takes the largest; mean of the maps scaled to [0, 1], as the package grad-cam.
    """

    layer: Layers = None
    variant: Where = "paper"
    fusion: Fusion = "tanh"

    def __post_init__(self) -> None:
        check_layers(self.layer)

    def scores(self, activation: Tensor, gradient: Tensor) -> Tensor:
        return (gradient.clamp(min=0) * activation).sum(dim=1)


@METHODS.register(
    "grad_cam_elementwise",
    family="cam",
    cite="gildenblat2021",
    cost="1 forward, backward from the output to the layer",
    needs=("gradient", "layers"),
    parity="grad-cam GradCAMElementWise, CNN and ViT, 1e-5",
)
@dataclass(frozen=True, slots=True)
class GradCamElementwise(GradientCam):
    r"""Element-wise Grad-CAM: the positive products of gradient and activation, summed over channels.

    .. math:: A_{ij} = \sum_k \Bigl[\frac{\partial s}{\partial F_{kij}}\, F_{kij}\Bigr]^+

    The same as Layer-CAM where no activation is negative. Never negative itself.

    Attributes:
        layer: a site's name or an index; by default the right one for the model; or a tuple of them, deepest last.
        variant: "paper", or "stream" for the tokens that enter each block.
        fusion: of several layers, each rectified: mean of the maps scaled to [0, 1], as the package grad-cam; tanh
            scales all but the last by tanh(2 m / max m) and takes the largest, as Layer-CAM.
    """

    layer: Layers = None
    variant: Where = "paper"
    fusion: Fusion = "mean"

    def __post_init__(self) -> None:
        check_layers(self.layer)

    def scores(self, activation: Tensor, gradient: Tensor) -> Tensor:
        return (gradient * activation).clamp(min=0).sum(dim=1)
