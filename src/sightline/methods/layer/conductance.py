"""Layer conductance and internal influence: integrated gradients read at the cells of a layer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from sightline.errors import RecipeError
from sightline.methods.cam.base import activation_and_gradients
from sightline.methods.cam.fusion import Layer
from sightline.methods.multi_target import MultiTarget
from sightline.methods.path.quadrature import Rule, quadrature
from sightline.models.adapter import Adapter
from sightline.perturb.fill import make_fill
from sightline.registry import METHODS
from sightline.types import Attribution, Passes, Target, map_grid

Blank = Literal["zero", "black", "white", "mean", "blur"]
Point = tuple[int, Tensor, list[Tensor]]


def along_the_line(
    model: Adapter, images: Tensor, baseline: Tensor, nodes: Tensor, targets: Sequence[Target], site: str
) -> Iterator[Point]:
    """Yield the layer's activation and each target's gradient at points between baseline and image, in order.

    Each point comes with its number; activation and gradients are (batch, channel, height, width).
    """
    at_once = max(1, model.batch // len(images))
    for first in range(0, len(nodes), at_once):
        some = nodes[first : first + at_once]
        rows = list(range(len(images))) * len(some)
        share = some.repeat_interleave(len(images))[:, None, None, None]
        starts, ways = (x.repeat(len(some), 1, 1, 1) for x in (baseline, images - baseline))
        points = starts + share * ways
        activation, gradients = activation_and_gradients(model, points, [t.take(rows) for t in targets], site)
        for index in range(len(some)):
            part = slice(index * len(images), (index + 1) * len(images))
            yield first + index, activation[part], [gradient[part] for gradient in gradients]


@METHODS.register(
    "conductance",
    family="layer",
    cite="dhamdhere2019",
    cost="steps + 1 forward, as many backward from the output to the layer",
    needs=("gradient", "layers"),
    parity="captum LayerConductance (trapezoid nodes), CNN and ViT, 1e-5, the precision of its nodes",
)
@dataclass(frozen=True, slots=True)
class Conductance(MultiTarget):
    r"""Layer conductance: the flow of integrated gradients through the cells of a layer.

    .. math:: A_{ij} = \sum_k \int_0^1 \frac{\partial s}{\partial F_{kij}}\, \frac{d F_{kij}}{dt}\, dt
        \approx \sum_k \sum_{m=0}^{n-1} \frac{\partial s}{\partial F_{kij}}(t_m)\,
        \bigl(F_{kij}(t_{m+1}) - F_{kij}(t_m)\bigr)

    where :math:`F(t)` is the layer's activation on the image :math:`x' + t (x - x')` and :math:`t_m = m/n`. Complete at
    any layer that every path passes: over all cells, prefix tokens included, it sums to :math:`s(x) - s(x')`, up to the
    error of the sum. ``ig`` is its counterpart at the pixels.

    Attributes:
        steps: of the path.
        layer: a layer's name or index, by default that of class activation maps.
        blank: the baseline: zero (the mean colour), black, white, mean or blur.
    """

    steps: int = 50
    layer: Layer = None
    blank: Blank = "zero"

    def __post_init__(self) -> None:
        make_fill(self.blank)
        if self.steps < 1:
            raise RecipeError(f"got steps={self.steps}; at least one step is needed")

    def multi_target(
        self, model: Adapter, images: Tensor, targets: Sequence[Target], *, every_layer: bool = False
    ) -> list[Attribution]:
        nodes = torch.linspace(0, 1, self.steps + 1, dtype=torch.float64).to(images)
        baseline, site = make_fill(self.blank)(model, images), model.layer(self.layer)
        before: Point | None = None
        totals: list[Tensor] = []
        for point in along_the_line(model, images, baseline, nodes, targets, site):
            if before is not None:
                change = point[1] - before[1]
                steps = [(gradient * change).sum(dim=1) for gradient in before[2]]
                totals = [a + b for a, b in zip(totals, steps, strict=True)] if totals else steps
            before = point
        return [Attribution(total[None], map_grid(total, images)) for total in totals]

    def multi_target_cost(self, model: Adapter, count: int, *, every_layer: bool = False) -> Passes:
        points = self.steps + 1
        return Passes(points, points * count * model.remaining(model.layer(self.layer)))


@METHODS.register(
    "internal_influence",
    family="layer",
    cite="leino2018",
    cost="steps forward, as many backward from the output to the layer",
    needs=("gradient", "layers"),
    parity="captum InternalInfluence (Gauss-Legendre and right sums), CNN and ViT, 1e-5, the precision of its nodes",
)
@dataclass(frozen=True, slots=True)
class InternalInfluence(MultiTarget):
    r"""Internal influence: the gradient at a layer, averaged along the line from a baseline to the image.

    .. math:: A_{ij} = \sum_k \int_0^1 \frac{\partial s}{\partial F_{kij}}\bigl(x' + t\,(x - x')\bigr)\, dt

    where :math:`F` is the layer's activation. A sensitivity of the score to the layer, over a range of images between
    baseline and image instead of at the image alone; the activation itself is not multiplied in.

    Attributes:
        steps: points on the path.
        rule: the quadrature: gauss_legendre, right (k/n) or trapezoid.
        layer: a layer's name or index, by default that of the stage, or the block, before the last: after the last
            feature map most CNNs are linear, and the influence of every cell is the same.
        blank: the baseline: zero (the mean colour), black, white, mean or blur.
    """

    steps: int = 50
    rule: Rule = "gauss_legendre"
    layer: Layer = -2
    blank: Blank = "zero"

    def __post_init__(self) -> None:
        make_fill(self.blank)
        if self.steps < 1:
            raise RecipeError(f"got steps={self.steps}; at least one step is needed")

    def multi_target(
        self, model: Adapter, images: Tensor, targets: Sequence[Target], *, every_layer: bool = False
    ) -> list[Attribution]:
        nodes, weights = (x.to(images) for x in quadrature(self.rule, self.steps))
        baseline, site = make_fill(self.blank)(model, images), model.layer(self.layer)
        totals: list[Tensor] = []
        for number, _, gradients in along_the_line(model, images, baseline, nodes, targets, site):
            parts = [weights[number] * gradient.sum(dim=1) for gradient in gradients]
            totals = [a + b for a, b in zip(totals, parts, strict=True)] if totals else parts
        return [Attribution(total[None], map_grid(total, images)) for total in totals]

    def multi_target_cost(self, model: Adapter, count: int, *, every_layer: bool = False) -> Passes:
        return Passes(self.steps, self.steps * count * model.remaining(model.layer(self.layer)))
