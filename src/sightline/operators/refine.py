"""MDA: attributions optimised for the metrics that judge them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from sightline.errors import RecipeError, warn
from sightline.methods.attention.bi_attention import BiAttention
from sightline.methods.patching.simple import patch_grid
from sightline.models.adapter import Adapter
from sightline.models.passes import full_dtype, full_precision
from sightline.models.vit.adapter import VisionTransformer
from sightline.operators.density import Array, Output, RefinedImage, Refinement
from sightline.perturb.curve import importance_order, ranks, responses, scored
from sightline.perturb.endpoints import BLURS, Baseline, Endpoints, find_endpoints
from sightline.perturb.search.composites import side_by_side
from sightline.perturb.search.greedy import Rule, SegmentOrder, follow, greedy, most_passes
from sightline.perturb.search.interior_point import early_fit
from sightline.perturb.search.magnitudes import convex_fit, curve_areas, falling_curve, mean_curve, segment_values
from sightline.perturb.segments import Segments, grid_segments, slic_segments
from sightline.registry import OPERATORS
from sightline.types import Attribution, Method, Passes, Target

WIDEST = 28  # candidates per step at most
COMPARED = 28  # points of the curves by which a search and its seed are compared
KAPPA = 0.005
Size = tuple[int, int]
Curves = tuple[Array, Array]  # the score as pixels are inserted, and as they are deleted


@OPERATORS.register(
    "mda",
    family="refine",
    cite="mda2025",
    cost="at most 6486 forwards at 14×14 segments beside the seed's, mostly some 5640; half with search='fast', "
    "a quarter with search='blocks' or 'joint'",
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
    Density, kappa and output are applied to what the search found: ``details.with_density(gamma, kappa=...)``, a list
    of recipes given to ``explain`` and a benchmark run of several share one search. Where the paper and the
    released code differ the code is followed; ``preset='released'`` also has what looks unintended in it. The search,
    the differences and measurements: docs/guide/mda.md.

    Attributes:
        seed: the method whose map ranks the candidates of each step; None tries all remaining segments at every step.
        gamma: density, from 0 (sparse: the segments that suffice for the class) to 1 (dense: all that matter).
        kappa: the least value that counts as important when the map is made dense.
        tau: the share of the response at which insertion stops; 1 is insertion alone, 0 deletion alone. A joint search
            has no such stop, and nothing between them matters to it.
        search: exact measures every candidate of a step; fast measures new ones, those that were best when last
            measured and those measured longest ago, and so needs half the passes; blocks measures fewer still and
            pastes the segments that hardly matter in blocks, for a quarter of the passes; joint searches for insertion
            and deletion together, for a quarter too, and needs a good seed, such as ``plus(libra(ixg))``. Where a
            search ends below its own seed, in insertion minus deletion, the seed's order is kept with a warning, unless
            exact is written; the default is exact with that comparison.
        per_step: how many segments a step pastes.
        preset: released for the authors' program as it is.
        segments: grid for the model's own patches, slic for superpixels; by default as the preset says.
        cells: segments from top to bottom and from left to right; by default the model's patches, else 14.
        window: candidates per step, the first in the order of the seed; by default min(2⌊√n⌋, 28).
        steps: points of the insertion and deletion curves by which the magnitudes are set.
        tie: which pixels of a segment go first in these curves: quicksort, as numpy's unstable sort leaves them, which
            the authors use, or index (row by row), which is the same on every machine.
        output: sharp gives one value per segment, which the pixels of the segment share: the map that was searched;
            smooth resizes it to a pixel per segment and bilinearly back to the image's size, as the authors' program
            returns it. By default sharp, and smooth for ``preset='released'``.
        insertion: the image into which insertion pastes: blur, in which the class is not recognised; zero (after
            normalisation), which the authors' program calls black; or black.
        deletion: the image into which deletion pastes, likewise.
    """

    seed: Method | None = field(default_factory=BiAttention)
    gamma: float = 0.0
    kappa: float = KAPPA
    tau: float = 0.9
    search: Literal["exact", "fast", "blocks", "joint"] | None = None
    per_step: int = 1
    preset: Literal["released"] | None = None
    segments: Literal["grid", "slic"] | None = None
    cells: int | None = None
    window: int | None = None
    steps: int = 224
    tie: Literal["quicksort", "index"] = "quicksort"
    output: Output | None = None
    insertion: Baseline = "blur"
    deletion: Baseline = "zero"

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
        endpoints = find_endpoints(model, images, score_target, self.insertion, self.deletion)
        task = _Task(model, score_target, endpoints, segments, seeds)
        searches = side_by_side(model, score_target, [greedy(*each, self.rule(each[1].count)) for each in task.rows()])
        refined, curves = self.set_magnitudes(task, searches)
        if self.compares_with_seed:
            refined = self.keep_better_seeds(task, refined, curves)
        return self.details(model, images, tuple(refined)).with_density(self.gamma)

    def set_magnitudes(self, task: _Task, searches: Sequence[SegmentOrder]) -> tuple[list[RefinedImage], list[Curves]]:
        """Set magnitudes by the response that the search measured, then by the insertion and deletion of that map."""
        fit_to = early_fit if self.released else convex_fit
        ends = task.endpoints
        first = [
            falling_curve([end.full, *reversed(search.deletion)], end.empty, end.full)
            for end, search in zip(ends, searches, strict=True)
        ]
        fits = [fit_to(curve) for curve in first]
        sharp = [
            own.paint(torch.from_numpy(by_segment(search, fit, own)).to(own.labels.device))
            for search, fit, own in zip(searches, fits, task.segments, strict=True)
        ]
        curves = self.measure(task, torch.stack(sharp), range(self.steps + 1))
        second = [
            mean_curve(*pair, end.scores, own.count) for pair, end, own in zip(curves, ends, task.segments, strict=True)
        ]
        refits = [fit_to(curve) for curve in second]
        refined = [
            RefinedImage(
                task.segments[i], task.seeds[i], searches[i], end.side, end.scores,
                (first[i], second[i]), (fits[i], refits[i]), by_segment(searches[i], refits[i], task.segments[i]),
            )
            for i, end in enumerate(ends)
        ]  # fmt: skip
        return refined, curves

    def measure(self, task: _Task, maps: Tensor, points: Sequence[int]) -> list[Curves]:
        """Insert and delete pixels in the order of the maps; return both curves at these of the `steps` + 1 points."""
        image, blurred, blank = (
            torch.stack([getattr(e, n) for e in task.endpoints]) for n in ("image", "blurred", "blank")
        )
        pixels = maps.shape[-2] * maps.shape[-1]
        counts = [round(pixels * step / self.steps) for step in points[1:-1]]
        pixel_ranks = ranks(importance_order(maps) if self.tie == "index" else unstable_order(maps))
        pairs = ((blurred, image), (image, blank))
        inserted, deleted = (
            responses(task.model, *pair, task.target, pixel_ranks, counts).double().cpu().numpy() for pair in pairs
        )
        return [
            (np.array([end.blur, *rising, end.full]), np.array([end.full, *falling, end.empty]))
            for end, rising, falling in zip(task.endpoints, inserted, deleted, strict=True)
        ]

    def keep_better_seeds(
        self, task: _Task, refined: list[RefinedImage], curves: Sequence[Curves]
    ) -> list[RefinedImage]:
        """Keep the seed's own order for the images on which the search ended below it, and say so."""
        points = _few(self.steps)
        at = np.array(points) / self.steps
        maps = [own.paint(falling_values(order)) for _, own, order in task.rows()]
        of_seeds = self.measure(task, torch.stack(maps).to(task.endpoints[0].image.device), points)
        found = [
            (self.quality((own[0][points], own[1][points]), end, at), self.quality(of_seed, end, at))
            for own, of_seed, end in zip(curves, of_seeds, task.endpoints, strict=True)
        ]
        worse = [row for row, (of_search, of_seed) in enumerate(found) if of_seed > of_search]
        if not worse:
            return refined
        of_search, of_seed = found[worse[0]]
        warn(
            f"MDA's search ended below its own seed for {len(worse)} of {len(refined)} images ({of_search:.2f} against "
            f"{of_seed:.2f}, insertion minus deletion); the seed's order is kept there. Write search='exact' for the "
            "order that was searched, or try another seed",
            stacklevel=2,
        )
        again = task.take(worse)
        kept, _ = self.set_magnitudes(again, side_by_side(task.model, again.target, [follow(*r) for r in again.rows()]))
        by_row = dict(zip(worse, kept, strict=True))
        return [replace(by_row[i], kept_seed=True) if i in by_row else each for i, each in enumerate(refined)]

    def quality(self, curves: Curves, endpoints: Endpoints, at: Array) -> float:
        """Return what the search is for: insertion minus deletion, or one of them at an extreme of tau."""
        rising, falling = curve_areas(*curves, endpoints.scores, at)
        return (rising if self.tau > 0 else 0.0) - (falling if self.tau < 1 else 0.0)

    def details(self, model: Adapter, images: Tensor, refined: tuple[RefinedImage, ...]) -> Refinement:
        """Return the details of the attribution, from which its map is made."""
        size = (images.shape[-2], images.shape[-1])
        like = images.new_empty(0, dtype=full_dtype(images.dtype))
        cells = self.cells_of(model, size) if self.kind == "grid" else None
        return Refinement(refined, cells, size, like, self.shown_as, self.kappa)

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
            lazy=self.search == "blocks",
            joint=self.search == "joint",
            trusting=self.seed is not None,
            cut_short=self.released,
        )

    @property
    def compares_with_seed(self) -> bool:
        """Whether the seed's own order is measured too: wherever there is one, unless the search is insisted on."""
        return self.seed is not None and self.search != "exact" and not self.released

    @property
    def basis(self) -> MetricDriven:
        """The same search at density 0; density, kappa and output are applied to what it finds."""
        return replace(self, gamma=0.0, kappa=KAPPA, output=None)

    def from_basis(self, attribution: Attribution) -> Attribution:
        assert isinstance(attribution.details, Refinement)
        return replace(attribution.details, kappa=self.kappa, output=self.shown_as).with_density(self.gamma)

    @property
    def shown_as(self) -> Output:
        return self.output or ("smooth" if self.released else "sharp")

    def cost(self, model: Adapter) -> Passes:
        """Return the most it can cost.

        The image decides how far insertion goes, how much blur is needed and whether the seed's order is kept.
        """
        cells = self.cells_of(model, model.default_size)
        count = cells[0] * cells[1]
        seed = Passes() if self.seed is None else self.seed.cost(model)
        curves = 2 * (self.steps - 1)
        comparing = 2 * (len(_few(self.steps)) - 2) + count + curves if self.compares_with_seed else 0
        return seed + Passes(2 + len(BLURS) + curves + comparing + most_passes(count, self.rule(count)))


