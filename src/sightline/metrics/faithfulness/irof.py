"""IROF: iterative removal of features, superpixel by superpixel, the most important first."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from sightline.errors import RecipeError
from sightline.extras import require
from sightline.metrics.case import Case, Measurement, flags_where, join_flags
from sightline.metrics.faithfulness.options import PerturbationOptions
from sightline.models.adapter import Adapter
from sightline.perturb.curve import Score, ranks
from sightline.perturb.fill import FillName, InPainter, fill_where, removing_fill
from sightline.perturb.segments import Segments, grid_segments
from sightline.registry import METRICS
from sightline.types import Passes, Target

SegmentFill = FillName | Literal["running_mean"] | InPainter


@METRICS.register(
    "irof",
    family="faithfulness",
    cite="rieger2020",
    cost="at most 101 forward, one per superpixel",
    direction="higher",
    parity="Quantus 0.6 with fill='running_mean' to 1e-5",
)
@dataclass(frozen=True, slots=True)
class Irof(PerturbationOptions):
    r"""Area over the curve of the class probability as superpixels are removed, the most important first.

    .. math:: L - \sum_{l=2}^{L} \frac{\rho_{l-1} + \rho_l}{2}, \qquad \rho_l = \frac{p(x_l)}{p(x)}

    where :math:`x_l` lacks the :math:`l` superpixels of the highest mean value, and :math:`L` is how many there are
    :cite:p:`rieger2020`. Whole superpixels are removed at once, so neighbouring pixels cannot stand in for removed
    ones. It grows with :math:`L`, which SLIC decides: divide by the length of the curve to compare images.

    Quantus fills with one number, the mean of all channels of what is left by then: ``fill='running_mean'``. The
    default is the image's own mean colour. It costs a pass for each superpixel and one for the image; how many SLIC
    finds depends on the image, so the declared cost is what was asked for.

    Edge cases: superpixels of equal value keep their row-major order; a constant map is judged by that, and flagged;
    an image in which SLIC finds a single superpixel is flagged, "one segment"; where the image scores zero the metric
    is NaN.

    Attributes:
        segments: about how many SLIC superpixels; or two numbers, the rows and columns of a grid.
        fill: what removed superpixels become: mean, zero, black, white, blur or running_mean.
    """

    segments: int | tuple[int, int] = 100
    fill: SegmentFill = "mean"
    score: Score = "probability"
    range: ClassVar[tuple[float, float]] = (-math.inf, math.inf)

    def __post_init__(self) -> None:
        asked = self.segments if isinstance(self.segments, tuple) else (self.segments,)
        if min(asked) < 1:
            raise RecipeError(f"got segments={self.segments}; give a number of 1 or more, or rows and columns")

    def __call__(self, case: Case, /) -> Measurement:
        target = case.followed(self.score)
        clean = case.read(target, case.clean).double()
        curves = [self._curve(case, row, target.take([row])) for row in range(len(case.images))]
        ratios = [curve / start for curve, start in zip(curves, clean, strict=True)]
        values = torch.stack([len(each) - torch.trapezoid(each) for each in ratios])
        values = values.masked_fill(clean == 0, math.nan)
        single = torch.tensor([len(each) == 1 for each in ratios], device=clean.device)
        flags = join_flags(
            case.flags, flags_where(single, "one segment"), flags_where(clean == 0, "the image scores zero")
        )
        return Measurement(values, _padded(ratios), flags)

    def cost(self, model: Adapter, /) -> Passes:
        count = math.prod(self.segments) if isinstance(self.segments, tuple) else self.segments
        return Passes(forward=1.0 + count)

    def _curve(self, case: Case, row: int, target: Target) -> Tensor:
        """Return the score after each superpixel of an image is removed, shape (superpixels,)."""
        image, segments = case.images[row], self._segments(case, row)
        order = segments.means(case.maps[row].double()).sort(descending=True, stable=True).indices
        steps = self._steps(case.model, image, segments, order)
        return case.read(target.take([0] * len(steps)), case.model.predict(steps)).double()

    def _steps(self, model: Adapter, image: Tensor, segments: Segments, order: Tensor) -> Tensor:
        """Return the image after each superpixel is removed, (superpixels, 3, height, width)."""
        if self.fill == "running_mean":
            return _running_means(image, segments, order)
        fill = removing_fill(self.fill)
        counts = torch.arange(1, 1 + len(order), device=order.device)
        removed = segments.paint(ranks(order[None])[0]) < counts[:, None, None]
        whole, filled = (each.expand(len(order), -1, -1, -1) for each in (image[None], fill(model, image[None])))
        return fill_where(fill, model, whole, filled, removed)

    def _segments(self, case: Case, row: int) -> Segments:
        key = ("segments", self.segments, row)
        image = case.images[row]
        if isinstance(self.segments, tuple):
            size = (image.shape[-2], image.shape[-1])
            cells = (min(self.segments[0], size[0]), min(self.segments[1], size[1]))
            return case.once(key, lambda: grid_segments(size, cells, device=image.device))
        count = self.segments
        return case.once(key, lambda: superpixels(case.model.denormalise(image), count))


def superpixels(raw: Tensor, count: int) -> Segments:
    """Cut an image, pixel values in 0..1 of shape (3, height, width), into about `count` SLIC superpixels."""
    slic: Any = require("skimage.segmentation").slic
    rgb = raw.movedim(0, -1).detach().cpu().double().numpy()
    labels = torch.from_numpy(slic(rgb, n_segments=count, start_label=0)).long()
    return Segments(labels.unique(return_inverse=True)[1].to(raw.device))  # without gaps in the numbering


def _running_means(image: Tensor, segments: Segments, order: Tensor) -> Tensor:
    """Fill superpixels one after the other with the mean of all channels of what is left by then."""
    steps = []
    for segment in order:
        image = torch.where(segments.labels == segment, image.mean(), image)
        steps.append(image)
    return torch.stack(steps)


def _padded(curves: list[Tensor]) -> Tensor:
    """Stack curves of different lengths, NaN after the end of the shorter ones."""
    return torch.nn.utils.rnn.pad_sequence(curves, batch_first=True, padding_value=math.nan)
