"""Partition SHAP: Owen values along a hierarchy of regions, finer where more is at stake."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

import torch
from torch import Tensor

from sightline.errors import RecipeError
from sightline.methods.multi_target import MultiTarget
from sightline.methods.sampling.coalitions import Absent, absent_images, check_absent, mixed_scores
from sightline.methods.sampling.owen import Box, Group, Nested, Node, Search, check_tree, nearby, owen_values
from sightline.methods.scored import Score, scored
from sightline.models.adapter import Adapter
from sightline.models.precision import full_dtype
from sightline.perturb.segments import Segments
from sightline.perturb.superpixels import Given, Option, Own, as_option, pieces_of
from sightline.registry import METHODS
from sightline.types import Attribution, Passes, Target, pixel_grid


@METHODS.register(
    "partition_shap",
    family="sampling",
    cite="owen1977",
    cost="at most 500 forward",
    parity="shap's Partition explainer on a CNN and on a photograph, float64, 1e-9; also on given segments",
)
@dataclass(frozen=True, slots=True)
class PartitionShap(MultiTarget):
    r"""Shapley values along a hierarchy: the image is halved again and again, where it matters most.

    .. math:: \phi(a) = \tfrac{1}{2} \bigl[s(C \cup a) - s(C)\bigr]
        + \tfrac{1}{2} \bigl[s(C \cup a \cup b) - s(C \cup b)\bigr]

    for the halves a and b of a region in the context :math:`C`, each of the two terms being split again in its own
    context: Owen values :cite:p:`owen1977`, with the search of shap :cite:p:`lundberg2017`. They add up to the
    difference between the image and its blank. The regions with the largest differences are split first; what is left
    when the passes are spent is spread evenly over its region. It runs on any model. Each class has a search of its
    own; only images that two searches have in common are run once.

    Attributes:
        samples: passes, the image and its blank among them.
        segments: None to split down to the pixel; else the superpixels at which splitting ends, grouped by where they
            lie: grid, slic, quickshift or felzenszwalb, or one of these with its numbers, such as ('slic', 60), or a
            small label map, such as ((0, 0, 1), (2, 2, 1)), stretched over the image. Python may bring its own,
            `PartitionShap(segments=labels)`: whole numbers, (height, width) or (image, height, width), or a function
            from an image to them; and their hierarchy: `PartitionShap().on(model, images, targets, labels, tree)`.
        blank: what stands for an absent region: blur, mean, the mean colour of the training set, black, white, segment,
            each superpixel's own mean colour, or a number, that value after normalisation.
        window: side of the blur's window in pixels; None for 4/7 of the shorter side, 128 of 224.
        per_step: how many regions are split at a time; more fill the model's batches, fewer choose better.
        score: what is read of the class: logit, probability or log_probability; None for whatever the target says.
    """

    samples: int = 500
    segments: Option | None = None
    blank: Absent = "blur"
    window: int | None = None
    per_step: int = 8
    score: Score | None = None

    def __post_init__(self) -> None:
        check_absent(self.blank, segments=self.segments is not None)
        if self.segments is not None:
            object.__setattr__(self, "segments", as_option(self.segments))
        if self.samples < 4 or self.per_step < 1:
            raise RecipeError(
                f"got samples={self.samples} and per_step={self.per_step}; the ends and one split take 4 samples, "
                "and a step splits 1 region or more"
            )
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
        segments: Given | Own,
        tree: Nested | Sequence[Nested] | None = None,
    ) -> list[Attribution]:
        """Explain with segments of one's own, and a hierarchy of them: nested pairs of their numbers.

        A tuple is one hierarchy for all images, a list has one for each. A segment's value is spread over its pixels.
        """
        pieces = pieces_of(model, images, segments)
        trees = (
            [nearby(p) for p in pieces] if tree is None else tree if isinstance(tree, list) else [tree] * len(pieces)
        )
        roots = [Group(piece, members) for piece, members in zip(pieces, trees, strict=True)]
        for root in roots:
            check_tree(root.members, root.pieces)
        return self._along(model, images, targets, roots, pieces)

    def multi_target_cost(self, model: Adapter, count: int, *, every_layer: bool = False) -> Passes:
        return Passes(2 + count * (self.samples - 2))

    def _along(
        self,
        model: Adapter,
        images: Tensor,
        targets: Sequence[Target],
        roots: Sequence[Node],
        pieces: Sequence[Segments],
    ) -> list[Attribution]:
        read = [scored(target, self.score, model) for target in targets]
        absent = absent_images(model, images, self.blank, pieces, self.window)
        asked = _Asked(model, images, absent, read)
        ends = torch.stack([torch.zeros_like(roots[0].mask), torch.ones_like(roots[0].mask)])
        jobs = [(row, index) for index in range(len(read)) for row in range(len(images))]
        known = asked([(row, index, ends) for row, index in jobs])
        searches = [
            owen_values(roots[row], empty, full, self.samples - 2, self.per_step)
            for (row, _), (empty, full) in zip(jobs, known, strict=True)
        ]
        maps = torch.stack(_run(searches, jobs, asked)).unflatten(0, (len(read), len(images)))
        exact = full_dtype(images.dtype)
        return [Attribution(one[None], pixel_grid(images)) for one in maps.to(images.device, exact)]


class _Asked:
    """What the model says of an image with some of its pixels, asked once for all targets."""

    def __init__(self, model: Adapter, images: Tensor, absent: Tensor, targets: Sequence[Target]) -> None:
        self.model, self.images, self.absent, self.targets = model, images, absent, targets
        self.known: list[dict[bytes, list[float]]] = [{} for _ in images]

    def __call__(self, questions: Sequence[tuple[int, int, Tensor]]) -> list[list[float]]:
        """Answer (image, target, masks) triples with a score for each mask."""
        keys = [[blake2b(mask.numpy().tobytes(), digest_size=16).digest() for mask in x] for _, _, x in questions]
        fresh: list[dict[bytes, Tensor]] = [{} for _ in self.images]
        for (row, _, masks), names in zip(questions, keys, strict=True):
            fresh[row] |= {n: m for n, m in zip(names, masks, strict=True) if n not in self.known[row]}
        stacks = [torch.stack(list(new.values())).to(self.images.device) if new else None for new in fresh]
        counts = [len(new) for new in fresh]

        def some(row: int, part: slice) -> Tensor:
            stack = stacks[row]
            return self.images.new_zeros(0) if stack is None else stack[part]

        if any(counts):
            found = mixed_scores(self.model, self.images, self.absent, counts, some, self.targets)
            for row, scores in enumerate(found):
                self.known[row] |= dict(zip(fresh[row], scores.T.double().tolist(), strict=True))
        return [
            [self.known[row][name][index] for name in names]
            for (row, index, _), names in zip(questions, keys, strict=True)
        ]


def _run(searches: Sequence[Search], jobs: Sequence[tuple[int, int]], asked: _Asked) -> list[Tensor]:
    """Take all searches forward side by side, so that their images share batches; return what they find."""
    found: dict[int, Tensor] = {}
    answers: dict[int, list[float] | None] = dict.fromkeys(range(len(searches)))
    while answers:
        questions: dict[int, Tensor] = {}
        for which, answer in answers.items():
            try:
                questions[which] = next(searches[which]) if answer is None else searches[which].send(answer)
            except StopIteration as end:
                found[which] = end.value
        scores = asked([(*jobs[which], masks) for which, masks in questions.items()])
        answers = dict(zip(questions, scores, strict=True))
    return [found[which] for which in range(len(searches))]
