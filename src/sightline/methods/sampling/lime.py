"""LIME: a local linear surrogate model over superpixels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from sightline.errors import RecipeError
from sightline.methods.sampling.coalitions import (
    FillOrDropped,
    SegmentMethod,
    check_fill,
    check_numpy_seed,
    coalition_fill,
    coalition_scores,
)
from sightline.methods.sampling.dropped import DROPPED, dropped_share
from sightline.methods.scored import Score, scored
from sightline.models.adapter import Adapter
from sightline.perturb.designs import Design, check_design, orthogonal_masks
from sightline.perturb.segments import Segments
from sightline.perturb.superpixels import Option, as_option
from sightline.registry import METHODS
from sightline.seeds import generators, uniform
from sightline.types import Passes, Target

Variant = Literal["image", "package"]


@METHODS.register(
    "lime",
    family="sampling",
    cite="ribeiro2016",
    cost="1 forward per sample; about half of one with blank='dropped'",
    parity="lime LimeImageExplainer on a CNN and on a photograph with its segments and seed, coefficients to 1e-9",
)
@dataclass(frozen=True, slots=True)
class Lime(SegmentMethod):
    r"""LIME: the coefficients of superpixels in a local linear surrogate model, a ridge regression on perturbed images.

    .. math:: \min_{\beta, b} \sum_i \pi(z_i) \bigl(s(x_{z_i}) - b - \beta^\top z_i\bigr)^2 + \alpha \|\beta\|^2,
        \qquad \pi(z) = e^{-d(z)^2 / 2\sigma^2}

    where :math:`z` says which superpixels are kept, each with probability one half, the others being filled, and
    :math:`d(z) = 1 - \sqrt{|z| / M}` is the cosine distance to the unperturbed image, the first sample. A black-box
    method for any model; all classes share the passes.

    Attributes:
        samples: how many perturbed images.
        segments: the superpixels: quickshift, as the authors, slic, felzenszwalb or grid, or one of these with its
            numbers, such as ('slic', 60) or ('grid', 7, 7), all but grid with scikit-image; or a small label map, such
            as ((0, 0, 1), (2, 2, 1)), stretched over the image. Python may bring its own, `Lime(segments=labels)`:
            whole numbers, (height, width) or (image, height, width), or a function from an image to them.
        seed: of the samples.
        blank: the fill of a removed superpixel: segment, its own mean colour, as the authors, mean, the mean colour of
            the training set, black, white, blur, or a number, that value after normalisation; or dropped: on a
            transformer its tokens are left out instead, with superpixels rounded to whole patches.
        width: of the kernel, sigma.
        alpha: strength of the ridge.
        score: the score of the class: probability, as the authors, logit or log_probability; None for the target
            itself.
        variant: of the random numbers: image, those of the seed and the image, or package, NumPy's of the seed alone,
            as the authors' package draws them.
        antithetic: whether samples come in pairs, the second of which keeps the superpixels that the first removes.
        design: of the samples but the first: independent, or orthogonal, in random orthogonal arrays, where every two
            and three superpixels are kept and removed together equally often. Half of the samples then gave the
            standard error of independent ones where measured (docs/guide/speed.md); pairs alone came close to it.
    """

    samples: int = 1000
    segments: Option = "quickshift"
    seed: int = 0
    blank: FillOrDropped = "segment"
    width: float = 0.25
    alpha: float = 1.0
    score: Score | None = "probability"
    variant: Variant = "image"
    antithetic: bool = False
    design: Design = "independent"

    def __post_init__(self) -> None:
        object.__setattr__(self, "segments", as_option(self.segments))
        check_fill(self.blank, dropped=True)
        if self.variant == "package":
            check_numpy_seed(self.seed, self.variant)
        check_design(self.design, antithetic=self.antithetic, variant=self.variant)
        if self.samples < 2:
            raise RecipeError(f"got samples={self.samples}; a line takes 2 or more")

    def values(
        self, model: Adapter, images: Tensor, targets: Sequence[Target], pieces: Sequence[Segments]
    ) -> list[Tensor]:
        fill = coalition_fill(model, images, self.blank, pieces)
        coalitions = [
            self._draw(piece.count, generator)
            for piece, generator in zip(pieces, generators(self.seed, images), strict=True)
        ]
        score_targets = [scored(target, self.score, model) for target in targets]
        scores = coalition_scores(model, images, fill, pieces, coalitions, score_targets)
        return [
            fit_ridge(z, proximity(z, self.width), y, self.alpha)[0].to(y)
            for z, y in zip(coalitions, scores, strict=True)
        ]

    def _draw(self, segments: int, generator: torch.Generator) -> Tensor:
        """Draw which segments are kept, (sample, segment); all of them in the first sample."""
        if self.variant == "package":
            return package_coalitions(self.samples, segments, self.seed)
        if self.design == "orthogonal":
            drawn = orthogonal_masks(self.samples - 1, segments, generator)
            return torch.cat([torch.ones(1, segments, dtype=torch.bool), drawn])
        return random_coalitions(self.samples, segments, generator, antithetic=self.antithetic)

    def multi_target_cost(self, model: Adapter, count: int, *, every_layer: bool = False) -> Passes:
        if self.blank == DROPPED:  # in the mean: half of the patches, all of them in the first sample
            return Passes(1 + (self.samples - 1) * dropped_share(model, 0.5))
        return Passes(self.samples)


def random_coalitions(samples: int, segments: int, generator: torch.Generator, *, antithetic: bool = False) -> Tensor:
    """Draw which segments are kept, each with probability one half, (sample, segment); all in the first sample.

    Antithetic samples are followed by their complements; the first, which has none, stands beside the pairs.
    """
    different = 1 + samples // 2 if antithetic else samples
    coalitions = uniform((different, segments), generator) < 0.5
    if antithetic:
        pairs = torch.stack([coalitions[1:], ~coalitions[1:]], dim=1).flatten(0, 1)
        coalitions = torch.cat([coalitions[:1], pairs])[:samples]
    coalitions[0] = True
    return coalitions


def package_coalitions(samples: int, segments: int, seed: int) -> Tensor:
    """Draw which segments are kept as the package lime does, shape (sample, segment)."""
    random = np.random.RandomState(seed)
    random.randint(0, 1000)  # the package draws a seed first, which it does not use
    coalitions = torch.from_numpy(random.randint(0, 2, samples * segments).reshape(samples, segments)).bool()
    coalitions[0] = True
    return coalitions


def proximity(coalitions: Tensor, width: float) -> Tensor:
    """Return the kernel weight of each sample: near one where most segments are kept."""
    distance = 1 - coalitions.double().mean(dim=1).sqrt()
    return (-(distance**2) / (2 * width**2)).exp()


def fit_ridge(coalitions: Tensor, weights: Tensor, scores: Tensor, alpha: float) -> tuple[Tensor, Tensor]:
    """Fit scores, (target, sample), linearly: coefficients, (target, segment), and intercepts, (target,).

    The intercept is not penalised, so it drops out when everything is centred on its weighted mean. Double precision,
    on the CPU; scores are taken relative to the first, so that equal scores give exact zeros.
    """
    z, y, weights = coalitions.double().cpu(), scores.double().cpu(), weights.double().cpu()
    first = y[:, :1]
    y = y - first
    share = weights / weights.sum()
    z_mean, y_mean = share @ z, y @ share
    root = weights.sqrt()
    design, response = (z - z_mean) * root[:, None], ((y - y_mean[:, None]) * root).T
    ridge = torch.cat([design, alpha**0.5 * torch.eye(z.shape[1], dtype=z.dtype)])
    response = torch.cat([response, response.new_zeros(z.shape[1], response.shape[1])])
    coefficients = torch.linalg.lstsq(ridge, response, driver="gelsd").solution.T
    return coefficients, first[:, 0] + y_mean - coefficients @ z_mean
