"""LIME: a linear model of which superpixels are there, fitted where most of them are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from sightline.errors import RecipeError
from sightline.methods.sampling.coalitions import Absent, OnSegments, absent_images, check_absent, coalition_scores
from sightline.methods.scored import Score, scored
from sightline.models.adapter import Adapter
from sightline.perturb.segments import Segments
from sightline.perturb.superpixels import Option, as_option
from sightline.registry import METHODS
from sightline.seeds import generators
from sightline.types import Passes, Target

Variant = Literal["image", "package"]
MOST_SEEDS = 2**32  # of NumPy's generator


@METHODS.register(
    "lime",
    family="sampling",
    cite="ribeiro2016",
    cost="1 forward per sample",
    parity="lime 0.2 on a CNN and on a photograph with its segments and seed, coefficients to 1e-9",
)
@dataclass(frozen=True, slots=True)
class Lime(OnSegments):
    r"""Local linear explanation: the weight of each superpixel in a ridge regression on random images near this one.

    .. math:: \min_{\beta, b} \sum_i \pi(z_i) \bigl(s(x_{z_i}) - b - \beta^\top z_i\bigr)^2 + \alpha \|\beta\|^2,
        \qquad \pi(z) = e^{-d(z)^2 / 2\sigma^2}

    where :math:`z` says which superpixels are there, each with probability one half, the others being painted over, and
    :math:`d(z) = 1 - \sqrt{|z| / M}` is the cosine distance to the whole image. The first sample is the image itself.
    It runs on any model, and all classes share the passes.

    Attributes:
        samples: how many images are mixed.
        segments: the superpixels: quickshift, as the authors, slic, felzenszwalb or grid, or one of these with its
            numbers, such as ('slic', 60) or ('grid', 7, 7), all but grid with scikit-image; or a small label map, such
            as ((0, 0, 1), (2, 2, 1)), stretched over the image. Python may bring its own, `Lime(segments=labels)`:
            whole numbers, (height, width) or (image, height, width), or a function from an image to them.
        seed: of the samples.
        blank: what is painted over an absent superpixel: segment, its own mean colour, as the authors, mean, the mean
            colour of the training set, black, white, blur, or a number, that value after normalisation.
        width: of the kernel, sigma.
        alpha: strength of the ridge.
        score: what is read of the class: probability, as the authors, logit or log_probability; None for whatever the
            target says.
        variant: of the random numbers: image, those of the seed and the image, or package, NumPy's of the seed alone,
            as the authors' package draws them.
    """

    samples: int = 1000
    segments: Option = "quickshift"
    seed: int = 0
    blank: Absent = "segment"
    width: float = 0.25
    alpha: float = 1.0
    score: Score | None = "probability"
    variant: Variant = "image"

    def __post_init__(self) -> None:
        object.__setattr__(self, "segments", as_option(self.segments))
        check_absent(self.blank)
        if self.variant == "package" and not 0 <= self.seed < MOST_SEEDS:
            raise RecipeError(f"got seed={self.seed} with variant='package'; NumPy's seeds are 0 to {MOST_SEEDS - 1}")
        if self.samples < 2:
            raise RecipeError(f"got samples={self.samples}; a line takes 2 or more")
        if not self.width > 0 or not 0 <= self.alpha < math.inf:
            raise RecipeError(f"got width={self.width} and alpha={self.alpha}; give width > 0 and a finite alpha ≥ 0")

    def values(
        self, model: Adapter, images: Tensor, targets: Sequence[Target], pieces: Sequence[Segments]
    ) -> list[Tensor]:
        absent = absent_images(model, images, self.blank, pieces)
        coalitions = [
            random_coalitions(self.samples, piece.count, generator)
            if self.variant == "image"
            else package_coalitions(self.samples, piece.count, self.seed)
            for piece, generator in zip(pieces, generators(self.seed, images), strict=True)
        ]
        read = [scored(target, self.score, model) for target in targets]
        scores = coalition_scores(model, images, absent, pieces, coalitions, read)
        return [
            fit_ridge(z, nearness(z, self.width), y, self.alpha)[0].to(y)
            for z, y in zip(coalitions, scores, strict=True)
        ]

    def multi_target_cost(self, model: Adapter, count: int, *, every_layer: bool = False) -> Passes:
        return Passes(self.samples)


def random_coalitions(samples: int, segments: int, generator: torch.Generator) -> Tensor:
    """Draw who is there, each with probability one half, shape (sample, segment); in the first all are."""
    found = torch.rand(samples, segments, generator=generator) < 0.5
    found[0] = True
    return found


def package_coalitions(samples: int, segments: int, seed: int) -> Tensor:
    """Draw who is there as the package lime does, shape (sample, segment)."""
    random = np.random.RandomState(seed)
    random.randint(0, 1000)  # it draws a seed first, which nobody uses
    found = torch.from_numpy(random.randint(0, 2, samples * segments).reshape(samples, segments)).bool()
    found[0] = True
    return found


def nearness(coalitions: Tensor, width: float) -> Tensor:
    """Return the weight of each sample: near one where most segments are there."""
    distance = 1 - coalitions.double().mean(dim=1).sqrt()
    return (-(distance**2) / (2 * width**2)).exp()


def fit_ridge(coalitions: Tensor, weights: Tensor, scores: Tensor, alpha: float) -> tuple[Tensor, Tensor]:
    """Fit scores, (target, sample), linearly: coefficients, (target, segment), and intercepts, (target,).

    The intercept is not held small, so it drops out when everything is taken around its weighted mean. Double
    precision, on the CPU; scores are taken from the first one, so that equal scores give zeros and not their rounding.
    """
    z, y, weights = coalitions.double().cpu(), scores.double().cpu(), weights.double().cpu()
    first = y[:, :1]
    y = y - first
    share = weights / weights.sum()
    z_mean, y_mean = share @ z, y @ share
    root = weights.sqrt()
    design, wanted = (z - z_mean) * root[:, None], ((y - y_mean[:, None]) * root).T
    ridge = torch.cat([design, alpha**0.5 * torch.eye(z.shape[1], dtype=z.dtype)])
    wanted = torch.cat([wanted, wanted.new_zeros(z.shape[1], wanted.shape[1])])
    found = torch.linalg.lstsq(ridge, wanted, driver="gelsd").solution.T
    return found, first[:, 0] + y_mean - found @ z_mean
