"""Eigen-CAM: the first principal component of a layer's activations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from sightline.methods.cam.base import StreamCam
from sightline.models.adapter import Adapter
from sightline.models.cnn.adapter import Convolutional
from sightline.models.precision import full_precision
from sightline.models.vit.adapter import VisionTransformer
from sightline.registry import METHODS
from sightline.types import Attribution, Passes, Target


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
class EigenCam(StreamCam):
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

    def maps_at(
        self, model: Adapter, images: Tensor, targets: Sequence[Target], sites: Sequence[str]
    ) -> list[list[Tensor]]:
        return [[self._map(activation)] * len(targets) for activation in _activations(model, images, sites)]

    def of_stream(self, model: VisionTransformer, images: Tensor, targets: Sequence[Target]) -> list[Attribution]:
        maps = [self._map(activation) for activation in _activations(model, images, model.every("input"))]
        return [Attribution(torch.stack(maps), model.grid_of(images))] * len(targets)

    def _map(self, activation: Tensor) -> Tensor:
        values = first_component(activation.flatten(2), centred=self.variant != "paper")
        return values.reshape(len(activation), *activation.shape[-2:])

    def cost_at(self, model: Adapter, count: int, sites: Sequence[str]) -> Passes:
        apart = [site for site in sites if site not in model.sites]
        return Passes((len(apart) < len(sites)) + sum(1 - model.remaining(site) for site in apart), 0)


def _activations(model: Adapter, images: Tensor, sites: Sequence[str]) -> list[Tensor]:
    """Return the layers' outputs, (batch, channel, height, width), from one pass."""
    activations: dict[str, Tensor] = {}
    captured = [site for site in sites if site in model.sites]
    if captured:
        with model.capture(*captured) as seen:
            model(images)
        activations = {site: model.to_map(site, seen[site].detach(), images) for site in captured}
    for site in sites:
        if site not in activations:  # a dense layer's concatenation is a cut, but no module's output
            assert isinstance(model, Convolutional)
            activations[site] = model.trunk(images, site)
    return [activations[site] for site in sites]


def first_component(activation: Tensor, *, centred: bool = True) -> Tensor:
    """Project the cells, (batch, channel, cell), on their first principal component; the largest is positive."""
    cells = full_precision(activation)
    if centred:
        cells = cells - cells.mean(dim=-1, keepdim=True)
    directions, _, _ = torch.linalg.svd(cells, full_matrices=False)
    projected = torch.einsum("bkn,bk->bn", cells, directions[..., 0])
    largest = projected.gather(1, projected.abs().argmax(dim=1, keepdim=True))
    return torch.where(largest < 0, -projected, projected).to(activation.dtype)
