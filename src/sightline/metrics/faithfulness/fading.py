"""Curves between an image and a copy of it in which the class can no longer be seen.

The blur is chosen image by image: of the windows `window`, `window + 2`, … 101 pixels the first that leaves the class
a probability of one per cent :cite:p:`mda2025`. Metrics that agree on the settings share blur and curve.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from sightline.errors import RecipeError
from sightline.metrics.case import Case, flags_where, join_flags
from sightline.models.adapter import Adapter
from sightline.perturb.curve import Curve, Direction, read_scores, responses, scored
from sightline.perturb.endpoints import BLURS, GONE, blur_until_gone
from sightline.perturb.fill import FillName, make_fill
from sightline.perturb.order import Importance, Tie, ranks

Filling = Literal["fade", "zero", "blur", "black", "white", "mean"]
FIRST, LAST = BLURS[0], BLURS[-1]
USUAL_SIZE = (224, 224)  # assumed in the cost of a model that takes images of any size


@dataclass(frozen=True, slots=True, eq=False)
class Filled:
    """The images without what the model needs, and what it says of them.

    Attributes:
        images: shape (batch, 3, height, width).
        scores: shape (batch,).
        visible: where no blur was wide enough to hide the class, shape (batch,).
    """

    images: Tensor
    scores: Tensor
    visible: Tensor


@dataclass(frozen=True, slots=True)
class Walk:
    """From an image to its filled copy or back, `step` pixels at a time: the options that such metrics share."""

    step: int = 224
    fill: Filling = "fade"
    window: int = FIRST
    radius: int = 5
    sigma: float = 5.0
    by: Importance = "magnitude"
    tie: Tie = "index"
    seed: int = 0

    def __post_init__(self) -> None:
        check_fill(self.fill, self.window, self.radius, self.sigma)
        self.plain("insert")  # refuses the other options now, not when the first image arrives

    def plain(self, direction: Direction, by: Importance | None = None) -> Curve:
        """Return the settings as a curve, with a blank in place of a blur that every image needs its own of."""
        name: FillName = "zero" if self.fill == "fade" else self.fill
        fill = make_fill(name, self.radius, self.sigma)
        return Curve(direction, fill, self.step, "probability", self.tie, self.seed, by or self.by)

    def curve(self, case: Case, direction: Direction) -> Tensor:
        """Return the class's probability along the walk, shape (batch, points)."""
        curve = self.plain(direction, same_order(case, self.by))
        if self.fill != "fade":
            return case.curve(curve)
        return case.once(("fade", self.window, curve), lambda: self._fade(case, curve))

    def _fade(self, case: Case, curve: Curve) -> Tensor:
        places = ranks(case.order(curve.tie, curve.seed, curve.by))
        counts = curve.counts(places.shape[1])
        return along(case, self.filled(case), curve.direction, places, counts[1:-1])

    def filled(self, case: Case) -> Filled:
        """Return the filled images."""
        return filled(case, self.fill, self.window, self.radius, self.sigma)

    def forwards(self, model: Adapter) -> int:
        """Return the forward passes of one curve, and of every blur that may have to be tried."""
        height, width = model.input_size or USUAL_SIZE
        return len(self.plain("insert").counts(height * width)) + blurs(self.fill, self.window)


def filled(case: Case, fill: Filling, window: int, radius: int, sigma: float) -> Filled:
    """Return the filled images of a case, each blurred as far as it needs where they fade."""
    if fill == "fade":
        return case.once(("fade", window), lambda: _faded(case, window))
    chosen = make_fill(fill, radius, sigma)
    scores = read_scores(case.model, scored(case.target, "probability"), case.filled(chosen))
    images = case.once(("filled images", chosen), lambda: chosen(case.model, case.images))
    return Filled(images, scores, torch.zeros_like(scores, dtype=torch.bool))


def _faded(case: Case, window: int) -> Filled:
    read = scored(case.target, "probability")
    images, scores = case.images.clone(), clean_scores(case)
    # a window of one pixel is the image itself, which has been seen
    rows = (scores > GONE).nonzero()[:, 0].tolist() if window == 1 else list(range(len(images)))
    if rows:
        found = blur_until_gone(case.model, images[rows], read.take(rows), sides(window))
        images[rows] = torch.stack([image for image, _, _ in found])
        scores = scores.clone()
        scores[rows] = scores.new_tensor([score for _, score, _ in found])
    return Filled(images, scores, scores > GONE)


def along(case: Case, filled: Filled, direction: Direction, places: Tensor, counts: Sequence[int]) -> Tensor:
    """Return the class's probability as pixels change in the order of their places, both ends included."""
    read = scored(case.target, "probability")
    ends, pair = [clean_scores(case), filled.scores], (case.images, filled.images)
    if direction == "insert":
        ends, pair = ends[::-1], pair[::-1]
    between = responses(case.model, *pair, read, places, counts)
    return torch.cat([ends[0][:, None], between, ends[1][:, None]], dim=1)


def clean_scores(case: Case) -> Tensor:
    """Return the class's probability in the images themselves."""
    return read_scores(case.model, scored(case.target, "probability"), case.clean)


def same_order(case: Case, by: Importance) -> Importance:
    """Call it an order by value where no map is negative: a metric that ranks by value can then share the curve."""
    return "value" if by == "magnitude" and bool((case.maps >= 0).all()) else by


def walk_flags(case: Case, filled: Filled) -> tuple[str, ...]:
    """Say which maps are constant, and which images show their class through every blur."""
    return join_flags(case.flags, flags_where(filled.visible, "class visible in every blur"))


def sides(window: int) -> range:
    """Return the blurs that are tried, by the width of their window; one of a single pixel would change nothing."""
    return range(max(window, 3), LAST + 1, 2)


def blurs(fill: Filling, window: int) -> int:
    """Return how many blurs may be tried beyond the first, which is an end of the curve."""
    return len(sides(window)) - 1 if fill == "fade" else 0


def check_fill(fill: str, window: int, radius: int, sigma: float, first: int = FIRST) -> None:
    """Refuse a fill that does not exist, and options that it would not use."""
    if fill not in get_args(Filling):
        raise RecipeError(f"got fill={fill!r}; choose from {', '.join(get_args(Filling))}")
    if not 1 <= window <= LAST or window % 2 == 0:
        raise RecipeError(f"got window={window}; the first blur's window is an odd number of pixels from 1 to {LAST}")
    if fill != "fade" and window != first:
        raise RecipeError(f"got window={window} with fill={fill!r}; only fill='fade' has it")
    if fill == "fade" and (radius, sigma) != (5, 5.0):
        raise RecipeError(f"got radius={radius}, sigma={sigma} with fill='fade'; give window, or fill='blur'")