@dataclass(frozen=True, slots=True, eq=False)
class _Task:
    """What a search is about: the model, the target, and per image its endpoints, segments and the seed's scores."""

    model: Adapter
    target: Target
    endpoints: list[Endpoints]
    segments: list[Segments]
    seeds: list[Tensor]

    def rows(self) -> Iterator[tuple[Endpoints, Segments, list[int]]]:
        """Yield the endpoints, the segments and the seed's order of each image."""
        orders = (importance_order(seed[None, None])[0].tolist() for seed in self.seeds)
        return zip(self.endpoints, self.segments, orders, strict=True)

    def take(self, rows: Sequence[int]) -> _Task:
        """Return the task of these images."""
        return _Task(
            self.model,
            self.target.take(rows),
            [self.endpoints[row] for row in rows],
            [self.segments[row] for row in rows],
            [self.seeds[row] for row in rows],
        )


def _few(steps: int) -> list[int]:
    """Return about as many of the points 0 to `steps` as it takes to compare two orders, both ends among them."""
    return sorted({*range(0, steps, max(1, steps // COMPARED)), steps})


def falling_values(order: Sequence[int]) -> Tensor:
    """Return values that fall along an order of segments, in the segments' own numbering."""
    values = torch.empty(len(order), dtype=torch.float64)
    values[list(order)] = torch.arange(len(order), 0, -1, dtype=torch.float64)
    return values


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
