"""Score masks on a transformer by running it on the patches that each mask keeps.

The other patches are dropped before the first block instead of being filled, so a forward pass costs only the tokens it
keeps. A mask that occurs several times is scored once, and masks that keep equally many patches share batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sightline.models.passes import in_batches, take_rows
from sightline.models.vit.adapter import VisionTransformer
from sightline.perturb.curve import read_scores
from sightline.perturb.tokens import run_kept
from sightline.types import Attribution, Target


@dataclass(frozen=True, slots=True, eq=False)
class Scored:
    """The masks of one image with their scores.

    Attributes:
        masks: which patches each mask keeps, shape (mask, patch), bool.
        scores: the targets' values, shape (target, mask).
    """

    masks: Tensor
    scores: Tensor

    def maps(self) -> Tensor:
        """Return the mean score of the masks that keep a patch, zero where none does: shape (target, patch)."""
        inside = self.masks.to(self.scores)
        return self.scores @ inside / inside.sum(dim=0).clamp(min=1)


def score_masks(
    model: VisionTransformer, tokens: Tensor, masks: Sequence[Tensor], targets: Sequence[Target]
) -> list[Scored]:
    """Return, for each image, its masks with the targets' values under them.

    Args:
        model: a transformer.
        tokens: X_0 as `model.start` gives it, shape (batch, token, channel).
        masks: for each image the patches its masks keep, shape (mask, patch), bool; images may have different numbers.
        targets: what is read of the logits.
    """
    unique = [torch.unique(mask, dim=0, return_inverse=True) for mask in masks]
    pairs = [(image, index) for image, (different, _) in enumerate(unique) for index in range(len(different))]
    kept = torch.cat([different.sum(dim=1) for different, _ in unique])
    grouped = torch.cat([_scores(model, tokens, unique, pairs, rows, targets) for rows in _equal(kept)], dim=1)
    order = torch.cat(_equal(kept))
    scores = torch.empty_like(grouped).index_copy_(1, order.to(grouped.device), grouped)
    split = scores.split([len(different) for different, _ in unique], dim=1)
    return [Scored(mask, part[:, inverse]) for mask, part, (_, inverse) in zip(masks, split, unique, strict=True)]


def _equal(kept: Tensor) -> list[Tensor]:
    """Return the indices of equal counts, one group for each count."""
    return [(kept == count).nonzero()[:, 0] for count in kept.unique()]


def _scores(
    model: VisionTransformer,
    tokens: Tensor,
    unique: Sequence[tuple[Tensor, Tensor]],
    pairs: Sequence[tuple[int, int]],
    rows: Tensor,
    targets: Sequence[Target],
) -> Tensor:
    """Score the masks in these rows, which all keep equally many patches: (target, row)."""
    chosen = [pairs[row] for row in rows.tolist()]
    masks = torch.stack([unique[image][0][index] for image, index in chosen])
    keep = masks.nonzero()[:, 1].reshape(len(masks), -1).to(tokens.device)

    def work(part: slice) -> Tensor:
        images = [image for image, _ in chosen[part]]
        logits = run_kept(model, take_rows(tokens, images), keep[part])
        return torch.stack([read_scores(model, target.take(images), logits) for target in targets])

    return torch.cat(in_batches(work, len(chosen), model.batch), dim=1)


def attributions(model: VisionTransformer, images: Tensor, scored: Sequence[Scored]) -> list[Attribution]:
    """Return the attribution of each target from the scored masks of every image."""
    grid = model.grid_of(images)
    maps = torch.stack([of_image.maps() for of_image in scored], dim=1)
    return [Attribution(of_target.unflatten(1, (grid.height, grid.width))[None], grid) for of_target in maps]
