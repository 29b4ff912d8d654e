"""LIME: a linear model of which superpixels are there, fitted where most of them are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sightline.errors import RecipeError
from sightline.methods.coalitions import Absent, OnSegments, absent_images, check_absent, coalition_scores
from sightline.methods.scored import Score, check_score, scored
from sightline.models.adapter import Adapter
from sightline.perturb.segments import Segments
from sightline.perturb.superpixels import Cut, check_cut
from sightline.registry import METHODS
from sightline.seeds import generators
from sightline.types import Passes, Target


@METHODS.register(
    "lime",
    family="sampling",
    cite="ribeiro2016",
    cost="1 forward per sample",
    parity="lime 0.2 on a CNN and on a photograph given its segments and samples, coefficients to 1e-9",
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
            numbers, such as ('slic', 60) or ('grid', 7, 7); all but grid need scikit-image. Python may bring its own:
            `Lime().on(model, images, targets, labels)`.
        seed: of the samples.
        blank: what is painted over an absent superpixel: segment, its own mean colour, as the authors, mean, the mean
            colour of the training set, black, white or blur.
        width: of the kernel, sigma.
        alpha: strength of the ridge.
        score: what is read of the class: probability, as the authors, logit or log_probability; None for whatever the
            target says.
    """

    samples: int = 1000
    segments: Cut = "quickshift"
    seed: int = 0
    blank: Absent = "segment"
    width: float = 0.25
    alpha: float = 1.0
    score: Score | None = "probability"

    def __post_init__(self) -> None:
        check_cut(self.segments)
        check_absent(self.blank)
        check_score(self.score)
        if self.samples < 2:
            raise RecipeError(f"got samples={self.samples}; a line takes 2 or more")
        if not self.width > 0 or self.alpha < 0:
            raise RecipeError(f"got width={self.width} and alpha={self.alpha}; give width > 0 and alpha ≥ 0")

    def values(
        self, model: Adapter, images: Tensor, targets: Sequence[Target], pieces: Sequence[Segments]
    ) -> list[Tensor]:
        absent = absent_images(model, images, self.blank, pieces)
        coalitions = [
            random_coalitions(self.samples, piece.count, generator)
            for piece, generator in zip(pieces, generators(self.seed, images), strict=True)
        ]
        read = [scored(target, self.score) for target in targets]
        scores = coalition_scores(model, images, absent, pieces, coalitions, read)
        return [
            fit_ridge(z, nearness(z, self.width), y, self.alpha)[0].to(y)
            for z, y in zip(coalitions, scores, strict=True)
        ]

    def several_cost(self, model: Adapter, count: int, *, every_layer: bool = False) -> Passes:
        return Passes(self.samples)


def random_coalitions(samples: int, segments: int, generator: torch.Generator) -> Tensor:
    """Draw who is there, each with probability one half, shape (sample, segment); in the first all are."""
    found = torch.rand(samples, segments, generator=generator) < 0.5
    found[0] = True
    return found


def nearness(coalitions: Tensor, width: float) -> Tensor:
    """Return the weight of each sample: near one where most segments are there."""
    distance = 1 - coalitions.double().mean(dim=1).sqrt()
    return (-(distance**2) / (2 * width**2)).exp()


def fit_ridge(coalitions: Tensor, weights: Tensor, scores: Tensor, alpha: float) -> tuple[Tensor, Tensor]:
    """Fit scores, (target, sample), linearly: coefficients, (target, segment), and intercepts, (target,).

    The intercept is not held small, so it drops out when everything is taken around its weighted mean. Double
    precision, on the CPU.
    """
    z, y, weights = coalitions.double().cpu(), scores.double().cpu(), weights.double().cpu()
    share = weights / weights.sum()
    z_mean, y_mean = share @ z, y @ share
    root = weights.sqrt()
    design, wanted = (z - z_mean) * root[:, None], ((y - y_mean[:, None]) * root).T
    ridge = torch.cat([design, alpha**0.5 * torch.eye(z.shape[1], dtype=z.dtype)])
    wanted = torch.cat([wanted, wanted.new_zeros(z.shape[1], wanted.shape[1])])
    found = torch.linalg.lstsq(ridge, wanted, driver="gelsd").solution.T
    return found, y_mean - found @ z_mean
