"""XRAI: regions of an image ranked by the mean of their integrated gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from sightline.errors import ShapeError
from sightline.methods.multi_target import MultiTarget
from sightline.methods.path.ig import IntegratedGradients
from sightline.methods.path.quadrature import Rule
from sightline.models.adapter import Adapter
from sightline.perturb.fill import make_fill
from sightline.perturb.regions import Cuts, check_cuts, given_regions, regions_of
from sightline.perturb.superpixels import Given
from sightline.registry import METHODS
from sightline.types import Attribution, Passes, Target, pixel_grid

Baselines = Literal["both", "extremes", "zero", "black", "white", "mean", "blur"]
TWO = ("both", "extremes")


@METHODS.register(
    "xrai",
    family="path",
    cite="kapishnikov2019",
    cost="steps forward, steps backward for each of two baselines",
    needs=("gradient",),
    parity="PAIR saliency XRAI, full and fast, on given attributions and segments, 1e-9; its own segments, exactly",
)
@dataclass(frozen=True, slots=True)
class Xrai(MultiTarget):
    r"""XRAI: integrated gradients averaged over segments, ranked greedily by their mean; for region-level maps.

    .. math:: A_i = \frac{1}{|D_t|} \sum_{j \in D_t} a_j \text{ for } i \in D_t, \qquad
        D_t = R_t \setminus \bigcup_{u<t} R_u, \qquad
        R_t = \arg\max_R \frac{\sum_{j \in R \setminus \bigcup_{u<t} R_u} a_j}{|R \setminus \bigcup_{u<t} R_u|}

    where :math:`a` are integrated gradients, averaged over the baselines, the maximum of the three channels. The
    regions :math:`R` come from several segmentations and may overlap; one that would add fewer than `smallest` pixels
    is dropped. Pixels in no region get their mean, so the map sums to :math:`\sum_i a_i`. `on` takes segments of your
    own, or another attribution in place of integrated gradients.

    Attributes:
        steps: points on the path from each baseline.
        rule: the quadrature: gauss_legendre, right (k/n) or trapezoid; the package saliency counts both ends in full.
        blank: the baselines: both black and white; extremes, constant images of the lowest and of the highest value
            of the normalised image, as the package saliency; or one of zero, black, white, mean and blur.
        segments: a segmentation or a tuple of them, as ('slic', 60) or (('felzenszwalb', 50), ('felzenszwalb', 250));
            by default Felzenszwalb's at six scales, as the authors.
        radius: pixels by which these regions are dilated, so that edges belong to both sides.
        smallest: pixels that a region has to add.
        area: fraction of the image after which no more regions are added; the rest is one region.
        variant: "full", or "fast", which ranks regions once, by the mean of all their pixels.
    """

    steps: int = 100
    rule: Rule = "trapezoid"
    blank: Baselines = "both"
    segments: Cuts | None = None
    radius: int = 5
    smallest: int = 50
    area: float = 1.0
    variant: Literal["full", "fast"] = "full"

    def __post_init__(self) -> None:
        IntegratedGradients(self.steps, self.rule)
        check_cuts(self.segments)

    def multi_target(
        self, model: Adapter, images: Tensor, targets: Sequence[Target], *, every_layer: bool = False
    ) -> list[Attribution]:
        regions = regions_of(model, images, check_cuts(self.segments), self.radius)
        return self._averaged(images, regions, self.base(model, images, targets))

    def on(
        self,
        model: Adapter,
        images: Tensor,
        targets: Sequence[Target],
        segments: Given | Sequence[Tensor] | None = None,
        base: Sequence[Tensor] | None = None,
    ) -> list[Attribution]:
        """Explain with given regions, or given attributions.

        Args:
            model: the model.
            images: shape (batch, 3, height, width).
            targets: what to explain.
            segments: see `given_regions`; they are not dilated. None for the recipe's own.
            base: for each target the attribution to average, (batch, channel, height, width) or (batch, height, width);
                the model is not run then.
        """
        with torch.no_grad():
            if segments is None:
                regions = regions_of(model, images, check_cuts(self.segments), self.radius)
            else:
                regions = given_regions(model, images, segments)
            return self._averaged(images, regions, self.base(model, images, targets) if base is None else base)

    def base(self, model: Adapter, images: Tensor, targets: Sequence[Target]) -> list[Tensor]:
        """Return each target's integrated gradients, averaged over the baselines, in the shape of the images."""
        ig = IntegratedGradients(self.steps, self.rule)
        integrals = [ig.integrals(model, images, baseline, targets) for baseline in self._baselines(model, images)]
        return [torch.stack(of_target).mean(dim=0) for of_target in zip(*integrals, strict=True)]

    def _baselines(self, model: Adapter, images: Tensor) -> list[Tensor]:
        if self.blank == "extremes":
            axes = (1, 2, 3)
            return [
                images.amin(axes, keepdim=True).expand_as(images),
                images.amax(axes, keepdim=True).expand_as(images),
            ]
        names = ("black", "white") if self.blank == "both" else (self.blank,)
        return [make_fill(name)(model, images) for name in names]

    def _averaged(self, images: Tensor, regions: Sequence[Tensor], base: Sequence[Tensor]) -> list[Attribution]:
        average = region_means if self.variant == "full" else region_means_fast
        attributions = []
        for attribution in base:
            flat = attribution.amax(dim=1) if attribution.ndim == 4 else attribution
            if flat.shape != images[:, 0].shape:
                raise ShapeError(f"got an attribution of {tuple(attribution.shape)} for images {tuple(images.shape)}")
            exact = flat.detach().cpu().double()
            pairs = zip(exact, regions, strict=True)
            maps = [average(values, masks, self.smallest, self.area) for values, masks in pairs]
            attributions.append(Attribution(torch.stack(maps)[None].to(images), pixel_grid(images)))
        return attributions

    def multi_target_cost(self, model: Adapter, count: int, *, every_layer: bool = False) -> Passes:
        runs = self.steps * (2 if self.blank in TWO else 1)
        return Passes(runs, runs * count)


