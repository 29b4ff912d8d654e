"""Iterated integrals over images and feature maps.

The image is interpolated, run up to the first inner layer, interpolated there, run on to the next, and so on; at the
last layer only what lies behind it is differentiated. So the trunk runs once per interpolated image, without a graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from sightline.methods.path.baselines import Blank, Reference, blank_images, reference_map
from sightline.methods.path.iia_route import IMAGE, Stop
from sightline.methods.path.integrands import Integrand
from sightline.models.adapter import Adapter
from sightline.models.batch import in_batches
from sightline.models.cnn.adapter import Convolutional
from sightline.types import Passes, Target


@dataclass(frozen=True, eq=False)
class MapIntegral:
    """An iterated integral that ends at the image or at a feature map."""

    model: Adapter
    images: Tensor
    targets: Sequence[Target]
    stops: tuple[Stop, ...]
    integrand: Integrand
    reference: Reference
    blank: Blank
    seed: int

    def __call__(self) -> Tensor:
        """Return the integral for every image and target, channels kept: (batch, target, channel, height, width)."""
        return self._within(self.images, 0, range(len(self.images)))

    def _within(self, u: Tensor, depth: int, rows: Sequence[int]) -> Tensor:
        """Integrate over this layer's path, and over all that follow; `rows` tells the image of each point."""
        stop, last = self.stops[depth], depth == len(self.stops) - 1
        r = self._reference(u, depth, rows) if last or stop.interpolated else u

        def work(part: slice) -> Tensor:
            index = torch.arange(part.start, part.stop, device=u.device)
            parent, step = index // stop.count, index % stop.count
            nodes, weights = stop.at(step.cpu(), u)
            points = torch.lerp(r[parent], u[parent], nodes)
            return self._onward(points, depth, [rows[i] for i in parent.tolist()]) * weights[:, None]

        found = torch.cat(in_batches(work, len(u) * stop.count, self._width(stop)))
        total: Tensor = found.unflatten(0, (len(u), stop.count)).sum(dim=1)
        return (u - r)[:, None] * total if last else total

    def _onward(self, v: Tensor, depth: int, rows: Sequence[int]) -> Tensor:
        site = self.stops[depth].site
        if depth == len(self.stops) - 1:
            return self._integrand(v, site, rows)
        following = self.stops[depth + 1].site
        return self._within(advance(self.model, v, site, following), depth + 1, rows)

    def _integrand(self, v: Tensor, site: str, rows: Sequence[int]) -> Tensor:
        gradients = gradients_at(self.model, v, site, [target.take(rows) for target in self.targets])
        return torch.stack([self.integrand([v], [gradient]) for gradient in gradients], dim=1)

    def _reference(self, u: Tensor, depth: int, rows: Sequence[int]) -> Tensor:
        if depth == 0:
            return blank_images(self.blank, self.model, self.images, self.seed)
        return reference_map(self.reference, u, self.images, rows, self.seed + depth)

    def _width(self, stop: Stop) -> int:
        """Return how many points run at once: where blank images lead a batch in, those of one path, to count them."""
        lead = stop.site != IMAGE and convolutional(self.model).blank_images(stop.site, 1)
        return stop.count if lead else self.model.batch


def map_cost(model: Adapter, stops: tuple[Stop, ...], targets: int) -> Passes:
    """Return what a `MapIntegral` costs per image."""
    points, forward, paths = 1, 0.0, 1
    for stop, following in pairwise([*stops, None]):
        assert stop is not None
        paths, points = points, points * stop.count
        forward += paths * stretch(model, stop.site, following.site if following else None, stop.count)
    return Passes(forward, points * targets * model.remaining(stops[-1].site))


def stretch(model: Adapter, first: str, last: str | None, count: int) -> float:
    """Return the forward passes of `count` activations from one layer to another; None is the output."""
    before = 0.0 if first == IMAGE else convolutional(model).share(first)
    after = 1.0 if last is None else convolutional(model).share(last)
    leads = 0 if first == IMAGE else convolutional(model).blank_images(first, count)
    return leads * before + count * (after - before)


def advance(model: Adapter, v: Tensor, first: str, last: str) -> Tensor:
    """Run from one layer to a later one without a graph."""
    cnn = convolutional(model)
    with torch.no_grad():
        return cnn.trunk(v, last) if first == IMAGE else cnn.between(v, first, last)


def gradients_at(
    model: Adapter, v: Tensor, site: str, targets: Sequence[Target], *, rectified: bool = False
) -> list[Tensor]:
    """Return each target's gradient at activations or images; `rectified` sends them through a ReLU first."""
    with torch.inference_mode(False), torch.enable_grad():
        v = v.detach().clone().requires_grad_()
        entering = v.relu() if rectified else v
        logits = model(entering) if site == IMAGE else convolutional(model).tail(entering, site)
        scores = [target(logits) for target in targets]
    return [found[site] for found in model.gradients_each(scores, {site: v})]


def convolutional(model: Adapter) -> Convolutional:
    """Return the model as what it is once an inner feature map has been asked for."""
    assert isinstance(model, Convolutional)
    return model
