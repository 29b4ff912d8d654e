"""The iterated integrals that have a name: two and three layers, the image alone, one layer alone."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from sightline.errors import RecipeError
from sightline.methods.multi_target import MultiTarget
from sightline.methods.path.baselines import Blank, Reference
from sightline.methods.path.iia import IteratedIntegral, check_steps
from sightline.methods.path.iia_released import (
    released_attention,
    released_attention_cost,
    released_cost,
    released_maps,
    released_stops,
)
from sightline.methods.path.iia_route import Layer, Stop
from sightline.methods.path.integrands import Joining
from sightline.models.adapter import Adapter
from sightline.models.cnn.adapter import Convolutional
from sightline.registry import METHODS, spec_of
from sightline.types import Attribution, Passes, Target

Variant = Literal["paper", "released"]
PAPER_STEPS, RELEASED_ATTENTION_STEPS = 10, 5


class Preset(MultiTarget):
    """An iterated integral with a name of its own, as its authors wrote it or as they released it."""

    __slots__ = ()
    steps: int | None
    variant: Variant

    @property
    @abstractmethod
    def general(self) -> IteratedIntegral:
        """The same integral written out."""

    def __post_init__(self) -> None:
        check_steps(1 if self.steps is None else self.steps)
        usual = IteratedIntegral()
        for name in ("reference", "blank", "rollout", "seed"):
            if self.variant == "released" and getattr(self.general, name) != getattr(usual, name):
                raise RecipeError(f"got {name} with variant='released', which has its own; leave {name} out")

    def multi_target(
        self, model: Adapter, images: Tensor, targets: Sequence[Target], *, every_layer: bool = False
    ) -> list[Attribution]:
        if self.variant == "paper":
            return self.general.multi_target(model, images, targets)
        stops = self._released_stops(model)
        if isinstance(model, Convolutional):
            return released_maps(spec_of(self).name, model, images, targets, stops)
        return released_attention(model, images, targets, stops)

    def multi_target_cost(self, model: Adapter, count: int, *, every_layer: bool = False) -> Passes:
        if self.variant == "paper":
            return self.general.multi_target_cost(model, count)
        stops = self._released_stops(model)
        if isinstance(model, Convolutional):
            return released_cost(spec_of(self).name, model, stops, count)
        return released_attention_cost(model, stops, count)

    def _released_stops(self, model: Adapter) -> tuple[Stop, ...]:
        usual = PAPER_STEPS if isinstance(model, Convolutional) else RELEASED_ATTENTION_STEPS
        return released_stops(model, self.general.layers, self.general.layer, self.steps or usual)


@METHODS.register(
    "iia2",
    family="path",
    cite="iia2023",
    cost="steps forwards up to the layer, steps² forwards and backwards behind it; steps² backwards on transformers",
    needs=("gradient", "layers"),
    parity="released code on a random CNN and ViT and on photographs, 1e-4 and better; closed forms for the paper's",
)
@dataclass(frozen=True, slots=True)
class DoubleIntegral(Preset):
    r"""Iterated integrated attributions over the image and the last layer.

    .. math:: m = \frac{1}{n^2} \sum_{k_0=1}^n (u - r) \odot \sum_{k=1}^n q(v), \qquad
        u = h\bigl(\tfrac{k_0}{n}\,x\bigr), \quad v = r + \tfrac{k}{n}\,(u - r)

    On a CNN :math:`u` is the last feature map, :math:`r` the smallest value of each channel,
    :math:`q = v \odot \partial s/\partial v`, and channels are averaged. On a transformer :math:`u` is the attention of
    the last block, :math:`r = 0`, and :math:`q` the rollout of attention times its positive gradient through all
    blocks; :math:`u \odot q` is averaged over heads and read at the classifier's row. See ``iia`` for the parts.

    The released code takes the points :math:`k = 0 \dots n`. On CNNs its reference equals the activation by mistake,
    so nothing is interpolated at the layer: :math:`\sum_{k_0} u^+ \odot \partial s/\partial u`, channels summed. On
    transformers n is 5, the products of attention and gradient are averaged over all points and rolled out once, there
    is no factor :math:`u - r`, and interpolated attention is a constant to the gradients of earlier blocks.

    On a ViT-Tiny the released form is the better one, and cheaper: AUPR1 88.4 ± 1.3 against 75.8 ± 2.6 on 36 pets. The
    factor :math:`u - r`, the last attention itself, draws the paper's map to the few patches in corners and plain
    ground that this attention dwells on.

    Attributes:
        layer: the inner layer: -1 the last, -2 the one before it (the paper's ablation), or a name.
        steps: n; None is the paper's 10, or the 5 that the released code has for transformers.
        variant: paper, or released.
        reference: of the inner layer: channel_min, zero or noise; None is the paper's.
        blank: the reference of the image: zero (the mean colour), channel_min, noise, black, white, mean or blur.
        rollout: how blocks of a transformer are joined: product or sum.
        seed: of the noise.
    """

    layer: Layer = -1
    steps: int | None = None
    variant: Variant = "paper"
    reference: Reference | None = None
    blank: Blank = "zero"
    rollout: Joining = "product"
    seed: int = 0

    @property
    def general(self) -> IteratedIntegral:
        return IteratedIntegral(
            layers=(0, self.layer),
            steps=self.steps or PAPER_STEPS,
            reference=self.reference,
            blank=self.blank,
            rollout=self.rollout,
            seed=self.seed,
        )


@METHODS.register(
    "iia3",
    family="path",
    cite="iia2023",
    cost="as iia2, with steps² passes between the two layers and steps³ behind them",
    needs=("gradient", "layers"),
    parity="released code on a random CNN, 1e-7; closed forms for the paper's; no released code for transformers",
)
@dataclass(frozen=True, slots=True)
class TripleIntegral(Preset):
    r"""Iterated integrated attributions over the image and the last two layers.

    .. math:: m = \frac{1}{n^3} \sum_{k_0=1}^n \sum_{k_1=1}^n (u - r) \odot \sum_{k=1}^n q(v), \qquad
        v_1 = r_1 + \tfrac{k_1}{n}\,(u_1 - r_1), \quad u = h(v_1), \quad v = r + \tfrac{k}{n}\,(u - r)

    where :math:`u_1` is the layer before the last for the image :math:`\tfrac{k_0}{n}\,x`; the rest is as in ``iia2``.

    The released code, for CNNs alone, takes the points :math:`k = 0 \dots n`, as the reference of both layers the
    smallest activation over the interpolated images, element by element, and sums
    :math:`\bigl(v^+ \odot \partial s/\partial v\bigr)^+` without the factor :math:`u - r`. On transformers
    variant='released' carries on what it does for ``iia2``.

    Attributes:
        steps: n; None is the paper's 10, or the 5 that the released code has for transformers.
        variant: paper, or released.
        reference: of the inner layers: channel_min, zero or noise; None is the paper's.
        blank: the reference of the image: zero (the mean colour), channel_min, noise, black, white, mean or blur.
        rollout: how blocks of a transformer are joined: product or sum.
        seed: of the noise.
    """

    steps: int | None = None
    variant: Variant = "paper"
    reference: Reference | None = None
    blank: Blank = "zero"
    rollout: Joining = "product"
    seed: int = 0

    @property
    def general(self) -> IteratedIntegral:
        return IteratedIntegral(
            layers=(0, -2, -1),
            steps=self.steps or PAPER_STEPS,
            reference=self.reference,
            blank=self.blank,
            rollout=self.rollout,
            seed=self.seed,
        )


@METHODS.register(
    "img",
    family="path",
    cite="iia2023",
    cost="steps forwards, steps backwards behind the layer; steps backwards on transformers",
    needs=("gradient", "layers"),
    parity="released code on a random CNN and a photograph, 1e-7; closed forms for the paper's",
)
@dataclass(frozen=True, slots=True)
class ImageIntegral(Preset):
    r"""The ablation of IIA that interpolates the image alone and makes its map at the last layer.

    .. math:: m = \frac{1}{n} \sum_{k_0=1}^n (u - r) \odot q(u), \qquad u = h\bigl(\tfrac{k_0}{n}\,x\bigr)

    with layer, reference and integrand of ``iia2``. The released code, for CNNs, sums
    :math:`u^+ \odot (\partial s/\partial u)^+` over :math:`k_0 = 0 \dots n`.

    Attributes:
        layer: where the map is made: -1 the last layer, -2 the one before it, or a name.
        steps: n; None is the paper's 10, or the 5 that the released code has for transformers.
        variant: paper, or released.
        reference: of the layer: channel_min, zero or noise; None is the paper's.
        blank: the reference of the image: zero (the mean colour), channel_min, noise, black, white, mean or blur.
        rollout: how blocks of a transformer are joined: product or sum.
        seed: of the noise.
    """

    layer: Layer = -1
    steps: int | None = None
    variant: Variant = "paper"
    reference: Reference | None = None
    blank: Blank = "zero"
    rollout: Joining = "product"
    seed: int = 0

    @property
    def general(self) -> IteratedIntegral:
        return IteratedIntegral(
            layers=(0,),
            layer=self.layer,
            steps=self.steps or PAPER_STEPS,
            reference=self.reference,
            blank=self.blank,
            rollout=self.rollout,
            seed=self.seed,
        )


@METHODS.register(
    "act",
    family="path",
    cite="iia2023",
    cost="1 forward up to the layer, steps forwards and backwards behind it; steps backwards on transformers",
    needs=("gradient", "layers"),
    parity="released code on a random CNN and a photograph, 1e-7; closed forms for the paper's",
)
@dataclass(frozen=True, slots=True)
class LayerIntegral(Preset):
    r"""The ablation of IIA that interpolates the last layer alone.

    .. math:: m = \frac{1}{n}\, (u - r) \odot \sum_{k=1}^n q(v), \qquad u = h(x), \quad v = r + \tfrac{k}{n}\,(u - r)

    with layer, reference and integrand of ``iia2``. The released code, for CNNs, interpolates nothing by mistake:
    :math:`(n + 1)\, u^+ \odot (\partial s/\partial u)^+`.

    Attributes:
        layer: -1 the last layer, -2 the one before it, or a name.
        steps: n; None is the paper's 10, or the 5 that the released code has for transformers.
        variant: paper, or released.
        reference: of the layer: channel_min, zero or noise; None is the paper's.
        rollout: how blocks of a transformer are joined: product or sum.
        seed: of the noise.
    """

    layer: Layer = -1
    steps: int | None = None
    variant: Variant = "paper"
    reference: Reference | None = None
    rollout: Joining = "product"
    seed: int = 0

    @property
    def general(self) -> IteratedIntegral:
        return IteratedIntegral(
            layers=(self.layer,),
            steps=self.steps or PAPER_STEPS,
            reference=self.reference,
            rollout=self.rollout,
            seed=self.seed,
        )
