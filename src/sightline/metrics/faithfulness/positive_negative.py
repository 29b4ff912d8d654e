"""Positive and negative perturbation: growing shares of the pixels are masked and the model is run again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from sightline.errors import RecipeError
from sightline.metrics.case import Case, Measurement
from sightline.metrics.faithfulness.options import PerturbationOptions
from sightline.models.adapter import Adapter
from sightline.perturb.curve import Importance, Score, Tie, painted_responses, ranks, responses
from sightline.perturb.fill import FillOption, InPaint, removing_fill
from sightline.registry import METRICS
from sightline.targets.classes import Logits
from sightline.types import Passes

TENTHS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
Area = Literal["raw", "mean"]
PARITY = "hila-chefer/Transformer-Explainability: hits of eight photographs on a real ViT, all but near ties"
FAMILY = "faithfulness"


@dataclass(frozen=True, slots=True)
class _Masked(PerturbationOptions):
    """Base of metrics that mask growing shares of the pixels and take the area under the model's response.

    Attributes:
        fractions: the shares of pixels that are masked, rising.
        include_zero: whether the untouched image is the first point.
        area: raw, or mean, which divides by the width of the curve.
        fill: what masked pixels become: black, zero (after normalisation), white, mean, blur.
    """

    fractions: tuple[float, ...] = TENTHS
    include_zero: bool = False
    area: Area = "raw"
    fill: FillOption = "black"
    tie: Tie = "index"
    seed: int = 0
    score: ClassVar[Score] = "accuracy"
    by: ClassVar[Importance] = "value"
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)

    def __post_init__(self) -> None:
        rising = all(0 < low < high < 1 for low, high in zip(self.fractions, self.fractions[1:], strict=False))
        if not rising or len(self.fractions) < 2:
            raise RecipeError(f"got fractions={self.fractions}; give two or more between 0 and 1, rising")

    def __call__(self, case: Case, /) -> Measurement:
        target = case.followed(self.score, truth=self.score == "accuracy")
        curve = case.read(target, self.logits(case))
        shares = torch.tensor(self.shares, dtype=torch.float64, device=curve.device)
        areas = torch.trapezoid(curve.double(), shares, dim=1)
        values = areas / (shares[-1] - shares[0]) if self.area == "mean" else areas
        return Measurement(values, curve, case.flags)

    @property
    def shares(self) -> tuple[float, ...]:
        """The shares of masked pixels at the points of the curve."""
        return (0.0, *self.fractions) if self.include_zero else self.fractions

    def logits(self, case: Case) -> Tensor:
        """Return the logits of the masked images, shape (batch, points, class)."""
        masked = case.once(
            ("masked", self.fractions, self.fill, self.tie, self.seed, self.by), lambda: self._masked(case)
        )
        return torch.cat([case.clean[:, None], masked], dim=1) if self.include_zero else masked

    def _masked(self, case: Case) -> Tensor:
        order = case.order(self.tie, self.seed, self.by)
        counts = [int(order.shape[1] * fraction) for fraction in self.fractions]
        fill = removing_fill(self.fill)
        if isinstance(fill, InPaint):
            return painted_responses(case.model, case.images, fill, Logits(), "delete", ranks(order), counts)
        return responses(case.model, case.images, fill(case.model, case.images), Logits(), ranks(order), counts)

    def cost(self, model: Adapter, /) -> Passes:
        return Passes(forward=len(self.shares))


@METRICS.register(
    "positive", family=FAMILY, cite="chefer2021transformer", cost="9 forward", direction="lower", parity=PARITY
)
@dataclass(frozen=True, slots=True)
class Positive(_Masked):
    r"""Area under the accuracy as the most important pixels are masked (positive perturbation).

    .. math:: \sum_{k} \frac{c_k + c_{k+1}}{2} (f_{k+1} - f_k), \qquad f = 0.1, 0.2, \dots 0.9

    where :math:`c_k` is 1 if the model's first choice is the true class once the :math:`\lfloor HW f_k \rfloor` most
    important pixels are black, and 0 otherwise :cite:p:`chefer2021transformer`. The true class is followed whichever
    class the map explains; give ``labels=…`` where they differ. The mean over images is the area under the accuracy
    curve of the set, and `Measurement.curve` holds the hits of each image. Of a model with several labels at once, a
    label is right where its probability is a half or more.

    The authors print hits per fraction; that the published areas are this sum, at most 0.8 and times 100, fits their
    size. ``include_zero=True`` adds the untouched image, at most 0.9, as later work of the same group does.
    ``area='mean'`` divides by the width, so that the largest area is 1 either way. It costs one forward pass per
    fraction, shared with `probability_positive`.

    Edge cases: a constant map is judged by the order of its ties and flagged. An image that the model gets wrong is
    not left out.
    """


@METRICS.register(
    "negative", family=FAMILY, cite="chefer2021transformer", cost="9 forward", direction="higher", parity=PARITY
)
@dataclass(frozen=True, slots=True)
class Negative(_Masked):
    r"""Area under the accuracy as the least important pixels are masked (negative perturbation).

    .. math:: \sum_{k} \frac{c_k + c_{k+1}}{2} (f_{k+1} - f_k), \qquad f = 0.1, 0.2, \dots 0.9

    where :math:`c_k` is 1 if the model's first choice is the true class once the
    :math:`\lfloor HW f_k \rfloor` least important pixels are black, and 0 otherwise :cite:p:`chefer2021transformer`.
    What `positive` says of labels, areas and the mean over images holds here too. It costs one forward pass per
    fraction, shared with `probability_negative`.

    Edge cases: a constant map is judged by the order of its ties and flagged.
    """

    by: ClassVar[Importance] = "negative"


@METRICS.register(
    "probability_positive", family=FAMILY, cite="iia2023", cost="10 forward", direction="lower", parity="closed form"
)
@dataclass(frozen=True, slots=True)
class ProbabilityPositive(_Masked):
    r"""Area under the class probability as the most important pixels are masked: the DEL of the IIA tables.

    .. math:: \sum_{k} \frac{p_k + p_{k+1}}{2} (f_{k+1} - f_k), \qquad f = 0, 0.1, \dots 0.9

    where :math:`p_k` is the probability of the explained class once the :math:`\lfloor HW f_k \rfloor` most important
    pixels are black. That the DEL column of :cite:t:`iia2023` is this and not `deletion` is inferred: its size fits,
    and code of the same group computes it so. At most 0.9; ``area='mean'`` makes that 1. A target without a class is
    followed itself. It costs ten forward passes, nine of them shared with `positive`.

    Edge cases: a constant map is judged by the order of its ties and flagged.
    """

    include_zero: bool = True
    score: ClassVar[Score] = "probability"


@METRICS.register(
    "probability_negative", family=FAMILY, cite="iia2023", cost="10 forward", direction="higher", parity="closed form"
)
@dataclass(frozen=True, slots=True)
class ProbabilityNegative(_Masked):
    r"""Area under the class probability as the least important pixels are masked: the INS of the IIA tables.

    .. math:: \sum_{k} \frac{p_k + p_{k+1}}{2} (f_{k+1} - f_k), \qquad f = 0, 0.1, \dots 0.9

    where :math:`p_k` is the probability of the explained class once the :math:`\lfloor HW f_k \rfloor` least important
    pixels are black. That the INS column of :cite:t:`iia2023` is this and not `insertion` is inferred, as for
    `probability_positive`. It costs ten forward passes, nine of them shared with `negative`.

    Edge cases: a constant map is judged by the order of its ties and flagged.
    """

    include_zero: bool = True
    score: ClassVar[Score] = "probability"
    by: ClassVar[Importance] = "negative"
