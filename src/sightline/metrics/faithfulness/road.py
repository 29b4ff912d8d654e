"""ROAD: remove pixels so that the hole does not show, and see whether the model's answer follows the map.

Holes are filled from around them, not with one colour, so that their shape tells less :cite:p:`rong2022`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from sightline.errors import RecipeError
from sightline.metrics.case import Case, Measurement, flags_where, join_flags
from sightline.models.adapter import Adapter
from sightline.perturb.curve import Score, read_scores, scored
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
class Road:
    r"""How much more the answer suffers when the most important pixels go than when the least important go.

    .. math:: \frac{1}{2|Q|} \sum_{q \in Q} \bigl( p(x_q^{\mathrm{least}}) - p(x_q^{\mathrm{most}}) \bigr)

    where :math:`x_q^{\mathrm{most}}` lacks the pixels at or above the map's :math:`q`-th percentile and
    :math:`x_q^{\mathrm{least}}` those of the turned map. What is missing solves one linear system: each missing pixel
    is the weighted mean of its eight neighbours, 1/6 for those at its sides and 1/12 at its corners, known or missing,
    plus a little Gaussian noise :cite:p:`rong2022`. ``variant='most'`` is the mean fall
    :math:`p(x) - p(x_q^{\mathrm{most}})` alone, ``variant='least'`` the mean rise
    :math:`p(x_q^{\mathrm{least}}) - p(x)`; all three are higher for better maps.

    It costs two passes per percentile and one for the image. The linear systems take longer than the passes of a small
    model. A constant answer, or a map in random order, scores near zero.

    Edge cases: equal pixels go together, so a coarse map may lose more than its share, and a map with many equal lowest
    values everything: the image is then its own mean colour, "nothing left to fill from". A constant map does so at
    every percentile and scores 0, flagged.

    Attributes:
        percentiles: of the map, between 0 and 100; pixels at or above go.
        variant: combined, most (most important first) or least (least important first).
        noise: standard deviation of the noise on filled pixels, after normalisation.
        score: what is followed of the class: probability, log_probability, logit, accuracy.
        seed: of the noise.
    """

    percentiles: tuple[float, ...] = PERCENTILES
    variant: Variant = "combined"
    noise: float = 0.01
    score: Score = "probability"
    seed: int = 0
    range: ClassVar[tuple[float, float]] = (-1.0, 1.0)

    def __post_init__(self) -> None:
        if not self.percentiles or not all(0 <= each <= 100 for each in self.percentiles):
            raise RecipeError(f"got percentiles={self.percentiles}; give numbers from 0 to 100")
        if self.noise < 0:
            raise RecipeError(f"got noise={self.noise}; a standard deviation is 0 or more")

    def __call__(self, case: Case, /) -> Measurement:
        clean = self._read(case, case.clean[:, None])
        most = clean if self.variant == "least" else self._read(case, self._without(case, turned=False))
        least = clean if self.variant == "most" else self._read(case, self._without(case, turned=True))
        curve = (least - most) / (2 if self.variant == "combined" else 1)
        flags = flags_where(self._emptied(case) & ~case.constant, "nothing left to fill from")
        return Measurement(curve.double().mean(dim=1), curve, join_flags(case.flags, flags))

    def cost(self, model: Adapter, /) -> Passes:
        return Passes(forward=1.0 + len(self.percentiles) * (2 if self.variant == "combined" else 1))

    def _read(self, case: Case, logits: Tensor) -> Tensor:
        """Turn logits, (batch, points, class), into what is followed, (batch, points)."""
        points = logits.shape[1]
        rows = [row for row in range(len(logits)) for _ in range(points)]
        read = scored(case.target, self.score).take(rows)
        return read_scores(case.model, read, logits.flatten(0, 1)).reshape(-1, points)

    def _without(self, case: Case, *, turned: bool) -> Tensor:
        """Return the logits at every percentile, (batch, percentile, class), once for metrics that agree."""
        key = ("road", turned, self.percentiles, self.noise, self.seed)
        return case.once(key, lambda: torch.stack([self._answers(case, row, turned) for row in range(len(case.maps))]))

    def _answers(self, case: Case, row: int, turned: bool) -> Tensor:
        image = case.images[row]
        generator = generators(self.seed, image[None])[0]
        damaged = []
        for missing in _missing(case.maps[row], self.percentiles, turned):
            noise = self.noise * normal(image, generator) * missing
            damaged.append(impute(image, missing) + noise)
        return case.model.predict(torch.stack(damaged))

    def _emptied(self, case: Case) -> Tensor:
        """Say which images lose every pixel at some percentile."""
        sides = {"combined": (False, True), "most": (False,), "least": (True,)}[self.variant]
        each = [
            [_missing(one, self.percentiles, turned).flatten(1).all(dim=1).any() for turned in sides]
            for one in case.maps
        ]
        return torch.tensor(each, device=case.maps.device).any(dim=1)


def _missing(values: Tensor, percentiles: tuple[float, ...], turned: bool) -> Tensor:
    """Return what goes at each percentile of a map, or of its negative, (percentile, height, width)."""
    values = -values if turned else values
    limits = np.percentile(values.cpu().numpy(), percentiles)
    return values.double() >= torch.as_tensor(limits, dtype=torch.float64, device=values.device)[:, None, None]
