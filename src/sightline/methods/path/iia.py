r"""Iterated integrated attributions (IIA): integrals over the image and, inside them, over inner representations.

With the layers 0 (the image), 1 … L, the representation :math:`u^j` of layer j, its baseline :math:`r^j`, and the
interpolated :math:`v^j = r^j + a_j (u^j - r^j)` from which the rest of the model is run,

.. math:: m = \int_0^1\!\dots\int_0^1 (u^l - r^l) \odot \int_0^1 q^l \, da_l \dots da_0

where :math:`q^l` is the integrand at the layer l of the map; integrals run over the chosen layers only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from sightline.errors import RecipeError
from sightline.methods.multi_target import MultiTarget
from sightline.methods.path.baselines import ImageBaseline, LayerBaseline
from sightline.methods.path.iia_cnn import MapIntegral, map_cost
from sightline.methods.path.iia_layers import IMAGE, LayerName, Path, path_layers
from sightline.methods.path.iia_vit import attention_cost, attention_maps, attention_peak, gradient_sites
from sightline.methods.path.integrands import Integrand, IntegrandName, Joining, as_integrand
from sightline.methods.path.quadrature import Rule
from sightline.models.adapter import Adapter
from sightline.models.vit.adapter import VisionTransformer
from sightline.registry import METHODS
from sightline.types import Attribution, Passes, Target, map_grid


class IiaOptions(MultiTarget):
    """Options that all iterated integrals share.

    Attributes:
        steps: n, the number of points on each path.
        reference: the baseline of inner layers: channel_min, the minimum of each channel or head (the paper's on CNNs);
            zero (the paper's on attention); or noise, with each channel's mean and standard deviation, or random
            attention. None is the paper's.
        blank: the baseline image: zero (the mean colour), channel_min, noise, black, white, mean or blur.
        rollout: how gradient_rollout joins the blocks of a transformer: product, or sum, which the paper finds
            comparable.
        seed: of the noise.
    """

    __slots__ = ()


@METHODS.register(
    "iia",
    family="path",
    cite="iia2023",
    cost="steps forwards up to the first inner layer, then parts of a pass for each further interpolation",
    needs=("gradient",),
    parity="ig where only the image is integrated, 1e-10; closed forms on pooled linear heads, 1e-10",
)
@dataclass(frozen=True, slots=True)
class IteratedIntegral(IiaOptions):
    r"""Iterated integrated attributions (IIA): path integrals over the image and any inner layers.

    .. math:: m = \frac{1}{n^\beta} \sum_{k_0=1}^n \dots (u^l - r^l) \odot \sum_{k_l=1}^n q^l, \qquad
        v^j = r^j + \tfrac{k_j}{n}\,(u^j - r^j)

    with :math:`\beta` integrated layers. :math:`u^j` is the output of layer j once the layers before it have been
    interpolated, :math:`r^j` its baseline, :math:`v^j` the input of the rest of the model. ``iia2`` and ``iia3`` have
    the paper's choices of layers.

    On a CNN a layer is a feature map and channels are averaged; at the image they are summed, so that
    ``iia(layers=(0,))`` is ``ig(rule='right')``. On a transformer a layer is the attention probabilities of a block;
    the row that the classifier reads is the map, averaged over heads. A rollout includes all blocks, and comes with
    every start block. Details are in the guide ``docs/guide/iia.md``.

    Attributes:
        layers: the integrated layers, from the image on: 0 is the image, -1 the last layer (of a CNN the default CAM
            layer, of a transformer the last block), -2 the stage or block before it, 1 the first; a string names a
            cut, or an attention such as ``block.3.probabilities``.
        layer: where the map is made, counted in the same way; None is the last of `layers`.
        integrand: gradient; activation_gradient, the paper's on CNNs; or gradient_rollout, the paper's on
            transformers: the rollout of the positive part of attention times gradient, averaged over heads. None is
            the paper's, and gradient at the image. From Python, a function of one's own: it is given the list of the
            interpolated representation and the list of the gradient there, at the layer of the map, with the points
            on axis 0, and returns a tensor of their shape.
        rule: the quadrature: right (the paper's k/n), gauss_legendre or trapezoid.
    """

    layers: tuple[LayerName, ...] = (0, -1)
    layer: LayerName | None = None
    integrand: IntegrandName | Integrand | None = None
    steps: int = 10
    rule: Rule = "right"
    reference: LayerBaseline | None = None
    blank: ImageBaseline = "zero"
    rollout: Joining = "product"
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.layers:
            raise RecipeError("got layers=(); name at least one layer, 0 for the image")

    def multi_target(
        self, model: Adapter, images: Tensor, targets: Sequence[Target], *, every_layer: bool = False
    ) -> list[Attribution]:
        path = self._path(model)
        integrand = self._integrand(model, path)
        if isinstance(model, VisionTransformer) and path[-1].site != IMAGE:
            baseline = self.reference or "zero"
            return attention_maps(
                model, images, targets, path, integrand, self.rollout, baseline, self.blank, self.seed
            )
        baseline = self.reference or "channel_min"
        integral = MapIntegral(model, images, targets, path, as_integrand(integrand), baseline, self.blank, self.seed)()
        maps = integral.sum(dim=2) if path[-1].site == IMAGE else integral.mean(dim=2)
        return [Attribution(values[None], map_grid(values, images)) for values in maps.unbind(dim=1)]

    def multi_target_cost(self, model: Adapter, count: int, *, every_layer: bool = False) -> Passes:
        path = self._path(model)
        if isinstance(model, VisionTransformer) and path[-1].site != IMAGE:
            return attention_cost(model, path, gradient_sites(model, path, self._integrand(model, path)), count)
        return map_cost(model, path, count)

    def peak(self, model: Adapter) -> int:
        """Return the bytes held for one image, on a transformer of every point that runs at once."""
        path = self._path(model)
        if isinstance(model, VisionTransformer) and path[-1].site != IMAGE:
            return attention_peak(model, path, gradient_sites(model, path, self._integrand(model, path)))
        return model.peak(map_cost(model, path, 1))

    def _path(self, model: Adapter) -> Path:
        return path_layers(model, self.layers, self.layer, self.steps, self.rule)

    def _integrand(self, model: Adapter, path: Path) -> str | Integrand:
        """Return the integrand, the paper's where none is asked for."""
        end = path[-1].site
        if isinstance(model, VisionTransformer) and end != IMAGE:
            return self.integrand or "gradient_rollout"
        if self.integrand == "gradient_rollout":
            raise RecipeError(
                f"got integrand='gradient_rollout' at the layer {end!r} of {model.name}, which is no attention; "
                "choose gradient or activation_gradient"
            )
        return self.integrand or ("gradient" if end == IMAGE else "activation_gradient")
