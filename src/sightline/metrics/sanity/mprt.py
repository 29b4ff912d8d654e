"""Smooth and efficient forms of the model parameter randomisation test (MPRT)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from sightline.errors import RecipeError
from sightline.metrics.case import Case, Measurement, WithoutPasses, constant, flags_where, join_flags
from sightline.metrics.re_explain import re_explained_maps
from sightline.metrics.sanity.randomisation import Stages, random_maps
from sightline.metrics.scaling import power_of_two
from sightline.metrics.similarity import SIMILARITIES, Similarity
from sightline.models.adapter import Adapter
from sightline.models.randomise import Cascade, check_stages, counts
from sightline.registry import METRICS
from sightline.seeds import generators, normal

CONSTANT = "constant map of a randomised model"


@METRICS.register(
    "efficient_mprt",
    family="sanity",
    cite="hedstroem2024",
    cost="1 attribution, on a randomised copy of the model",
    direction="higher",
    needs=("method",),
    parity="Quantus 0.6 discrete_entropy, live, 1e-6",
)
@dataclass(frozen=True, slots=True)
class EfficientMprt(WithoutPasses):
    r"""Efficient MPRT: relative rise of the map's histogram entropy when every layer of the model is random.

    .. math:: \frac{H\bigl(a(f_{\mathrm{random}})\bigr) - H\bigl(a(f)\bigr)}{H\bigl(a(f)\bigr)}

    where :math:`H` is the entropy of a histogram of the map's values :cite:p:`hedstroem2024`. A random model has
    nothing to point at, so the map of a method that explains the model becomes more even. It compares numbers, not
    maps, so that no similarity has to be chosen, and needs a single further map. A method that ignores the model scores
    0. Coarse maps that are enlarged have smooth histograms: compare maps of the same resolution.

    It runs the method once, and costs nothing else.

    Edge cases: a constant map has no entropy: NaN, flagged; a constant map of the random model scores -1, flagged.

    Attributes:
        bins: of the histogram, from the map's smallest to its largest value.
        seed: of the re-initialisation.
    """

    bins: int = 100
    seed: int = 0
    range: ClassVar[tuple[float, float]] = (-1.0, float("inf"))

    def __post_init__(self) -> None:
        if self.bins < 2:
            raise RecipeError(f"got bins={self.bins}; a histogram needs two bins at least")

    def __call__(self, case: Case, /) -> Measurement:
        (randomised,) = random_maps(case, 1, self.seed)
        before, after = (histogram_entropy(maps, self.bins) for maps in (case.maps, randomised))
        flags = join_flags(case.flags, flags_where(constant(randomised), CONSTANT))
        return Measurement((after - before) / before.where(before > 0, float("nan")), flags=flags)


@METRICS.register(
    "smooth_mprt",
    family="sanity",
    cite="hedstroem2024",
    cost="60 attributions, on the model and randomised copies of it",
    direction="lower",
    needs=("method",),
    parity="closed form; without noise it is randomisation_spearman",
)
@dataclass(frozen=True, slots=True)
class SmoothMprt(WithoutPasses):
    r"""Smooth MPRT: similarity of the noise-averaged map with those of models whose layers are random.

    .. math:: \frac{1}{n} \sum_{k=1}^{n} \operatorname{sim}\bigl(\bar a(f),\, \bar a(f_k)\bigr), \qquad
        \bar a(f) = \frac{1}{m} \sum_{j=1}^{m} a(f, x + \epsilon_j)

    :cite:p:`hedstroem2024`. Gradients of random deep networks are noise that hides what maps of several models have in
    common; averaging over noisy copies of the image takes it away on both sides. As in `randomisation_spearman` the
    layers become random from the output to the input, the curve holds the similarity at each stage, and lower is
    better. The map that was given is not looked at: the method's own, averaged, takes its place.

    It runs the method `samples` times per stage and as often on the model itself, and costs nothing else.

    Edge cases: a constant averaged map is NaN, "constant map"; where a randomised model's map is constant or not finite
    the similarity there is 0, and flagged.

    Attributes:
        stages: how many even stages; or the shares of the layers, such as (0.1, 1.0); None for a stage per layer.
        samples: noisy copies per map, m.
        noise: standard deviation of the noise, as a share of the image's range.
        similarity: spearman, pearson, cosine or ssim.
        seed: of the noise and of the re-initialisation.
    """

    stages: Stages = 5
    samples: int = 10
    noise: float = 0.1
    similarity: Similarity = "spearman"
    seed: int = 0
    range: ClassVar[tuple[float, float]] = (-1.0, 1.0)

    def __post_init__(self) -> None:
        check_stages(self.stages)
        if self.samples < 1 or not 0 <= self.noise < float("inf"):
            raise RecipeError(
                f"got samples={self.samples}, noise={self.noise}; give one sample at least, and no less than 0"
            )

    def __call__(self, case: Case, /) -> Measurement:
        noisy = list(self._noisy(case.images))
        original = _averaged(case, noisy, case.model)
        cascade = Cascade(case.model, case.images, seed=self.seed)
        curve, still = [torch.ones(len(original), dtype=torch.float64, device=original.device)], []
        for count in counts(self.stages, len(cascade)):
            maps = _averaged(case, noisy, cascade.upto(count))
            still.append(constant(maps))
            curve.append(SIMILARITIES[self.similarity](original, maps).nan_to_num(0.0).masked_fill(still[-1], 0.0))
        undefined = constant(original)
        flags = flags_where(torch.stack(still).any(dim=0), CONSTANT), flags_where(undefined, "constant map")
        curves = torch.stack(curve, dim=1).masked_fill(undefined[:, None], torch.nan).cpu()
        return Measurement(curves[:, 1:].mean(dim=1), curves, join_flags(case.flags, *flags))

    def _noisy(self, images: Tensor) -> list[Tensor]:
        random = generators(self.seed, images)
        spread = self.noise * (images.flatten(1).amax(dim=1) - images.flatten(1).amin(dim=1))
        drawn = [
            torch.stack([normal(image, generator) for image, generator in zip(images, random, strict=True)])
            for _ in range(self.samples)
        ]
        return [images + spread[:, None, None, None] * each for each in drawn]


def _averaged(case: Case, noisy: list[Tensor], model: Adapter) -> Tensor:
    """Return the mean of the method's maps of noisy copies; one that is not finite becomes zeros."""
    maps = torch.stack([re_explained_maps(case, model=model, images=images) for images in noisy]).mean(dim=0)
    finite = torch.isfinite(maps).flatten(1).all(dim=1)[:, None, None]
    return torch.where(finite, maps, torch.zeros_like(maps))


def histogram_entropy(maps: Tensor, bins: int) -> Tensor:
    """Return the entropy in nats of a histogram of each map's values, (batch,).

    >>> histogram_entropy(torch.tensor([[[0.0, 0.0, 1.0, 1.0]]]), 2)
    tensor([0.6931], dtype=torch.float64)
    """
    found = []
    for values in (maps.double() * power_of_two(maps)).flatten(1).cpu().numpy():
        shares = np.histogram(values, bins=bins)[0] / len(values)
        found.append(-sum(share * np.log(share) for share in shares if share > 0))
    return torch.tensor(found, dtype=torch.float64)
