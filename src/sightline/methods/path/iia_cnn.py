"""Iterated integrals over images and feature maps.

The image is interpolated and run up to the first inner layer, interpolated there and run to the next, and so on; at the
last layer only the rest of the model is differentiated. So the trunk runs once per interpolated image, without a graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from sightline.methods.path.baselines import ImageBaseline, LayerBaseline, baseline_images, baseline_map
from sightline.methods.path.iia_layers import IMAGE, Path, PathLayer
from sightline.methods.path.integrands import Integrand
from sightline.models.adapter import Adapter
from sightline.models.cnn.adapter import Convolutional
from sightline.models.passes import in_batches, take_rows
from sightline.types import Passes, Target


@dataclass(frozen=True, eq=False)
class MapIntegral:
    """An iterated integral that ends at the image or at a feature map."""

    model: Adapter
    images: Tensor
    targets: Sequence[Target]
    path: Path
    integrand: Integrand
    layer_baseline: LayerBaseline
    image_baseline: ImageBaseline
    seed: int

    def __call__(self) -> Tensor:
        """Return the integral for every image and target, channels kept: (batch, target, channel, height, width)."""
        return self._within(self.images, 0, range(len(self.images)))

    def _within(self, u: Tensor, depth: int, rows: Sequence[int]) -> Tensor:
        """Integrate over this layer's path, and over all that follow; `rows` is the image of each point."""
        layer, last = self.path[depth], depth == len(self.path) - 1
        r = self._baseline(u, depth, rows) if last or layer.interpolated else u

        def work(part: slice) -> Tensor:
            nodes, weights = layer.at(torch.arange(part.start, part.stop) % layer.count, u)
            parent = [place // layer.count for place in range(part.start, part.stop)]
            points = torch.lerp(take_rows(r, parent), take_rows(u, parent), nodes)
            return self._onward(points, depth, [rows[i] for i in parent]) * weights[:, None]

        terms = torch.cat(in_batches(work, len(u) * layer.count, self._batch(layer)))
        total: Tensor = terms.unflatten(0, (len(u), layer.count)).sum(dim=1)
        return (u - r)[:, None] * total if last else total

    def _onward(self, v: Tensor, depth: int, rows: Sequence[int]) -> Tensor:
        site = self.path[depth].site
        if depth == len(self.path) - 1:
            return self._integrand(v, site, rows)
        following = self.path[depth + 1].site
        return self._within(advance(self.model, v, site, following), depth + 1, rows)

    def _integrand(self, v: Tensor, site: str, rows: Sequence[int]) -> Tensor:
        gradients = gradients_at(self.model, v, site, [target.take(rows) for target in self.targets])
        return torch.stack([self.integrand([v], [gradient]) for gradient in gradients], dim=1)

    def _baseline(self, u: Tensor, depth: int, rows: Sequence[int]) -> Tensor:
        if depth == 0:
            return baseline_images(self.image_baseline, self.model, self.images, self.seed)
        return baseline_map(self.layer_baseline, u, self.images, rows, self.seed + depth)

    def _batch(self, layer: PathLayer) -> int:
        """Return how many points run at once; those of one path where every batch costs extra, to count that."""
        lead = layer.site != IMAGE and convolutional(self.model).blank_images(layer.site, 1)
        return layer.count if lead else self.model.batch


def map_cost(model: Adapter, path: Path, targets: int) -> Passes:
    """Return what a `MapIntegral` costs per image."""
    points, forward, paths = 1, 0.0, 1
    for layer, following in pairwise([*path, None]):
        assert layer is not None
        paths, points = points, points * layer.count
        forward += paths * forward_cost(model, layer.site, following.site if following else None, layer.count)
    return Passes(forward, points * targets * model.remaining(path[-1].site))


def forward_cost(model: Adapter, first: str, last: str | None, count: int) -> float:
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
    model: Adapter, v: Tensor, site: str, targets: Sequence[Target], *, relu: bool = False
) -> list[Tensor]:
    """Return each target's gradient at activations or images; with `relu`, before a ReLU that is applied to them."""
    with torch.inference_mode(False), torch.enable_grad():
        v = v.detach().clone().requires_grad_()
        entering = v.relu() if relu else v
        logits = model(entering) if site == IMAGE else convolutional(model).tail(entering, site)
        scores = [target(logits) for target in targets]
    return [gradients[site] for gradients in model.gradients_each(scores, {site: v})]


def convolutional(model: Adapter) -> Convolutional:
    """Return the model as a CNN, which it is where a path has an inner feature map."""
    assert isinstance(model, Convolutional)
    return model
