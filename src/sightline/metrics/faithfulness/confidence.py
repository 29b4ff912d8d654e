"""Average drop, increase in confidence and average gain: the model's confidence on the image multiplied by its map."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from sightline.errors import RecipeError
from sightline.metrics.case import Case, Measurement, flags_where, join_flags
from sightline.metrics.faithfulness.options import PerturbationOptions
from sightline.metrics.scaling import min_max
from sightline.models.adapter import Adapter
from sightline.perturb.curve import Score
from sightline.perturb.fill import FillName, make_fill
from sightline.registry import METRICS
from sightline.types import Passes

Scale = Literal["min_max", "none"]
PARITY = "jacobgil/pytorch-grad-cam: drop and increase of probability and logit to 1e-5, on a random CNN"


@dataclass(frozen=True, slots=True)
class _Masked(PerturbationOptions):
    """Base of metrics that compare the score of the image with that of the image multiplied by its map.

    Attributes:
        fill: the image where the map is zero: black, zero (after normalisation), white, mean, blur.
        scale: min_max brings each map to 0..1; none takes it as it is.
        label: whether the true class is followed instead of the explained one.
    """

    fill: FillName = "black"
    scale: Scale = "min_max"
    score: Score = "probability"
    label: bool = False
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)

    def scores(self, case: Case) -> tuple[Tensor, Tensor]:
        """Return the score of each image, and of the image multiplied by its map."""
        target = case.followed(self.score, truth=self.label)
        masked = case.once(("masked image", self.fill, self.scale), lambda: case.predict_with_clean(self.masked(case)))
        before, after = (case.read(target, logits).double() for logits in (case.clean, masked))
        return before, after

    def masked(self, case: Case) -> Tensor:
        """Return the images multiplied by their maps: as they are where the map is one, filled where it is zero."""
        maps = min_max(case.maps) if self.scale == "min_max" else case.maps
        filled = make_fill(self.fill)(case.model, case.images)
        return torch.lerp(filled, case.images, maps[:, None].to(case.images.dtype))  # exact where the map is 0 or 1

    def cost(self, model: Adapter, /) -> Passes:
        return Passes(forward=2)


@METRICS.register(
    "average_drop",
    family="faithfulness",
    cite="chattopadhay2018, iia2023",
    cost="2 forward",
    direction="lower",
    parity=PARITY,
)
@dataclass(frozen=True, slots=True)
class AverageDrop(_Masked):
    r"""Relative drop of the class probability when the image is multiplied by its map.

    .. math:: \frac{\max(0,\, Y - O)}{Y}, \qquad Y = p(x), \quad
        O = p\bigl(b + m \odot (x - b)\bigr), \quad m = \frac{a - \min a}{\max a - \min a}

    where b is a black image: pixels darken as their value falls :cite:p:`chattopadhay2018`. The mean over images, times
    100, is the ADP of the tables. A map that is large everywhere loses nothing: read it with `increase_in_confidence`,
    which such a map does not win either.

    Protocols differ. pytorch-grad-cam multiplies the normalised image (``fill='zero'``), takes maps as they come
    (``scale='none'``), the logit unless told otherwise, and the difference itself (``relative=False``); later work of
    the IIA group follows the true class (``label=True``). The IIA program rounds the darkened image to eight bits,
    which this does not. It costs two forward passes, shared with `increase_in_confidence`.

    Edge cases: a constant map shows nothing, so the drop is nearly all, and it is flagged; a score of zero cannot drop;
    the relative drop of a negative score (a logit, a contrast) is not defined: NaN, "negative score".

    Attributes:
        relative: whether the drop is divided by the score.
    """

    relative: bool = True

    def __call__(self, case: Case, /) -> Measurement:
        before, after = self.scores(case)
        drop = (before - after).clamp(min=0)
        if not self.relative:
            return Measurement(drop, flags=case.flags)
        negative = before < 0
        share = torch.where(before > 0, drop / before, 0.0).masked_fill(negative, float("nan"))
        return Measurement(share, flags=join_flags(case.flags, flags_where(negative, "negative score")))


@METRICS.register(
    "increase_in_confidence",
    family="faithfulness",
    cite="chattopadhay2018, iia2023",
    cost="2 forward",
    direction="higher",
    parity=PARITY,
)
@dataclass(frozen=True, slots=True)
class IncreaseInConfidence(_Masked):
    r"""Whether the class probability rises when the image is multiplied by its map: 1 or 0.

    .. math:: [\,O > Y\,], \qquad Y = p(x), \quad
        O = p\bigl(b + m \odot (x - b)\bigr), \quad m = \frac{a - \min a}{\max a - \min a}

    where b is a black image :cite:p:`chattopadhay2018`. The mean over images, times 100, is the PIC of the tables: it
    takes many images to tell two methods apart. It costs two forward passes, shared with `average_drop`, whose
    protocols it follows.

    Edge cases: equal scores are no increase; a constant map shows nothing, and is flagged.
    """

    def __call__(self, case: Case, /) -> Measurement:
        before, after = self.scores(case)
        return Measurement((after > before).double(), flags=case.flags)


@METRICS.register(
    "average_gain",
    family="faithfulness",
    cite="zhang2024opti",
    cost="2 forward",
    direction="higher",
    parity="closed form",
)
@dataclass(frozen=True, slots=True)
class AverageGain(_Masked):
    r"""Relative gain of the class probability when the image is multiplied by its map.

    .. math:: \frac{\max(0,\, O - Y)}{1 - Y}, \qquad Y = p(x), \quad
        O = p\bigl(b + m \odot (x - b)\bigr), \quad m = \frac{a - \min a}{\max a - \min a}

    where b is a black image: the counterpart of `average_drop`, which counts by how much the probability rises where
    `increase_in_confidence` counts how often :cite:p:`zhang2024opti`. The mean over images, times 100, is the AG of the
    tables. It costs two forward passes, shared with the other two.

    Edge cases: where the probability is one, or what is followed is none, there is nothing to gain: NaN, "no room to
    gain"; a constant map shows nothing, and is flagged.
    """

    def __post_init__(self) -> None:
        if self.score != "probability":
            raise RecipeError(f"got score={self.score!r}; a gain is a share of what a probability lacks to one")

    def __call__(self, case: Case, /) -> Measurement:
        before, after = self.scores(case)
        full = (before < 0) | (before >= 1)
        gain = ((after - before).clamp(min=0) / (1 - before)).masked_fill(full, float("nan"))
        return Measurement(gain, flags=join_flags(case.flags, flags_where(full, "no room to gain")))
