"""TIS: transformer input sampling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from sightline.errors import RecipeError
from sightline.methods.attention.attention import transformer
from sightline.methods.kept_tokens import attributions, score_masks
from sightline.methods.multi_target import MultiTarget
from sightline.methods.scored import Score, scored
from sightline.models.adapter import Adapter
from sightline.models.memory import held
from sightline.models.passes import full_precision, in_batches
from sightline.models.vit.adapter import VisionTransformer
from sightline.registry import METHODS
from sightline.seeds import generators
from sightline.types import Attribution, Passes, Target

Variant = Literal["released", "filled"]
CHANNELS = 0.2  # of a graph: the tokens that leave the blocks, and the same as one tensor
_TOLERANCE = 1e-4  # the summed squared shift of all centroids at which k-means ends


@METHODS.register(
    "tis",
    family="sampling",
    cite="englebert2023",
    cost="at most 1 forward and 1024 on half of the patches",
    needs=("tokens",),
    parity="authors' code on a real ViT given its masks, 1e-4; k-means by its own seed",
)
@dataclass(frozen=True, slots=True)
class InputSampling(MultiTarget):
    r"""TIS, transformer input sampling: masks from clustered token activations, scored by dropping masked tokens.

    .. math:: A_j = \frac{\sum_m s_m B_{mj}}{\sum_m B_{mj}}

    The output channels of all blocks, each a vector over the patches, are clustered by k-means. Each mask :math:`B_m`
    keeps the patches where a cluster's centroid is largest, and :math:`s_m` is the probability of the class with only
    those tokens: the others are dropped before the first block, so no fill is needed. A patch that no mask keeps gets
    zero. Gradient-free.

    Attributes:
        samples: how many clusters, one mask each.
        ratio: the share of the patches that a mask keeps.
        steps: iterations of k-means at most.
        seed: of the first centroids, which are drawn from the channels with replacement.
        variant: "released" as the authors' code: a cluster without members has the centroid zero, and its mask, all
            patches being equal, keeps the last ones; "filled" leaves such clusters out.
        score: the score of a mask: probability, as the paper, logit or log_probability.
    """

    samples: int = 1024
    ratio: float = 0.5
    steps: int = 100
    seed: int = 0
    variant: Variant = "released"
    score: Score = "probability"

    def __post_init__(self) -> None:
        if not 0 < self.ratio <= 1:
            raise RecipeError(f"got ratio={self.ratio}; a share of the patches above 0 and up to 1 is needed")

    def multi_target(
        self, model: Adapter, images: Tensor, targets: Sequence[Target], *, every_layer: bool = False
    ) -> list[Attribution]:
        model = transformer(model)
        batches = in_batches(lambda rows: self._tokens_and_masks(model, images[rows]), len(images), model.batch)
        tokens, masks = torch.cat([x for x, _ in batches]), [mask for _, part in batches for mask in part]
        score_targets = [scored(target, self.score, model) for target in targets]
        return attributions(model, images, score_masks(model, tokens, masks, score_targets))

    def multi_target_cost(self, model: Adapter, count: int, *, every_layer: bool = False) -> Passes:
        model = transformer(model)
        if model.input_size is None:
            return Passes(1 + self.samples)
        return Passes(1 + self.samples * (model.prefix + self._kept(model.grid.cells)) / model.grid.tokens)

    def peak(self, model: Adapter) -> int:
        """Return the bytes held for one image: its channels in every block, or a batch of the tokens kept."""
        channels = held(model, forwards=1, graphs=CHANNELS)
        return max(channels, held(model, forwards=self.ratio * min(model.batch, self.samples)))

    def _kept(self, patches: int) -> int:
        return max(int(self.ratio * patches), 1)

    def _tokens_and_masks(self, model: VisionTransformer, images: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Return X_0 and each image's masks; one forward pass."""
        sites = model.every("output")
        with model.capture("block.0.input", *sites) as seen:
            model(images)
        features = torch.cat([seen[site][:, model.prefix :] for site in sites], dim=-1).transpose(1, 2)
        features = full_precision(features)
        masks = []
        for channels, generator in zip(features, generators(self.seed, images), strict=True):
            centres, members = k_means(channels, self.samples, self.steps, generator)
            masks.append(
                largest(centres if self.variant == "released" else centres[members > 0], self._kept(centres.shape[1]))
            )
        return seen["block.0.input"], masks


def k_means(rows: Tensor, clusters: int, steps: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return the centroids, (cluster, dimension), and the size of each cluster; an empty one has the centroid zero."""
    first = torch.randint(len(rows), (clusters,), generator=generator).to(rows.device)
    centres, members = rows[first], first
    # a channel drawn twice is one centroid only; rounding would otherwise choose between the two
    repeated = (first[:, None] == first).tril(-1).any(dim=1)
    for _ in range(steps):
        closeness = 2 * rows @ centres.T - centres.square().sum(dim=1)
        nearest = closeness.masked_fill(repeated, -torch.inf).argmax(dim=1)
        repeated = torch.zeros_like(repeated)
        members = torch.bincount(nearest, minlength=clusters)
        means = torch.zeros_like(centres).index_add_(0, nearest, rows) / members.clamp(min=1)[:, None]
        shift = (means - centres).square().sum()
        centres = means
        if shift <= _TOLERANCE:
            break
    return centres, members


def largest(centres: Tensor, count: int) -> Tensor:
    """Mark the `count` largest entries of each row, the last of equal ones: (cluster, patch), bool."""
    kept = centres.sort(dim=1, stable=True).indices[:, -count:]
    return torch.zeros_like(centres, dtype=torch.bool).scatter_(1, kept, True)
