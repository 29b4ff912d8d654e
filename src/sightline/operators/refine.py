"""Refine a map by what a metric would measure of it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from sightline.errors import RecipeError
from sightline.methods.attention.feedback import BiAttention
from sightline.models.adapter import Adapter
from sightline.models.precision import full_dtype, full_precision
from sightline.models.vit.adapter import VisionTransformer
from sightline.operators.density import Array, Output, Refined, Refinement
from sightline.perturb.curve import responses, scored
from sightline.perturb.endpoints import BLURS, Endpoints, find_endpoints
from sightline.perturb.greedy import Found, Rule, greedy, most_passes
from sightline.perturb.interior_point import early_fit
from sightline.perturb.magnitudes import convex_fit, falling_curve, mean_curve, segment_values
from sightline.perturb.order import importance_order, ranks
from sightline.perturb.search import side_by_side
from sightline.perturb.segments import Segments, grid_segments, slic_segments
from sightline.registry import OPERATORS
from sightline.types import Attribution, Method, Passes, Target

SIDE = 14  # cells from top to bottom and from left to right where the model has no patches
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
    r"""MDA: the map that insertion and deletion themselves would choose.

    .. math:: A_\gamma = (1-\gamma)\,a + \gamma\,b, \qquad
        a_i = (u_{i-1}-u_i)\Bigl(\frac1{m_i} + \frac{n-i}{n}\Bigr), \qquad
        u = \arg\min_{u\ \text{convex}} \lVert u - c \rVert^2

    First the order of the n segments. Into a blurred image (the narrowest blur of 31, 33, … 101 pixels that leaves a
    probability of 1 %) the segment that raises the class's probability most is pasted, again and again, until a share
    tau of the probability is back; these come first. Into a blank image the segment that raises it least is pasted
    until all others are placed; these come last, the first one pasted at the very end. A step tries the first
    :math:`\min(2\lfloor\sqrt n\rfloor, 28)` segments in the order of the seed's map. Then the magnitudes: c is the
    response left after each segment, u the convex curve closest to it, its drops the weights, :math:`m_i` the pixels of
    a segment; insertion and deletion of that map are measured, and the weights set again by the mean of both curves.
    :math:`b_i` is :math:`(n-i)/n` where :math:`a_i \ge \kappa` and :math:`a_i` elsewhere, as large as a.

    Any model will do, also a plain function, and any target: of a class its probability is followed, whichever way the
    class was asked for, and any other target itself. The map is never negative. `Attribution.details` holds orders,
    curves and magnitudes, and ``details.with_density(gamma)`` gives the map of another density without a single pass.

    Paper and released code differ. Followed is the code in: the stop (probability scaled between blur and image), the
    :math:`1/m_i` (absent in the paper's eq. 10), the curve's start (twice the image's own response), the scaling of b.
    ``preset='released'`` adds what looks unintended there: SLIC superpixels, which are not the patches (11 % of the
    pixels lie in a neighbour's); an end mark that may drop insertions already made; magnitudes of the seed's map; a
    solver that stops some 3e-4 short of the optimum. The pixels of a segment have equal values, and the second
    measurement changes 224 of them at a time where a patch has 256, so which go first matters (28 % of the largest
    magnitude on one photograph); the authors leave it to an unstable sort, which can differ between machines.

    Measured on ViT-Tiny: ``seed=caap`` improved insertion − deletion on both photographs tried (.665 → .683, .304 →
    .413). Two segments per step halve the passes but lose quality (.644, .439 against exact .665, .304 on 49 segments),
    four lose more. The gradient does not tell which segment to paste (rank correlation .03 to .11 with what pasting
    does), the gain a step before does: that is what ``search='fast'`` goes by.

    Attributes:
        seed: the method whose map decides which segments are tried; None tries all that are left at every step.
        gamma: density, from 0 (sparse: what suffices for the class) to 1 (dense: all that matters).
        kappa: the least value that counts as important when the map is made dense.
        tau: the share of the response at which insertion stops; 1 is insertion alone, 0 deletion alone.
        search: exact measures every candidate; fast only newcomers, those that did best when last measured and a few
            that have waited longest, so many that half the passes are saved.
        per_step: how many segments a step pastes.
        preset: released for the authors' program, oddities included.
        segments: grid for the model's own patches, slic for superpixels; by default as the preset says.
        cells: segments from top to bottom and from left to right; by default the model's patches, else 14.
        window: candidates per step; by default as above.
        steps: points of the curves in the second measurement.
        tie: which pixels of a segment go first in the second measurement: those an unstable quicksort leaves first,
            as the authors do, or index (row by row), which is the same on every machine.
        output: smooth scales the map down to a pixel per segment and up to the image's size, as the paper does; sharp
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
        pieces = self.cut(model, images, cells)
        seeds = [torch.zeros(piece.count) for piece in pieces]
        if self.seed is not None:
            maps = self.seed(model, images, target).pixels()
            seeds = seed_scores(maps, cells, pieces, magnitude=self.released)
        return self.refine(model, images, target, pieces, seeds)

    def refine(
        self, model: Adapter, images: Tensor, target: Target, pieces: list[Segments], seeds: list[Tensor]
    ) -> Attribution:
        """Order and weigh segments that are given, one partition per image, with a seed's score of each segment."""
        read = scored(target, "probability")
        ends = find_endpoints(model, images, read)
        orders = [importance_order(seed[None, None])[0].tolist() for seed in seeds]
        searches = [
            greedy(end, piece, order, self.rule(piece.count))
            for end, piece, order in zip(ends, pieces, orders, strict=True)
        ]
        found = side_by_side(model, read, searches)
        fit_to = early_fit if self.released else convex_fit
        first = [
            falling_curve([end.full, *reversed(f.deletion)], end.empty, end.full)
            for end, f in zip(ends, found, strict=True)
        ]
        fits = [fit_to(curve) for curve in first]
        sharp = [
            piece.paint(torch.from_numpy(by_segment(f, fit, piece)).to(images.device))
            for f, fit, piece in zip(found, fits, pieces, strict=True)
        ]
        second = self.remeasure(model, read, ends, torch.stack(sharp), pieces)
        refits = [fit_to(curve) for curve in second]
        refined = tuple(
            Refined(
                pieces[i], seeds[i], found[i], ends[i].side, (ends[i].full, ends[i].blur, ends[i].empty),
                (first[i], second[i]), (fits[i], refits[i]), by_segment(found[i], refits[i], pieces[i]),
            )
            for i in range(len(images))
        )  # fmt: skip
        return self.details(model, images, refined).with_density(self.gamma)

    def remeasure(
        self, model: Adapter, read: Target, ends: list[Endpoints], maps: Tensor, pieces: list[Segments]
    ) -> list[Array]:
        """Insert and delete pixels in the order of the maps; return the mean of both curves, one point per segment."""
        image, blurred, blank = (torch.stack([getattr(e, n) for e in ends]) for n in ("image", "blurred", "blank"))
        pixels = maps.shape[-2] * maps.shape[-1]
        counts = [round(pixels * step / self.steps) for step in range(1, self.steps)]
        places = ranks(importance_order(maps) if self.tie == "index" else unstable_order(maps))
        inserted = responses(model, blurred, image, read, places, counts).double().cpu().numpy()
        deleted = responses(model, image, blank, read, places, counts).double().cpu().numpy()
        return [
            mean_curve(
                np.array([e.blur, *rising, e.full]), np.array([e.full, *falling, e.empty]),
                (e.full, e.blur, e.empty), piece.count,
            )
            for e, rising, falling, piece in zip(ends, inserted, deleted, pieces, strict=True)
        ]  # fmt: skip

    def details(self, model: Adapter, images: Tensor, refined: tuple[Refined, ...]) -> Refinement:
        size = (images.shape[-2], images.shape[-1])
        like = images.new_empty(0, dtype=full_dtype(images.dtype))
        cells = self.cells_of(model, size) if self.kind == "grid" else None
        return Refinement(refined, cells, size, like, self.output, self.kappa)

    # ---- what follows from the options -------------------------------------------------------------------------

    @property
    def released(self) -> bool:
        return self.preset == "released"

    @property
    def kind(self) -> str:
        return self.segments or ("slic" if self.released else "grid")

    def cells_of(self, model: Adapter, size: Size) -> Size:
        """Return how many segments there are from top to bottom and from left to right."""
        if self.cells is not None:
            return self.cells, self.cells
        if isinstance(model, VisionTransformer):
            grid = model.grid_for(size)
            return grid.height, grid.width
        return min(SIDE, size[0]), min(SIDE, size[1])

    def cut(self, model: Adapter, images: Tensor, cells: Size) -> list[Segments]:
        """Cut every image into segments: the model's own patches, a grid, or superpixels."""
        if self.kind == "slic":
            return [slic_segments(raw, cells[0] * cells[1]) for raw in model.denormalise(images)]
        patch = model.patch if isinstance(model, VisionTransformer) and self.cells is None else None
        return [grid_segments((images.shape[-2], images.shape[-1]), cells, patch, images.device)] * len(images)

    def rule(self, count: int) -> Rule:
        """Return how the search goes among this many segments."""
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
        """Return the most it can cost: how far insertion goes, and how much blur it takes, the image decides."""
        cells = self.cells_of(model, model.default_size)
        count = cells[0] * cells[1]
        seed = Passes() if self.seed is None else self.seed.cost(model)
        return seed + Passes(2 + len(BLURS) + 2 * (self.steps - 1) + most_passes(count, self.rule(count)))


def seed_scores(maps: Tensor, cells: Size, pieces: list[Segments], *, magnitude: bool) -> list[Tensor]:
    """Return what a seed's maps at image size, (batch, height, width), make of each segment.

    The maps are scaled down to a pixel per cell first, as the authors do, which smooths maps that were scaled up. The
    authors then take magnitudes, for maps that are nowhere negative.
    """
    maps = full_precision(maps)
    small = F.interpolate(maps[:, None], size=cells, mode="bilinear", antialias=True)
    large = F.interpolate(small, size=maps.shape[-2:], mode="nearest-exact")[:, 0]
    large = large.abs() if magnitude else large
    return [piece.means(one) for piece, one in zip(pieces, large, strict=True)]


def unstable_order(maps: Tensor) -> Tensor:
    """Order pixels as the released program does: equal ones as numpy's quicksort of single precision leaves them."""
    flat = maps.flatten(1).float().cpu().numpy()
    return torch.from_numpy(np.argsort(flat, axis=1)[:, ::-1].copy()).to(maps.device)


def by_segment(found: Found, fit: Array, piece: Segments) -> Array:
    """Return the values of the segments' pixels, in the segments' own numbering."""
    order = np.array(found.order)
    values = np.empty(len(order))
    values[order] = segment_values(fit, piece.pixels.cpu().numpy()[order].astype(float))
    return values
