"""Coherency and ADCC: whether the map stays the same on the image masked by itself, and its mean with two others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from sightline.metrics.case import Case, Measurement, constant, flags_where, join_flags
from sightline.metrics.faithfulness.confidence import AverageDrop
from sightline.metrics.faithfulness.options import PerturbationOptions
from sightline.metrics.faithfulness.road import Road
from sightline.metrics.re_explain import re_explained_maps
from sightline.metrics.scaling import min_max
from sightline.metrics.similarity import pearson
from sightline.models.adapter import Adapter
from sightline.perturb.curve import Score
from sightline.perturb.fill import FillName, make_fill
from sightline.registry import METRICS
from sightline.types import Passes

Variant = Literal["adcc", "arcc"]
ROAD_PERCENTILES = (20.0, 40.0, 60.0, 80.0)


@METRICS.register(
    "coherency",
    family="faithfulness",
    cite="poppi2021",
    cost="1 attribution, of the image masked by its map",
    direction="higher",
    needs=("method",),
    parity="grad-cam 1.5.7 Coherency, live, 1e-6",
)
@dataclass(frozen=True, slots=True)
class Coherency(PerturbationOptions):
    r"""Correlation of the map with the same method's map of the image multiplied by the map.

    .. math:: \frac{1 + \operatorname{corr}\bigl(a(x),\, a(x \odot m)\bigr)}{2}, \qquad
        m = \frac{a - \min a}{\max a - \min a}

    A map that keeps what the model used should not change when the rest is taken away :cite:p:`poppi2021`. A method
    that ignores the model, such as `centre`, scores 1: read it with the two other parts of `adcc`.

    It runs the method once and costs nothing else.

    Edge cases: a constant map, of the image or of the masked one, is NaN, "constant map" or "constant map of the masked
    image".

    Attributes:
        fill: the image where the map is zero: black, zero (after normalisation), white, mean, blur.
    """

    fill: FillName = "black"
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)

    def __post_init__(self) -> None:
        make_fill(self.fill)

    def __call__(self, case: Case, /) -> Measurement:
        values, blank = coherency(case, self.fill)
        flags = flags_where(blank, "constant map of the masked image")
        return Measurement(values, flags=join_flags(case.flags, flags))

    def cost(self, model: Adapter, /) -> Passes:
        return Passes()


@METRICS.register(
    "adcc",
    family="faithfulness",
    cite="poppi2021",
    cost="2 forward and 1 attribution, of the image masked by its map",
    direction="higher",
    needs=("method",),
    parity="grad-cam 1.5.7 ARCC to 5e-3, the noise of ROAD",
)
@dataclass(frozen=True, slots=True)
class Adcc(PerturbationOptions):
    r"""Harmonic mean of coherency, of one minus complexity and of one minus average drop.

    .. math:: 3 \Bigl( \frac{1}{\mathrm{Coherency}} + \frac{1}{1 - \mathrm{Complexity}} +
        \frac{1}{1 - \mathrm{AverageDrop}} \Bigr)^{-1}

    with `coherency`, `average_drop` and the mean of the map scaled to 0..1 as complexity :cite:p:`poppi2021`. Each part
    alone is won by some trivial map; the harmonic mean is near 0 as soon as one of them is. ``variant='arcc'`` takes
    :math:`2 \cdot \mathrm{ROAD}`, cut to 0..1, in place of one minus average drop, at the percentiles 20, 40, 60
    and 80.

    It costs two forward passes, nine with ROAD, and one attribution; image, masked image and attribution are shared
    with `average_drop` and `coherency`.

    Edge cases: those of its parts; a constant map is NaN and flagged; where a part is 0 the score is 0; a negative
    score of the image has no relative drop: NaN, "negative score".

    Attributes:
        variant: adcc, or arcc with ROAD in place of the average drop.
        fill: the image where the map is zero: black, zero (after normalisation), white, mean, blur.
    """

    variant: Variant = "adcc"
    fill: FillName = "black"
    score: Score = "probability"
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)

    def __post_init__(self) -> None:
        make_fill(self.fill)

    def __call__(self, case: Case, /) -> Measurement:
        kept = self._kept(case)
        coherent, blank = coherency(case, self.fill)
        simple = 1 - min_max(case.maps).mean(dim=(1, 2)).cpu()
        values = harmonic_mean(coherent, simple, kept.values.double().cpu())
        flags = join_flags(kept.flags, flags_where(blank, "constant map of the masked image"))
        return Measurement(values.masked_fill(case.constant.cpu(), float("nan")), flags=flags)

    def _kept(self, case: Case) -> Measurement:
        """Return what the class keeps: one minus the average drop, or ROAD."""
        if self.variant == "arcc":
            road = Road(percentiles=ROAD_PERCENTILES, score=self.score, noise=0.01)(case)
            return Measurement((2 * road.values).clamp(0, 1), flags=road.flags)
        drop = AverageDrop(fill=self.fill, score=self.score)(case)
        return Measurement(1 - drop.values, flags=drop.flags)

    def cost(self, model: Adapter, /) -> Passes:
        return Passes(forward=2 if self.variant == "adcc" else 1 + 2 * len(ROAD_PERCENTILES))


def coherency(case: Case, fill: FillName) -> tuple[Tensor, Tensor]:
    """Return the coherency of each map, (batch,), and where the map of the masked image is constant; once per case."""
    return case.once(("coherency", fill), lambda: _coherency(case, fill))


def _coherency(case: Case, fill: FillName) -> tuple[Tensor, Tensor]:
    masked = AverageDrop(fill=fill).masked(case)
    maps = re_explained_maps(case, images=masked)
    values = (pearson(case.maps, maps).cpu() + 1) / 2
    return values.clamp(0, 1), constant(maps).cpu()


def harmonic_mean(*parts: Tensor) -> Tensor:
    """Return the harmonic mean of numbers in 0..1: 0 where one of them is 0, NaN where one is NaN.

    >>> import torch
    >>> harmonic_mean(torch.tensor([0.5, 0.5]), torch.tensor([1.0, 0.0]))
    tensor([0.6667, 0.0000])
    """
    return len(parts) / sum((1 / part for part in parts), start=parts[0] * 0)
