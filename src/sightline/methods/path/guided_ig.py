"""Guided integrated gradients: a path that moves the pixels first to which the score hardly responds."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from sightline.errors import RecipeError
from sightline.models.adapter import Adapter
from sightline.models.batch import in_batches
from sightline.perturb.fill import make_fill
from sightline.registry import METHODS
from sightline.types import Attribution, Passes, Target, pixel_grid

CLOSE = 1e-9


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
    r"""Integrated gradients along a path that avoids steep places.

    .. math:: A_i = \sum_c \sum_{t=0}^{n-1}
        \frac{\partial s}{\partial x_{i,c}}(x^t)\,\bigl(x^{t+1}_{i,c} - x^t_{i,c}\bigr), \qquad
        \lVert x - x^t \rVert_1 = \Bigl(1 - \frac tn\Bigr) \lVert x - x' \rVert_1

    from the reference :math:`x^0 = x'` to the image :math:`x^n = x`. In every step the values with the smallest
    :math:`\lvert \partial s / \partial x \rvert` move, as far as the step has to go, none straying from the straight
    line by more than `distance` of its length. Complete, up to the error of the sum that stands for the integral,
    which grows with `distance`: in a wide corridor a value goes its whole way in one step. ``distance=0`` is ``ig``
    with left sums. Which values move is decided by comparing gradients: give a float64 model where two runs must agree
    to the last digit.

    Attributes:
        steps: gradients taken, one after another.
        fraction: how many of the values move first, the rest following only when these have arrived.
        distance: how far a value may run ahead of the straight line or fall behind it, as a share of its way.
        blank: the reference: zero (the mean colour), black, white, mean or blur.
    """

    steps: int = 200
    fraction: float = 0.25
    distance: float = 0.02
    blank: Literal["zero", "black", "white", "mean", "blur"] = "zero"

    def __post_init__(self) -> None:
        make_fill(self.blank)
        if self.steps < 1:
            raise RecipeError(f"got steps={self.steps}; at least one step is needed")
        for name, value in (("fraction", self.fraction), ("distance", self.distance)):
            if not 0 <= value <= 1:
                raise RecipeError(f"got {name}={value}; a share between 0 and 1 is needed")

    def __call__(self, model: Adapter, images: Tensor, target: Target) -> Attribution:
        blank = make_fill(self.blank)(model, images)
        walks = [
            _Walk(end.flatten().cpu().double(), start.flatten().cpu().double(), self.fraction)
            for end, start in zip(images, blank, strict=True)
        ]
        for step in range(1, self.steps + 1):
            gradients = self._gradients(model, torch.stack([walk.x for walk in walks]), images, target)
            for walk, gradient in zip(walks, gradients, strict=True):
                walk.step(gradient.flatten().cpu().double(), step / self.steps, self.distance)
        total = torch.stack([walk.total for walk in walks]).unflatten(1, images.shape[1:])
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


class _Walk:
    """One image's way from the reference, in double precision: where it is, and what it has collected.

    Attributes:
        x: where the walk is.
        total: the contributions so far.
    """

    def __init__(self, end: Tensor, start: Tensor, fraction: float) -> None:
        self.x, self.total = start.clone(), torch.zeros_like(end)
        self._end, self._start = end, start
        self._length = float((end - start).abs().sum())
        self._place = 1 + int((len(end) - 1) * fraction)  # in order of size, of the largest gradient that may move

    def step(self, gradient: Tensor, share: float, distance: float) -> None:
        """Move until `share` of the way is behind, within a corridor around the straight line."""
        before = self.x.clone()
        latest, farthest = (self._line(a) for a in (max(share - distance, 0.0), min(share + distance, 1.0)))
        left = self._length * (1 - share)
        self._catch_up(latest)
        size = gradient.abs()
        while self._ahead(left):
            size[self.x == farthest] = math.inf
            chosen = (size <= size.kthvalue(self._place).values) & (size != math.inf)
            reach = float((self.x - farthest).abs()[chosen].sum())
            if not reach:
                break  # everybody is as far as the corridor goes
            part = min(self._ahead(left) / reach, 1.0)
            moved = farthest if part == 1 else self.x + (farthest - self.x) * part
            self.x = torch.where(chosen, moved, self.x)
            if part < 1:
                break
        self.total += (self.x - before) * gradient

    def _line(self, share: float) -> Tensor:
        return self._start + (self._end - self._start) * share

    def _catch_up(self, latest: Tensor) -> None:
        """Bring forward whatever fell behind the corridor."""
        behind = (self._end - self.x).abs() > (self._end - latest).abs()
        self.x = torch.where(behind, latest, self.x)

    def _ahead(self, left: float) -> float:
        """Return how much of the way is still to go in this step, zero when it is as good as nothing."""
        now = float((self._end - self.x).abs().sum())
        return 0.0 if math.isclose(left, now, rel_tol=CLOSE, abs_tol=CLOSE) else max(now - left, 0.0)
