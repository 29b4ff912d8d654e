"""Monotonicity: whether the class probability rises with every part of the image that is added."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from sightline.errors import RecipeError
from sightline.metrics.case import Case, Measurement, flags_where, join_flags
from sightline.metrics.faithfulness.filled_curve import (
    FIRST_WINDOW,
    FilledCurve,
    FilledImages,
    Filling,
    check_blur,
    curve_flags,
    fill_images,
    further_blurs,
    probability_curve,
)
from sightline.metrics.faithfulness.options import PerturbationOptions
from sightline.metrics.similarity import spearman
from sightline.models.adapter import Adapter
from sightline.models.vit.adapter import VisionTransformer
from sightline.perturb.curve import STEP, Direction, Importance, Tie, importance_order, ranks
from sightline.perturb.segments import Segments, grid_segments
from sightline.registry import METRICS
from sightline.types import Passes

SIDE = 14  # cells from top to bottom and from left to right where the model has no patches


@METRICS.register(
    "monotonicity",
    family="faithfulness",
    cite="mda2025, arya2019",
    cost="at most 246 forward, 49 of them to find the blur",
    direction="higher",
    parity="chasewalker26/MDA: responses to 1e-4, correlations to 1e-3, on a real ViT and a photograph",
)
@dataclass(frozen=True, slots=True)
class Monotonicity(PerturbationOptions):
    r"""Spearman's rank correlation between the number of patches inserted, by importance, and the class probability.

    .. math:: \rho\bigl((0, 1, \dots n),\ (p_0, p_1, \dots p_n)\bigr)

    where :math:`p_k` is the class's probability once the k most important patches of the image have entered
    a blurred copy, and :math:`p_0` that of the copy itself: the first of the windows 1, 3, … 101 pixels (sigma alike)
    that leaves the class one per cent :cite:p:`mda2025`. A patch is as important as the mean of its signed values.
    ``mode='negative'`` takes patches from the image instead and correlates with how much is left.

    It rewards that every patch raises the probability, in whatever order: a map in random order scores high, a map that
    ranks all the evidence first and then distractors scores low. And it is a rank correlation over a curve that
    saturates: small numerical differences near 1 change it.

    ``variant='aix360'`` is another metric under the same name :cite:p:`arya2019`: patches enter from the least to the
    most important, and the score is 1 if the probability never falls and 0 otherwise; the filled image itself is no
    point of that curve. With ``unit='pixel'`` the curve is the one `insertion_mda(window=1, by='value')` follows, and
    is shared with it. It costs a forward pass per point and one for every wider blur that is tried.

    Edge cases: a probability that never changes has no rank: NaN, "constant response". Where every blur leaves the
    class visible it is NaN, "class visible in every blur".

    Attributes:
        mode: positive inserts into the filled image, negative deletes from the image.
        variant: spearman, or aix360.
        unit: what enters at a time: a patch of the model, or `step` pixels.
        cells: patches from top to bottom and from left to right; by default the model's own, else 14.
        step: pixels that change at a time when the unit is a pixel.
        fill: the filled image: fade, the blur described above; or zero, blur, black, white, mean.
    """

    mode: Literal["positive", "negative"] = "positive"
    variant: Literal["spearman", "aix360"] = "spearman"
    unit: Literal["patch", "pixel"] = "patch"
    cells: int | None = None
    step: int = STEP
    fill: Filling = "fade"
    window: int = 1
    radius: int = 5
    sigma: float = 5.0
    tie: Tie = "index"
    seed: int = 0
    range: ClassVar[tuple[float, float]] = (-1.0, 1.0)

    def __post_init__(self) -> None:
        if self.variant == "aix360" and self.mode == "negative":
            raise RecipeError("got mode='negative' with variant='aix360', which only inserts; leave one of them out")
        if self.cells is not None and (self.cells < 1 or self.unit == "pixel"):
            raise RecipeError(f"got cells={self.cells} with unit={self.unit!r}; give 1 or more, with unit='patch'")
        check_blur(self.fill, self.window, self.radius, self.sigma, first=1)
        _ = self.pixel_curve  # refuses the other options now, not when the first image arrives

    def __call__(self, case: Case, /) -> Measurement:
        curve, filled = self.curve(case), self._filled(case)
        values = _never_falls(curve) if self.variant == "aix360" else self._correlation(curve)
        flags = curve_flags(case, filled.visible)
        if self.variant == "spearman":
            flags = join_flags(flags, flags_where(values.isnan(), "constant response"))
        return Measurement(values.masked_fill(filled.visible, float("nan")), curve, flags)

    def curve(self, case: Case) -> Tensor:
        """Return the class probability as patches enter or leave, the filled image included."""
        key = ("monotonicity", self.mode, self.by, self.cells, self.fill, self.window, self.radius, self.sigma)
        if self.unit == "pixel":
            return self.pixel_curve.curve(case, self.direction)
        return case.once((*key, self.tie, self.seed), lambda: self._patches(case))

    def _patches(self, case: Case) -> Tensor:
        patches = self._segments(case.model, (case.images.shape[-2], case.images.shape[-1]), case.images.device)
        means = torch.stack([patches.means(values) for values in case.maps.double()])
        patch_ranks = ranks(importance_order(means[:, None], self.tie, self.seed, self.by))
        pixel_ranks = patch_ranks[:, patches.labels.flatten()]  # of its patch, so that counts of patches are thresholds
        counts = range(1, patches.count)
        return probability_curve(case, self._filled(case), self.direction, pixel_ranks, counts)

    def _filled(self, case: Case) -> FilledImages:
        return fill_images(case, self.fill, self.window, self.radius, self.sigma)

    def _correlation(self, curve: Tensor) -> Tensor:
        amount = torch.arange(curve.shape[1], dtype=torch.float64, device=curve.device)
        amount = amount.flip(0) if self.mode == "negative" else amount
        return spearman(amount.expand(len(curve), -1), curve.double())

    # ---- derived from the options ------------------------------------------------------------------------------

    @property
    def direction(self) -> Direction:
        return "insert" if self.mode == "positive" else "delete"

    @property
    def by(self) -> Importance:
        return "negative" if self.variant == "aix360" else "value"

    @property
    def pixel_curve(self) -> FilledCurve:
        window = self.window if self.fill == "fade" else FIRST_WINDOW
        return FilledCurve(self.step, self.fill, window, self.radius, self.sigma, self.by, self.tie, self.seed)

    def _segments(self, model: Adapter, size: tuple[int, int], device: torch.device | None = None) -> Segments:
        if isinstance(model, VisionTransformer) and self.cells is None:
            grid = model.grid_for(size)
            return grid_segments(size, (grid.height, grid.width), model.patch, device)
        side = SIDE if self.cells is None else self.cells
        return grid_segments(size, (min(side, size[0]), min(side, size[1])), device=device)

    def cost(self, model: Adapter, /) -> Passes:
        if self.unit == "pixel":
            return Passes(forward=self.pixel_curve.forwards(model))
        points = self._segments(model, model.default_size).count + 1
        return Passes(forward=points + further_blurs(self.fill, self.window))


def _never_falls(curve: Tensor) -> Tensor:
    """Return 1 where no patch lowers the probability, from the first patch on."""
    return (curve[:, 1:].diff(dim=1) >= 0).all(dim=1).double()
