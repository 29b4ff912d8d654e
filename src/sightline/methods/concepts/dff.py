"""Pictures of what a layer holds: deep feature factorisation, and principal components as used for DINO."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sightline.errors import RecipeError
from sightline.methods.cam.activation import activations_at, activations_cost
from sightline.methods.cam.eigen import largest_positive
from sightline.methods.cam.fusion import Layer
from sightline.methods.concepts.factorisation import Components, check_count, factorise
from sightline.methods.multi_target import MultiTarget
from sightline.models.adapter import Adapter
from sightline.registry import METHODS
from sightline.types import Attribution, Passes, Target, map_grid


class ComponentMethod(MultiTarget):
    """A method that returns one map per component of a layer's activations, the same for every class."""

    __slots__ = ()
    components: int
    layer: Layer

    def __post_init__(self) -> None:
        if self.components < 1:
            raise RecipeError(f"got components={self.components}; at least one is needed")

    @abstractmethod
    def parts(self, cells: Tensor) -> tuple[Tensor, Components]:
        """Return the maps of the components, (batch, component, cell), of activations (batch, channel, cell)."""

    def multi_target(
        self, model: Adapter, images: Tensor, targets: Sequence[Target], *, every_layer: bool = False
    ) -> list[Attribution]:
        (activation,) = activations_at(model, images, [model.layer(self.layer)])
        cells = activation.double().flatten(2)
        check_count(self.components, cells)
        maps, details = self.parts(cells)
        values = maps.transpose(0, 1).unflatten(2, activation.shape[-2:]).to(images.dtype)
        return [Attribution(values, map_grid(values, images), details=details)] * len(targets)

    def multi_target_cost(self, model: Adapter, count: int, *, every_layer: bool = False) -> Passes:
        return activations_cost(model, [model.layer(self.layer)])


@METHODS.register(
    "dff",
    family="concepts",
    cite="collins2018",
    cost="1 forward",
    needs=("layers",),
    agnostic=True,
    parity="grad-cam's dff: no larger residual on the same activations; planted components are found, 1e-6",
)
@dataclass(frozen=True, slots=True)
class DeepFeatureFactorisation(ComponentMethod):
    r"""Deep feature factorisation: a layer's activations as a few non-negative components, one map for each.

    .. math:: F_{kij} - \min_{uv} F_{kuv} \approx \sum_{c=1}^{K} W_{kc}\, A_{c,ij}, \qquad W, A \ge 0

    by non-negative matrix factorisation. ``values`` holds the K maps along its first axis, the largest first, and
    ``details`` the channels' weights W of each and its share; the same for every class. Shows which parts of an image
    the layer treats alike. Each image is factorised by itself, from a start that is not random.

    Attributes:
        components: how many, K.
        layer: a layer's name or index, by default that of class activation maps.
    """

    components: int = 5
    layer: Layer = None

    def parts(self, cells: Tensor) -> tuple[Tensor, Components]:
        shifted = cells - cells.amin(dim=2, keepdim=True)
        pairs = [factorise(matrix, self.components) for matrix in shifted]
        maps = torch.stack([own for _, own in pairs])
        vectors = torch.stack([own.T for own, _ in pairs])
        total = shifted.square().sum(dim=(1, 2)).clamp(min=torch.finfo(cells.dtype).tiny)
        shares = maps.square().sum(dim=2) / total[:, None]
        return maps, Components(vectors, shares, torch.zeros_like(shares))


@METHODS.register(
    "pca",
    family="concepts",
    cite="oquab2024",
    cost="1 forward",
    needs=("layers",),
    agnostic=True,
    parity="scikit-learn PCA but for signs, 1e-9; eigen_cam for the first component, 1e-9",
)
@dataclass(frozen=True, slots=True)
class PrincipalComponents(ComponentMethod):
    r"""Principal components of a layer's activations, one map for each; three of them are DINO's coloured pictures.

    .. math:: A_{c,ij} = \pm \sum_k v_{ck}\, \bigl(F_{kij} - \overline{F_k}\bigr)

    where :math:`v_c` is the direction of the c-th largest variance over the cells. ``values`` holds the maps along its
    first axis, the largest first, and ``details`` the directions and the share of the variance of each; the same for
    every class. The cell of largest magnitude of each map is positive. Components are those of each image by itself;
    ``eigen_cam`` is the first.

    Attributes:
        components: how many.
        layer: a layer's name or index, by default that of class activation maps.
    """

    components: int = 3
    layer: Layer = None

    def parts(self, cells: Tensor) -> tuple[Tensor, Components]:
        centred = cells - cells.mean(dim=2, keepdim=True)
        directions, sizes, _ = torch.linalg.svd(centred, full_matrices=False)
        vectors = directions[..., : self.components].transpose(1, 2)
        maps = vectors @ centred
        turned = largest_positive(maps.flatten(0, 1)).view_as(maps)
        sign = torch.where((turned == maps).all(dim=2), 1.0, -1.0).to(maps)
        variance = sizes.square()
        shares = variance[:, : self.components] / variance.sum(dim=1, keepdim=True).clamp(min=1e-300)
        return turned, Components(vectors * sign[..., None], shares, torch.zeros_like(shares))
