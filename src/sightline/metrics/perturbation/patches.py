"""Region perturbation and selectivity: the score as square patches are removed, the most important first."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from sightline.errors import RecipeError
from sightline.metrics.case import Case, Measurement, area
from sightline.metrics.faithfulness.options import PerturbationOptions
from sightline.metrics.removal import group_sums, logits_without
from sightline.models.adapter import Adapter
from sightline.perturb.curve import Score, Tie, importance_order, ranks
from sightline.perturb.fill import NoiseOption, removing_fill
from sightline.perturb.segments import grid_segments
from sightline.registry import METRICS
from sightline.types import Passes


@dataclass(frozen=True, slots=True)
class _Patches(PerturbationOptions):
    """Base of the metrics that remove square patches one after the other, in falling order of their attribution.

    Attributes:
        patch: side of a patch in pixels; those at the right and lower border may be smaller.
        steps: how many patches are removed at most; None removes all.
        fill: what removed patches become: noise (random colours), black, zero (after normalisation), white, mean, blur.
        seed: of the noise and of random ties.
    """

    patch: int = 8
    steps: int | None = None
    fill: NoiseOption = "black"
    radius: int = 5
    sigma: float = 5.0
    score: Score = "probability"
    tie: Tie = "index"
    seed: int = 0

    def __post_init__(self) -> None:
        removing_fill(self.fill, self.radius, self.sigma, self.seed)
        if self.patch < 1 or (self.steps is not None and self.steps < 1):
            raise RecipeError(f"got patch={self.patch}, steps={self.steps}; each must be 1 or more")

    def curve(self, case: Case) -> Tensor:
        """Return the score with 0, 1, 2, … patches removed, shape (batch, points)."""
        key = ("patches", self.patch, self.steps, self.fill, self.radius, self.sigma, self.tie, self.seed)
        logits = case.once(key, lambda: self._logits(case))
        target = case.followed(self.score)
        return torch.cat([case.read(target, case.clean)[:, None], case.read(target, logits)], dim=1).double()

    def _logits(self, case: Case) -> Tensor:
        fill = removing_fill(self.fill, self.radius, self.sigma, self.seed)
        return logits_without(case, self._removed(case), fill)

    def _removed(self, case: Case) -> Iterator[Tensor]:
        size = (case.maps.shape[-2], case.maps.shape[-1])
        labels = grid_segments(size, self._cells(size), (self.patch, self.patch), case.maps.device).labels
        count = int(labels.max()) + 1
        sums = group_sums(case.maps, labels.expand(case.maps.shape), count)
        patch_ranks = ranks(importance_order(sums[:, None], self.tie, self.seed))
        points = torch.arange(1, 1 + self._points(size), device=labels.device)[:, None, None]
        return (each[labels] < points for each in patch_ranks)

    def _cells(self, size: tuple[int, int]) -> tuple[int, int]:
        return math.ceil(size[0] / self.patch), math.ceil(size[1] / self.patch)

    def _points(self, size: tuple[int, int]) -> int:
        cells = math.prod(self._cells(size))
        return cells if self.steps is None else min(self.steps, cells)

    def cost(self, model: Adapter, /) -> Passes:
        return Passes(forward=1.0 + self._points(model.default_size))


@METRICS.register(
    "region_perturbation",
    family="perturbation",
    cite="samek2017",
    cost="101 forward",
    direction="higher",
    parity="Quantus 0.6 RegionPerturbation, live, 1e-5",
)
@dataclass(frozen=True, slots=True)
class RegionPerturbation(_Patches):
    r"""Area over the perturbation curve: mean drop of the score as the most important patches become random colours.

    .. math:: \mathrm{AOPC} = \frac{1}{L + 1} \sum_{k=0}^{L} \bigl( p(x) - p(x_k) \bigr)

    where :math:`x_k` lacks the :math:`k` patches of 9×9 pixels with the largest sums of the map, up to
    :math:`L = 100` of them :cite:p:`samek2017`. A map that ranks first the patches the model relies on makes the score
    drop early. Random colours are far from what a network is trained on; compare with another fill.

    It costs a pass per patch and one for the image.

    Edge cases: a constant map is judged by the order of its ties and flagged; an image with fewer patches than `steps`
    loses all of them. With ``score='logit'`` it is in units of the logit.
    """

    patch: int = 9
    steps: int | None = 100
    fill: NoiseOption = "noise"
    range: ClassVar[tuple[float, float]] = (-1.0, 1.0)

    def __call__(self, case: Case, /) -> Measurement:
        curve = self.curve(case)
        return Measurement((curve[:, :1] - curve).mean(dim=1), curve, case.flags)


@METRICS.register(
    "selectivity",
    family="perturbation",
    cite="montavon2018",
    cost="785 forward",
    direction="lower",
    parity="Quantus 0.6 Selectivity, live, 1e-5",
)
@dataclass(frozen=True, slots=True)
class Selectivity(_Patches):
    r"""Area under the score as all patches are removed, the most important first.

    .. math:: \frac{1}{n} \sum_{k=1}^{n} \frac{p_{k-1} + p_k}{2}

    where :math:`p_k` is the score once the :math:`k` patches of the largest sums of the map are black, until all
    :math:`n` are :cite:p:`montavon2018`. It is `deletion` with patches for pixels; a larger `patch` makes it cheaper.

    It costs a pass per patch and one for the image.

    Edge cases: a constant map is judged by the order of its ties and flagged. With ``score='logit'`` it is in units of
    the logit.
    """

    range: ClassVar[tuple[float, float]] = (0.0, 1.0)

    def __call__(self, case: Case, /) -> Measurement:
        curve = self.curve(case)
        return Measurement(area(curve), curve, case.flags)
