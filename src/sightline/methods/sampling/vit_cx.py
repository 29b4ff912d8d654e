"""ViT-CX: causal explanation of vision transformers by masks from clustered patch embeddings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform
from torch import Tensor
from torch.nn import functional as F

from sightline.catalogue.ranges import Range
from sightline.errors import RecipeError
from sightline.methods.attention.attention import transformer
from sightline.methods.multi_target import MultiTarget
from sightline.methods.scored import Score, scored
from sightline.models.adapter import Adapter
from sightline.models.passes import full_precision, in_batches
from sightline.models.vit.adapter import VisionTransformer
from sightline.perturb.curve import read_scores
from sightline.registry import METHODS
from sightline.seeds import generators, normal
from sightline.types import Attribution, Passes, Target, pixel_grid

Noise = Callable[[int], Tensor]
MASK_COPIES = 2.5  # of all channels at the size of the image, which clustering holds at once


@METHODS.register(
    "vit_cx",
    family="sampling",
    cite="xie2023",
    cost="at most 1 forward and 2 for each channel; 2 for each cluster of channels",
    needs=("tokens",),
    parity="authors' code on a real ViT, given its clusters and noise, and from its own clusters without noise, 1e-4",
)
@dataclass(frozen=True, slots=True)
class CausalExplanation(MultiTarget):
    r"""ViT-CX: masks from clustered patch embeddings, averaged with their causal effect on the prediction as weight.

    .. math:: A = \frac1K \sum_k \frac{s_k\, C_k}{\sum_{k'} C_{k'}}, \qquad
        s_k = p(x \odot C_k + n_k) - p(x + n_k) + p(x), \qquad n_k = \sigma\, \epsilon_k \odot (1 - C_k)

    The channels of a block's first norm, upsampled to the image and scaled to [0, 1], are clustered by cosine distance
    with complete linkage; the scaled sums of the clusters are the masks :math:`C_k`. Masked pixels are filled with
    noise, and the second term subtracts the effect of the noise alone. Constant channels are left out; a pixel that no
    mask shows gets zero. Gradient-free.

    Attributes:
        layer: the block whose first norm is read, counted from the end when negative; None is the last.
        tau: two clusters are joined while all their channels are at most this cosine distance apart.
        noise: the standard deviation, in units of the normalised image; without noise half the passes are needed.
        seed: of the noise, which depends on the seed and the image alone.
        score: the score of the class: probability, as the paper, logit or log_probability.
    """

    layer: int | None = None
    tau: Annotated[float, Range(0, 2)] = 0.1
    noise: float = 0.1
    seed: int = 0
    score: Score = "probability"

    def multi_target(
        self, model: Adapter, images: Tensor, targets: Sequence[Target], *, every_layer: bool = False
    ) -> list[Attribution]:
        model = transformer(model)
        site = model.layer(self.layer)
        batches = in_batches(lambda rows: _features(model, images[rows], site), len(images), model.batch)
        features, clean = (torch.cat(part) for part in zip(*batches, strict=True))
        score_targets = [scored(target, self.score, model) for target in targets]
        maps = []
        for row, generator in enumerate(generators(self.seed, images)):
            image, own = images[row], [target.take([row]) for target in score_targets]
            masks = cluster_masks(features[row], (image.shape[-2], image.shape[-1]), self.tau)
            noise = _noise_by_mask(image, self.noise, len(masks), generator) if self.noise else None
            maps.append(causal_maps(model, image, masks, noise, clean[row], own))
        grid = pixel_grid(images)
        return [Attribution(values[None], grid) for values in torch.stack(maps, dim=1)]

    def multi_target_cost(self, model: Adapter, count: int, *, every_layer: bool = False) -> Passes:
        return Passes(1 + (2 if self.noise else 1) * _channels(transformer(model)))

    def peak(self, model: Adapter) -> int:
        """Return the bytes held for one image: those of a batch, or all channels at its size with copies."""
        height, width = model.seen_size
        copies = MASK_COPIES * _channels(transformer(model)) * height * width * max(4, model.dtype.itemsize)
        return max(int(copies), model.peak(self.multi_target_cost(model, 1)))


def _channels(model: VisionTransformer) -> int:
    weights = model.blocks[0].queries_keys_values
    if weights is not None:
        return weights.shape[1]
    norm = model.blocks[0].norm1 or model.final_norm
    if norm is None:
        raise RecipeError(f"the width of {model.name} is not known before it ran, so neither is the cost of vit_cx")
    return next(norm.parameters()).numel()


def _features(model: VisionTransformer, images: Tensor, site: str) -> tuple[Tensor, Tensor]:
    """Return the channels at a site on the patch grid, and the logits; one forward pass."""
    with model.capture(site) as seen:
        logits = model(images)
    return model.to_map(site, seen[site], images), logits


def cluster_masks(features: Tensor, size: tuple[int, int], tau: float) -> Tensor:
    """Return the masks, (cluster, height, width), of the channels of one image, (channel, height, width)."""
    features = full_precision(features)
    channels = F.interpolate(features[None], size=size, mode="bilinear", align_corners=False)[0]
    varied = channels.flatten(1).amax(dim=1) > channels.flatten(1).amin(dim=1)
    channels = channels[varied]  # a copy
    _scale(channels)
    return cluster_sums(channels, clusters(channels, tau)) if len(channels) else channels


def clusters(channels: Tensor, tau: float) -> Tensor:
    """Return the cluster of each channel, numbered from 0: complete linkage, cosine distances up to `tau` joined."""
    if len(channels) < 2:
        return torch.zeros(len(channels), dtype=torch.long)
    rows = F.normalize(channels.flatten(1), dim=1)
    distances = (1 - rows @ rows.T).clamp(min=0).cpu().double().numpy()
    labels = fcluster(linkage(squareform(distances, checks=False), "complete"), tau, "distance") - 1
    return torch.from_numpy(labels).to(channels.device)


def cluster_sums(channels: Tensor, labels: Tensor) -> Tensor:
    """Sum the channels of each cluster and scale the sums to [0, 1]: (cluster, height, width)."""
    sums = torch.stack([channels[labels == label].sum(dim=0) for label in labels.unique()])
    _scale(sums)
    return sums


def _scale(maps: Tensor) -> None:
    """Scale each map to [0, 1], in place: there are hundreds of the image's size."""
    low, high = maps.flatten(1).amin(dim=1)[:, None, None], maps.flatten(1).amax(dim=1)[:, None, None]
    maps.sub_(low).div_((high - low).clamp(min=torch.finfo(maps.dtype).tiny))


