"""LIFT-CAM: channels weighted by their Shapley values, as DeepLIFT approximates them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sightline.methods.cam.base import weighted
from sightline.methods.cam.fusion import Fusion, Layers, check_layers, several_layers, several_layers_cost
from sightline.methods.gradient.deep_lift import check_sum
from sightline.methods.multi_target import MultiTarget
from sightline.models.adapter import Adapter
from sightline.models.backward.deeplift import DeepLiftBackward, RecordCalls
from sightline.models.batch import in_batches
from sightline.models.cnn.adapter import Convolutional
from sightline.registry import METHODS
from sightline.types import Attribution, Passes, Target, map_grid


@METHODS.register(
    "lift_cam",
    family="cam",
    cite="jung2021",
    cost="1 forward up to the layer, the rest of the model twice, backward from the output to the layer",
    needs=("gradient", "layers", "cuts"),
    parity="Hyungsik-Jung/LIFT-CAM, weights 1e-9",
)
@dataclass(frozen=True, slots=True)
class LiftCam(MultiTarget):
    r"""LIFT-CAM: channels weighted by what they contribute to the score, by DeepLIFT from an empty feature map.

    .. math::
        A_{ij} = \sum_k \alpha_k F_{kij}, \qquad \alpha_k = \sum_{uv} m_{kuv} F_{kuv}, \qquad
        \sum_k \alpha_k = s(F) - s(0)

    where m are DeepLIFT's multipliers through the rest of the model, as in `deep_lift`: the slope of the line between
    both values at every activation function. After a pool of means and a linear layer with weights w,
    :math:`\alpha_k = w_k\, \overline{F_k}`. A model in which the contributions do not add up, because it makes a call
    after the layer that has no rule, is refused.

    Attributes:
        layer: a cut's name or an index; by default the last feature map; or a tuple of them, deepest last, each of
            which costs as much as one.
        fusion: of several layers, each rectified: mean of the maps scaled to [0, 1], as the package grad-cam; tanh
            scales all but the last by tanh(2 m / max m) and takes the largest, as Layer-CAM.
    """

    layer: Layers = None
    fusion: Fusion = "mean"

    def __post_init__(self) -> None:
        check_layers(self.layer)

    def multi_target(
        self, model: Adapter, images: Tensor, targets: Sequence[Target], *, every_layer: bool = False
    ) -> list[Attribution]:
        assert isinstance(model, Convolutional)
        if isinstance(self.layer, tuple):
            return several_layers(self, model, images, targets, self.layer, self.fusion)
        site = model.layer(self.layer)
        activation = model.trunk(images, site)

        def work(part: slice) -> list[Tensor]:
            taken = [target.take(range(len(images))[part]) for target in targets]
            return [found.sum(dim=(2, 3)) for found in _contributions(model, site, activation[part], taken)]

        alphas = map(torch.cat, zip(*in_batches(work, len(images), model.batch), strict=True))
        maps = [weighted(alpha, activation.flatten(2)).unflatten(1, activation.shape[-2:]) for alpha in alphas]
        return [Attribution(values[None], map_grid(values, images)) for values in maps]

    def multi_target_cost(self, model: Adapter, count: int, *, every_layer: bool = False) -> Passes:
        assert isinstance(model, Convolutional)
        if isinstance(self.layer, tuple):
            return several_layers_cost(self, model, count, self.layer)
        site = model.layer(self.layer)
        share = model.share(site)
        return Passes(share + model.blank_images(site, 2) * share + 2 * (1 - share), count * (1 - share))


def _contributions(model: Convolutional, site: str, activation: Tensor, targets: Sequence[Target]) -> list[Tensor]:
    """Return what each value of an activation, (batch, channel, height, width), contributes to each target."""
    recorded = RecordCalls()
    with torch.inference_mode(False), torch.enable_grad():
        empty = torch.zeros_like(activation).requires_grad_()
        with recorded:
            logits = model.tail(empty, site)
            low = [target(logits).detach() for target in targets]
        full = activation.detach().clone().requires_grad_()
        with DeepLiftBackward(recorded.calls):
            logits = model.tail(full, site)
            scores = [target(logits) for target in targets]
    found = [gradients[site] * activation for gradients in model.gradients_each(scores, {site: full})]
    for shares, score, start in zip(found, scores, low, strict=True):
        check_sum(model, shares, score.detach(), start, instead="ablation_cam")
    return found
