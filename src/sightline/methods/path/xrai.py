"""XRAI: regions of an image, ranked by the density of its integrated gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from sightline.errors import RecipeError, ShapeError
from sightline.methods.multi_target import MultiTarget
from sightline.methods.path.ig import IntegratedGradients
from sightline.methods.path.quadrature import Rule
from sightline.models.adapter import Adapter
from sightline.perturb.fill import make_fill
from sightline.perturb.regions import Cuts, check_cuts, given_regions, regions_of
from sightline.perturb.superpixels import Given
from sightline.registry import METHODS
from sightline.types import Attribution, Passes, Target, pixel_grid

Blank = Literal["both", "extremes", "zero", "black", "white", "mean", "blur"]
TWO = ("both", "extremes")


@METHODS.register(
    "xrai",
    family="path",
    cite="kapishnikov2019",
    cost="steps forward, steps backward for each of two references",
    needs=("gradient",),
    parity="PAIR saliency XRAI, full and fast, on given attributions and segments, 1e-9; its own segments, exactly",
)
@dataclass(frozen=True, slots=True)
class Xrai(MultiTarget):
    r"""XRAI: the image is taken apart region by region, the densest first.

    .. math:: A_i = \frac{1}{|D_t|} \sum_{j \in D_t} a_j \text{ for } i \in D_t, \qquad
        D_t = R_t \setminus \bigcup_{u<t} R_u, \qquad
        R_t = \arg\max_R \frac{\sum_{j \in R \setminus \bigcup_{u<t} R_u} a_j}{|R \setminus \bigcup_{u<t} R_u|}

    where :math:`a` are integrated gradients, averaged over the references, the largest of the three channels. The
    regions :math:`R` come from several segmentations and may overlap; one that would add fewer than `smallest` pixels
    is dropped. Pixels that no region reaches share their mean, so the map sums to :math:`\sum_i a_i`.

    With segments of one's own, or another attribution to gather: `on`.

    Attributes:
        steps: points on the path from each reference.
        rule: how they lie: gauss_legendre, right (k/n) or trapezoid; the package saliency counts both ends in full.
        blank: the references: both black and white; extremes, constant images of the lowest and of the highest value
            that the model is fed, as the package saliency; or one of zero, black, white, mean and blur.
        segments: a cut or a tuple of cuts, as ('slic', 60) or (('felzenszwalb', 50), ('felzenszwalb', 250)); by default
            Felzenszwalb's at six scales, as the authors.
        radius: pixels by which the regions of these cuts are widened, so that edges belong to both sides.
        smallest: pixels that a region has to add.
        area: share of the image after which no more regions are added; the rest is one region.
        variant: "full", or "fast", which ranks regions once, by all their pixels.
    """

    steps: int = 100
    rule: Rule = "trapezoid"
    blank: Blank = "both"
    segments: Cuts | None = None
    radius: int = 5
    smallest: int = 50
    area: float = 1.0
    variant: Literal["full", "fast"] = "full"

    def __post_init__(self) -> None:
        IntegratedGradients(self.steps, self.rule)
        if self.radius < 0 or self.smallest < 1:
            raise RecipeError(
                f"got radius={self.radius}, smallest={self.smallest}; a radius of 0 pixels or more and a smallest "
                "region of 1 or more are needed"
            )
        if not 0 <= self.area <= 1:
            raise RecipeError(f"got area={self.area}; a share of the image, from 0 to 1, is needed")
        check_cuts(self.segments)

    def multi_target(
        self, model: Adapter, images: Tensor, targets: Sequence[Target], *, every_layer: bool = False
    ) -> list[Attribution]:
        regions = regions_of(model, images, check_cuts(self.segments), self.radius)
        return self._gathered(images, regions, self.base(model, images, targets))

    def on(
        self,
        model: Adapter,
        images: Tensor,
        targets: Sequence[Target],
        segments: Given | Sequence[Tensor] | None = None,
        base: Sequence[Tensor] | None = None,
    ) -> list[Attribution]:
        """Explain with regions, or attributions, of one's own.

        Args:
            model: the model.
            images: shape (batch, 3, height, width).
            targets: what to explain.
            segments: see `given_regions`; they are not widened. None for the recipe's own.
            base: for each target the attribution to gather, (batch, channel, height, width) or (batch, height, width);
                the model is not asked then.
        """
        with torch.no_grad():
            if segments is None:
                regions = regions_of(model, images, check_cuts(self.segments), self.radius)
            else:
                regions = given_regions(model, images, segments)
            return self._gathered(images, regions, self.base(model, images, targets) if base is None else base)

    def base(self, model: Adapter, images: Tensor, targets: Sequence[Target]) -> list[Tensor]:
        """Return each target's integrated gradients, averaged over the references, in the shape of the images."""
        ig = IntegratedGradients(self.steps, self.rule)
        each = [ig.integrals(model, images, reference, targets) for reference in self._references(model, images)]
        return [torch.stack(found).mean(dim=0) for found in zip(*each, strict=True)]

    def _references(self, model: Adapter, images: Tensor) -> list[Tensor]:
        if self.blank == "extremes":
            axes = (1, 2, 3)
            return [
                images.amin(axes, keepdim=True).expand_as(images),
                images.amax(axes, keepdim=True).expand_as(images),
            ]
        names = ("black", "white") if self.blank == "both" else (self.blank,)
        return [make_fill(name)(model, images) for name in names]

    def _gathered(self, images: Tensor, regions: Sequence[Tensor], base: Sequence[Tensor]) -> list[Attribution]:
        gather = gathered if self.variant == "full" else gathered_fast
        found = []
        for attribution in base:
            flat = attribution.amax(dim=1) if attribution.ndim == 4 else attribution
            if flat.shape != images[:, 0].shape:
                raise ShapeError(f"got an attribution of {tuple(attribution.shape)} for images {tuple(images.shape)}")
            exact = flat.detach().cpu().double()
            maps = [gather(one, masks, self.smallest, self.area) for one, masks in zip(exact, regions, strict=True)]
            found.append(Attribution(torch.stack(maps)[None].to(images), pixel_grid(images)))
        return found

    def multi_target_cost(self, model: Adapter, count: int, *, every_layer: bool = False) -> Passes:
        runs = self.steps * (2 if self.blank in TWO else 1)
        return Passes(runs, runs * count)


