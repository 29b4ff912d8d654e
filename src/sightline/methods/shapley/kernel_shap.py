"""Kernel SHAP: Shapley values of superpixels by weighted linear regression."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from sightline.errors import RecipeError
from sightline.methods.sampling.coalitions import (
    FillOrDropped,
    SegmentMethod,
    check_fill,
    coalition_fill,
    coalition_scores,
)
from sightline.methods.sampling.dropped import DROPPED, dropped_share
from sightline.methods.scored import Score, scored
from sightline.models.adapter import Adapter
from sightline.perturb.designs import balanced_masks
from sightline.perturb.segments import Segments
from sightline.perturb.superpixels import Option, about, as_option
from sightline.registry import METHODS
from sightline.seeds import generators, uniform
from sightline.types import Passes, Target

Variant = Literal["leverage", "kernel", "orders"]
Design = Literal["independent", "balanced"]
SAMPLES = 2048  # and two for every segment, as shap


@METHODS.register(
    "kernel_shap",
    family="shapley",
    cite="lundberg2017",
    cost="2 forward, and 1 per sample; half of one with blank='dropped'",
    parity="exact Shapley values with all coalitions, 1e-9; shap KernelExplainer on the same coalitions, 1e-9; "
    "captum ShapleyValues and KernelShap on the same coalitions, 1e-5, their own precision",
)
@dataclass(frozen=True, slots=True)
class KernelShap(SegmentMethod):
    r"""Kernel SHAP: Shapley values of superpixels, estimated by a weighted linear regression over coalitions.

    .. math:: \min_\phi \sum_{S} \frac{M - 1}{\binom{M}{|S|} |S| (M - |S|)}
        \Bigl(s(x_S) - s(x_\emptyset) - \sum_{i \in S} \phi_i\Bigr)^2
        \quad \text{with} \quad \sum_i \phi_i = s(x) - s(x_\emptyset)

    over the coalitions :math:`S` of the M superpixels that are kept, the others being filled. A black-box method for
    any model; all classes share the passes. Up to 11 superpixels the default runs all coalitions and the values are
    exact. Beyond, the samples are distributed over the sizes of coalitions, without repetition and each with its
    complement (paired sampling); sizes that can be enumerated are. With ``leverage`` every size has the same number of
    samples :cite:p:`musco2025`, with ``kernel`` they follow the kernel's weights. ``orders`` is Shapley value sampling
    instead of a regression: superpixels are added one by one in random permutations, and the mean gain of each is its
    value; M - 1 samples make a permutation, so MDA's baseline, 25 permutations of 49 superpixels, is 1200 samples.

    Attributes:
        samples: how many coalitions beside the empty and the full one, an even number, with orders as many as make
            whole permutations, and one at least; None for 2 M + 2048. Where the number of superpixels depends on the
            image, the declared cost takes M as 50.
        segments: the superpixels: grid, slic, quickshift or felzenszwalb, or one of these with its numbers, such as
            ('grid', 2, 4) or ('slic', 60), all but grid with scikit-image; or a small label map, such as
            ((0, 0, 1), (2, 2, 1)), stretched over the image. Python may bring its own, `KernelShap(segments=labels)`:
            whole numbers, (height, width) or (image, height, width), or a function from an image to them.
        seed: of the coalitions.
        blank: the fill of a removed superpixel: mean, the mean colour of the training set, black, white, blur, segment,
            its own mean colour, or a number, that value after normalisation; or dropped: on a transformer its tokens
            are left out instead, with superpixels rounded to whole patches.
        variant: how samples are distributed over sizes: leverage or kernel; or orders.
        score: the score of the class: logit, probability or log_probability; None for the target itself.
        design: of the coalitions of a size: independent, or balanced, where cells are exchanged between drawn
            coalitions and the rest until any two are kept together about equally often. Half of the samples then gave
            less than the standard error of shap's and captum's where measured (docs/guide/speed.md).
    """

    samples: int | None = None
    segments: Option = "grid"
    seed: int = 0
    blank: FillOrDropped = "mean"
    variant: Variant = "leverage"
    score: Score | None = None
    design: Design = "independent"

    def __post_init__(self) -> None:
        object.__setattr__(self, "segments", as_option(self.segments))
        check_fill(self.blank, dropped=True)
        if self.design == "balanced" and self.variant == "orders":
            raise RecipeError("got design='balanced' with variant='orders', which has permutations; choose one of them")
        paired = self.variant != "orders"
        if self.samples is not None and (self.samples < 2 or (paired and self.samples % 2)):
            raise RecipeError(f"got samples={self.samples}; coalitions come in pairs: give an even number, 2 or more")

    def values(
        self, model: Adapter, images: Tensor, targets: Sequence[Target], pieces: Sequence[Segments]
    ) -> list[Tensor]:
        fill = coalition_fill(model, images, self.blank, pieces)
        drawn = [
            self._draw(piece.count, generator)
            for piece, generator in zip(pieces, generators(self.seed, images), strict=True)
        ]
        score_targets = [scored(target, self.score, model) for target in targets]
        empty_and_full = torch.tensor([[False], [True]])
        coalitions = [torch.cat([empty_and_full.expand(2, z.shape[1]), z]) for z, _ in drawn]
        scores = coalition_scores(model, images, fill, pieces, coalitions, score_targets)
        games = [(z, weights, y[:, 2:], y[:, 0], y[:, 1]) for (z, weights), y in zip(drawn, scores, strict=True)]
        if self.variant == "orders":
            return [mean_gains(ranks, *game).to(game[0]) for _, ranks, *game in games]
        return [fit_shapley(*game).to(game[2]) for game in games]

    def multi_target_cost(self, model: Adapter, count: int, *, every_layer: bool = False) -> Passes:
        segments = about(self.segments, model.default_size)
        if self.variant == "orders":
            coalitions = self._orders(segments) * (segments - 1)
        else:
            coalitions = min(self._budget(segments), 2**segments - 2)
        if self.blank == DROPPED:  # a coalition and its complement have all patches between them
            return Passes(1 + dropped_share(model, 0.0) + coalitions * dropped_share(model, 0.5))
        return Passes(2 + coalitions)

    def _draw(self, segments: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draw coalitions, and their weights; or, for permutations, the ranks of the segments."""
        if self.variant == "orders":
            ranks = uniform((self._orders(segments), segments), generator).argsort(dim=1).argsort(dim=1)
            return coalitions_of(ranks), ranks
        return draw_coalitions(segments, self._budget(segments), self.variant, generator, self.design)

    def _orders(self, segments: int) -> int:
        return max(1, self._budget(segments) // max(1, segments - 1))

    def _budget(self, segments: int) -> int:
        return 2 * segments + SAMPLES if self.samples is None else self.samples


def draw_coalitions(
    segments: int, samples: int, variant: Variant, generator: torch.Generator, design: Design = "independent"
) -> tuple[Tensor, Tensor]:
    """Draw coalitions and their complements, all different: (coalition, segment) booleans, and their weights.

    The coalitions of a size share the kernel's weight of that size; with all coalitions that is the kernel itself.
    """
    sizes = range(1, segments // 2 + 1)
    half = {size: 0.5 if 2 * size == segments else 1.0 for size in sizes}  # complements of the same size
    mass = [half[size] * 2 * (segments - 1) / (size * (segments - size)) for size in sizes]
    capacities = [math.comb(segments, size) // (1 if half[size] == 1 else 2) for size in sizes]
    shares = mass if variant == "kernel" else list(half.values())
    counts = allot(min(samples // 2, sum(capacities)), shares, capacities)
    firsts, weights = [torch.zeros(0, segments, dtype=torch.bool)], [torch.zeros(0, dtype=torch.float64)]
    for size, count, capacity, total in zip(sizes, counts, capacities, mass, strict=True):
        if count:
            firsts.append(_subsets(segments, size, count, capacity, generator))
            weights.append(torch.full((count,), total / (2 * count), dtype=torch.float64))
    first, weight = torch.cat(firsts), torch.cat(weights)
    if design == "balanced":
        first = balanced_masks(first, weight, generator)
    return torch.stack([first, ~first], dim=1).flatten(0, 1), weight.repeat_interleave(2)


def allot(total: int, shares: Sequence[float], capacities: Sequence[int]) -> list[int]:
    """Distribute `total` in proportion to `shares`, none above its capacity; what exceeds one goes to the others.

    >>> allot(10, [1, 1, 1], [2, 9, 9])
    [2, 4, 4]
    """
    counts, unfilled, left = [0] * len(shares), list(range(len(shares))), total
    while unfilled:
        whole = sum(shares[i] for i in unfilled)
        full = [i for i in unfilled if left * shares[i] / whole >= capacities[i]]
        if not full:
            break
        for i in full:
            counts[i] = capacities[i]
            left -= capacities[i]
        unfilled = [i for i in unfilled if i not in full]
    exact = {i: left * shares[i] / whole for i in unfilled}
    counts = [int(exact.get(i, count)) for i, count in enumerate(counts)]
    for i in sorted(unfilled, key=lambda i: int(exact[i]) - exact[i])[: total - sum(counts)]:
        counts[i] += 1
    return counts


def _subsets(segments: int, size: int, count: int, capacity: int, generator: torch.Generator) -> Tensor:
    """Choose different subsets of a size; where the complement has that size too, it is never chosen."""
    if 2 * count > capacity:
        subsets = itertools.islice(itertools.combinations(range(segments), size), capacity)  # the first contain 0
        rows = torch.tensor(list(subsets))
        rows = rows if count == capacity else rows[torch.randperm(capacity, generator=generator)[:count]]
        return torch.zeros(count, segments, dtype=torch.bool).scatter_(1, rows, True)
    distinct: dict[bytes, Tensor] = {}
    while len(distinct) < count:
        order = uniform((count, segments), generator).argsort(dim=1)
        drawn = torch.zeros(count, segments, dtype=torch.bool).scatter_(1, order[:, :size], True)
        if 2 * size == segments:
            drawn = drawn ^ ~drawn[:, :1]
        distinct |= {row.numpy().tobytes(): row for row in drawn}
    return torch.stack(list(distinct.values())[:count])


def coalitions_of(ranks: Tensor) -> Tensor:
    """Return the coalitions as segments are added one by one in each permutation, without the empty and the full one.

    Args:
        ranks: the rank of each segment in each permutation, shape (permutation, segment).
    """
    segments = ranks.shape[1]
    return (ranks[:, None] < torch.arange(1, segments)[:, None]).reshape(-1, segments)


def mean_gains(ranks: Tensor, scores: Tensor, empty: Tensor, full: Tensor) -> Tensor:
    """Return the marginal contribution of each segment, mean over permutations, shape (target, segment).

    Args:
        ranks: the rank of each segment in each permutation, shape (permutation, segment).
        scores: of `coalitions_of(ranks)`, shape (target, coalition).
        empty: score without any segment, shape (target,).
        full: score with all, shape (target,).
    """
    ranks, scores, empty, full = ranks.cpu(), *(x.double().cpu() for x in (scores, empty, full))
    count = (len(scores), len(ranks), 1)
    first, last = (x[:, None, None].expand(count) for x in (empty, full))
    gains = torch.cat([first, scores.view(*count[:2], -1), last], dim=2).diff(dim=2)
    return gains.gather(2, ranks.expand(len(scores), -1, -1)).mean(dim=1)


def fit_shapley(coalitions: Tensor, weights: Tensor, scores: Tensor, empty: Tensor, full: Tensor) -> Tensor:
    """Solve the weighted regression whose values add up to full − empty, shape (target, segment).

    Segments that too few coalitions tell apart get the same value. Double precision, on the CPU.

    Args:
        coalitions: which segments are kept, shape (coalition, segment), bool, without the empty and the full one.
        weights: of the coalitions.
        scores: shape (target, coalition).
        empty: score without any segment, shape (target,).
        full: score with all, shape (target,).
    """
    z, weights, scores, empty, full = (x.double().cpu() for x in (coalitions, weights, scores, empty, full))
    mean = ((full - empty) / z.shape[1])[:, None]
    if len(z) == 0:
        return mean.expand(-1, z.shape[1])
    root = weights.sqrt()
    # relative to their mean the values sum to zero, which a centred design does not distinguish from any other sum
    design = (z - z.mean(dim=1, keepdim=True)) * root[:, None]
    response = (scores - empty[:, None] - mean * z.sum(dim=1)) * root
    deviations: Tensor = torch.linalg.lstsq(design, response.T, driver="gelsd").solution.T
    return mean + deviations - deviations.mean(dim=1, keepdim=True)
