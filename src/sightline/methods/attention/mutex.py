"""MUTEX: attention as a multiplex network of patches, from whose node degrees masks are made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sightline.errors import RecipeError
from sightline.methods.attention.attention import transformer
from sightline.methods.kept_tokens import attributions, score_masks
from sightline.methods.multi_target import MultiTarget
from sightline.methods.scored import Score, scored
from sightline.models.adapter import Adapter
from sightline.models.memory import held
from sightline.models.passes import in_batches
from sightline.models.vit.adapter import VisionTransformer
from sightline.registry import METHODS
from sightline.types import Attribution, Passes, Target

MASKS = 54  # three ways to combine heads, two degrees, nine statistics
_COMBINE_HEADS: tuple[Callable[[Tensor], Tensor], ...] = (
    lambda attention: attention.amin(dim=1),
    lambda attention: attention.amax(dim=1),
    lambda attention: attention.sum(dim=1),
)
_THRESHOLD = 0.01  # edges weaker than this share of the block's strongest are removed
_TIE = 1e-9  # values that differ by less than this share of the largest are equal


@METHODS.register(
    "mutex",
    family="attention",
    cite="marchetti2025",
    cost="at most 55 forward",
    needs=("attention", "tokens"),
    parity="authors' code: masks on a random and a real ViT, scores and map on a real ViT, 1e-4",
)
@dataclass(frozen=True, slots=True)
class Mutex(MultiTarget):
    r"""MUTEX: masks from node degrees of the attention network, averaged with the class score of each as weight.

    .. math:: A_j = \frac{\sum_m s_m B_{mj}}{\sum_m B_{mj}}

    The attention between patches of each block is a layer of a multiplex network: heads are combined by minimum,
    maximum or sum, and edges under a hundredth of the block's strongest removed. Nine statistics over the blocks
    (entropy, maximum, minimum, sum, standard deviation, sum over standard deviation, median, skewness, kurtosis) of the
    patches' in-degrees and out-degrees rank the patches, and each mask :math:`B_m` keeps the upper half and ties with
    it. :math:`s_m` is the probability of the class with only those patches as tokens. A patch that no mask keeps gets
    zero. Gradient-free.

    Attributes:
        start: the first block whose attention is used.
        score: the score of a mask: probability, as the paper, logit or log_probability.
    """

    start: int = 0
    score: Score = "probability"

    def multi_target(
        self, model: Adapter, images: Tensor, targets: Sequence[Target], *, every_layer: bool = False
    ) -> list[Attribution]:
        model = transformer(model, self.start)
        if model.depth - self.start < 2:
            raise RecipeError(f"got start={self.start}; statistics over blocks need two of them, so start earlier")
        batches = in_batches(lambda rows: _tokens_and_masks(model, images[rows], self.start), len(images), model.batch)
        tokens, masks = (torch.cat(part) for part in zip(*batches, strict=True))
        score_targets = [scored(target, self.score, model) for target in targets]
        return attributions(model, images, score_masks(model, tokens, list(masks), score_targets))

    def multi_target_cost(self, model: Adapter, count: int, *, every_layer: bool = False) -> Passes:
        return Passes(1 + MASKS)

    def peak(self, model: Adapter) -> int:
        """Return the bytes held for one image: the attention of every block, or a batch of half of the tokens."""
        share = 1 - self.start / transformer(model).depth
        return max(held(model, forwards=1, attention=share), held(model, forwards=model.batch / 2))


def _tokens_and_masks(model: VisionTransformer, images: Tensor, start: int) -> tuple[Tensor, Tensor]:
    """Return X_0 and the masks; one forward pass."""
    sites = model.every("probabilities", start)
    with model.capture("block.0.input", *sites) as seen:
        model(images)
    attention = [seen[site][:, :, model.prefix :, model.prefix :] for site in sites]
    return seen["block.0.input"], network_masks(attention)


def network_masks(attention: Sequence[Tensor]) -> Tensor:
    """Return the 54 masks of attention between patches, (batch, head, to, from) per block: (batch, mask, patch).

    Order: heads combined by min, max, sum; in-degree, then out-degree; the nine statistics of `_statistics`.
    """
    exact = max(_TIE, 32 * torch.finfo(attention[0].dtype).eps)
    masks = []
    for combine in _COMBINE_HEADS:
        layers = [_without_weak_edges(combine(p)) for p in attention]
        for side in (1, 2):
            degrees = torch.stack([matrix.sum(dim=side) for matrix in layers]).cpu().double()
            masks += [_upper_half(values) for values in _statistics(degrees, exact)]
    return torch.stack(masks, dim=1).to(attention[0].device)


def _without_weak_edges(matrix: Tensor) -> Tensor:
    strongest = matrix.flatten(1).amax(dim=1)[:, None, None]
    return matrix.masked_fill(matrix < _THRESHOLD * strongest, 0.0)


def _statistics(degrees: Tensor, exact: float) -> list[Tensor]:
    """Return nine statistics over the blocks of (block, batch, patch); those that are not defined are zero."""
    mean = degrees.mean(dim=0)
    # a degree that is the same in all blocks (rows of attention sum to one) varies by rounding alone
    flat = (degrees - mean).square().mean(dim=0).sqrt() <= exact * mean
    degrees = torch.where(flat, mean, degrees)
    total, centred = degrees.sum(dim=0), (degrees - mean).masked_fill(flat, 0.0)
    share, variance, spread = degrees / total, centred.square().mean(dim=0), centred.square().sum(dim=0)
    spread = (spread / (len(degrees) - 1)).sqrt()
    statistics = [
        -torch.xlogy(share, share).sum(dim=0),
        degrees.amax(dim=0),
        degrees.amin(dim=0),
        total,
        spread,
        total / (spread + 1e-8),
        degrees.median(dim=0).values,
        centred.pow(3).mean(dim=0) / variance.pow(1.5),
        centred.pow(4).mean(dim=0) / variance.square() - 3,
    ]
    return [values.nan_to_num(nan=0.0) for values in statistics]


def _upper_half(values: Tensor) -> Tensor:
    """Keep the patches at or above the median: (batch, patch), bool."""
    middle = (values.shape[-1] + 1) // 2 - 1
    # some statistics are the same for all patches (the kurtosis over three blocks) but for rounding
    slack = _TIE * values.abs().amax(dim=-1, keepdim=True)
    return values >= values.sort(dim=-1).values[..., middle, None] - slack
