"""Monotonicity: does the model grow surer with every piece of the image it is given?"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from scipy.stats import ConstantInputWarning, spearmanr
from torch import Tensor

from sightline.errors import RecipeError
from sightline.metrics.case import Case, Measurement, flags_where, join_flags
from sightline.metrics.faithfulness.fading import (
    FIRST,
    USUAL_SIZE,
    Filling,
    Walk,
    along,
    blurs,
    check_fill,
    filled,
    walk_flags,
)
from sightline.models.adapter import Adapter
from sightline.models.vit.adapter import VisionTransformer
from sightline.perturb.curve import Direction
from sightline.perturb.order import Importance, Tie, importance_order, ranks
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
class Monotonicity:
    r"""Rank correlation between how much of the image has been given and how sure the model is.

    .. math:: \rho\bigl((0, 1, \dots n),\ (p_0, p_1, \dots p_n)\bigr)

    Spearman's, where :math:`p_k` is the class's probability once the k most important patches of the image have entered
    a blurred copy, and :math:`p_0` that of the copy itself: the first of the windows 1, 3, … 101 pixels (sigma alike)
    that leaves the class one per cent :cite:p:`mda2025`. A patch is as important as the mean of its signed values.
    ``mode='negative'`` takes patches from the image instead and correlates with how much is left.

    It asks only that every piece helps, in whatever order: a map in random order scores high, a map that gives all the
    evidence at once and then distractors scores low. And it is a rank correlation over a curve that saturates: small
    numerical differences up there move it.

    ``variant='aix360'`` is another thing under the same name :cite:p:`arya2019`: pieces enter from the least to the
    most important, and the answer is 1 if the probability never falls and 0 otherwise; the filled image itself is no
    point of that curve. With ``unit='pixel'`` the curve is the one `insertion_mda(window=1, by='value')` follows, and
    is shared with it. It costs a forward pass per point and one for every wider blur that is tried.

    Edge cases: a probability that never changes has no rank: NaN, "constant response". Where every blur leaves the
    class visible it is NaN, "class visible in every blur".

    Attributes:
        mode: positive inserts into the filled image, negative deletes from the image.
        variant: spearman, or aix360.
        unit: what enters at a time: a patch of the model, or `step` pixels.
        cells: patches from top to bottom and from left to right; by default the model's own, else 14.
        step: pixels per step when the unit is a pixel.
        fill: what the curve starts from: fade, the blur described above; or zero, blur, black, white, mean.
        window: width of the first blur tried when it fades, in pixels, odd.
        radius: of a fixed blur.
        sigma: of a fixed blur.
        tie: the order of equal pieces: index (row-major), or random, by the seed.
        seed: of random ties.
    """

    mode: Literal["positive", "negative"] = "positive"
    variant: Literal["spearman", "aix360"] = "spearman"
    unit: Literal["patch", "pixel"] = "patch"
    cells: int | None = None
    step: int = 224
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
        check_fill(self.fill, self.window, self.radius, self.sigma, first=1)
        _ = self.walk  # refuses the other options now, not when the first image arrives

    def __call__(self, case: Case, /) -> Measurement:
        curve = self.curve(case)
        lost = filled(case, self.fill, self.window, self.radius, self.sigma)
        flat = (curve == curve[:, :1]).all(dim=1)
        values = _never_falls(curve) if self.variant == "aix360" else self._correlation(curve)
        flags = walk_flags(case, lost)
        if self.variant == "spearman":
            flags = join_flags(flags, flags_where(flat, "constant response"))
        return Measurement(values.masked_fill(lost.visible, float("nan")), curve, flags)

    def curve(self, case: Case) -> Tensor:
        """Return the class's probability as pieces enter or leave, the filled image included."""
        key = ("monotonicity", self.mode, self.by, self.cells, self.fill, self.window, self.radius, self.sigma)
        if self.unit == "pixel":
            return self.walk.curve(case, self.direction)
        return case.once((*key, self.tie, self.seed), lambda: self._patches(case))

    def _patches(self, case: Case) -> Tensor:
        lost = filled(case, self.fill, self.window, self.radius, self.sigma)
        patches = self._cut(case.model, (case.images.shape[-2], case.images.shape[-1]), case.images.device)
        means = torch.stack([patches.means(one) for one in case.maps.double()])
        places = ranks(importance_order(means[:, None], self.tie, self.seed, self.by))
        # every pixel has the place of its patch, so that a count of patches is a count of places
        pixels = places[:, patches.labels.flatten()]
        return along(case, lost, self.direction, pixels, range(1, patches.count))

    def _correlation(self, curve: Tensor) -> Tensor:
        amount = torch.arange(curve.shape[1], dtype=torch.float64)
        amount = amount.flip(0) if self.mode == "negative" else amount
        return curve.new_tensor([_spearman(amount, one) for one in curve.double().cpu()], dtype=torch.float64)

    # ---- what follows from the options -------------------------------------------------------------------------

    @property
    def direction(self) -> Direction:
        return "insert" if self.mode == "positive" else "delete"

    @property
    def by(self) -> Importance:
        return "negative" if self.variant == "aix360" else "value"

    @property
    def walk(self) -> Walk:
        window = self.window if self.fill == "fade" else FIRST
        return Walk(self.step, self.fill, window, self.radius, self.sigma, self.by, self.tie, self.seed)

    def _cut(self, model: Adapter, size: tuple[int, int], device: torch.device | None = None) -> Segments:
        if isinstance(model, VisionTransformer) and self.cells is None:
            grid = model.grid_for(size)
            return grid_segments(size, (grid.height, grid.width), model.patch, device)
        side = SIDE if self.cells is None else self.cells
        return grid_segments(size, (min(side, size[0]), min(side, size[1])), device=device)

    def cost(self, model: Adapter, /) -> Passes:
        if self.unit == "pixel":
            return Passes(forward=self.walk.forwards(model))
        points = self._cut(model, model.input_size or USUAL_SIZE).count + 1
        return Passes(forward=points + blurs(self.fill, self.window))


def _never_falls(curve: Tensor) -> Tensor:
    """Return 1 where no piece lowers the probability, from the first piece on."""
    return (curve[:, 1:].diff(dim=1) >= 0).all(dim=1).double()


def _spearman(first: Tensor, second: Tensor) -> float:
    """Return the rank correlation, ties at their mean rank; NaN where one side is constant."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConstantInputWarning)
        return float(spearmanr(first.numpy(), second.numpy()).statistic)
