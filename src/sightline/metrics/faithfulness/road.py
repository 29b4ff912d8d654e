"""ROAD: remove and debias; removed pixels are imputed from their neighbours, and the class probability is followed.

Imputation leaks less of the mask's shape than filling with a constant colour :cite:p:`rong2022`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from sightline.errors import RecipeError
from sightline.metrics.case import Case, Measurement, flags_where, join_flags
from sightline.metrics.faithfulness.options import PerturbationOptions
from sightline.models.adapter import Adapter
from sightline.perturb.curve import Score
from sightline.perturb.impute import impute
from sightline.registry import METRICS
from sightline.seeds import generators, normal
from sightline.types import Passes

Variant = Literal["combined", "most", "least"]
PERCENTILES = (10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0)


@METRICS.register(
    "road",
    family="faithfulness",
    cite="rong2022",
    cost="19 forward",
    direction="higher",
    parity="grad-cam 1.5.7, without noise, to 1e-5; imputed images to 1e-5",
)
@dataclass(frozen=True, slots=True)
class Road(PerturbationOptions):
    r"""Class probability without the least important pixels minus that without the most important, pixels imputed.

    .. math:: \frac{1}{2|Q|} \sum_{q \in Q} \bigl( p(x_q^{\mathrm{least}}) - p(x_q^{\mathrm{most}}) \bigr)

    where :math:`x_q^{\mathrm{most}}` lacks the pixels at or above the map's :math:`q`-th percentile and
    :math:`x_q^{\mathrm{least}}` those of the negated map. Missing pixels solve one linear system: each is the weighted
    mean of its eight neighbours, 1/6 for those at its sides and 1/12 at its corners, known or missing, plus a little
    Gaussian noise :cite:p:`rong2022`. ``variant='most'`` is the mean fall :math:`p(x) - p(x_q^{\mathrm{most}})` alone,
    ``variant='least'`` the mean rise :math:`p(x_q^{\mathrm{least}}) - p(x)`; all three are higher for better maps.

    It costs two passes per percentile and one for the image. The linear systems take longer than the passes of a small
    model. A map in random order, or a model whose output is constant, scores near zero.

    Edge cases: equal pixels are removed together, so a coarse map may lose more than its share, and a map with many
    equal lowest values everything: the image is then its own mean colour, "nothing left to fill from". A constant map
    does so at every percentile and scores 0, flagged.

    Attributes:
        percentiles: of the map, between 0 and 100; pixels at or above are removed.
        variant: combined, most (most important first) or least (least important first).
        noise: standard deviation of the noise on filled pixels, after normalisation.
        seed: of the noise.
    """

    percentiles: tuple[float, ...] = PERCENTILES
    variant: Variant = "combined"
    noise: float = 0.01
    score: Score = "probability"
    seed: int = 0
    range: ClassVar[tuple[float, float]] = (-1.0, 1.0)

    def __post_init__(self) -> None:
        if not self.percentiles:
            raise RecipeError("got percentiles=(); give numbers from 0 to 100")

    def __call__(self, case: Case, /) -> Measurement:
        target = case.followed(self.score)
        clean = case.read(target, case.clean[:, None])
        most = clean if self.variant == "least" else case.read(target, self._without(case, negated=False))
        least = clean if self.variant == "most" else case.read(target, self._without(case, negated=True))
        curve = (least - most) / (2 if self.variant == "combined" else 1)
        flags = flags_where(self._emptied(case) & ~case.constant, "nothing left to fill from")
        return Measurement(curve.double().mean(dim=1), curve, join_flags(case.flags, flags))

    def cost(self, model: Adapter, /) -> Passes:
        return Passes(forward=1.0 + len(self.percentiles) * (2 if self.variant == "combined" else 1))

    def _without(self, case: Case, *, negated: bool) -> Tensor:
        """Return the logits at every percentile, (batch, percentile, class), once for metrics that agree."""
        key = ("road", negated, self.percentiles, self.noise, self.seed)
        return case.once(key, lambda: torch.stack([self._logits(case, row, negated) for row in range(len(case.maps))]))

    def _logits(self, case: Case, row: int, negated: bool) -> Tensor:
        image = case.images[row]
        generator = generators(self.seed, image[None])[0]
        imputed = []
        for missing in _missing(case.maps[row], self.percentiles, negated):
            noise = self.noise * normal(image, generator) * missing
            imputed.append(impute(image, missing) + noise)
        return case.model.predict(torch.stack(imputed))

    def _emptied(self, case: Case) -> Tensor:
        """Say which images lose every pixel at some percentile."""
        sides = {"combined": (False, True), "most": (False,), "least": (True,)}[self.variant]
        each = [
            [_missing(values, self.percentiles, negated).flatten(1).all(dim=1).any() for negated in sides]
            for values in case.maps
        ]
        return torch.tensor(each, device=case.maps.device).any(dim=1)


def _missing(values: Tensor, percentiles: tuple[float, ...], negated: bool) -> Tensor:
    """Return the pixels removed at each percentile of a map, or of its negative, (percentile, height, width)."""
    values = -values if negated else values
    limits = np.percentile(values.cpu().numpy(), percentiles)
    return values.double() >= torch.as_tensor(limits, dtype=torch.float64, device=values.device)[:, None, None]
