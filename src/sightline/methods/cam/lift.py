"""LIFT-CAM: channels weighted by their Shapley values, as DeepLIFT approximates them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sightline.methods.cam.base import LayeredCam, weighted
from sightline.methods.cam.fusion import Fusion, Layers
from sightline.methods.gradient.deep_lift import check_sum
from sightline.models.adapter import Adapter
from sightline.models.backward.deeplift import DeepLiftBackward, RecordCalls, saving_nothing
from sightline.models.cnn.adapter import Convolutional
from sightline.models.memory import held
from sightline.models.passes import in_batches
from sightline.registry import METHODS
from sightline.types import Passes, Target


@METHODS.register(
    "lift_cam",
    family="cam",
    cite="jung2021",
    cost="1 forward up to the layer, the rest of the model twice, backward from the output to the layer",
    needs=("gradient", "layers", "cuts"),
    parity="Hyungsik-Jung/LIFT-CAM, weights 1e-9",
)
@dataclass(frozen=True, slots=True)
class LiftCam(LayeredCam):
    r"""LIFT-CAM: channels weighted by their DeepLIFT contributions to the score, with zero activation as baseline.

    .. math::
        A_{ij} = \sum_k \alpha_k F_{kij}, \qquad \alpha_k = \sum_{uv} m_{kuv} F_{kuv}, \qquad
        \sum_k \alpha_k = s(F) - s(0)

    where m are the multipliers of DeepLIFT's rescale rule through the rest of the model, as in `deep_lift`. After
    global average pooling and a linear layer with weights w, :math:`\alpha_k = w_k\, \overline{F_k}`. A model in which
    the contributions do not add up, because it makes a call after the layer that has no rule, is refused. Each of
    several layers costs as much as one.
    """

    layer: Layers = None
    fusion: Fusion = "mean"

    def maps_at(
        self, model: Adapter, images: Tensor, targets: Sequence[Target], sites: Sequence[str]
    ) -> list[list[Tensor]]:
        assert isinstance(model, Convolutional)
        return [_maps(model, images, targets, site) for site in sites]

    def cost_at(self, model: Adapter, count: int, sites: Sequence[str]) -> Passes:
        assert isinstance(model, Convolutional)
        return sum((_cost(model, count, site) for site in sites), Passes())

    def peak(self, model: Adapter) -> int:
        """Return the bytes held for one image: a forward pass, and behind the layer what DeepLIFT holds."""
        share = max(model.remaining(site) for site in self.sites(model))
        return held(model, forwards=1, graphs=2 * share)


def _maps(model: Convolutional, images: Tensor, targets: Sequence[Target], site: str) -> list[Tensor]:
    activation = model.trunk(images, site)

    def work(part: slice) -> list[Tensor]:
        taken = [target.take(range(len(images))[part]) for target in targets]
        return [each.sum(dim=(2, 3)) for each in _contributions(model, site, activation[part], taken)]

    alphas = map(torch.cat, zip(*in_batches(work, len(images), model.batch), strict=True))
    return [weighted(alpha, activation.flatten(2)).unflatten(1, activation.shape[-2:]) for alpha in alphas]


def _cost(model: Convolutional, count: int, site: str) -> Passes:
    share = model.share(site)
    return Passes(share + model.blank_images(site, 2) * share + 2 * (1 - share), count * (1 - share))


def _contributions(model: Convolutional, site: str, activation: Tensor, targets: Sequence[Target]) -> list[Tensor]:
    """Return what each value of an activation, (batch, channel, height, width), contributes to each target."""
    recorded = RecordCalls()
    with torch.inference_mode(False), torch.enable_grad():
        baseline = torch.zeros_like(activation).requires_grad_()
        with saving_nothing(), recorded:
            logits = model.tail(baseline, site)
            baseline_scores = [target(logits).detach() for target in targets]
        own = activation.detach().clone().requires_grad_()
        with DeepLiftBackward(recorded.calls):
            logits = model.tail(own, site)
            scores = [target(logits) for target in targets]
    contributions = [gradients[site] * activation for gradients in model.gradients_each(scores, {site: own})]
    for contribution, score, baseline_score in zip(contributions, scores, baseline_scores, strict=True):
        check_sum(model, contribution, score.detach(), baseline_score, instead="ablation_cam")
    return contributions
