"""Class activation maps without gradients: take each channel away, or show the image through it, and look."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from sightline.errors import SiteError
from sightline.methods.cam.base import weighted
from sightline.methods.cam.fusion import Fusion, Layers, check_layers, several_layers, several_layers_cost
from sightline.methods.multi_target import MultiTarget
from sightline.methods.scored import score_cells, scored
from sightline.models.adapter import Adapter
from sightline.models.batch import in_batches
from sightline.models.cnn.adapter import Convolutional
from sightline.models.vit.adapter import VisionTransformer
from sightline.registry import METHODS
from sightline.types import Attribution, Passes, Target, map_grid

OF_TOKENS = ("input", "norm1", "attention", "norm2", "mlp", "output")


def channels_at(model: Adapter, site: str) -> int:
    """Return how many channels a site has; refuse one that is no map of channels."""
    if isinstance(model, Convolutional):
        return model.channels(site)
    assert isinstance(model, VisionTransformer)
    if site != "norm" and site.rpartition(".")[2] not in OF_TOKENS:
        raise SiteError(f"the site {site!r} of {model.name} holds no tokens; choose another, such as {model.layer()!r}")
    norm, joint = model.blocks[0].norm1, model.blocks[0].queries_keys_values
    weight = getattr(norm, "weight", None) if joint is None else joint
    if weight is None:
        raise SiteError(f"cannot tell how many channels the tokens of {model.name} have; use grad_cam")
    return int(weight.shape[-1])


def activation_and_logits(model: Adapter, images: Tensor, site: str, *more: str) -> tuple[dict[str, Tensor], Tensor]:
    """Return what sites hold, by name and as the model keeps it, and the logits; all from one pass forward."""
    if isinstance(model, Convolutional) and site not in model.sites:  # a cut that is no module's output
        activation = model.trunk(images, site)
        return {site: activation}, model.tail(activation, site)
    with model.capture(site, *more) as seen:
        logits = model(images)
    if isinstance(model, Convolutional):
        return {site: model.to_map(site, seen[site], images)}, logits
    return dict(seen), logits


def as_map(values: Tensor, images: Tensor) -> Attribution:
    """Wrap the maps of one layer, (batch, height, width)."""
    return Attribution(values[None], map_grid(values, images))


@METHODS.register(
    "ablation_cam",
    family="cam",
    cite="desai2020",
    cost="1 forward, and the part of the model after the layer once per channel",
    needs=("layers",),
    parity="grad-cam AblationCAM, CNN, 1e-5",
)
@dataclass(frozen=True, slots=True)
class AblationCam(MultiTarget):
    r"""Ablation-CAM: channels weighted by the part of the score that is lost when they are set to zero.

    .. math:: A_{ij} = \sum_k \frac{s(F) - s(F_{\setminus k})}{s(F)}\, F_{kij}

    where :math:`F_{\setminus k}` is the layer's activation without its channel k. Only the part of the model after the
    layer runs again, or all of it where there are ways past the layer, as past a convolution inside a residual block.
    On a transformer a channel is that of all tokens, prefix included, and the blocks run again from the layer's own on.
    A score below zero turns every sign round, as the formula has it. Any number of targets costs the same.

    Attributes:
        layer: a cut's or site's name or an index; by default the right one for the model; or a tuple of them, deepest
            last, each of which costs as much as one.
        variant: "paper" sets a channel to zero; "pgc", like the package grad-cam, to the image's smallest activation
            minus 10⁷ unless that smallest is zero, which no model with a norm after the layer survives.
        fusion: of several layers, each rectified: mean of the maps scaled to [0, 1], as the package grad-cam; tanh
            scales all but the last by tanh(2 m / max m) and takes the largest, as Layer-CAM.
    """

    layer: Layers = None
    variant: Literal["paper", "pgc"] = "paper"
    fusion: Fusion = "mean"

    def __post_init__(self) -> None:
        check_layers(self.layer)

    def multi_target(
        self, model: Adapter, images: Tensor, targets: Sequence[Target], *, every_layer: bool = False
    ) -> list[Attribution]:
        if isinstance(self.layer, tuple):
            return several_layers(self, model, images, targets, self.layer, self.fusion)
        site = model.layer(self.layer)
        channels_at(model, site)
        if isinstance(model, VisionTransformer):
            activation, clean, without = self._of_tokens(model, images, site)
        else:
            assert isinstance(model, Convolutional)
            activation, clean, without = self._of_maps(model, images, site)
        return [as_map(_explained(activation, clean, without, target), images) for target in targets]

    def _of_maps(self, model: Convolutional, images: Tensor, site: str) -> tuple[Tensor, Tensor, Tensor]:
        """Return the activation, the logits, and the logits without each channel, (batch, channel, class)."""
        seen, clean = activation_and_logits(model, images, site)
        activation = seen[site]

        def rerun(row: int, channels: Tensor) -> Tensor:
            ablated = self._without(activation[row], channels)
            if site in model.cuts:
                return model.tail(ablated, site)
            with model.edit({site: model.from_map(site, ablated)}):  # there are ways past this site
                return model(images[row].repeat(len(channels), 1, 1, 1))

        found = [_each_channel(model, activation.shape[1], partial(rerun, row)) for row in range(len(images))]
        return activation, clean, torch.stack(found)

    def _of_tokens(self, model: VisionTransformer, images: Tensor, site: str) -> tuple[Tensor, Tensor, Tensor]:
        """Do the same to tokens."""
        before, first = _entrance(model, site)
        seen, clean = activation_and_logits(model, images, site, before)

        def rerun(row: int, channels: Tensor) -> Tensor:
            ablated = self._without(seen[site][row].T, channels).transpose(1, 2)
            if before == site:
                return model.finish(model.run(ablated, first))
            with model.edit({site: ablated}):
                return model.finish(model.run(seen[before][row].repeat(len(channels), 1, 1), first))

        width = seen[site].shape[-1]
        found = [_each_channel(model, width, partial(rerun, row)) for row in range(len(images))]
        return model.to_map(site, seen[site], images), clean, torch.stack(found)

    def _without(self, one: Tensor, channels: Tensor) -> Tensor:
        """Copy an activation, (channel, ...), and take one of these channels away from each copy."""
        smallest = float(one.min())
        copies = one.repeat(len(channels), *[1] * one.ndim)
        far_below = self.variant == "pgc" and smallest != 0
        copies[torch.arange(len(channels)), channels] = smallest - 1e7 if far_below else 0.0
        return copies

    def multi_target_cost(self, model: Adapter, count: int, *, every_layer: bool = False) -> Passes:
        if isinstance(self.layer, tuple):
            return several_layers_cost(self, model, count, self.layer)
        site = model.layer(self.layer)
        channels = channels_at(model, site)
        if isinstance(model, VisionTransformer):
            return Passes(1 + channels * (1 - _entrance(model, site)[1] / model.depth))
        assert isinstance(model, Convolutional)
        if site not in model.cuts:
            return Passes(1 + channels)
        share = model.share(site)
        batches = [min(model.batch, channels - first) for first in range(0, channels, model.batch)]
        whole = 1.0 if site in model.sites else 1.0 + model.blank_images(site, 1) * share
        return Passes(whole + sum(model.blank_images(site, size) * share + size * (1 - share) for size in batches))


def _each_channel(model: Adapter, count: int, work: Callable[[Tensor], Tensor]) -> Tensor:
    """Do some work for every channel, some channels at a time."""
    channels = torch.arange(count, device=model.device)
    return torch.cat(in_batches(lambda part: work(channels[part]), count, model.batch))


def _entrance(model: VisionTransformer, site: str) -> tuple[str, int]:
    """Return the last site of the whole residual stream before a site, and the block to run from there."""
    if site == "norm":
        return f"block.{model.depth - 1}.output", model.depth
    _, index, place = site.split(".")
    return (site, int(index) + 1) if place == "output" else (f"block.{index}.input", int(index))


def _explained(activation: Tensor, clean: Tensor, without: Tensor, target: Target) -> Tensor:
    score = target(clean)[:, None]
    size = score.abs().clamp(min=1e-7)
    divisor = torch.where(score < 0, -size, size)
    weights = (score - score_cells(without, target)) / divisor
    values: Tensor = weighted(weights, activation.flatten(2)).unflatten(1, activation.shape[-2:])
    return values


@METHODS.register(
    "score_cam",
    family="cam",
    cite="wang2020",
    cost="1 forward, and 1 more per channel",
    needs=("layers",),
    parity="grad-cam ScoreCAM, CNN and ViT, 1e-5; haofanwang/Score-CAM, 1e-9",
)
@dataclass(frozen=True, slots=True)
class ScoreCam(MultiTarget):
    r"""Score-CAM: channels weighted by the score of the image seen through them.

    .. math::
        A_{ij} = \sum_k w_k F_{kij}, \qquad w = \operatorname{softmax}_k\, s(x \odot H_k), \qquad
        H_k = \frac{\operatorname{up}(F_k) - \min}{\max - \min}

    where :math:`\operatorname{up}` enlarges a channel to the size of the image. The image is masked after it was
    normalised, so what is hidden turns into the mean colour. Any number of targets costs the same.

    Attributes:
        layer: a cut's or site's name or an index; by default the right one for the model; or a tuple of them, deepest
            last, each of which costs as much as one.
        variant: "pgc", as above, corners aligned when enlarging, like the package grad-cam; "authors", as their
            program: the weights are the class probabilities themselves, and constant channels count for nothing;
            "torchcam": scaled before enlarging, weights from the rise of the score over that of the whole image.
        fusion: of several layers, each rectified: mean of the maps scaled to [0, 1], as the package grad-cam; tanh
            scales all but the last by tanh(2 m / max m) and takes the largest, as Layer-CAM.
    """

    layer: Layers = None
    variant: Literal["pgc", "authors", "torchcam"] = "pgc"
    fusion: Fusion = "mean"

    def __post_init__(self) -> None:
        check_layers(self.layer)

    def multi_target(
        self, model: Adapter, images: Tensor, targets: Sequence[Target], *, every_layer: bool = False
    ) -> list[Attribution]:
        if isinstance(self.layer, tuple):
            return several_layers(self, model, images, targets, self.layer, self.fusion)
        site = model.layer(self.layer)
        channels_at(model, site)
        seen, clean = activation_and_logits(model, images, site)
        activation = seen[site] if isinstance(model, Convolutional) else model.to_map(site, seen[site], images)

        def masked(row: int, channels: Tensor) -> Tensor:
            return model(images[row] * self.masks(activation[row, channels], (images.shape[-2], images.shape[-1])))

        width, rows = activation.shape[1], range(len(images))
        logits = torch.stack([_each_channel(model, width, partial(masked, row)) for row in rows])
        flat = activation.flatten(2)
        maps = [weighted(self._weights(flat, clean, logits, target), flat) for target in targets]
        return [as_map(values.unflatten(1, activation.shape[-2:]), images) for values in maps]

    def masks(self, channels: Tensor, size: tuple[int, int]) -> Tensor:
        """Turn channels, (channel, height, width), into masks between 0 and 1, (channel, 1, H, W)."""
        maps = channels[:, None]
        if self.variant == "torchcam":
            return F.interpolate(_to_unit(maps, 1e-8), size, mode="bilinear")
        large = F.interpolate(maps, size, mode="bilinear", align_corners=self.variant == "pgc")
        # the authors divide by the range itself, and skip a channel that has none; its mask is never counted here
        return _to_unit(large, 1e-8 if self.variant == "pgc" else 0.0)

    def _weights(self, flat: Tensor, clean: Tensor, logits: Tensor, target: Target) -> Tensor:
        """Return one weight per channel, (batch, channel)."""
        if self.variant == "authors":
            probabilities = score_cells(logits, scored(target, "probability"))
            return probabilities * (flat.amax(dim=-1) > flat.amin(dim=-1))
        scores = score_cells(logits, target)
        rise = scores - target(clean)[:, None] if self.variant == "torchcam" else scores
        return rise.softmax(dim=-1)

    def multi_target_cost(self, model: Adapter, count: int, *, every_layer: bool = False) -> Passes:
        if isinstance(self.layer, tuple):
            return several_layers_cost(self, model, count, self.layer)
        site = model.layer(self.layer)
        whole = 1.0
        if isinstance(model, Convolutional) and site not in model.sites:
            whole += model.blank_images(site, 1) * model.share(site)
        return Passes(whole + channels_at(model, site))


def _to_unit(maps: Tensor, epsilon: float) -> Tensor:
    low, high = maps.amin(dim=(2, 3), keepdim=True), maps.amax(dim=(2, 3), keepdim=True)
    return (maps - low) / torch.where(high > low, high - low + epsilon, 1.0)
