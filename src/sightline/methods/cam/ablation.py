"""Class activation maps without gradients: Ablation-CAM and Score-CAM."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from sightline.errors import SiteError
from sightline.methods.cam.base import LayerByLayerCam, weighted
from sightline.methods.layer_tail import tails_memory
from sightline.methods.sampling.dropped import DROPPED, dropped_share, with_tokens
from sightline.methods.scored import score_cells, scored
from sightline.models.adapter import Adapter
from sightline.models.cnn.adapter import Convolutional
from sightline.models.passes import in_batches
from sightline.models.vit.adapter import VisionTransformer
from sightline.perturb.tokens import keep_top, run_kept
from sightline.registry import METHODS
from sightline.types import Passes, Target

KEPT = 0.5  # of the patches, where Score-CAM drops the others
TOKEN_SITES = ("input", "norm1", "attention", "norm2", "mlp", "output")


@METHODS.register(
    "ablation_cam",
    family="cam",
    cite="desai2020",
    cost="1 forward, and the part of the model after the layer once per channel",
    needs=("layers",),
    parity="grad-cam AblationCAM, CNN, 1e-5",
)
@dataclass(frozen=True, slots=True)
class AblationCam(LayerByLayerCam):
    r"""Ablation-CAM: channels weighted by the relative drop of the score when each is set to zero; no gradients.

    .. math:: A_{ij} = \sum_k \frac{s(F) - s(F_{\setminus k})}{s(F)}\, F_{kij}

    where :math:`F_{\setminus k}` is the layer's activation without its channel k. Only the part of the model after the
    layer runs again, or all of it where a residual connection bypasses the layer. On a transformer a channel is that of
    all tokens, prefix included, and the blocks run again from the layer's own on. A score below zero flips every sign,
    as the formula has it. Any number of targets costs the same; each of several layers costs as much as one.

    Attributes:
        variant: "paper" sets a channel to zero; "pgc", like the package grad-cam, to the image's smallest activation
            minus 10⁷ unless that smallest is zero, which only models without a norm after the layer survive.
    """

    variant: Literal["paper", "pgc"] = "paper"

    def maps_of(self, model: Adapter, images: Tensor, targets: Sequence[Target], site: str) -> list[Tensor]:
        channels_at(model, site)
        if isinstance(model, VisionTransformer):
            activation, clean, ablated = self._ablate_tokens(model, images, site)
        else:
            assert isinstance(model, Convolutional)
            activation, clean, ablated = self._ablate_maps(model, images, site)
        weights = [_relative_drop(clean, ablated, target) for target in targets]
        return [weighted(each, activation.flatten(2)).unflatten(1, activation.shape[-2:]) for each in weights]

    def _ablate_maps(self, model: Convolutional, images: Tensor, site: str) -> tuple[Tensor, Tensor, Tensor]:
        """Return the activation, the logits, and the logits without each channel, (batch, channel, class)."""
        seen, clean = activations_and_logits(model, images, site)
        activation = seen[site]

        def rerun(row: int, channels: Tensor) -> Tensor:
            ablated = self._without(activation[row], channels)
            if site in model.cuts:
                return model.tail(ablated, site)
            with model.edit({site: model.from_map(site, ablated)}):  # a residual connection bypasses this site
                return model(images[row].repeat(len(channels), 1, 1, 1))

        width, at_once = activation.shape[1], model.tail_batch if site in model.cuts else model.batch
        logits = [each_channel(model, width, partial(rerun, row), at_once) for row in range(len(images))]
        return activation, clean, torch.stack(logits)

    def _ablate_tokens(self, model: VisionTransformer, images: Tensor, site: str) -> tuple[Tensor, Tensor, Tensor]:
        """Return the same for tokens."""
        before, first = _entrance(model, site)
        seen, clean = activations_and_logits(model, images, site, before)

        def rerun(row: int, channels: Tensor) -> Tensor:
            ablated = self._without(seen[site][row].T, channels).transpose(1, 2)
            if before == site:
                return model.logits_of(ablated, first)
            with model.edit({site: ablated}):
                return model.logits_of(seen[before][row].repeat(len(channels), 1, 1), first)

        width = seen[site].shape[-1]
        logits = [each_channel(model, width, partial(rerun, row)) for row in range(len(images))]
        return model.to_map(site, seen[site], images), clean, torch.stack(logits)

    def _without(self, activation: Tensor, channels: Tensor) -> Tensor:
        """Copy an image's activation, (channel, ...), once per channel, and ablate that channel in its copy."""
        smallest = activation.min()
        far_below = torch.where(smallest == 0, smallest, smallest - 1e7)
        blank = far_below if self.variant == "pgc" else torch.zeros_like(smallest)
        copies = activation.repeat(len(channels), *[1] * activation.ndim)
        copies[torch.arange(len(channels), device=channels.device), channels] = blank
        return copies

    def cost_at(self, model: Adapter, count: int, sites: Sequence[str]) -> Passes:
        return sum((_ablation_cost(model, site) for site in sites), Passes())

    def peak(self, model: Adapter) -> int:
        """Return the bytes held for one image: those of a batch of activations behind the earliest layer."""
        site = self.sites(model)[0]
        if isinstance(model, VisionTransformer):
            return tails_memory(model, site, _entrance(model, site)[1])
        bypassed = isinstance(model, Convolutional) and site not in model.cuts
        return model.peak(Passes(model.batch)) if bypassed else tails_memory(model, site)


