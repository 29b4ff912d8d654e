"""Shapley value sampling: the mean gain of each superpixel when superpixels are added in random permutations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from sightline.errors import RecipeError
from sightline.methods.sampling.coalitions import (
    FillOption,
    SegmentMethod,
    check_fill,
    coalition_scores,
    fill_images,
)
from sightline.methods.scored import Score, scored
from sightline.methods.shapley.kernel_shap import coalitions_of, mean_gains
from sightline.models.adapter import Adapter
from sightline.perturb.segments import Segments
from sightline.perturb.superpixels import Option, about, as_option
from sightline.registry import METHODS
from sightline.seeds import generators, uniform
from sightline.types import Passes, Target

Design = Literal["independent", "cyclic"]
SHIFTS = (0.0, 0.5, 0.25, 0.75)  # of a permutation, in shares of the number of segments


@METHODS.register(
    "shapley_sampling",
    family="shapley",
    cite="castro2009",
    cost="2 forward, and 1 per sample for every superpixel but one",
    parity="captum ShapleyValueSampling on the same permutations, 1e-5, its own precision",
)
@dataclass(frozen=True, slots=True)
class ShapleySampling(SegmentMethod):
    r"""Shapley value sampling: the mean gain in score as superpixels are added one by one in random permutations.

    .. math:: A_i = \frac1n \sum_{k=1}^{n} \bigl[s(x_{P_k(i) \cup \{i\}}) - s(x_{P_k(i)})\bigr]

    where :math:`P_k(i)` are the superpixels before i in permutation k, the others being filled. Unbiased for Shapley
    values whatever the number of permutations, and complete: the values sum to :math:`s(x) - s(x_\emptyset)`. A
    black-box method for any model; all classes share the passes. ``kernel_shap`` estimates the same values by a
    regression, mostly with less variance for the same passes.

    Attributes:
        samples: number of permutations.
        segments: the superpixels: grid, slic, quickshift or felzenszwalb, or one of these with its numbers, such as
            ('grid', 2, 4) or ('slic', 60), or a small label map, such as ((0, 0, 1), (2, 2, 1)), stretched over the
            image. Python may bring its own, `ShapleySampling(segments=labels)`: whole numbers, (height, width) or
            (image, height, width), or a function from an image to them.
        seed: of the permutations.
        blank: the fill of a removed superpixel: mean, the mean colour of the training set, black, white, blur, segment,
            its own mean colour, or a number, that value after normalisation.
        score: the score of the class: logit, probability or log_probability; None for the target itself.
        antithetic: whether every second permutation is the one before it in reverse order: exact from a single pair
            where superpixels interact by twos at most.
        design: of the permutations: independent, or cyclic, where each is followed by its reverse, and both by the same
            shifted in circles by a half, a quarter and three quarters of their length: a superpixel then comes early,
            in the middle and late in equal shares. Half of the samples gave less than the standard error of independent
            ones where measured (docs/guide/speed.md).
    """

    samples: int = 25
    segments: Option = "grid"
    seed: int = 0
    blank: FillOption = "mean"
    score: Score | None = None
    antithetic: bool = False
    design: Design = "independent"

    def __post_init__(self) -> None:
        object.__setattr__(self, "segments", as_option(self.segments))
        check_fill(self.blank)
        if self.samples < 1:
            raise RecipeError(f"got samples={self.samples}; at least one permutation is needed")
        if self.design == "cyclic" and self.antithetic:
            raise RecipeError("got antithetic=True with design='cyclic', which comes in such pairs already; give one")

    def values(
        self, model: Adapter, images: Tensor, targets: Sequence[Target], pieces: Sequence[Segments]
    ) -> list[Tensor]:
        fill = fill_images(model, images, self.blank, pieces)
        ranks = [
            permutations(self.samples, piece.count, generator, antithetic=self.antithetic, design=self.design)
            for piece, generator in zip(pieces, generators(self.seed, images), strict=True)
        ]
        ends = [torch.tensor([[False], [True]]).expand(2, piece.count) for piece in pieces]
        coalitions = [torch.cat([end, coalitions_of(own)]) for end, own in zip(ends, ranks, strict=True)]
        score_targets = [scored(target, self.score, model) for target in targets]
        scores = coalition_scores(model, images, fill, pieces, coalitions, score_targets)
        return [mean_gains(own, y[:, 2:], y[:, 0], y[:, 1]).to(y) for own, y in zip(ranks, scores, strict=True)]

    def multi_target_cost(self, model: Adapter, count: int, *, every_layer: bool = False) -> Passes:
        return Passes(2 + self.samples * (about(self.segments, model.default_size) - 1))


def permutations(
    samples: int, segments: int, generator: torch.Generator, *, antithetic: bool = False, design: Design = "independent"
) -> Tensor:
    """Draw the rank of each segment in random permutations, (sample, segment).

    Antithetic ones reverse each other. Cyclic ones do, and four such pairs come from one permutation.
    """
    reversals = 2 if antithetic or design == "cyclic" else 1
    shifts = [int(share * segments) for share in SHIFTS] if design == "cyclic" else [0]
    different = -(-samples // (reversals * len(shifts)))
    ranks = uniform((different, segments), generator).argsort(dim=1).argsort(dim=1)
    ranks = ((ranks[:, None] + torch.tensor(shifts)[:, None]) % segments).flatten(0, 1)
    if reversals == 2:
        ranks = torch.stack([ranks, segments - 1 - ranks], dim=1).flatten(0, 1)
    return ranks[:samples]
