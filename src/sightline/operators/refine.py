"""MDA: attributions optimised for the metrics that judge them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from sightline.errors import RecipeError
from sightline.methods.attention.bi_attention import BiAttention
from sightline.methods.patching.simple import patch_grid
from sightline.models.adapter import Adapter
from sightline.models.precision import full_dtype, full_precision
from sightline.models.vit.adapter import VisionTransformer
from sightline.operators.density import Array, Output, RefinedImage, Refinement
from sightline.perturb.curve import responses, scored
from sightline.perturb.endpoints import BLURS, Endpoints, find_endpoints
from sightline.perturb.order import importance_order, ranks
from sightline.perturb.search.composites import side_by_side
from sightline.perturb.search.greedy import Rule, SegmentOrder, greedy, most_passes
from sightline.perturb.search.interior_point import early_fit
from sightline.perturb.search.magnitudes import convex_fit, falling_curve, mean_curve, segment_values
from sightline.perturb.segments import Segments, grid_segments, slic_segments
from sightline.registry import OPERATORS
from sightline.types import Attribution, Method, Passes, Target

WIDEST = 28  # candidates per step at most
Size = tuple[int, int]


@OPERATORS.register(
    "mda",
    family="refine",
    cite="mda2025",
    cost="at most 5790 forwards at 14×14 segments beside the seed's; about half with search='fast'",
    parity="authors' code, random and real ViT: orders identical, maps 1e-5 (released), 1e-3 (default)",
)
@dataclass(frozen=True, slots=True)
class MetricDriven:
    r"""MDA, metric-driven attribution: patch order and magnitudes optimised for insertion and deletion.

    .. math:: A_\gamma = (1-\gamma)\,a + \gamma\,b, \qquad
        a_i = (u_{i-1}-u_i)\Bigl(\frac1{m_i} + \frac{n-i}{n}\Bigr), \qquad
        u = \arg\min_{u\ \text{convex}} \lVert u - c \rVert^2

    A greedy search orders the n segments: those that raise the class's probability most when pasted into a blurred
    image come first, those that raise it least when pasted into a blank image come last. The magnitudes follow from the
    response c that is left after each segment, :math:`m_i` being its pixels; :math:`b_i` is :math:`(n-i)/n` where
    :math:`a_i \ge \kappa`. For maps that these metrics judge, at the price of thousands of forward passes.

    It runs on any model, and on any target; of a class it follows the probability. The map is never negative.
    ``details.with_density(gamma)`` gives the map at another density without a further pass. Where the paper and the
    released code differ the code is followed; ``preset='released'`` also has what looks unintended in it. The search,
    the differences and measurements: docs/guide/mda.md.

    Attributes:
        seed: the method whose map ranks the candidates of each step; None tries all remaining segments at every step.
        gamma: density, from 0 (sparse: the segments that suffice for the class) to 1 (dense: all that matter).
        kappa: the least value that counts as important when the map is made dense.
        tau: the share of the response at which insertion stops; 1 is insertion alone, 0 deletion alone.
        search: exact measures every candidate of a step; fast measures new ones, those that were best when last
            measured and those measured longest ago, and so needs half the passes.
        per_step: how many segments a step pastes.
        preset: released for the authors' program as it is.
        segments: grid for the model's own patches, slic for superpixels; by default as the preset says.
        cells: segments from top to bottom and from left to right; by default the model's patches, else 14.
        window: candidates per step, the first in the order of the seed; by default min(2⌊√n⌋, 28).
        steps: points of the insertion and deletion curves by which the magnitudes are set.
        tie: which pixels of a segment go first in these curves: quicksort, as numpy's unstable sort leaves them, which
            the authors use, or index (row by row), which is the same on every machine.
        output: smooth resizes the map to a pixel per segment and back to the image's size, as the paper does; sharp
            gives one value per segment, on the grid itself where segments are a grid.
    """

    seed: Method | None = field(default_factory=BiAttention)
    gamma: float = 0.0
    kappa: float = 0.005
    tau: float = 0.9
    search: Literal["exact", "fast"] = "exact"
    per_step: int = 1
    preset: Literal["released"] | None = None
    segments: Literal["grid", "slic"] | None = None
    cells: int | None = None
    window: int | None = None
    steps: int = 224
    tie: Literal["quicksort", "index"] = "quicksort"
    output: Output = "smooth"

    def __post_init__(self) -> None:
        for name in ("gamma", "tau"):
            if not 0 <= getattr(self, name) <= 1:
                raise RecipeError(f"got {name}={getattr(self, name)}; give a number from 0 to 1")
        for name in ("per_step", "cells", "window", "steps"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise RecipeError(f"got {name}={getattr(self, name)}; give a whole number, 1 or more")
        if self.seed is None and self.window is not None:
            raise RecipeError(f"got window={self.window} without a seed to say which segments come first; give a seed")

    def __call__(self, model: Adapter, images: Tensor, target: Target) -> Attribution:
        cells = self.cells_of(model, (images.shape[-2], images.shape[-1]))
        segments = self.cut(model, images, cells)
        seeds = [torch.zeros(each.count) for each in segments]
        if self.seed is not None:
            maps = self.seed(model, images, target).pixels()
            seeds = seed_scores(maps, cells, segments, magnitude=self.released)
        return self.refine(model, images, target, segments, seeds)

    def refine(
        self, model: Adapter, images: Tensor, target: Target, segments: list[Segments], seeds: list[Tensor]
    ) -> Attribution:
        """Order given segments, one partition per image with the seed's score of each segment, and set magnitudes."""
        score_target = scored(target, "probability", model)
        endpoints = find_endpoints(model, images, score_target)
        orders = [importance_order(seed[None, None])[0].tolist() for seed in seeds]
        searches = side_by_side(
            model,
            score_target,
            [greedy(*each, self.rule(each[1].count)) for each in zip(endpoints, segments, orders, strict=True)],
        )
        fit_to = early_fit if self.released else convex_fit
        first = [
            falling_curve([end.full, *reversed(search.deletion)], end.empty, end.full)
            for end, search in zip(endpoints, searches, strict=True)
        ]
        fits = [fit_to(curve) for curve in first]
        sharp = [
            own.paint(torch.from_numpy(by_segment(search, fit, own)).to(images.device))
            for search, fit, own in zip(searches, fits, segments, strict=True)
        ]
        second = self.remeasure(model, score_target, endpoints, torch.stack(sharp), segments)
        refits = [fit_to(curve) for curve in second]
        refined = tuple(
            RefinedImage(
                segments[i], seeds[i], searches[i], end.side, (end.full, end.blur, end.empty),
                (first[i], second[i]), (fits[i], refits[i]), by_segment(searches[i], refits[i], segments[i]),
            )
            for i, end in enumerate(endpoints)
        )  # fmt: skip
        return self.details(model, images, refined).with_density(self.gamma)

    def remeasure(
        self, model: Adapter, target: Target, endpoints: list[Endpoints], maps: Tensor, segments: list[Segments]
    ) -> list[Array]:
        """Insert and delete pixels in the order of the maps; return the mean of both curves, one point per segment."""
        image, blurred, blank = (torch.stack([getattr(e, n) for e in endpoints]) for n in ("image", "blurred", "blank"))
        pixels = maps.shape[-2] * maps.shape[-1]
        counts = [round(pixels * step / self.steps) for step in range(1, self.steps)]
        pixel_ranks = ranks(importance_order(maps) if self.tie == "index" else unstable_order(maps))
        inserted = responses(model, blurred, image, target, pixel_ranks, counts).double().cpu().numpy()
        deleted = responses(model, image, blank, target, pixel_ranks, counts).double().cpu().numpy()
        return [
            mean_curve(
                np.array([end.blur, *rising, end.full]), np.array([end.full, *falling, end.empty]),
                (end.full, end.blur, end.empty), own.count,
            )
            for end, rising, falling, own in zip(endpoints, inserted, deleted, segments, strict=True)
        ]  # fmt: skip

    def details(self, model: Adapter, images: Tensor, refined: tuple[RefinedImage, ...]) -> Refinement:
        """Return the details of the attribution, from which its map is made."""
        size = (images.shape[-2], images.shape[-1])
        like = images.new_empty(0, dtype=full_dtype(images.dtype))
        cells = self.cells_of(model, size) if self.kind == "grid" else None
        return Refinement(refined, cells, size, like, self.output, self.kappa)

    # ---- derived from the options ------------------------------------------------------------------------------

    @property
    def released(self) -> bool:
        return self.preset == "released"

    @property
    def kind(self) -> str:
        return self.segments or ("slic" if self.released else "grid")

    def cells_of(self, model: Adapter, size: Size) -> Size:
        """Return the rows and columns of segments."""
        if self.cells is not None:
            return self.cells, self.cells
        grid = patch_grid(model, size)
        return grid.height, grid.width

    def cut(self, model: Adapter, images: Tensor, cells: Size) -> list[Segments]:
        """Partition every image into segments: the model's own patches, a grid, or superpixels."""
        if self.kind == "slic":
            return [slic_segments(raw, cells[0] * cells[1]) for raw in model.denormalise(images)]
        patch = model.patch if isinstance(model, VisionTransformer) and self.cells is None else None
        return [grid_segments((images.shape[-2], images.shape[-1]), cells, patch, images.device)] * len(images)

    def rule(self, count: int) -> Rule:
        """Return the settings of the search over this many segments."""
        window = count if self.seed is None else self.window or min(2 * math.isqrt(count), WIDEST)
        return Rule(
            window=max(window, self.per_step),
            per_step=self.per_step,
            tau=self.tau,
            fast=self.search == "fast",
            trusting=self.seed is not None,
            cut_short=self.released,
        )

    def cost(self, model: Adapter) -> Passes:
        """Return the most it can cost: the image decides how far insertion goes and how much blur is needed."""
        cells = self.cells_of(model, model.default_size)
        count = cells[0] * cells[1]
        seed = Passes() if self.seed is None else self.seed.cost(model)
        return seed + Passes(2 + len(BLURS) + 2 * (self.steps - 1) + most_passes(count, self.rule(count)))


