"""Class activation maps that multiply activation and gradient element by element, without weights per channel."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from sightline.methods.cam.base import GradientCam, PaperOrStream
from sightline.methods.cam.fusion import Fusion
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
    r"""HiResCAM: gradient times activation, element by element, summed over the channels of a layer.

    .. math:: A_{ij} = \sum_k \frac{\partial s}{\partial F_{kij}}\, F_{kij}

    Where one linear layer, pooled or not, follows the feature map, the map sums to the logit less its bias; after
    global average pooling it equals Grad-CAM. The sign is kept.
    """

    variant: PaperOrStream = "paper"

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
    r"""Layer-CAM: activations weighted element by element by their positive gradients, summed over channels.

    .. math:: A_{ij} = \sum_k \Bigl[\frac{\partial s}{\partial F_{kij}}\Bigr]^+ F_{kij}

    For finer maps from early layers, where averaged gradients fail: try ``layer_cam(layer=-2)``, or several layers.
    Negative only where the activations are.
    """

    variant: PaperOrStream = "paper"
    fusion: Fusion = "tanh"

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
    r"""Element-wise Grad-CAM: the positive part of gradient times activation, summed over channels.

    .. math:: A_{ij} = \sum_k \Bigl[\frac{\partial s}{\partial F_{kij}}\, F_{kij}\Bigr]^+

    The same as Layer-CAM where no activation is negative. Never negative itself.
    """

    variant: PaperOrStream = "paper"

    def scores(self, activation: Tensor, gradient: Tensor) -> Tensor:
        return (gradient * activation).clamp(min=0).sum(dim=1)
