"""Response curves between an image and its filled copy, by default a blur in which the class is not recognised.

The blur is chosen image by image: of the windows `window`, `window + 2`, … 101 pixels the first that leaves the class
a probability of one per cent :cite:p:`mda2025`. Metrics that agree on the settings share blur and curve.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

import torch
from torch import Tensor

from sightline.errors import RecipeError
from sightline.metrics.case import Case, Measurement, flags_where, join_flags
from sightline.metrics.faithfulness.options import PerturbationOptions
from sightline.models.adapter import Adapter
from sightline.perturb.curve import STEP, Curve, Direction, Importance, Tie, curve_between, ranks
from sightline.perturb.endpoints import BLURS, UNRECOGNISED, blur_until_unrecognised
from sightline.perturb.fill import FillName, make_fill
from sightline.types import Passes

Visible = Literal["skip", "keep"]
Filling = Literal["fade", "zero", "blur", "black", "white", "mean"]
FIRST_WINDOW, LAST_WINDOW = BLURS[0], BLURS[-1]


@dataclass(frozen=True, slots=True, eq=False)
class FilledImages:
    """The filled copies of images, and their scores.

    Attributes:
        images: shape (batch, 3, height, width).
        scores: shape (batch,).
        visible: where the class is recognised in every blur, shape (batch,).
    """

    images: Tensor
    scores: Tensor
    visible: Tensor


@dataclass(frozen=True, slots=True)
class FilledCurve(PerturbationOptions):
    """Base of the metrics that follow the class probability between an image and its filled copy.

    Attributes:
        fill: what removed pixels become: zero (after normalisation), black, white, mean, blur; or fade, the first blur
            in which the class is not recognised.
        by: what makes a pixel important: magnitude, value, or negative, the least important first.
    """

    step: int = STEP
    fill: Filling = "fade"
    window: int = FIRST_WINDOW
    radius: int = 5
    sigma: float = 5.0
    by: Importance = "magnitude"
    tie: Tie = "index"
    seed: int = 0

    def __post_init__(self) -> None:
        check_blur(self.fill, self.window, self.radius, self.sigma)
        self.settings("insert")  # refuses the other options now, not when the first image arrives

    def settings(self, direction: Direction, by: Importance | None = None) -> Curve:
        """Return the settings of the curve, with a zero fill where each image has a blur of its own."""
        name: FillName = "zero" if self.fill == "fade" else self.fill
        fill = make_fill(name, self.radius, self.sigma)
        return Curve(direction, fill, self.step, "probability", self.tie, self.seed, by or self.by)

    def curve(self, case: Case, direction: Direction) -> Tensor:
        """Return the class probability at the points of the curve, shape (batch, points)."""
        curve = self.settings(direction, same_order(case, self.by))
        if self.fill != "fade":
            return case.curve(curve)
        return case.once(("fade", self.window, self.below, curve), lambda: self._fade(case, curve))

    def _fade(self, case: Case, curve: Curve) -> Tensor:
        pixel_ranks = ranks(case.order(curve.tie, curve.seed, curve.by))
        counts = curve.counts(pixel_ranks.shape[1])
        return probability_curve(case, self.filled(case), curve.direction, pixel_ranks, counts[1:-1])

    def filled(self, case: Case) -> FilledImages:
        """Return the filled images."""
        return fill_images(case, self.fill, self.window, self.radius, self.sigma, below=self.below)

    @property
    def below(self) -> bool:
        """Whether a blur must leave the class less than one per cent, not one per cent at most."""
        return False

    def left_out(self, case: Case) -> Tensor:
        """Return which images have no score because every blur leaves their class visible, shape (batch,)."""
        return self.filled(case).visible

    def forwards(self, model: Adapter) -> int:
        """Return the forward passes of one curve, and of every blur that may have to be tried."""
        return self.settings("insert").passes(model) + further_blurs(self.fill, self.window)

    def cost(self, model: Adapter, /) -> Passes:
        return Passes(forward=self.forwards(model))


@dataclass(frozen=True, slots=True)
class DeletionCurve(FilledCurve):
    """Base of the metrics that delete pixels and leave out the images that insertion leaves out.

    Attributes:
        visible: what becomes of an image whose class is recognised in every blur, from which insertion cannot start:
            skip leaves it out here too, as the authors do, at the price of the search for the blur; keep scores it.
    """

    fill: Filling = "zero"
    visible: Visible = "skip"

    def __post_init__(self) -> None:
        check_visible(self.visible)
        FilledCurve.__post_init__(self)

    def left_out(self, case: Case) -> Tensor:
        if self.fill == "fade" or self.visible == "keep":
            return self.filled(case).visible
        return fill_images(case, "fade", FIRST_WINDOW, 5, 5.0, below=self.below).visible

    def forwards(self, model: Adapter) -> int:
        searched = self.fill != "fade" and self.visible == "skip"
        return FilledCurve.forwards(self, model) + (len(blur_windows(FIRST_WINDOW)) if searched else 0)


def check_visible(visible: str) -> None:
    """Refuse what is no way to treat an image whose class no blur hides."""
    if visible not in get_args(Visible):
        raise RecipeError(f"got visible={visible!r}; choose skip or keep")


def fill_images(
    case: Case, fill: Filling, window: int, radius: int, sigma: float, *, below: bool = False
) -> FilledImages:
    """Return the filled images of a case, for 'fade' each blurred until its class is not recognised.

    That is at a probability of one per cent, with `below` under it.
    """
    if fill == "fade":
        return case.once(("fade", window, below), lambda: _blurred(case, window, below))
    chosen = make_fill(fill, radius, sigma)
    scores = case.read(case.followed("probability"), case.filled(chosen))
    images = case.once(("filled images", chosen), lambda: chosen(case.model, case.images))
    return FilledImages(images, scores, torch.zeros_like(scores, dtype=torch.bool))


def _blurred(case: Case, window: int, below: bool) -> FilledImages:
    target = case.followed("probability")
    images, scores = case.images.clone(), case.read(target, case.clean)
    # a window of one pixel is the image itself, whose score is known
    rows = (scores > UNRECOGNISED).nonzero()[:, 0].tolist() if window == 1 else list(range(len(images)))
    if rows:
        sides = blur_windows(window)
        blurs = blur_until_unrecognised(case.model, images[rows], target.take(rows), sides, below=below)
        images[rows] = torch.stack([image for image, _, _ in blurs])
        scores = scores.clone()
        scores[rows] = scores.new_tensor([score for _, score, _ in blurs])
    return FilledImages(images, scores, scores >= UNRECOGNISED if below else scores > UNRECOGNISED)


def probability_curve(
    case: Case, filled: FilledImages, direction: Direction, pixel_ranks: Tensor, counts: Sequence[int]
) -> Tensor:
    """Return the class probability as pixels change in the order of their ranks, both endpoints included."""
    target = case.followed("probability")
    endpoints = ((case.images, case.read(target, case.clean)), (filled.images, filled.scores))
    return curve_between(case.model, endpoints, target, direction, pixel_ranks, counts)


def same_order(case: Case, by: Importance) -> Importance:
    """Call it an order by value where no map is negative: a metric that ranks by value can then share the curve."""
    return "value" if by == "magnitude" and bool((case.maps >= 0).all()) else by


def curve_flags(case: Case, visible: Tensor) -> tuple[str, ...]:
    """Flag constant maps, and images whose class is recognised in every blur, shape (batch,)."""
    return join_flags(case.flags, flags_where(visible, "class visible in every blur"))


def blur_windows(window: int) -> range:
    """Return the widths of the blurs that are tried; a window of one pixel would change nothing."""
    return range(max(window, 3), LAST_WINDOW + 1, 2)


def further_blurs(fill: Filling, window: int) -> int:
    """Return how many blurs may be tried beyond the first, which is an endpoint of the curve."""
    return len(blur_windows(window)) - 1 if fill == "fade" else 0


def check_blur(fill: str, window: int, radius: int, sigma: float, first: int = FIRST_WINDOW) -> None:
    """Refuse options of a blur that the fill does not use."""
    if not 1 <= window <= LAST_WINDOW or window % 2 == 0:
        raise RecipeError(
            f"got window={window}; the first blur's window is an odd number of pixels from 1 to {LAST_WINDOW}"
        )
    if fill != "fade" and window != first:
        raise RecipeError(f"got window={window} with fill={fill!r}; only fill='fade' has it")
    if fill == "fade" and (radius, sigma) != (5, 5.0):
        raise RecipeError(f"got radius={radius}, sigma={sigma} with fill='fade'; give window, or fill='blur'")


class CurveDifference(PerturbationOptions, ABC):
    """Base of the metrics that take the curve of a deletion from that of an insertion."""

    __slots__ = ()
    range: ClassVar[tuple[float, float]] = (-1.0, 1.0)

    def __post_init__(self) -> None:
        _ = self.pair

    @property
    @abstractmethod
    def pair(self) -> tuple[Any, Any]:
        """The metrics of insertion and of deletion."""

    def __call__(self, case: Case, /) -> Measurement:
        inserted, deleted = (metric(case) for metric in self.pair)
        flags = join_flags(inserted.flags, deleted.flags)
        return Measurement(inserted.values - deleted.values, inserted.curve - deleted.curve, flags)
