"""Successors of Score-CAM: noisy masks (SS-CAM), growing masks (IS-CAM), fewer channels (gScoreCAM)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from sightline.errors import RecipeError
from sightline.methods.cam.ablation import (
    activations_and_logits,
    channels_at,
    each_channel,
    min_max_channels,
    score_cost,
)
from sightline.methods.cam.base import LayerByLayerCam, activation_and_gradients, weighted
from sightline.methods.scored import score_cells
from sightline.models.adapter import Adapter
from sightline.models.cnn.adapter import Convolutional
from sightline.registry import METHODS
from sightline.seeds import generators, normal
from sightline.types import Passes, Target


class RepeatedScoreCam(LayerByLayerCam):
    """Score-CAM whose masked images are scored several times, each time with other masks; a subclass says which."""

    __slots__ = ()
    samples: int

    @abstractmethod
    def changed(self, masks: Tensor, sample: int, generator: torch.Generator) -> Tensor:
        """Return the masks, (channel, 1, height, width), as they are in this sample."""

    def maps_of(self, model: Adapter, images: Tensor, targets: Sequence[Target], site: str) -> list[Tensor]:
        channels_at(model, site)
        seen, clean = activations_and_logits(model, images, site)
        activation = seen[site] if isinstance(model, Convolutional) else model.to_map(site, seen[site], images)
        width, rows = activation.shape[1], range(len(images))
        random = generators(getattr(self, "seed", 0), images)
        increases = [torch.zeros(activation.shape[:2]).to(activation) for _ in targets]

        def masked(row: int, sample: int, channels: Tensor) -> Tensor:
            masks = unit_masks(activation[row, channels], (images.shape[-2], images.shape[-1]))
            return model(images[row] * self.changed(masks, sample, random[row]))

        for sample in range(self.samples):
            logits = torch.stack([each_channel(model, width, partial(masked, row, sample)) for row in rows])
            for increase, target in zip(increases, targets, strict=True):
                increase += (score_cells(logits, target) - target(clean)[:, None]) / self.samples
        flat = activation.flatten(2)
        return [weighted(x.softmax(dim=-1), flat).unflatten(1, activation.shape[-2:]) for x in increases]

    def cost_at(self, model: Adapter, count: int, sites: Sequence[str]) -> Passes:
        each = [score_cost(model, site, self.samples * channels_at(model, site)) for site in sites]
        return sum(each, Passes())


def unit_masks(channels: Tensor, size: tuple[int, int]) -> Tensor:
    """Scale channels, (channel, height, width), to [0, 1] and upsample them: (channel, 1, H, W)."""
    return F.interpolate(min_max_channels(channels[:, None], 1e-8), size, mode="bilinear", align_corners=False)


@METHODS.register(
    "ss_cam",
    family="cam",
    cite="wang2020ss",
    cost="1 forward, and samples more per channel",
    needs=("layers",),
    parity="torchcam SSCAM with the same noise, 1e-5",
)
@dataclass(frozen=True, slots=True)
class SmoothedScoreCam(RepeatedScoreCam):
    r"""SS-CAM: Score-CAM with noise added to the masks, and scores averaged over the noise; no gradients.

    .. math::
        A_{ij} = \sum_k w_k F_{kij}, \qquad
        w = \operatorname{softmax}_k
        \frac1n \sum_{m=1}^{n} \bigl[s\bigl(x \odot (H_k + \sigma\varepsilon_{km})\bigr) - s(x)\bigr]

    where :math:`H_k` is a channel scaled to [0, 1] and upsampled, and :math:`\varepsilon` standard normal noise at
    every pixel, as in the package torchcam. Any number of targets costs the same; each of several layers costs as much
    as one.

    Attributes:
        samples: noisy masks of each channel.
        noise: standard deviation of the noise, for masks between 0 and 1.
        seed: of the noise, which depends on the seed and the image alone.
        variant: "paper" alone.
    """

    samples: int = 35
    noise: float = 2.0
    seed: int = 0
    variant: Literal["paper"] = "paper"

    def __post_init__(self) -> None:
        LayerByLayerCam.__post_init__(self)
        if self.samples < 1 or self.noise < 0:
            raise RecipeError(f"got samples={self.samples}, noise={self.noise}; give 1 or more, and no negative noise")

    def changed(self, masks: Tensor, sample: int, generator: torch.Generator) -> Tensor:
        return masks + self.noise * torch.stack([normal(mask, generator) for mask in masks])


@METHODS.register(
    "is_cam",
    family="cam",
    cite="naidu2020",
    cost="1 forward, and samples more per channel",
    needs=("layers",),
    parity="torchcam ISCAM, 1e-5, with its own coefficients",
)
@dataclass(frozen=True, slots=True)
class IntegratedScoreCam(RepeatedScoreCam):
    r"""IS-CAM: Score-CAM whose masks grow from zero to their full size, and scores integrated; no gradients.

    .. math::
        A_{ij} = \sum_k w_k F_{kij}, \qquad
        w = \operatorname{softmax}_k \frac1n \sum_{m=1}^{n} \bigl[s\bigl(x \odot \tfrac mn H_k\bigr) - s(x)\bigr]

    where :math:`H_k` is a channel scaled to [0, 1] and upsampled. Any number of targets costs the same; each of several
    layers costs as much as one.

    Attributes:
        samples: masks of each channel.
        variant: "paper"; or "torchcam", whose factors are the cumulative sums of m/n, so that with ten samples the last
            mask is 5.5 times its full size.
    """

    samples: int = 10
    variant: Literal["paper", "torchcam"] = "paper"

    def __post_init__(self) -> None:
        LayerByLayerCam.__post_init__(self)
        if self.samples < 1:
            raise RecipeError(f"got samples={self.samples}; at least one mask of each channel is needed")

    def changed(self, masks: Tensor, sample: int, generator: torch.Generator) -> Tensor:
        step = sample + 1
        factor = step * (step + 1) / 2 if self.variant == "torchcam" else step
        return masks * (factor / self.samples)


@METHODS.register(
    "gscore_cam",
    family="cam",
    cite="chen2022gscorecam",
    cost="1 forward, backward to the layer, and 1 forward more per chosen channel",
    needs=("gradient", "layers"),
    parity="score_cam with all channels, 1e-12; the formula written out; no reference numbers",
)
@dataclass(frozen=True, slots=True)
class GradientScoreCam(LayerByLayerCam):
    r"""Gradient-guided Score-CAM (gScoreCAM): Score-CAM of the channels with the largest mean gradient alone.

    .. math::
        A_{ij} = \sum_{k \in T} w_k F_{kij}, \qquad w = \operatorname{softmax}_{k \in T}\, s(x \odot H_k), \qquad
        T = \operatorname{top}_n \overline{\frac{\partial s}{\partial F_k}}

    where :math:`H_k` is a channel upsampled and scaled to [0, 1]. Cheaper than Score-CAM, and without the noise of
    channels that do not matter for the class; made for CLIP.

    Attributes:
        channels: how many are chosen, at most.
        variant: "paper"; or "released", whose softmax is over all channels, a score of 0 in place of those not chosen.
    """

    channels: int = 300
    variant: Literal["paper", "released"] = "paper"

    def __post_init__(self) -> None:
        LayerByLayerCam.__post_init__(self)
        if self.channels < 1:
            raise RecipeError(f"got channels={self.channels}; at least one is needed")

    def maps_of(self, model: Adapter, images: Tensor, targets: Sequence[Target], site: str) -> list[Tensor]:
        channels_at(model, site)
        activation, gradients = activation_and_gradients(model, images, targets, site)
        pairs = zip(targets, gradients, strict=True)
        weights = [self._weights(model, images, target, activation, gradient) for target, gradient in pairs]
        flat = activation.flatten(2)
        return [weighted(each, flat).unflatten(1, activation.shape[-2:]) for each in weights]

    def _weights(self, model: Adapter, images: Tensor, target: Target, activation: Tensor, gradient: Tensor) -> Tensor:
        """Return one weight per channel, (batch, channel), zero for those not chosen."""
        count, size = min(self.channels, activation.shape[1]), (images.shape[-2], images.shape[-1])
        chosen = gradient.mean(dim=(2, 3)).topk(count, dim=1).indices
        rows = range(len(images))

        def masked(row: int, some: Tensor) -> Tensor:
            maps = activation[row, chosen[row, some]][:, None]
            masks = F.interpolate(maps, size, mode="bilinear", align_corners=True)
            return model(images[row] * min_max_channels(masks, 1e-6))

        with torch.no_grad():
            logits = torch.stack([each_channel(model, count, partial(masked, row)) for row in rows])
        empty = torch.zeros if self.variant == "released" else partial(torch.full, fill_value=-torch.inf)
        scores = empty(activation.shape[:2]).to(activation)
        return scores.scatter(1, chosen, score_cells(logits, target)).softmax(dim=-1)

    def cost_at(self, model: Adapter, count: int, sites: Sequence[str]) -> Passes:
        chosen = {site: min(self.channels, channels_at(model, site)) for site in sites}
        return sum((Passes(1 + count * n, count * model.remaining(site)) for site, n in chosen.items()), Passes())