def gathered(attribution: Tensor, masks: Tensor, smallest: int = 1, area: float = 1.0) -> Tensor:
    """Give the pixels of an attribution, (height, width), the mean of what their region adds, the densest region first.

    How many pixels each region would still add, and what they sum to, is kept up to date: a pixel is looked at once
    for every region, however many steps there are.
    """
    values, regions = attribution.flatten(), masks.flatten(1)
    counts = regions.sum(dim=1)
    sums = torch.stack([values[region].sum() for region in regions]) if len(regions) else values[:0]
    left = torch.ones(len(regions), dtype=torch.bool)
    free = torch.ones(len(values), dtype=torch.bool)
    found = torch.zeros_like(values)
    while len(values) - int(free.sum()) <= area * len(values):
        left &= counts >= smallest
        if not left.any():
            break
        best = int(torch.where(left, sums / counts.clamp(min=1), -torch.inf).argmax())
        added = (regions[best] & free).nonzero()[:, 0]
        found[added] = values[added].mean()
        free[added], left[best] = False, False
        lost = regions[:, added]
        counts = counts - lost.sum(dim=1)
        sums = sums - lost.to(values) @ values[added]
    return _rest(found, free, values).reshape(attribution.shape)


def gathered_fast(attribution: Tensor, masks: Tensor, smallest: int = 1, area: float = 1.0) -> Tensor:
    """Do the same with the regions ranked once, by the mean of all their pixels; `area` is of no use here."""
    values, regions = attribution.flatten(), masks.flatten(1)
    density = [float(values[region].mean()) if region.any() else -torch.inf for region in regions]
    free = torch.ones(len(values), dtype=torch.bool)
    found = torch.zeros_like(values)
    for index in sorted(range(len(regions)), key=lambda each: -density[each]):
        added = regions[index] & free
        if int(added.sum()) >= smallest:
            found[added] = values[added].mean()
            free &= ~added
    return _rest(found, free, values).reshape(attribution.shape)


def _rest(found: Tensor, free: Tensor, values: Tensor) -> Tensor:
    """Give the pixels that no region reached their own mean."""
    if free.any():
        found[free] = values[free].mean()
    return found
