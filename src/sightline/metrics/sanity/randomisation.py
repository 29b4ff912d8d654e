"""Cascading randomisation: whether the map changes when the model's layers are re-initialised.

Four similarities of the same maps: they are computed once per case and shared by all metrics with the same settings.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from sightline.metrics.case import Case, Measurement, WithoutPasses, constant, flags_where, join_flags
from sightline.metrics.re_explain import re_explained_maps
from sightline.metrics.similarity import SIMILARITIES
from sightline.models.held_classes import hold_classes
from sightline.models.randomise import Cascade, Order, Statistics, check_cascade, check_stages, counts
from sightline.registry import METRICS

COST = "5 attributions, on randomised copies of the model"
QUANTUS = "Quantus 0.6 MPRT: weights exactly, maps and scores to 1e-5"
Stages = int | tuple[float, ...] | None
Rivals = Literal["original", "randomised"]


@dataclass(frozen=True, slots=True)
class _Randomisation(WithoutPasses):
    """Base of the metrics that compare a model's maps with those of copies whose layers are random.

    Attributes:
        stages: how many even stages; or the shares of the layers, such as (0.1, 1.0); None for a stage per layer.
        absolute: compare absolute values, as one does where the sign is not shown.
        seed: of the re-initialisation.
        variant: ``execution``, layers in the reverse order of their use and one generator for all; ``quantus``, as MPRT
            does it: reverse order of declaration, the generator set to seed + 1 before each layer, statistics reset
            (its own seed is 42, and it compares absolute values at every layer).
        statistics: keep or reset the running statistics of batch norms.
        classes: ``original`` lets the classes compete in `var` that the trained model chose; ``randomised`` chooses
            them anew by each randomised model, so that the map changes for that alone.
    """

    stages: Stages = 5
    absolute: bool = False
    seed: int = 0
    variant: Order = "execution"
    statistics: Statistics = "keep"
    classes: Rivals = "original"
    range: ClassVar[tuple[float, float]] = (-1.0, 1.0)
    similarity: ClassVar[str] = ""

    def __post_init__(self) -> None:
        check_stages(self.stages)
        check_cascade(self.variant, self.statistics)

    def __call__(self, case: Case, /) -> Measurement:
        stages = random_maps(case, self.stages, self.seed, self.variant, self.statistics, self.classes)
        original = case.maps.abs() if self.absolute else case.maps
        curve, unchanging = [torch.ones(len(original), dtype=torch.float64, device=original.device)], []
        for maps in stages:
            maps = maps.abs() if self.absolute else maps
            unchanging.append(constant(maps))
            similarities = SIMILARITIES[self.similarity](original, maps).nan_to_num(0.0)
            curve.append(similarities.masked_fill(unchanging[-1], 0.0))
        curves = torch.stack(curve, dim=1).masked_fill(constant(original)[:, None], torch.nan).cpu()
        flags = flags_where(torch.stack(unchanging).any(dim=0), "constant map of a randomised model")
        return Measurement(curves[:, 1:].mean(dim=1), curves, join_flags(case.flags, flags))


@METRICS.register(
    "randomisation_spearman",
    family="sanity",
    cite="adebayo2018",
    cost=COST,
    direction="lower",
    needs=("method",),
    parity=QUANTUS,
)
@dataclass(frozen=True, slots=True)
class RandomisationSpearman(_Randomisation):
    r"""Spearman's rank correlation of the map with the maps of models whose layers are re-initialised one by one.

    .. math:: \frac{1}{n} \sum_{k=1}^{n} \rho\bigl(a(f),\, a(f_k)\bigr)

    where :math:`f_k` is the model with the share :math:`k/n` of its layers random, from the output to the input, and
    :math:`a` the method's map for the same class :cite:p:`adebayo2018`. The curve holds the similarity at each stage,
    that of the model itself, 1, first. A map that explains the model falls to about 0; one that stays near 1, as edges
    do, says nothing about it. Much below 0 is no better than 0.

    It is necessary and not sufficient: a method can depend on the model and still be wrong. The early stages need not
    fall for a method that looks at early layers. The map of a coarse grid is smooth, so by chance it is more alike
    than one of pixels.

    It runs the method once per stage, and costs nothing else; the four ``randomisation_…`` metrics share the maps.

    Edge cases: a constant map is NaN, "constant map"; where a randomised model's map is constant or not finite the
    similarity there is 0, and flagged.
    """

    similarity: ClassVar[str] = "spearman"


@METRICS.register(
    "randomisation_pearson",
    family="sanity",
    cite="adebayo2018",
    cost=COST,
    direction="lower",
    needs=("method",),
    parity="scipy.stats.pearsonr, 1e-12",
)
@dataclass(frozen=True, slots=True)
class RandomisationPearson(_Randomisation):
    r"""Pearson's correlation of the map with the maps of models whose layers are re-initialised one by one.

    .. math:: \frac{1}{n} \sum_{k=1}^{n} \operatorname{corr}\bigl(a(f),\, a(f_k)\bigr)

    As `randomisation_spearman`, with the values in place of their ranks: a few large values decide.

    Edge cases: a constant map is NaN, "constant map"; where a randomised model's map is constant or not finite the
    similarity there is 0, and flagged.
    """

    similarity: ClassVar[str] = "pearson"


@METRICS.register(
    "randomisation_cosine",
    family="sanity",
    cite="adebayo2018",
    cost=COST,
    direction="lower",
    needs=("method",),
    parity="scipy.spatial.distance.cosine, 1e-12",
)
@dataclass(frozen=True, slots=True)
class RandomisationCosine(_Randomisation):
    r"""Cosine similarity of the map with the maps of models whose layers are re-initialised one by one.

    .. math:: \frac{1}{n} \sum_{k=1}^{n} \frac{a(f) \cdot a(f_k)}{\lVert a(f) \rVert \, \lVert a(f_k) \rVert}

    As `randomisation_spearman`. The mean of a map counts here: two maps without negative values are alike by that
    alone, so read it for signed maps, and beside `randomisation_pearson`.

    Edge cases: a constant map is NaN, "constant map"; where a randomised model's map is constant or not finite the
    similarity there is 0, and flagged.
    """

    similarity: ClassVar[str] = "cosine"


@METRICS.register(
    "randomisation_ssim",
    family="sanity",
    cite="adebayo2018, wang2004",
    cost=COST,
    direction="lower",
    needs=("method",),
    parity="skimage.metrics.structural_similarity with a Gaussian window, 1e-12",
)
@dataclass(frozen=True, slots=True)
class RandomisationSsim(_Randomisation):
    r"""Structural similarity (SSIM) of the map and the maps of models whose layers are re-initialised one by one.

    .. math:: \frac{1}{n} \sum_{k=1}^{n} \operatorname{SSIM}\Bigl(\tfrac{a(f)}{\max |a(f)|},\,
        \tfrac{a(f_k)}{\max |a(f_k)|}\Bigr)

    As `randomisation_spearman`, with the structural similarity of :cite:p:`wang2004` in an 11×11 Gaussian window. Where
    both maps are nearly empty they are alike, so sparse maps score high: compare a method with controls, not with 0. A
    map and its negative may count as alike, too.

    Edge cases: a constant map is NaN, "constant map"; where a randomised model's map is constant or not finite the
    similarity there is 0, and flagged.
    """

    similarity: ClassVar[str] = "ssim"


def random_maps(
    case: Case,
    stages: Stages = 5,
    seed: int = 0,
    variant: Order = "execution",
    statistics: Statistics = "keep",
    classes: Rivals = "original",
) -> list[Tensor]:
    """Return the method's maps on ever more random copies of the model, one (batch, height, width) per stage.

    A map that is not finite becomes zeros.
    """

    def make() -> list[Tensor]:
        cascade = Cascade(case.model, case.images, seed=seed, order=variant, statistics=statistics)
        method, target = case.explained_by(), case.target
        if classes == "original":
            method, target = hold_classes(method, case.model, case.images, target)
        every = (
            re_explained_maps(case, model=cascade.upto(count), method=method, target=target)
            for count in counts(stages, len(cascade))
        )
        return [torch.where(_finite(maps), maps, torch.zeros_like(maps)) for maps in every]

    return case.once(("random maps", stages, seed, variant, statistics, classes), make)


def _finite(maps: Tensor) -> Tensor:
    return torch.isfinite(maps).flatten(1).all(dim=1)[:, None, None]
