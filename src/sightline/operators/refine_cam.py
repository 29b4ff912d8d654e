"""RefineCAM: the product of a class activation map at several layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from sightline.errors import RecipeError, UnsupportedMethod
from sightline.methods.cam.base import LayeredCam
from sightline.methods.cam.fusion import check_layers
from sightline.methods.multi_target import MultiTarget
from sightline.models.adapter import Adapter
from sightline.models.cnn.adapter import Convolutional
from sightline.registry import OPERATORS, is_registered, spec_of
from sightline.types import Attribution, Method, Passes, Target


@OPERATORS.register(
    "refine_cam",
    family="layers",
    cite="refinecam2026",
    cost="the method's at several layers",
    parity="grad-cam RefineCAM, 1e-5; the product written out",
)
@dataclass(frozen=True, slots=True)
class RefineCam(MultiTarget):
    r"""RefineCAM: the product of a class activation map's layers, each upsampled and scaled to [0, 1].

    .. math:: M = \prod_\ell \operatorname{minmax}\bigl(\operatorname{up}(A_\ell^+)\bigr)

    Deep layers say where the class is, early ones how it is bounded; a product keeps what all of them support. For any
    method of the CAM family that takes several layers; the paper uses ``grad_cam_pp``. It equals the method with
    ``layer=(…), fusion='product'``. The map lies between 0 and 1, at the size of the image.

    Attributes:
        layer: names or indices of the layers, deepest last; by default the last feature map of every stage of a CNN,
            while a transformer's have to be given.
    """

    method: Method
    layer: tuple[str | int, ...] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.method, LayeredCam):
            name = spec_of(self.method).name if is_registered(self.method) else type(self.method).__name__
            raise UnsupportedMethod(f"refine_cam multiplies the layers of a class activation map, and {name} is none")
        if self.layer is not None:
            check_layers(self.layer)
            if len(self.layer) < 2:
                raise RecipeError(f"got layer={self.layer!r}; a product needs two layers at least")

    def multi_target(
        self, model: Adapter, images: Tensor, targets: Sequence[Target], *, every_layer: bool = False
    ) -> list[Attribution]:
        return self._fused(model).at_layers(model, images, targets)

    def multi_target_cost(self, model: Adapter, count: int, *, every_layer: bool = False) -> Passes:
        return self._fused(model).multi_target_cost(model, count)

    def _fused(self, model: Adapter) -> LayeredCam:
        """Return the method at all layers, its maps multiplied."""
        method: Any = self.method
        fused: LayeredCam = replace(method, layer=self._layers(model), fusion="product")
        return fused

    def _layers(self, model: Adapter) -> tuple[str | int, ...]:
        if self.layer is not None:
            return self.layer
        if isinstance(model, Convolutional) and len(model.layers) > 1:
            return model.layers
        raise UnsupportedMethod(f"the layers of {model.name} that refine_cam multiplies have to be given: layer=(…)")