def _ablation_cost(model: Adapter, site: str) -> Passes:
    channels = channels_at(model, site)
    if isinstance(model, VisionTransformer):
        return Passes(1 + channels * (1 - _entrance(model, site)[1] / model.depth))
    assert isinstance(model, Convolutional)
    if site not in model.cuts:
        return Passes(1 + channels)
    share = model.share(site)
    at_once = model.tail_batch
    batches = [min(at_once, channels - first) for first in range(0, channels, at_once)]
    clean = 1.0 if site in model.sites else 1.0 + model.blank_images(site, 1) * share
    return Passes(clean + sum(model.blank_images(site, size) * share + size * (1 - share) for size in batches))


def _entrance(model: VisionTransformer, site: str) -> tuple[str, int]:
    """Return the last site before this one that holds the whole residual stream, and the block to run from there."""
    if site == "norm":
        return f"block.{model.depth - 1}.output", model.depth
    _, index, part = site.split(".")
    return (site, int(index) + 1) if part == "output" else (f"block.{index}.input", int(index))


def _relative_drop(clean: Tensor, ablated: Tensor, target: Target) -> Tensor:
    """Return the weight of each channel, (batch, channel), from the logits with it and without it."""
    score = target(clean)[:, None]
    size = score.abs().clamp(min=1e-7)
    return (score - score_cells(ablated, target)) / torch.where(score < 0, -size, size)


@METHODS.register(
    "score_cam",
    family="cam",
    cite="wang2020",
    cost="1 forward, and 1 more per channel; half of one with blank='dropped'",
    needs=("layers",),
    parity="grad-cam ScoreCAM, CNN and ViT, 1e-5; haofanwang/Score-CAM, 1e-9",
)
@dataclass(frozen=True, slots=True)
class ScoreCam(LayerByLayerCam):
    r"""Score-CAM: channels weighted by the score of the image masked with each of them; no gradients.

    .. math::
        A_{ij} = \sum_k w_k F_{kij}, \qquad w = \operatorname{softmax}_k\, s(x \odot H_k), \qquad
        H_k = \frac{\operatorname{up}(F_k) - \min}{\max - \min}

    where :math:`\operatorname{up}` upsamples a channel to the size of the image. The normalised image is masked, so
    what is masked out becomes the mean colour. Any number of targets costs the same; each of several layers costs as
    much as one.

    Attributes:
        variant: "pgc", as above, corners aligned when upsampling, like the package grad-cam; "authors", as their
            code: the weights are the class probabilities themselves, and constant channels are left out;
            "torchcam": scaled before upsampling, weights from the increase of the score over that of the whole image.
        blank: what is masked out: mean, the mean colour, in proportion, as above; or dropped: on a transformer the
            tokens of half of the patches are left out instead, those where the channel is smallest. A token is there
            or not, so this mask has a threshold, the channel's median, and its height above it no longer counts.
    """

    variant: Literal["pgc", "authors", "torchcam"] = "pgc"
    blank: Literal["mean", "dropped"] = "mean"

    def maps_of(self, model: Adapter, images: Tensor, targets: Sequence[Target], site: str) -> list[Tensor]:
        channels_at(model, site)
        if self.blank == DROPPED:
            with_tokens(model)
        seen, clean = activations_and_logits(model, images, site)
        activation = seen[site] if isinstance(model, Convolutional) else model.to_map(site, seen[site], images)
        logits = (dropped_logits if self.blank == DROPPED else self._masked_logits)(model, images, activation)
        flat = activation.flatten(2)
        if self.variant == "authors":
            targets = [scored(target, "probability", model) for target in targets]
        weights = [self._weights(flat, clean, logits, target) for target in targets]
        return [weighted(each, flat).unflatten(1, activation.shape[-2:]) for each in weights]

    def _masked_logits(self, model: Adapter, images: Tensor, activation: Tensor) -> Tensor:
        """Return the logits of each image under the mask of each channel, (batch, channel, class)."""
        size, width = (images.shape[-2], images.shape[-1]), activation.shape[1]

        def masked(row: int, channels: Tensor) -> Tensor:
            return model(images[row] * self.masks(activation[row, channels], size))

        return torch.stack([each_channel(model, width, partial(masked, row)) for row in range(len(images))])

    def masks(self, channels: Tensor, size: tuple[int, int]) -> Tensor:
        """Turn channels, (channel, height, width), into masks between 0 and 1, (channel, 1, H, W)."""
        maps = channels[:, None]
        if self.variant == "torchcam":
            return F.interpolate(min_max_channels(maps, 1e-8), size, mode="bilinear")
        upsampled = F.interpolate(maps, size, mode="bilinear", align_corners=self.variant == "pgc")
        # the authors divide by the range itself, and skip a constant channel; its mask gets no weight here
        return min_max_channels(upsampled, 1e-8 if self.variant == "pgc" else 0.0)

    def _weights(self, flat: Tensor, clean: Tensor, logits: Tensor, target: Target) -> Tensor:
        """Return one weight per channel, (batch, channel)."""
        scores = score_cells(logits, target)
        if self.variant == "authors":
            return scores * (flat.amax(dim=-1) > flat.amin(dim=-1))
        increase = scores - target(clean)[:, None] if self.variant == "torchcam" else scores
        return increase.softmax(dim=-1)

    def cost_at(self, model: Adapter, count: int, sites: Sequence[str]) -> Passes:
        share = dropped_share(model, KEPT) if self.blank == DROPPED else 1.0
        return sum((score_cost(model, site, share * channels_at(model, site)) for site in sites), Passes())


