"""Average drop and increase in confidence: what is left of the model's confidence when it sees the map's part only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from sightline.metrics.case import Case, Measurement, flags_where, join_flags
from sightline.metrics.magnitude import power_of_two
from sightline.models.adapter import Adapter
from sightline.options import HasOptions
from sightline.perturb.curve import Score, read_scores, scored
from sightline.perturb.fill import FillName, make_fill
from sightline.registry import METRICS
from sightline.types import Logit, Passes

Scale = Literal["min_max", "none"]
PARITY = "jacobgil/pytorch-grad-cam: drop and increase of probability and logit to 1e-5, on a random CNN"


@dataclass(frozen=True, slots=True)
class _Seen(HasOptions):
    """Compare the score of the image with that of the image seen through its map."""

    fill: FillName = "black"
    scale: Scale = "min_max"
    score: Score = "probability"
    label: bool = False
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)

    def scores(self, case: Case) -> tuple[Tensor, Tensor]:
        """Return the score of each image, and of what its map leaves of it."""
        target = scored(Logit(case.truth) if self.label else case.target, self.score)
        seen = case.once(("seen", self.fill, self.scale), lambda: case.model.predict(self.seen(case)))
        before, after = (read_scores(case.model, target, logits).double() for logits in (case.clean, seen))
        return before, after

    def seen(self, case: Case) -> Tensor:
        """Return the images as their maps show them: full where the map is one, filled where it is zero."""
        maps = unit(case.maps) if self.scale == "min_max" else case.maps
        blank = make_fill(self.fill)(case.model, case.images)
        return torch.lerp(blank, case.images, maps[:, None].to(case.images.dtype))  # exact at both ends

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
class AverageDrop(_Seen):
    r"""Share of the confidence that is lost when the model sees the image through its map.

    .. math:: \frac{\max(0,\, Y - O)}{Y}, \qquad Y = p(x), \quad
        O = p\bigl(b + m \odot (x - b)\bigr), \quad m = \frac{a - \min a}{\max a - \min a}

    where b is a black image: pixels darken as their value falls :cite:p:`chattopadhay2018`. The mean over images, times
    100, is the ADP of the tables. A map that is large everywhere loses nothing: read it with `increase_in_confidence`,
    which such a map does not win either.

    Protocols differ. pytorch-grad-cam multiplies the normalised image (``fill='zero'``), takes maps as they come
    (``scale='none'``), the logit unless told otherwise, and the difference itself (``relative=False``); later work of
    the IIA group asks for the true class (``label=True``). The IIA program rounds the darkened image to eight bits,
    which this does not. It costs two forward passes, shared with `increase_in_confidence`.

    Edge cases: a constant map shows nothing, so the loss is nearly all, and it is flagged; a score of zero loses
    nothing; of a negative score (a logit, a contrast) no share can be taken: NaN, "negative score".

    Attributes:
        fill: what is seen where the map is zero: black, zero (after normalisation), white, mean, blur.
        scale: min_max brings each map to 0..1; none takes it as it is.
        score: what is compared: probability, log_probability, logit, accuracy.
        label: whether the true class is asked for instead of the explained one.
        relative: whether the loss is divided by the score.
    """

    relative: bool = True

    def __call__(self, case: Case, /) -> Measurement:
        before, after = self.scores(case)
        lost = (before - after).clamp(min=0)
        if not self.relative:
            return Measurement(lost, flags=case.flags)
        negative = before < 0
        share = torch.where(before > 0, lost / before, 0.0).masked_fill(negative, float("nan"))
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
class IncreaseInConfidence(_Seen):
    r"""Whether the model is surer of the class when it sees the image through its map: 1 or 0.

    .. math:: [\,O > Y\,], \qquad Y = p(x), \quad
        O = p\bigl(b + m \odot (x - b)\bigr), \quad m = \frac{a - \min a}{\max a - \min a}

    where b is a black image :cite:p:`chattopadhay2018`. The mean over images, times 100, is the PIC of the tables: it
    takes many images to tell two methods apart. It costs two forward passes, shared with `average_drop`, whose
    protocols it follows.

    Edge cases: equal scores are no increase; a constant map shows nothing, and is flagged.

    Attributes:
        fill: what is seen where the map is zero: black, zero (after normalisation), white, mean, blur.
        scale: min_max brings each map to 0..1; none takes it as it is.
        score: what is compared: probability, log_probability, logit, accuracy.
        label: whether the true class is asked for instead of the explained one.
    """

    def __call__(self, case: Case, /) -> Measurement:
        before, after = self.scores(case)
        return Measurement((after > before).double(), flags=case.flags)


def unit(maps: Tensor) -> Tensor:
    """Scale each map, shape (batch, height, width), to 0..1; a constant one becomes zero.

    >>> unit(torch.tensor([[[1.0, 3.0], [2.0, 3.0]], [[5.0, 5.0], [5.0, 5.0]]]))[:, 1]
    tensor([[0.5000, 1.0000],
            [0.0000, 0.0000]], dtype=torch.float64)
    """
    maps = maps.double() * power_of_two(maps)  # the range of a map of huge numbers would overflow
    low, high = maps.amin(dim=(1, 2), keepdim=True), maps.amax(dim=(1, 2), keepdim=True)
    return (maps - low) / torch.where(high > low, high - low, 1)
