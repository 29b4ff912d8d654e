"""Guided integrated gradients: an adaptive path that moves pixels with small gradients first."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from sightline.errors import RecipeError
from sightline.models.adapter import Adapter
from sightline.models.passes import in_batches
from sightline.perturb.fill import make_fill
from sightline.registry import METHODS
from sightline.types import Attribution, Passes, Target, pixel_grid

CLOSE = 1e-9  # distances that differ by less are the same
ROUNDS = 1000  # in which the values may move, in each step


@METHODS.register(
    "guided_ig",
    family="path",
    cite="kapishnikov2021",
    cost="steps forward, steps backward",
    needs=("gradient",),
    parity="PAIR saliency GuidedIG on a random CNN, 1e-9, and on EfficientNet-Lite0, 1e-5",
)
@dataclass(frozen=True, slots=True)
class GuidedIntegratedGradients:
    r"""Guided integrated gradients: an adaptive path that moves pixels with small gradients first, to reduce noise.

    .. math:: A_i = \sum_c \sum_{t=0}^{n-1}
        \frac{\partial s}{\partial x_{i,c}}(x^t)\,\bigl(x^{t+1}_{i,c} - x^t_{i,c}\bigr), \qquad
        \lVert x - x^t \rVert_1 = \Bigl(1 - \frac tn\Bigr) \lVert x - x' \rVert_1

    from the baseline :math:`x^0 = x'` to the image :math:`x^n = x`. In every step the values with the smallest
    :math:`\lvert \partial s / \partial x \rvert` move until the L1 distance is that of the formula, none deviating from
    the straight line by more than `distance` of its length. Complete, up to the error of the sum, which grows with
    `distance`: in a wide corridor a value moves all the way in one step. ``distance=0`` is ``ig`` with left sums. Which
    values move is decided by comparing gradients: use a float64 model where two runs must agree to the last digit.

    Attributes:
        steps: number of gradients, taken one after another.
        fraction: the fraction of values that move first; the others move when these have reached the corridor's end.
        distance: how far a value may deviate from the straight line, as a fraction of its length.
        blank: the baseline: zero (the mean colour), black, white, mean or blur.
    """

    steps: int = 200
    fraction: float = 0.25
    distance: float = 0.02
    blank: Literal["zero", "black", "white", "mean", "blur"] = "zero"

    def __post_init__(self) -> None:
        make_fill(self.blank)

    def __call__(self, model: Adapter, images: Tensor, target: Target) -> Attribution:
        baselines = make_fill(self.blank)(model, images)
        paths = [
            _Path(image.flatten().cpu().double(), baseline.flatten().cpu().double(), self.fraction)
            for image, baseline in zip(images, baselines, strict=True)
        ]
        for step in range(1, self.steps + 1):
            gradients = self._gradients(model, torch.stack([path.x for path in paths]), images, target)
            for path, gradient in zip(paths, gradients, strict=True):
                path.step(gradient.flatten().cpu().double(), step / self.steps, self.distance)
        total = torch.stack([path.total for path in paths]).unflatten(1, images.shape[1:])
        return Attribution(total.sum(dim=1)[None].to(images), pixel_grid(images))

    def _gradients(self, model: Adapter, points: Tensor, images: Tensor, target: Target) -> Tensor:
        points = points.view(images.shape).to(images)

        def work(part: slice) -> Tensor:
            pixels = points[part].clone().requires_grad_()
            with torch.enable_grad():
                score = target.take(range(len(points))[part])(model(pixels))
            return model.gradients(score, {"image": pixels})["image"]

        return torch.cat(in_batches(work, len(points), model.batch))

    def cost(self, model: Adapter) -> Passes:
        return Passes(self.steps, self.steps)


class _Path:
    """One image's path from the baseline, in double precision.

    Attributes:
        x: the current point.
        total: the contributions so far.
    """

    def __init__(self, image: Tensor, baseline: Tensor, fraction: float) -> None:
        self.x, self.total = baseline.clone(), torch.zeros_like(image)
        self._image, self._baseline = image, baseline
        self._length = float((image - baseline).abs().sum())
        self._rank = 1 + int((len(image) - 1) * fraction)  # of the largest gradient whose value may move
        if len(image) > ROUNDS * self._rank:
            raise RecipeError(
                f"guided_ig got fraction={fraction}, which moves {self._rank} of {len(image)} values at a time, in "
                f"more than {ROUNDS} rounds per step; choose a larger fraction, such as 0.25"
            )

    def step(self, gradient: Tensor, share: float, distance: float) -> None:
        """Move until `share` of the path is done, within a corridor around the straight line."""
        before = self.x.clone()
        latest, farthest = (self._line(a) for a in (max(share - distance, 0.0), min(share + distance, 1.0)))
        remaining = self._length * (1 - share)
        self._catch_up(latest)
        size = gradient.abs()
        while self._to_go(remaining):
            size[self.x == farthest] = math.inf
            chosen = (size <= size.kthvalue(self._rank).values) & (size != math.inf)
            reach = float((self.x - farthest).abs()[chosen].sum())
            if not reach:
                break  # every value is at the end of its corridor
            part = min(self._to_go(remaining) / reach, 1.0)
            moved = farthest if part == 1 else self.x + (farthest - self.x) * part
            self.x = torch.where(chosen, moved, self.x)
            if part < 1:
                break
        self.total += (self.x - before) * gradient

    def _line(self, share: float) -> Tensor:
        return self._baseline + (self._image - self._baseline) * share

    def _catch_up(self, latest: Tensor) -> None:
        """Move the values that fell behind the corridor to its beginning."""
        behind = (self._image - self.x).abs() > (self._image - latest).abs()
        self.x = torch.where(behind, latest, self.x)

    def _to_go(self, remaining: float) -> float:
        """Return the L1 distance still to move in this step, zero up to rounding."""
        now = float((self._image - self.x).abs().sum())
        return 0.0 if math.isclose(remaining, now, rel_tol=CLOSE, abs_tol=CLOSE) else max(now - remaining, 0.0)