def dropped_logits(model: Adapter, images: Tensor, activation: Tensor) -> Tensor:
    """Return the logits with only the patches where each channel, (batch, channel, height, width), is largest."""
    model = with_tokens(model)
    tokens, width = model.start(images), activation.shape[1]
    keep = keep_top(activation.flatten(0, 1), KEPT).unflatten(0, activation.shape[:2])

    def kept(row: int, channels: Tensor) -> Tensor:
        return run_kept(model, tokens[row].expand(len(channels), -1, -1), keep[row, channels])

    return torch.stack([each_channel(model, width, partial(kept, row)) for row in range(len(images))])


def score_cost(model: Adapter, site: str, masked: float | None = None) -> Passes:
    """Return what Score-CAM costs: a clean pass, and as many masked images, by default one per channel."""
    clean = 1.0
    if isinstance(model, Convolutional) and site not in model.sites:
        clean += model.blank_images(site, 1) * model.share(site)
    return Passes(clean + (channels_at(model, site) if masked is None else masked))


def min_max_channels(maps: Tensor, epsilon: float) -> Tensor:
    """Scale each channel, (channel, 1, height, width), to [0, 1]; a constant one becomes zero."""
    low, high = maps.amin(dim=(2, 3), keepdim=True), maps.amax(dim=(2, 3), keepdim=True)
    return (maps - low) / torch.where(high > low, high - low + epsilon, 1.0)


def each_channel(model: Adapter, count: int, work: Callable[[Tensor], Tensor], at_once: int | None = None) -> Tensor:
    """Do some work for every channel, so many channels at a time, by default as many as the model takes images."""
    channels = torch.arange(count, device=model.device)
    return torch.cat(in_batches(lambda part: work(channels[part]), count, at_once or model.batch))


def channels_at(model: Adapter, site: str) -> int:
    """Return how many channels a site has; refuse one that holds no feature map and no tokens."""
    if isinstance(model, Convolutional):
        return model.channels(site)
    assert isinstance(model, VisionTransformer)
    if site != "norm" and site.rpartition(".")[2] not in TOKEN_SITES:
        raise SiteError(f"the site {site!r} of {model.name} holds no tokens; choose another, such as {model.layer()!r}")
    norm, joint = model.blocks[0].norm1, model.blocks[0].queries_keys_values
    weight = getattr(norm, "weight", None) if joint is None else joint
    if weight is None:
        raise SiteError(f"cannot tell how many channels the tokens of {model.name} have; use grad_cam")
    return int(weight.shape[-1])


def activations_and_logits(model: Adapter, images: Tensor, site: str, *more: str) -> tuple[dict[str, Tensor], Tensor]:
    """Return what sites hold, by name and as the model keeps it, and the logits; all from one forward pass."""
    if isinstance(model, Convolutional) and site not in model.sites:  # a cut that is no module's output
        activation = model.trunk(images, site)
        return {site: activation}, model.tail(activation, site)
    with model.capture(site, *more) as seen:
        logits = model(images)
    if isinstance(model, Convolutional):
        return {site: model.to_map(site, seen[site], images)}, logits
    return dict(seen), logits
