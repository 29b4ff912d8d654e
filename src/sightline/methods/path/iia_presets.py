"""The iterated integrals of the paper: over two and three layers, and its ablations with one."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

from torch import Tensor

from sightline.errors import RecipeError
from sightline.methods.path.baselines import ImageBaseline, LayerBaseline
from sightline.methods.path.iia import IiaOptions, IteratedIntegral
from sightline.methods.path.iia_layers import LayerName, Path
from sightline.methods.path.iia_released import (
    released_attention,
    released_attention_cost,
    released_cost,
    released_maps,
    released_path,
)
from sightline.methods.path.iia_vit import attention_peak
from sightline.methods.path.integrands import Joining
from sightline.models.adapter import Adapter
from sightline.models.cnn.adapter import Convolutional
from sightline.models.vit.adapter import VisionTransformer
from sightline.registry import METHODS, spec_of
from sightline.types import Attribution, Passes, Target

Variant = Literal["paper", "released"]
PAPER_STEPS, RELEASED_ATTENTION_STEPS = 10, 5
SHARED = ("reference", "blank", "rollout", "seed")  # options that are passed on to the general form as they are


class Preset(IiaOptions):
    """An iterated integral with a name of its own, as in the paper or as in the released code.

    Attributes:
        layer: the inner layer: -1 the last, -2 the one before it (the paper's ablation), or a name.
        steps: n, the number of points on each path; None is the paper's 10, or the 5 that the released code has for
            transformers.
        variant: paper, or released for the authors' code, which differs from the paper.
    """

    __slots__ = ()
    steps: int | None
    variant: Variant

    @property
    @abstractmethod
    def layers(self) -> tuple[LayerName, ...]:
        """The integrated layers."""

    @property
    def map_layer(self) -> LayerName | None:
        """The layer of the map where it is not the last integrated one."""
        return None

    @property
    def general(self) -> IteratedIntegral:
        """The same integral as an `iia`."""
        names = [field.name for field in fields(self)]  # type: ignore[arg-type]
        shared: dict[str, Any] = {name: getattr(self, name) for name in SHARED if name in names}
        return IteratedIntegral(self.layers, self.map_layer, steps=self.steps or PAPER_STEPS, **shared)

    def __post_init__(self) -> None:
        default = IteratedIntegral()
        for name in SHARED:
            if self.variant == "released" and getattr(self.general, name) != getattr(default, name):
                raise RecipeError(f"got {name} with variant='released', which has its own; leave {name} out")

    def multi_target(
        self, model: Adapter, images: Tensor, targets: Sequence[Target], *, every_layer: bool = False
    ) -> list[Attribution]:
        if self.variant == "paper":
            return self.general.multi_target(model, images, targets)
        path = self._released_path(model)
        if isinstance(model, Convolutional):
            return released_maps(spec_of(self).name, model, images, targets, path)
        return released_attention(model, images, targets, path)

    def multi_target_cost(self, model: Adapter, count: int, *, every_layer: bool = False) -> Passes:
        if self.variant == "paper":
            return self.general.multi_target_cost(model, count)
        path = self._released_path(model)
        if isinstance(model, Convolutional):
            return released_cost(spec_of(self).name, model, path, count)
        return released_attention_cost(model, path, count)

    def peak(self, model: Adapter) -> int:
        """Return the bytes held for one image, on a transformer of every point that runs at once."""
        if self.variant == "paper":
            return self.general.peak(model)
        if isinstance(model, VisionTransformer):
            return attention_peak(model, self._released_path(model), model.every("probabilities"))
        return model.peak(self.multi_target_cost(model, 1))

    def _released_path(self, model: Adapter) -> Path:
        default = PAPER_STEPS if isinstance(model, Convolutional) else RELEASED_ATTENTION_STEPS
        return released_path(model, self.layers, self.map_layer, self.steps or default)


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
    r"""IIA2: iterated integrated attributions over the image and the last layer.

    .. math:: m = \frac{1}{n^2} \sum_{k_0=1}^n (u - r) \odot \sum_{k=1}^n q(v), \qquad
        u = h\bigl(\tfrac{k_0}{n}\,x\bigr), \quad v = r + \tfrac{k}{n}\,(u - r)

    On a CNN :math:`u` is the last feature map, :math:`r` the minimum of each channel,
    :math:`q = v \odot \partial s/\partial v`, and channels are averaged. On a transformer :math:`u` is the attention of
    the last block, :math:`r = 0`, and :math:`q` the rollout of attention times its positive gradient through all
    blocks; :math:`u \odot q` is averaged over heads and read at the classifier's row.

    The released code has :math:`k = 0 \dots n`, does not interpolate at the layer of a CNN, and leaves out the factor
    :math:`u - r`. On a ViT-Tiny it is cheaper and localises better than the paper's form: see ``docs/guide/iia.md``.
    """

    layer: LayerName = -1
    steps: int | None = None
    variant: Variant = "paper"
    reference: LayerBaseline | None = None
    blank: ImageBaseline = "zero"
    rollout: Joining = "product"
    seed: int = 0

    @property
    def layers(self) -> tuple[LayerName, ...]:
        return (0, self.layer)


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
    r"""IIA3: iterated integrated attributions over the image and the last two layers.

    .. math:: m = \frac{1}{n^3} \sum_{k_0=1}^n \sum_{k_1=1}^n (u - r) \odot \sum_{k=1}^n q(v), \qquad
        v_1 = r_1 + \tfrac{k_1}{n}\,(u_1 - r_1), \quad u = h(v_1), \quad v = r + \tfrac{k}{n}\,(u - r)

    where :math:`u_1` is the layer before the last for the image :math:`\tfrac{k_0}{n}\,x`; the rest is as in ``iia2``.
    The released code, for CNNs alone, has :math:`k = 0 \dots n`, the minimum over the interpolated images as the
    baseline of both layers, and sums :math:`\bigl(v^+ \odot \partial s/\partial v\bigr)^+` without the factor
    :math:`u - r`. On transformers variant='released' extends what it does for ``iia2``.
    """

    steps: int | None = None
    variant: Variant = "paper"
    reference: LayerBaseline | None = None
    blank: ImageBaseline = "zero"
    rollout: Joining = "product"
    seed: int = 0

    @property
    def layers(self) -> tuple[LayerName, ...]:
        return (0, -2, -1)


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
    r"""IMG, an ablation of IIA: the path integral over the image alone, with the map at the last layer.

    .. math:: m = \frac{1}{n} \sum_{k_0=1}^n (u - r) \odot q(u), \qquad u = h\bigl(\tfrac{k_0}{n}\,x\bigr)

    with layer, baseline and integrand of ``iia2``. The released code, for CNNs, sums
    :math:`u^+ \odot (\partial s/\partial u)^+` over :math:`k_0 = 0 \dots n`.

    Attributes:
        layer: where the map is made: -1 the last layer, -2 the one before it, or a name.
    """

    layer: LayerName = -1
    steps: int | None = None
    variant: Variant = "paper"
    reference: LayerBaseline | None = None
    blank: ImageBaseline = "zero"
    rollout: Joining = "product"
    seed: int = 0

    @property
    def layers(self) -> tuple[LayerName, ...]:
        return (0,)

    @property
    def map_layer(self) -> LayerName:
        return self.layer


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
    r"""ACT, an ablation of IIA: the path integral over the last layer alone.

    .. math:: m = \frac{1}{n}\, (u - r) \odot \sum_{k=1}^n q(v), \qquad u = h(x), \quad v = r + \tfrac{k}{n}\,(u - r)

    with layer, baseline and integrand of ``iia2``. The released code, for CNNs, interpolates nothing by mistake:
    :math:`(n + 1)\, u^+ \odot (\partial s/\partial u)^+`.
    """

    layer: LayerName = -1
    steps: int | None = None
    variant: Variant = "paper"
    reference: LayerBaseline | None = None
    rollout: Joining = "product"
    seed: int = 0

    @property
    def layers(self) -> tuple[LayerName, ...]:
        return (self.layer,)
