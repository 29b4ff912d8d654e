r"""Iterated integrated attributions (IIA): integrals over the image and, inside them, over inner representations.

With the layers 0 (the image), 1 … L, the representation :math:`u^j` of layer j, its reference :math:`r^j`, and the
interpolated :math:`v^j = r^j + a_j (u^j - r^j)` from which the rest of the model goes on,

.. math:: m = \int_0^1\!\dots\int_0^1 (u^l - r^l) \odot \int_0^1 q^l \, da_l \dots da_0

where :math:`q^l` is the integrand at the layer l where the map is made; integrals run over the chosen layers only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from sightline.errors import RecipeError
from sightline.methods.multi_target import MultiTarget
from sightline.methods.path.baselines import Blank, Reference
from sightline.methods.path.iia_cnn import MapIntegral, map_cost
from sightline.methods.path.iia_route import IMAGE, Layer, Stop, route
from sightline.methods.path.iia_vit import attention_cost, attention_maps, watched_sites
from sightline.methods.path.integrands import INTEGRANDS, IntegrandName, Joining
from sightline.methods.path.quadrature import Rule
from sightline.models.adapter import Adapter
from sightline.models.vit.adapter import VisionTransformer
from sightline.registry import METHODS
from sightline.types import Attribution, Passes, Target, map_grid


@METHODS.register(
    "iia",
    family="path",
    cite="iia2023",
    cost="steps forwards up to the first inner layer, then parts of a pass for each further interpolation",
    needs=("gradient",),
    parity="ig where only the image is integrated, 1e-10; closed forms on pooled linear heads, 1e-10",
)
@dataclass(frozen=True, slots=True)
class IteratedIntegral(MultiTarget):
    r"""Iterated integrated attributions over any layers, with any integrand.

    .. math:: m = \frac{1}{n^\beta} \sum_{k_0=1}^n \dots (u^l - r^l) \odot \sum_{k_l=1}^n q^l, \qquad
        v^j = r^j + \tfrac{k_j}{n}\,(u^j - r^j)

    with :math:`\beta` integrated layers. :math:`u^j` is what layer j gives once the layers before it have been
    interpolated, :math:`r^j` its reference, :math:`v^j` what the rest of the model goes on from.

    On a CNN a layer is a feature map, and channels are averaged in the end; at the image they are summed, so that
    ``iia(layers=(0,))`` is ``ig(rule='right')`` itself. On a transformer a layer is the attention probabilities of a
    block: with the reference zero the factor :math:`u^l - r^l` is the attention itself, a matrix from tokens to tokens
    per head like its gradient. It multiplies the integrand entry by entry, heads are averaged, and the row that the
    classifier reads is the map. A rollout takes part in all blocks, and comes with every start block.

    Attributes:
        layers: what is integrated over, from the image on: 0 is the image, -1 the last layer (of a CNN the default CAM
            layer, of a transformer the last block), -2 the stage or block before it, 1 the first; a string names a
            cut, or an attention such as ``block.3.probabilities``.
        layer: where the map is made, counted in the same way; None is the last of `layers`.
        integrand: gradient; activation_gradient, the paper's on CNNs; or gradient_rollout, the paper's on
            transformers: the positive part of attention times gradient, heads averaged, followed through all blocks.
            None is the paper's, and gradient at the image.
        steps: points on each path.
        rule: how they lie: right (the paper's k/n), gauss_legendre or trapezoid.
        reference: of inner layers: channel_min, the smallest value of each channel or head (the paper's on CNNs); zero
            (the paper's on attention); or noise: with each channel's own mean and deviation, or attention at random.
            None is the paper's.
        blank: the reference of the image: zero (the mean colour), channel_min, noise, black, white, mean or blur.
        rollout: how gradient_rollout joins blocks: product, or sum, which the paper finds comparable.
        seed: of the noise.
    """

    layers: tuple[Layer, ...] = (0, -1)
    layer: Layer | None = None
    integrand: IntegrandName | None = None
    steps: int = 10
    rule: Rule = "right"
    reference: Reference | None = None
    blank: Blank = "zero"
    rollout: Joining = "product"
    seed: int = 0

    def __post_init__(self) -> None:
        check_steps(self.steps)
        if not self.layers:
            raise RecipeError("got layers=(); name at least one layer, 0 for the image")

    def multi_target(
        self, model: Adapter, images: Tensor, targets: Sequence[Target], *, every_layer: bool = False
    ) -> list[Attribution]:
        stops = self._stops(model)
        integrand = self._chosen(model, stops)
        if isinstance(model, VisionTransformer) and stops[-1].site != IMAGE:
            reference = self.reference or "zero"
            return attention_maps(
                model, images, targets, stops, integrand, self.rollout, reference, self.blank, self.seed
            )
        reference = self.reference or "channel_min"
        found = MapIntegral(model, images, targets, stops, INTEGRANDS[integrand], reference, self.blank, self.seed)()
        maps = found.sum(dim=2) if stops[-1].site == IMAGE else found.mean(dim=2)
        return [Attribution(values[None], map_grid(values, images)) for values in maps.unbind(dim=1)]

    def multi_target_cost(self, model: Adapter, count: int, *, every_layer: bool = False) -> Passes:
        stops = self._stops(model)
        if isinstance(model, VisionTransformer) and stops[-1].site != IMAGE:
            return attention_cost(model, stops, watched_sites(model, stops, self._chosen(model, stops)), count)
        return map_cost(model, stops, count)

    def _stops(self, model: Adapter) -> tuple[Stop, ...]:
        return route(model, self.layers, self.layer, self.steps, self.rule)

    def _chosen(self, model: Adapter, stops: tuple[Stop, ...]) -> str:
        """Return the integrand, the paper's where none is asked for."""
        end = stops[-1].site
        if isinstance(model, VisionTransformer) and end != IMAGE:
            return self.integrand or "gradient_rollout"
        if self.integrand == "gradient_rollout":
            raise RecipeError(
                f"got integrand='gradient_rollout' at the layer {end!r} of {model.name}, which is no attention; "
                "choose gradient or activation_gradient"
            )
        return self.integrand or ("gradient" if end == IMAGE else "activation_gradient")


def check_steps(steps: int) -> None:
    """Refuse a path without points."""
    if steps < 1:
        raise RecipeError(f"got steps={steps}; at least one step is needed")
