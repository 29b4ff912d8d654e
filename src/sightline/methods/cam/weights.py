"""Class activation maps with one weight per channel, computed from its gradients: Grad-CAM and its successors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from sightline.methods.cam.base import GradientCam, PaperOrStream, weighted
from sightline.registry import METHODS


def before_relu(activation: Tensor, gradient: Tensor) -> Tensor:
    """Return the gradient before a ReLU: that after it where the activation is positive, and zero elsewhere."""
    return gradient * (activation > 0)


@METHODS.register(
    "grad_cam",
    family="cam",
    cite="selvaraju2017",
    cost="1 forward, backward from the output to the layer",
    needs=("gradient", "layers"),
    parity="grad-cam GradCAM, CNN and ViT, one layer and several, 1e-5; captum LayerGradCam, 1e-9",
)
@dataclass(frozen=True, slots=True)
class GradCam(GradientCam):
    r"""Grad-CAM: a layer's channels weighted by their mean gradient, for one class.

    .. math:: A_{ij} = \sum_k \Bigl(\frac{1}{hw} \sum_{uv} \frac{\partial s}{\partial F_{kuv}}\Bigr)\, F_{kij}

    where :math:`F` is the layer's activation, without prefix tokens on a transformer. Signed: write
    ``rectify(grad_cam)`` for the usual map after a ReLU. With a `Region` of a segmentation as its target it is
    Seg-Grad-CAM :cite:p:`vinogradova2020`, which is also an alias of it. On a transformer that classifies by its class
    token it is an affine function of the mean gradient at the last attention.

    Attributes:
        variant: "paper"; "stream" for the tokens that enter each block, with weights averaged over all tokens, prefix
            included; or "iia", as the repository of :cite:t:`iia2023` runs it: gradients before the last ReLU, and the
            mean of the channels instead of their sum.
    """

    variant: Literal["paper", "stream", "iia"] = "paper"

    def scores(self, activation: Tensor, gradient: Tensor) -> Tensor:
        if self.variant == "iia":
            return weighted(before_relu(activation, gradient).mean(dim=-1), activation) / activation.shape[1]
        return weighted(gradient.mean(dim=-1), activation)


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
    r"""Grad-CAM++: channels weighted by their positive gradients, summed with second-order coefficients.

    .. math::
        A_{ij} = \sum_k \Bigl(\sum_{uv} \alpha_{kuv} \bigl[g_{kuv}\bigr]^+\Bigr) F_{kij}, \qquad
        \alpha_{kuv} = \frac{g_{kuv}^2}{2 g_{kuv}^2 + g_{kuv}^3 \sum_{ab} F_{kab} + 10^{-6}}

    where :math:`g = \partial s / \partial F`. For several objects of a class, which Grad-CAM averages. The paper
    explains :math:`e^s`; that factor is one positive number per image and left out. Made for activations that are not
    negative: where :math:`\sum F` is, the denominator can come near zero and one channel dominate.

    Attributes:
        variant: "paper"; "stream" for the tokens that enter each block, prefix included in every sum; or "iia", as the
            repository of :cite:t:`iia2023` runs it: gradients before the last ReLU, and in the denominator
            :math:`\sum_{ab} g_{kab}^3 F_{kab}`, each cell's own product.
    """

    variant: Literal["paper", "stream", "iia"] = "paper"

    def scores(self, activation: Tensor, gradient: Tensor) -> Tensor:
        if self.variant == "iia":
            gradient = before_relu(activation, gradient)
            denominator = 2 * gradient**2 + (activation * gradient**3).sum(dim=-1, keepdim=True)
            alpha = gradient**2 / (denominator.where(denominator != 0, 1.0) + 1e-6)
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
    r"""XGrad-CAM: channels weighted by their gradients, averaged in proportion to the activation.

    .. math:: A_{ij} = \sum_k \frac{\sum_{uv} g_{kuv} F_{kuv}}{\varepsilon + \sum_{uv} F_{kuv}}\, F_{kij}

    where :math:`g = \partial s / \partial F`. The map sums to :math:`\sum g F`, and so to the score itself where the
    rest of the model is linear. Made for activations that are not negative: a channel whose values cancel gets a weight
    without bound; `xgrad_cam_plus` does not.

    Attributes:
        variant: "paper" with ε = 1e-7; "authors" with 1e-6 as in their code; "stream" for the tokens that enter each
            block, prefix included in every sum; or "iia", as the repository of :cite:t:`iia2023` runs it: gradients
            before the last ReLU, and multiplied in once more, element by element.
    """

    variant: Literal["paper", "authors", "stream", "iia"] = "paper"

    def scores(self, activation: Tensor, gradient: Tensor) -> Tensor:
        epsilon = 1e-6 if self.variant == "authors" else 1e-7
        weights = (gradient * activation).sum(dim=-1) / (activation.sum(dim=-1) + epsilon)
        if self.variant == "iia":
            return weighted(weights, before_relu(activation, gradient) * activation)
        return weighted(weights, activation)


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
    r"""XGrad-CAM+: XGrad-CAM averaged in proportion to absolute activations, for layers of either sign.

    .. math:: A_{ij} = \sum_k \frac{\sum_{uv} g_{kuv} |F_{kuv}|}{10^{-7} + \sum_{uv} |F_{kuv}|}\, F_{kij}

    where :math:`g = \partial s / \partial F`. Every weight lies between the channel's smallest and largest gradient, so
    it stays bounded where activations have both signs, as those of tokens.
    """

    variant: PaperOrStream = "paper"

    def scores(self, activation: Tensor, gradient: Tensor) -> Tensor:
        size = activation.abs()
        return weighted((gradient * size).sum(dim=-1) / (size.sum(dim=-1) + 1e-7), activation)