def region_means(attribution: Tensor, masks: Tensor, smallest: int = 1, area: float = 1.0) -> Tensor:
    """Give the pixels of an attribution, (height, width), the mean of what their region adds, greedily by that mean.

    How many pixels each region would still add, and their sum, is updated in every step, so that a pixel is looked at
    once for every region, however many steps there are.
    """
    values, regions = attribution.flatten(), masks.flatten(1)
    counts = regions.sum(dim=1)
    sums = torch.stack([values[region].sum() for region in regions]) if len(regions) else values[:0]
    left = torch.ones(len(regions), dtype=torch.bool)
    free = torch.ones(len(values), dtype=torch.bool)
    means = torch.zeros_like(values)
    while len(values) - int(free.sum()) <= area * len(values):
        left &= counts >= smallest
        if not left.any():
            break
        best = int(torch.where(left, sums / counts.clamp(min=1), -torch.inf).argmax())
        added = (regions[best] & free).nonzero()[:, 0]
        means[added] = values[added].mean()
        free[added], left[best] = False, False
        lost = regions[:, added]
        counts = counts - lost.sum(dim=1)
        sums = sums - lost.to(values) @ values[added]
    return _fill_rest(means, free, values).reshape(attribution.shape)


def region_means_fast(attribution: Tensor, masks: Tensor, smallest: int = 1, area: float = 1.0) -> Tensor:
    """Return the same with the regions ranked once, by the mean of all their pixels; `area` is ignored."""
    values, regions = attribution.flatten(), masks.flatten(1)
    mean_of = [float(values[region].mean()) if region.any() else -torch.inf for region in regions]
    free = torch.ones(len(values), dtype=torch.bool)
    means = torch.zeros_like(values)
    for index in sorted(range(len(regions)), key=lambda region: -mean_of[region]):
        added = regions[index] & free
        if int(added.sum()) >= smallest:
            means[added] = values[added].mean()
            free &= ~added
    return _fill_rest(means, free, values).reshape(attribution.shape)


def _fill_rest(means: Tensor, free: Tensor, values: Tensor) -> Tensor:
    """Give the pixels in no region their mean."""
    if free.any():
        means[free] = values[free].mean()
    return means
