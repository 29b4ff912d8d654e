"""Partition SHAP: Owen values along a hierarchy of image regions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

import torch
from torch import Tensor

from sightline.errors import RecipeError
from sightline.methods.multi_target import MultiTarget
from sightline.methods.sampling.coalitions import FillOption, check_fill, fill_images, masked_scores
from sightline.methods.scored import Score, scored
from sightline.methods.shapley.owen import Box, Group, Nested, Node, Search, check_tree, owen_values, spatial_tree
from sightline.models.adapter import Adapter
from sightline.models.passes import full_dtype
from sightline.perturb.segments import Segments
from sightline.perturb.superpixels import CustomSegments, Given, Option, as_option, segments_of
from sightline.registry import METHODS
from sightline.types import Attribution, Passes, Target, pixel_grid


@METHODS.register(
    "partition_shap",
    family="shapley",
    cite="owen1977",
    cost="at most 500 forward",
    parity="shap's Partition explainer on a CNN and on a photograph, float64, 1e-9; also on given segments",
)
@dataclass(frozen=True, slots=True)
class PartitionShap(MultiTarget):
    r"""Partition SHAP: Owen values of image regions along a hierarchy, split recursively where they are largest.

    .. math:: \phi(a) = \tfrac{1}{2} \bigl[s(C \cup a) - s(C)\bigr]
        + \tfrac{1}{2} \bigl[s(C \cup a \cup b) - s(C \cup b)\bigr]

    for the halves a and b of a region in the context :math:`C`, each of the two terms being split again in its own
    context: Owen values :cite:p:`owen1977`, with the search of shap :cite:p:`lundberg2017`. They sum to the score of
    the image minus that of the fill. The regions with the largest differences are split first; when the passes are
    spent, a region's value is spread evenly over it. A black-box method for any model. Each class has a search of its
    own; masked images that several searches need are run once.

    Attributes:
        samples: forward passes, those of the image and of the fill included.
        segments: None to split down to the pixel; else the superpixels at which splitting ends, grouped by position:
            grid, slic, quickshift or felzenszwalb, or one of these with its numbers, such as ('slic', 60), or a
            small label map, such as ((0, 0, 1), (2, 2, 1)), stretched over the image. Python may bring its own,
            `PartitionShap(segments=labels)`: whole numbers, (height, width) or (image, height, width), or a function
            from an image to them; and their hierarchy: `PartitionShap().on(model, images, targets, labels, tree)`.
        blank: the fill of removed regions: blur, mean, the mean colour of the training set, black, white, segment, each
            superpixel's own mean colour, or a number, that value after normalisation.
        window: side of the blur kernel in pixels; None for 4/7 of the shorter side, 128 of 224.
        per_step: how many regions are split at a time; more fill the model's batches, fewer choose regions better.
        score: the score of the class: logit, probability or log_probability; None for the target itself.
    """

    samples: int = 500
    segments: Option | None = None
    blank: FillOption = "blur"
    window: int | None = None
    per_step: int = 8
    score: Score | None = None

    def __post_init__(self) -> None:
        check_fill(self.blank, segments=self.segments is not None)
        if self.segments is not None:
            object.__setattr__(self, "segments", as_option(self.segments))
        if self.samples < 4:
            raise RecipeError(f"got samples={self.samples}; the ends and one split take 4, so give 4 or more")
        if self.window is not None and (self.window < 1 or self.blank != "blur"):
            raise RecipeError(f"got window={self.window} with blank={self.blank!r}; blank='blur' has one of 1 or more")

    def multi_target(
        self, model: Adapter, images: Tensor, targets: Sequence[Target], *, every_layer: bool = False
    ) -> list[Attribution]:
        if self.segments is not None:
            return self.on(model, images, targets, self.segments)
        height, width = images.shape[-2:]
        return self._along(model, images, targets, [Box((height, width), (0, height), (0, width))] * len(images), ())

    def on(
        self,
        model: Adapter,
        images: Tensor,
        targets: Sequence[Target],
        segments: Given | CustomSegments,
        tree: Nested | Sequence[Nested] | None = None,
    ) -> list[Attribution]:
        """Explain with given segments, and a hierarchy of them: nested pairs of their numbers.

        A tuple is one hierarchy for all images, a list has one for each. A segment's value is spread over its pixels.
        """
        pieces = segments_of(model, images, segments)
        trees = (
            [spatial_tree(p) for p in pieces]
            if tree is None
            else tree
            if isinstance(tree, list)
            else [tree] * len(pieces)
        )
        roots = [Group(piece, members) for piece, members in zip(pieces, trees, strict=True)]
        for root in roots:
            check_tree(root.members, root.pieces)
        return self._along(model, images, targets, roots, pieces)

    def multi_target_cost(self, model: Adapter, count: int, *, every_layer: bool = False) -> Passes:
        return Passes(2 + count * (self.samples - 2))

    def peak(self, model: Adapter) -> int:
        """Return the bytes held for one image: as many masked images as the largest step has."""
        left, step, most = self.samples - 2, 2, 2
        while left > 0:
            most, left, step = max(most, min(step, left)), left - step, min(2 * step, 2 * self.per_step)
        return model.peak(Passes(most))

    def _along(
        self,
        model: Adapter,
        images: Tensor,
        targets: Sequence[Target],
        roots: Sequence[Node],
        pieces: Sequence[Segments],
    ) -> list[Attribution]:
        score_targets = [scored(target, self.score, model) for target in targets]
        fill = fill_images(model, images, self.blank, pieces, self.window)
        cache = _ScoreCache(model, images, fill, score_targets)
        empty_and_full = torch.stack([torch.zeros_like(roots[0].mask), torch.ones_like(roots[0].mask)])
        jobs = [(row, index) for index in range(len(score_targets)) for row in range(len(images))]
        ends = cache.scores([(row, index, empty_and_full) for row, index in jobs])
        searches = [
            owen_values(roots[row], empty, full, self.samples - 2, self.per_step)
            for (row, _), (empty, full) in zip(jobs, ends, strict=True)
        ]
        maps = torch.stack(_run_searches(searches, jobs, cache)).unflatten(0, (len(score_targets), len(images)))
        exact = full_dtype(images.dtype)
        return [Attribution(of_target[None], pixel_grid(images)) for of_target in maps.to(images.device, exact)]


class _ScoreCache:
    """The scores of masked images under all targets; each masked image is run once."""

    def __init__(self, model: Adapter, images: Tensor, fill: Tensor, targets: Sequence[Target]) -> None:
        self.model, self.images, self.fill, self.targets = model, images, fill, targets
        self.known: list[dict[bytes, list[float]]] = [{} for _ in images]

    def scores(self, requests: Sequence[tuple[int, int, Tensor]]) -> list[list[float]]:
        """Return the scores of the masks of each request: (image, target, masks)."""
        keys = [[blake2b(mask.numpy().tobytes(), digest_size=16).digest() for mask in x] for _, _, x in requests]
        fresh: list[dict[bytes, Tensor]] = [{} for _ in self.images]
        for (row, _, masks), digests in zip(requests, keys, strict=True):
            fresh[row] |= {key: mask for key, mask in zip(digests, masks, strict=True) if key not in self.known[row]}
        stacks = [torch.stack(list(new.values())).to(self.images.device) if new else None for new in fresh]
        counts = [len(new) for new in fresh]

        def some(row: int, part: slice) -> Tensor:
            stack = stacks[row]
            return self.images.new_zeros(0) if stack is None else stack[part]

        if any(counts):
            new_scores = masked_scores(self.model, self.images, self.fill, counts, some, self.targets)
            for row, scores in enumerate(new_scores):
                self.known[row] |= dict(zip(fresh[row], scores.T.double().tolist(), strict=True))
        return [
            [self.known[row][key][index] for key in digests]
            for (row, index, _), digests in zip(requests, keys, strict=True)
        ]


def _run_searches(searches: Sequence[Search], jobs: Sequence[tuple[int, int]], cache: _ScoreCache) -> list[Tensor]:
    """Advance all searches together, so that their masked images share batches; return their maps."""
    maps: dict[int, Tensor] = {}
    waiting: dict[int, list[float] | None] = dict.fromkeys(range(len(searches)))
    while waiting:
        requests: dict[int, Tensor] = {}
        for index, scores in waiting.items():
            try:
                requests[index] = next(searches[index]) if scores is None else searches[index].send(scores)
            except StopIteration as end:
                maps[index] = end.value
        answers = cache.scores([(*jobs[index], masks) for index, masks in requests.items()])
        waiting = dict(zip(requests, answers, strict=True))
    return [maps[index] for index in range(len(searches))]
