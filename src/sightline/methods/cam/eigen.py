"""Eigen-CAM and its kin: the first principal component of a layer's activations, or of those times their gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from sightline.methods.cam.activation import ActivationCam
from sightline.methods.cam.base import GradientCam, stream_attribution
from sightline.methods.gradient.gradient import values_and_gradients
from sightline.models.adapter import Adapter
from sightline.models.passes import full_precision
from sightline.models.vit.adapter import VisionTransformer
from sightline.registry import METHODS
from sightline.types import Attribution, Passes, Target

KERNELS = 3  # held at once: products, kernel, and its eigenvectors


@METHODS.register(
    "eigen_cam",
    family="cam",
    cite="muhammad2020",
    cost="1 forward",
    needs=("layers",),
    agnostic=True,
    parity="grad-cam EigenCAM but for the sign, which it leaves to LAPACK, CNN and ViT, one layer and several, 1e-5",
)
@dataclass(frozen=True, slots=True)
class EigenCam(ActivationCam):
    r"""Eigen-CAM: the first principal component of a layer's activations; the same map for every class.

    .. math:: A_{ij} = \pm \sum_k v_k\, \bigl(F_{kij} - \overline{F_k}\bigr), \qquad
        v = \arg\max_{\lVert v \rVert = 1} \sum_{ij} \Bigl(\sum_k v_k\, \bigl(F_{kij} - \overline{F_k}\bigr)\Bigr)^2

    where :math:`F` is the layer's activation, without prefix tokens on a transformer. The sign of a principal component
    is arbitrary; here the cell with the largest magnitude is positive, as in Seg-Eigen-CAM. The package grad-cam takes
    the sign that LAPACK returns, which may differ between float32 and float64 or between builds, so the part of its
    map that a ReLU keeps may be the part that is negative here.

    Attributes:
        variant: "centred", less each channel's mean, as in the package grad-cam; "paper", the activations as they are,
            whose first component is mostly their mean; "stream", centred, for the tokens that enter each block.
    """

    variant: Literal["centred", "paper", "stream"] = "centred"

    def map_of(self, activation: Tensor) -> Tensor:
        values = first_component(activation.flatten(2), centred=self.variant != "paper")
        return values.reshape(len(activation), *activation.shape[-2:])


@METHODS.register(
    "eigen_grad_cam",
    family="cam",
    cite="gildenblat2021",
    cost="1 forward, backward from the output to the layer",
    needs=("gradient", "layers"),
    parity="grad-cam EigenGradCAM and SegEigenCAM but for the sign, which the first leaves to LAPACK, 1e-5",
)
@dataclass(frozen=True, slots=True)
class EigenGradCam(GradientCam):
    r"""Eigen-Grad-CAM: the first principal component of activation times gradient, element by element, for a class.

    .. math:: A_{ij} = \pm \sum_k v_k\, \bigl(P_{kij} - \overline{P_k}\bigr), \qquad
        P_{kij} = \frac{\partial s}{\partial F_{kij}}\, F_{kij}

    where :math:`v` is the direction in which the cells of :math:`P` vary most. Like Eigen-CAM, but it depends on the
    class. The sign of a principal component is arbitrary; here the cell with the largest magnitude is positive, as in
    Seg-Eigen-CAM :cite:p:`chung2025`.

    Attributes:
        variant: "paper"; "seg", as Seg-Eigen-CAM, with the gradient's absolute value; or "stream" for the patches that
            enter each block of a transformer.
    """

    variant: Literal["paper", "seg", "stream"] = "paper"

    def scores(self, activation: Tensor, gradient: Tensor) -> Tensor:
        return first_component((gradient.abs() if self.variant == "seg" else gradient) * activation)

    def of_stream(self, model: VisionTransformer, images: Tensor, targets: Sequence[Target]) -> list[Attribution]:
        pairs_of_targets, grid = values_and_gradients(model, images, targets, "tokens")
        size, attributions = (grid.height, grid.width), []
        for pairs in pairs_of_targets:
            # without prefix tokens, whose products are far from those of patches and would decide the sign
            patches = [(x[:, grid.prefix :].transpose(1, 2), g[:, grid.prefix :].transpose(1, 2)) for x, g in pairs]
            maps = [self.scores(activation, gradient).unflatten(1, size) for activation, gradient in patches]
            attributions.append(stream_attribution(torch.stack(maps), grid))
        return attributions


@METHODS.register(
    "kpca_cam",
    family="cam",
    cite="karmani2024",
    cost="1 forward",
    needs=("layers",),
    agnostic=True,
    parity="grad-cam KPCA_CAM but for the sign, CNN and ViT, 1e-5; eigen_cam with the linear kernel, 1e-9",
)
@dataclass(frozen=True, slots=True)
class KernelPcaCam(ActivationCam):
    r"""KPCA-CAM: the first kernel principal component of a layer's activations; the same map for every class.

    .. math:: A = \pm \sqrt{\lambda}\, u, \qquad H K H u = \lambda u \text{ with the largest } \lambda, \qquad
        K_{ab} = \tanh\bigl(\gamma\, \langle f_a, f_b \rangle + 1\bigr)

    where :math:`f_a` are the channels of cell a, less their mean over cells, and :math:`H` centres. Unlike Eigen-CAM it
    can separate what no plane separates. The cell with the largest magnitude is positive.

    Attributes:
        kernel: sigmoid, as above; rbf, :math:`e^{-\gamma \lVert f_a - f_b \rVert^2}`; or linear, as ``eigen_cam``.
        gamma: of the kernel; None for one over the number of channels.
        variant: "paper", or "stream" for the tokens that enter each block of a transformer.
    """

    kernel: Literal["sigmoid", "rbf", "linear"] = "sigmoid"
    gamma: float | None = None
    variant: Literal["paper", "stream"] = "paper"

    def map_of(self, activation: Tensor) -> Tensor:
        cells = full_precision(activation).flatten(2).transpose(1, 2)  # (batch, cell, channel)
        kernel = self._kernel(cells - cells.mean(dim=1, keepdim=True))
        rows = kernel.mean(dim=1, keepdim=True)
        values, vectors = torch.linalg.eigh(kernel - rows - rows.mT + rows.mean(dim=2, keepdim=True))
        component = vectors[..., -1] * values[:, -1:].clamp(min=0).sqrt()
        return largest_positive(component).reshape(len(cells), *activation.shape[-2:]).to(activation.dtype)

    def peak(self, model: Adapter) -> int:
        """Return the bytes held for one image: a forward pass, and the kernel of every pair of cells."""
        shape = (1, model.image_channels, *model.seen_size)
        cells = model.grid_of(torch.empty(shape, dtype=model.dtype, device="meta")).cells
        return model.peak(Passes(1)) + KERNELS * cells**2 * model.dtype.itemsize

    def _kernel(self, cells: Tensor) -> Tensor:
        gamma = 1 / cells.shape[-1] if self.gamma is None else self.gamma
        if self.kernel == "rbf":
            return torch.exp(-gamma * torch.cdist(cells, cells).square())
        products = cells @ cells.mT
        return products if self.kernel == "linear" else torch.tanh(gamma * products + 1)


def first_component(activation: Tensor, *, centred: bool = True) -> Tensor:
    """Project the cells, (batch, channel, cell), on their first principal component; the largest is positive."""
    cells = full_precision(activation)
    if centred:
        cells = cells - cells.mean(dim=-1, keepdim=True)
    directions, _, _ = torch.linalg.svd(cells, full_matrices=False)
    projected = torch.einsum("bkn,bk->bn", cells, directions[..., 0])
    return largest_positive(projected).to(activation.dtype)


def largest_positive(values: Tensor) -> Tensor:
    """Choose the sign of each row, (batch, cell), so that its value with the largest magnitude is positive."""
    largest = values.gather(1, values.abs().argmax(dim=1, keepdim=True))
    return torch.where(largest < 0, -values, values)