def seed_scores(maps: Tensor, cells: Size, segments: list[Segments], *, magnitude: bool) -> list[Tensor]:
    """Return the seed's mean in each segment, from its maps at image size, (batch, height, width).

    The maps are resized to a pixel per cell first, as the authors do, which smooths maps that were enlarged. The
    authors then take magnitudes, for maps that are nowhere negative.
    """
    maps = full_precision(maps)
    small = F.interpolate(maps[:, None], size=cells, mode="bilinear", antialias=True)
    large = F.interpolate(small, size=maps.shape[-2:], mode="nearest-exact")[:, 0]
    large = large.abs() if magnitude else large
    return [own.means(seed) for own, seed in zip(segments, large, strict=True)]


def unstable_order(maps: Tensor) -> Tensor:
    """Order pixels as the released program does: equal ones as numpy's quicksort of single precision leaves them."""
    flat = maps.flatten(1).float().cpu().numpy()
    return torch.from_numpy(np.argsort(flat, axis=1)[:, ::-1].copy()).to(maps.device)


def by_segment(search: SegmentOrder, fit: Array, segments: Segments) -> Array:
    """Return the values of the segments' pixels, in the segments' own numbering."""
    order = np.array(search.order)
    values = np.empty(len(order))
    values[order] = segment_values(fit, segments.pixels.cpu().numpy()[order].astype(float))
    return values
