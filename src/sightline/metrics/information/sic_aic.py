"""Performance information curves: the model's score against the information in an image that shows the top pixels.

Those of PAIR :cite:p:`kapishnikov2019`. Both metrics use the same images, so the images, their sizes and the model's
logits are computed once for a case.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sightline.errors import InputError, RecipeError
from sightline.metrics.case import Case, Measurement, area, join_flags
from sightline.metrics.information.revealed import Variant, heights, revealed
from sightline.models.adapter import Adapter
from sightline.perturb.curve import Score
from sightline.registry import METRICS
from sightline.types import Passes

THRESHOLDS = (0.005, 0.01, 0.02, 0.03, 0.04, 0.05, 0.07, 0.10, 0.13, 0.21, 0.34, 0.5, 0.75)
POINTS = 1000  # where a curve is read, and once more at its end
PARITY = "PAIR's saliency 0.2.1: sizes exact and areas to 1e-4 on a real ViT and a photograph"


@dataclass(frozen=True, slots=True)
class _Pic:
    """Base of the performance information curves.

    Attributes:
        thresholds: shares of the pixels to show, rising.
        share: of the pixels known from the start, chosen at random.
        minimum: the least probability of an image that is judged at all.
        seed: of the random pixels; an image has the same ones whatever map it is judged with.
        variant: exact; fast, which compresses hard only the pictures on whose information the area depends, and takes
            the size of others from a quick compression; or border, which also triangulates only the borders of what is
            shown.
    """

    thresholds: tuple[float, ...] = THRESHOLDS
    share: float = 0.01
    minimum: float = 0.8
    seed: int = 0
    variant: Variant = "exact"
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    score: ClassVar[Score]

    def __post_init__(self) -> None:
        if not self.thresholds or not all(0 < each <= 1 for each in self.thresholds):
            raise RecipeError(f"got thresholds={self.thresholds}; give shares of the pixels, above 0 and at most 1")
        if list(self.thresholds) != sorted(self.thresholds):
            raise RecipeError(f"got thresholds={self.thresholds}; give them in rising order")
        if not 0 <= self.share < 1:
            raise RecipeError(f"got share={self.share}; give the share of pixels known from the start, from 0 to 1")

    def __call__(self, case: Case, /) -> Measurement:
        target = case.followed(self.score)
        pictures = revealed(case, self.share, self.seed, self.thresholds, self.variant)
        scores = case.read(target, pictures.logits).detach().cpu().double().numpy()
        sizes = pictures.sizes(scores)
        each = [performance_curve(*pair, self.minimum) for pair in zip(sizes, scores, strict=True)]
        curves = torch.from_numpy(np.stack([curve for curve, _ in each])).to(case.maps.device)
        return Measurement(area(curves), curves, join_flags(case.flags, tuple(reason for _, reason in each)))

    def cost(self, model: Adapter, /) -> Passes:
        return Passes(forward=2.0 + len(self.thresholds))


@METRICS.register(
    "sic", family="information", cite="kapishnikov2019", cost="15 forward", direction="higher", parity=PARITY
)
@dataclass(frozen=True, slots=True)
class Sic(_Pic):
    r"""Softmax information curve (SIC): area under the class probability against the information in the shown pixels.

    .. math::
        \int_0^1 s(e)\,de, \qquad
        e_t = \frac{E_t - E_{\mathrm{blur}}}{E - E_{\mathrm{blur}}}, \qquad
        s_t = \max_{u \le t} \frac{p_u - p_{\mathrm{blur}}}{p - p_{\mathrm{blur}}}

    where picture :math:`t` shows the highest share :math:`t` of the map's pixels and a random few, the rest being
    interpolated linearly between them; :math:`E` is its size as lossless WebP, :math:`p` the class's probability, and
    "blur" the picture interpolated from the random few alone :cite:p:`kapishnikov2019`. Both ratios are clipped to
    0..1. The curve goes from (0, 0) to (1, 1), straight in between, and is read at 1000 points and its end.

    Unlike `insertion` it asks for little information, not for few pixels: a smooth patch of sky costs nothing. It costs
    15 forward passes, shared with `aic`, and 14 triangulations.

    The published figure for a set of images is not the mean of these values but the area under the median curve:
    `area_of_curves` gives it from ``scores.curves["sic"]``.

    Edge cases: NaN, with the reason, where the image itself has a probability below `minimum`, where the blurred
    picture is as likely or as large as the image. Equal pixels are shown together: a coarse map shows more than
    :math:`t`, a constant map everything at once, which is flagged. Of points with the same information the highest
    counts.
    """

    score: ClassVar[Score] = "probability"


@METRICS.register(
    "aic", family="information", cite="kapishnikov2019", cost="15 forward", direction="higher", parity=PARITY
)
@dataclass(frozen=True, slots=True)
class Aic(_Pic):
    r"""Accuracy information curve (AIC): area under the accuracy against the information in the shown pixels.

    .. math:: \int_0^1 s(e)\,de, \qquad s_t = \max_{u \le t} \mathbb{1}[\arg\max_k y_k(x_u) = c]

    with the pictures :math:`x_t` and their information :math:`e_t` as in `sic`: it says how little information brings
    the class :math:`c` back to the first place :cite:p:`kapishnikov2019`. It needs a target that names a class; of a
    model with several labels at once, one is right where its probability is a half or more. It costs 15 forward passes,
    shared with `sic`. The figure for a set of images is the area under the median (or mean) curve, `area_of_curves`.

    Edge cases: NaN, with the reason, where the model is wrong on the image, or still right on the picture interpolated
    from the random pixels alone, or where that picture is as large as the image; otherwise as `sic`.

    Attributes:
        minimum: the least accuracy of an image that is judged at all; any above 0 requires that the model is right.
    """

    score: ClassVar[Score] = "accuracy"


def start_from(case: Case, pixels: Tensor, *, share: float = 0.01, seed: int = 0) -> None:
    """Let the metrics of a case start from given pixels, (batch, height, width), instead of random ones.

    It answers in place of the random draw of this share and seed; call it before the case is judged.
    """
    if pixels.shape != case.maps.shape:
        raise InputError(
            f"got pixels of shape {tuple(pixels.shape)} for maps of {tuple(case.maps.shape)}; give one mask per image"
        )
    case.once(("known pixels", share, seed), lambda: pixels.bool().cpu())


def performance_curve(
    sizes: Sequence[float] | NDArray[np.float64], scores: Sequence[float] | NDArray[np.float64], minimum: float = 0.0
) -> tuple[NDArray[np.float64], str]:
    """Return the scaled score at 1001 evenly spaced amounts of information, and the reason where it is undefined.

    Args:
        sizes: information of the image, of the blurred picture, then of the pictures that show more and more.
        scores: the model's scores of them.
        minimum: the least score of the image itself.
    """
    (whole, blurred, *shown), (full, blank, *_) = np.asarray(sizes, float), np.asarray(scores, float)
    if reason := _undefined(whole, blurred, full, blank, minimum):
        return np.full(POINTS + 1, np.nan), reason
    amount = np.clip((np.array(shown) - blurred) / (whole - blurred), 0, 1)
    amounts, index = np.unique(np.concatenate([[0.0, 1.0], amount]), return_inverse=True)
    highest = np.zeros(len(amounts))
    np.maximum.at(highest, index, np.concatenate([[0.0, 1.0], heights(np.asarray(scores, float))]))
    return np.interp(np.linspace(0, 1, POINTS + 1), amounts, highest), ""


def area_of_curves(curves: Tensor, by: Literal["median", "mean"] = "median") -> float:
    """Return the area under the median (or mean) of curves, (image, points), those of undefined images left out.

    This is how a set of images is summed up: first the curves, then the area. NaN where no image counts.

    >>> area_of_curves(torch.tensor([[0.0, 0.0, 1.0], [0.0, 1.0, 1.0], [0.0, 1.0, 1.0], [torch.nan] * 3]))
    0.75
    """
    if by not in ("median", "mean"):
        raise InputError(f"got by={by!r}; curves are summed up by their 'median' or 'mean'")
    sound = curves[~curves.isnan().any(dim=1)].double().cpu().numpy()
    if len(sound) == 0:
        return float("nan")
    middle = np.median(sound, axis=0) if by == "median" else sound.mean(axis=0)
    return float(area(torch.from_numpy(middle)))


def _undefined(whole: float, blurred: float, full: float, blank: float, minimum: float) -> str:
    if full < minimum:
        return f"the image scores {full:.3g}, below {minimum:g}"
    if blurred >= whole:
        return "the blurred picture holds as much information as the image"
    if blank >= full:
        return "the blurred picture scores as much as the image"
    return ""