def _noise_by_mask(image: Tensor, deviation: float, count: int, generator: torch.Generator) -> Noise:
    """Return the noise of each mask by its index, the same in whatever batches the masks run."""
    seeds = torch.randint(2**62, (count,), generator=generator).tolist()
    return lambda index: deviation * normal(image, torch.Generator().manual_seed(seeds[index]))


def causal_maps(
    model: VisionTransformer,
    image: Tensor,
    masks: Tensor,
    noise: Noise | None,
    clean: Tensor,
    targets: Sequence[Target],
) -> Tensor:
    """Return the map of one image for each target, shape (target, height, width).

    Args:
        model: a transformer.
        image: shape (3, height, width).
        masks: shape (mask, height, width), between 0 and 1.
        noise: returns the noise that fills masked pixels, shaped as the image, by the mask's index; None for none.
        clean: the image's logits, shape (class,).
        targets: functions of the logits, for this image alone.
    """
    if not len(masks):
        return image.new_zeros(len(targets), *image.shape[-2:])
    scores = causal_scores(model, image, masks, noise, clean, targets)
    inside = masks.to(scores)
    cover = inside.sum(dim=0)
    weighted = torch.einsum("tk,khw->thw", scores, inside) / len(masks)
    shown = cover > 32 * torch.finfo(cover.dtype).eps  # a cover of mere rounding is none
    return torch.where(shown, weighted / cover, torch.zeros_like(weighted))


def causal_scores(
    model: VisionTransformer,
    image: Tensor,
    masks: Tensor,
    noise: Noise | None,
    clean: Tensor,
    targets: Sequence[Target],
) -> Tensor:
    """Return the causal effect of each mask on each target, shape (target, mask)."""

    def read(logits: Tensor) -> Tensor:
        rows = [0] * len(logits)
        return torch.stack([read_scores(model, target.take(rows), logits) for target in targets])

    def work(part: slice) -> Tensor:
        shown = masks[part, None].to(image)
        if noise is None:
            return read(model(image * shown))
        hidden = torch.stack([noise(index) for index in range(part.start, part.stop)]).to(image) * (1 - shown)
        return read(model(image * shown + hidden)) - read(model(image + hidden))

    effects = torch.cat(in_batches(work, len(masks), model.batch), dim=1)
    return effects if noise is None else effects + read(clean[None])
