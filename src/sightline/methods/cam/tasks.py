"""Class activation maps made for tasks: Seg-XRes-CAM for segmentations, ODAM for detectors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from torch import Tensor
from torch.nn import functional as F

from sightline.errors import RecipeError
from sightline.methods.cam.base import GradientCam
from sightline.models.adapter import Adapter
from sightline.registry import METHODS
from sightline.types import Attribution, Passes, Target


@dataclass(frozen=True, slots=True)
class OneLayerCam(GradientCam):
    """A class activation map after a ReLU, at the layer that is named and at no other."""

    variant: Literal["paper"] = "paper"

    def scores(self, activation: Tensor, gradient: Tensor) -> Tensor:
        return (gradient * activation).sum(dim=1).clamp(min=0)

    def multi_target(
        self, model: Adapter, images: Tensor, targets: Sequence[Target], *, every_layer: bool = False
    ) -> list[Attribution]:
        return self.at_layers(model, images, targets)

    def multi_target_cost(self, model: Adapter, count: int, *, every_layer: bool = False) -> Passes:
        return self.cost_at(model, count, self.sites(model))


@METHODS.register(
    "seg_xres_cam",
    family="cam",
    cite="hasany2023",
    cost="1 forward, backward from the output to the layer",
    needs=("gradient", "layers"),
    parity="closed form; grad_cam after a ReLU with one window for the whole map, hires_cam with windows of one cell",
)
@dataclass(frozen=True, slots=True)
class SegXResCam(OneLayerCam):
    r"""Seg-XRes-CAM: activation times the gradient pooled over windows, for a region of a segmentation.

    .. math:: A = \mathrm{ReLU} \sum_k \mathrm{up}\bigl(\mathrm{pool}_w(\partial s / \partial F_k)\bigr) \odot F_k

    Between Grad-CAM, which averages gradients over the whole layer and so points at objects far from the region, and
    HiResCAM, which averages them over nothing. Made for a `Region`, and defined for every target. Pooled gradients are
    enlarged to the layer's size by nearest neighbour.

    Attributes:
        window: side of the windows in cells; a window that leaves the map is cut off.
        pool: what becomes of the gradients in a window: max or mean.
    """

    window: int = 2
    pool: Literal["max", "mean"] = "max"

    def __post_init__(self) -> None:
        super(SegXResCam, self).__post_init__()
        if self.window < 1:
            raise RecipeError(f"got window={self.window}; a window has a cell at least")

    def _map(self, activation: Tensor, gradient: Tensor) -> Tensor:
        sides = [min(self.window, side) for side in gradient.shape[-2:]]
        if self.pool == "max":
            pooled = F.max_pool2d(gradient, sides, ceil_mode=True)
        else:
            pooled = F.avg_pool2d(gradient, sides, ceil_mode=True, count_include_pad=False)
        spread = pooled.repeat_interleave(sides[0], dim=-2).repeat_interleave(sides[1], dim=-1)
        spread = spread[..., : gradient.shape[-2], : gradient.shape[-1]]
        values: Tensor = self.scores(activation.flatten(2), spread.flatten(2)).unflatten(1, activation.shape[-2:])
        return values


@METHODS.register(
    "odam",
    family="cam",
    cite="zhao2023odam",
    cost="1 forward, backward from the output to the layer",
    needs=("gradient", "layers"),
    parity="equals rectify(hires_cam), exactly",
)
@dataclass(frozen=True, slots=True)
class Odam(OneLayerCam):
    r"""ODAM: gradient times activation, element by element, after a ReLU, for one detection.

    .. math:: A_{ij} = \mathrm{ReLU} \sum_k \frac{\partial s}{\partial F_{kij}}\, F_{kij}

    HiResCAM with a `Box` as its target, at the level of the feature pyramid that the box comes from: name it with
    ``layer=``, for instance ``backbone.fpn.layer_blocks.0`` of torchvision's detectors. The authors also smooth the
    map in some figures; their program does not, and neither is it done here.
    """
