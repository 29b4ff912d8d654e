"""Smooth Grad-CAM++: the coefficients of Grad-CAM++ from gradients averaged over noisy copies of the image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from sightline.errors import RecipeError
from sightline.methods.cam.activation import activations_at, activations_cost
from sightline.methods.cam.base import Cam, activation_and_gradients, weighted
from sightline.models.adapter import Adapter
from sightline.perturb.noise import noisy_batches
from sightline.registry import METHODS
from sightline.types import Passes, Target


@METHODS.register(
    "smooth_grad_cam_pp",
    family="cam",
    cite="omeiza2019",
    cost="1 + samples forward, backward from the output to the layer once per sample",
    needs=("gradient", "layers"),
    parity="torchcam SmoothGradCAMpp with the same noise, 1e-5; grad_cam_pp without noise, 1e-12",
)
@dataclass(frozen=True, slots=True)
class SmoothGradCamPlusPlus(Cam):
    r"""Smooth Grad-CAM++: Grad-CAM++ with the powers of the gradient averaged over noisy copies of the image.

    .. math::
        A_{ij} = \sum_k \Bigl(\sum_{uv} \alpha_{kuv} \bigl[\overline{g_{kuv}}\bigr]^+\Bigr) F_{kij}, \qquad
        \alpha_{kuv} = \frac{\overline{g_{kuv}^2}}
        {2\, \overline{g_{kuv}^2} + \overline{g_{kuv}^3} \sum_{ab} F_{kab} + 10^{-6}}

    where the bar is the mean over n copies with Gaussian noise, and :math:`F` the activation of the image itself. The
    paper has :math:`\overline{g}` in the numerator, which without noise is not Grad-CAM++; that is ``variant='paper'``.

    Attributes:
        samples: noisy copies.
        noise: standard deviation of the noise, as a fraction of the image's range.
        seed: of the noise, which depends on the seed and the image alone.
        variant: "corrected", as above; "paper"; or "torchcam", with each cell's own product in the denominator,
            :math:`\sum_{ab} \overline{g^3_{kab}} F_{kab}`, and the last copy's gradient and activation in place of the
            mean gradient and of the image's activation.
    """

    samples: int = 10
    noise: float = 0.1
    seed: int = 0
    variant: Literal["corrected", "paper", "torchcam"] = "corrected"

    def __post_init__(self) -> None:
        Cam.__post_init__(self)
        if self.samples < 1 or self.noise < 0:
            raise RecipeError(f"got samples={self.samples}, noise={self.noise}; give 1 or more, and no negative noise")

    def maps_at(
        self, model: Adapter, images: Tensor, targets: Sequence[Target], sites: Sequence[str]
    ) -> list[list[Tensor]]:
        activations = activations_at(model, images, sites)
        return [self._maps(model, images, targets, *pair) for pair in zip(sites, activations, strict=True)]

    def _maps(
        self, model: Adapter, images: Tensor, targets: Sequence[Target], site: str, activation: Tensor
    ) -> list[Tensor]:
        flat = shown = activation.flatten(2)
        moments = [[torch.zeros_like(flat) for _ in range(3)] for _ in targets]
        last = [torch.zeros_like(flat) for _ in targets]
        for noisy, rows in noisy_batches(images, self.samples, self.noise, self.seed, model.batch):
            noisy_maps, gradients = activation_and_gradients(model, noisy, [t.take(rows) for t in targets], site)
            if self.variant == "torchcam":
                shown = noisy_maps.flatten(2).unflatten(0, (len(images), -1))[:, -1]
            for index, gradient in enumerate(gradients):
                copies = gradient.flatten(2).unflatten(0, (len(images), -1))
                last[index] = copies[:, -1]
                for power, moment in enumerate(moments[index], start=1):
                    moment += copies.pow(power).sum(dim=1) / self.samples
        weights = [self._weights(flat, *pair) for pair in zip(moments, last, strict=True)]
        return [weighted(each, shown).unflatten(1, activation.shape[-2:]) for each in weights]

    def _weights(self, activation: Tensor, moments: Sequence[Tensor], last: Tensor) -> Tensor:
        first, second, third = moments
        if self.variant == "torchcam":
            total = (third * activation).sum(dim=-1, keepdim=True)
            return (second / (2 * second + total + 1e-8) * last.clamp(min=0)).sum(dim=-1)
        denominator = 2 * second + third * activation.sum(dim=-1, keepdim=True) + 1e-6
        alpha = (first if self.variant == "paper" else second) / denominator
        return (alpha * first.clamp(min=0)).sum(dim=-1)

    def cost_at(self, model: Adapter, count: int, sites: Sequence[str]) -> Passes:
        backward = self.samples * count * sum(model.remaining(site) for site in sites)
        return activations_cost(model, sites) + Passes(self.samples * len(sites), backward)
