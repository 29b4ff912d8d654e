"""Eigen-CAM: what a layer's cells differ in most, whatever the class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from sightline.errors import UnsupportedMethod
from sightline.methods.cam.fusion import Fusion, Layers, check_layers, fused
from sightline.methods.multi_target import MultiTarget
from sightline.models.adapter import Adapter
from sightline.models.cnn.adapter import Convolutional
from sightline.models.precision import full_precision
from sightline.models.vit.adapter import VisionTransformer
from sightline.registry import METHODS
from sightline.types import Attribution, Passes, Target, map_grid


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
class EigenCam(MultiTarget):
    r"""Eigen-CAM: the cells of a layer, projected on the direction in which they differ most.

    .. math:: A_{ij} = \pm \sum_k v_k\, \bigl(F_{kij} - \overline{F_k}\bigr), \qquad
        v = \arg\max_{\lVert v \rVert = 1} \sum_{ij} \Bigl(\sum_k v_k\, \bigl(F_{kij} - \overline{F_k}\bigr)\Bigr)^2

    where :math:`F` is the last feature map of a CNN, or the last block's first norm on a transformer, prefix tokens
    left out: the first principal component. Blind to the class: every target has the same map.

    A principal direction has no sign: v and -v are equally good. Here the cell furthest from zero is positive, as in
    Seg-Eigen-CAM, so that the answer depends on the activations alone. The package grad-cam takes whichever sign LAPACK
    happens to give, which can differ between float32 and float64 or from one build to the next; rectified, its map
    then shows what this one leaves dark.

    Attributes:
        layer: a site's name or an index; by default the right one for the model; or a tuple of them, deepest last.
        variant: "centred", less each channel's mean, as the package grad-cam; "paper", the activations as they are, in
            which the direction is mostly that of the mean; "stream", centred, for the tokens that enter each block.
        fusion: of several layers, each rectified: mean of the maps scaled to [0, 1], as the package grad-cam; tanh
            scales all but the last by tanh(2 m / max m) and takes the largest, as Layer-CAM.
    """

    layer: Layers = None
    variant: Literal["centred", "paper", "stream"] = "centred"
    fusion: Fusion = "mean"

    def __post_init__(self) -> None:
        check_layers(self.layer)

    def multi_target(
        self, model: Adapter, images: Tensor, targets: Sequence[Target], *, every_layer: bool = False
    ) -> list[Attribution]:
        if every_layer or self.variant == "stream":
            return [self._stream(model, images)] * len(targets)
        maps = [self._map(each) for each in _activations(model, images, self._sites(model))]
        if isinstance(self.layer, tuple):
            return [fused(maps, images, self.fusion)] * len(targets)
        return [Attribution(maps[0][None], map_grid(maps[0], images))] * len(targets)

    def multi_target_cost(self, model: Adapter, count: int, *, every_layer: bool = False) -> Passes:
        if every_layer or self.variant == "stream":
            return Passes(1, 0)
        sites = self._sites(model)
        apart = [site for site in sites if site not in model.sites]
        return Passes((len(apart) < len(sites)) + sum(1 - model.remaining(site) for site in apart), 0)

    def _sites(self, model: Adapter) -> list[str]:
        return [model.layer(each) for each in (self.layer if isinstance(self.layer, tuple) else (self.layer,))]

    def _stream(self, model: Adapter, images: Tensor) -> Attribution:
        if not isinstance(model, VisionTransformer):
            raise UnsupportedMethod(f"eigen_cam has one layer on {model.name}; layers are summed on transformers only")
        maps = [self._map(each) for each in _activations(model, images, model.every("input"))]
        return Attribution(torch.stack(maps), model.grid_of(images))

    def _map(self, activation: Tensor) -> Tensor:
        values = principal(activation.flatten(2), centred=self.variant != "paper")
        return values.reshape(len(activation), *activation.shape[-2:])


def _activations(model: Adapter, images: Tensor, sites: Sequence[str]) -> list[Tensor]:
    """Return the layers' outputs, (batch, channel, height, width), from one pass."""
    found: dict[str, Tensor] = {}
    known = [site for site in sites if site in model.sites]
    if known:
        with model.capture(*known) as seen:
            model(images)
        found = {site: model.to_map(site, seen[site].detach(), images) for site in known}
    for site in sites:
        if site not in found:  # a dense layer's running concatenation is a cut, but no module gives it out
            assert isinstance(model, Convolutional)
            found[site] = model.trunk(images, site)
    return [found[site] for site in sites]


def principal(activation: Tensor, *, centred: bool = True) -> Tensor:
    """Project the cells, (batch, channel, cell), on their first principal direction; the furthest one is positive."""
    cells = full_precision(activation)
    if centred:
        cells = cells - cells.mean(dim=-1, keepdim=True)
    directions, _, _ = torch.linalg.svd(cells, full_matrices=False)
    along = torch.einsum("bkn,bk->bn", cells, directions[..., 0])
    furthest = along.gather(1, along.abs().argmax(dim=1, keepdim=True))
    return torch.where(furthest < 0, -along, along).to(activation.dtype)
