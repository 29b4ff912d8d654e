"""DeepLIFT averaged over many baselines: DeepSHAP."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sightline.methods.gradient.deep_lift import contributions, pair_memory
from sightline.methods.gradient.gradient import At, on_grid, tokens_or_pixels
from sightline.methods.path.pool import WithBaselines
from sightline.models.adapter import Adapter
from sightline.models.passes import take_rows
from sightline.registry import METHODS
from sightline.types import Attribution, Passes, Target, pixel_grid


@METHODS.register(
    "deep_lift_shap",
    family="gradient",
    cite="lundberg2017",
    cost="2 × samples forward, samples backward",
    needs=("gradient",),
    parity="captum DeepLiftShap on the same baselines, 1e-9; deep_lift averaged over them, 1e-12",
)
@dataclass(frozen=True, slots=True)
class DeepLiftShap(WithBaselines):
    r"""DeepLIFT SHAP: DeepLIFT's contributions averaged over many baseline images.

    .. math::
        A_{\ell,i} = \frac1n \sum_{k=1}^{n} \sum_d m^{(k)}_{\ell,i,d}\,(x_{\ell,i,d} - x'^{(k)}_{\ell,i,d}), \qquad
        \sum_i A_{\ell,i} = s(x) - \frac1n \sum_k s(x'^{(k)})

    where :math:`m^{(k)}` are the multipliers of ``deep_lift`` with the baseline :math:`x'^{(k)}`. The baselines are
    images of a pool, given from Python as ``DeepLiftShap(pool=images)``, or Gaussian noise around a blank image. An
    estimate of Shapley values that does not depend on one choice of baseline.

    Attributes:
        at: tokens or pixels; by default tokens on a transformer.
    """

    at: At = None

    def multi_target(
        self, model: Adapter, images: Tensor, targets: Sequence[Target], *, every_layer: bool = False
    ) -> list[Attribution]:
        at = tokens_or_pixels(model, self.at)
        channels = 1 if at == "pixels" else -1
        totals: list[Tensor] = []  # (layer, batch, pixel or token), one for each target
        for baselines, rows in self.baselines.batches(model, images, _at_once(model)):
            several = [target.take(rows) for target in targets]
            of_targets = contributions(model, take_rows(images, rows), baselines, several, at)
            summed = [torch.stack([x.sum(dim=channels) for x in layers.values()]) for layers in of_targets]
            means = [x.unflatten(1, (len(images), -1)).sum(dim=2) / self.samples for x in summed]
            totals = [a + b for a, b in zip(totals, means, strict=True)] if totals else means
        grid = pixel_grid(images) if at == "pixels" else model.grid_of(images)
        return [on_grid(list(total), grid, at) for total in totals]

    def multi_target_cost(self, model: Adapter, count: int, *, every_layer: bool = False) -> Passes:
        return Passes(2 * self.samples, self.samples * count)

    def peak(self, model: Adapter) -> int:
        """Return the bytes held for one image: what DeepLIFT holds, for the baselines that run at once."""
        return min(_at_once(model), self.samples) * pair_memory(model)


def _at_once(model: Adapter) -> int:
    """Return how many pairs of an image and a baseline run at once."""
    return model.images_at_once(lambda: pair_memory(model))
