r"""Iterated integrated attributions as in the authors' released code, which differs from their paper.

The points on every path are :math:`k/n` for :math:`k = 0 \dots n`, both ends included, in single precision.

On CNNs sums are plain, channels are summed, and a ReLU follows the last feature map. With :math:`A_k` the layer's
activation for the image :math:`\tfrac kn x` and :math:`G` the gradient of the target:

* IIA2 takes its baseline over an axis of length one, so baseline and activation are the same, and nothing is
  interpolated at the layer: :math:`\sum_k A_k^+ \odot G(A_k)`.
* IIA3 takes the minimum over the interpolated images, element by element, as the baseline of both layers:
  :math:`\sum_{k_0 k_1 k_2} \bigl(G(v) \odot v^+\bigr)^+`.
* IMG is :math:`\sum_k G(A_k)^+ \odot A_k^+`, and ACT the same at the image itself, :math:`n + 1` times.

On transformers the positive products of attention and gradient are averaged over all points before one rollout.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sightline.errors import RecipeError
from sightline.methods.path.iia_cnn import advance, forward_cost, gradients_at
from sightline.methods.path.iia_layers import IMAGE, LayerName, Path, PathLayer, path_layers
from sightline.methods.path.iia_vit import (
    AttentionIntegral,
    as_transformer,
    attention_cost,
    on_grid,
    released_term,
    rolled_once,
)
from sightline.models.adapter import Adapter
from sightline.models.cnn.adapter import Convolutional
from sightline.types import Attribution, Passes, Target, map_grid


def released_path(model: Adapter, layers: Sequence[LayerName], layer: LayerName | None, steps: int) -> Path:
    """Return the layers of the path; those that are integrated have n + 1 points of equal weight."""
    nodes = torch.arange(steps + 1, dtype=torch.float32) / steps
    weights = torch.full((steps + 1,), 1 / (steps + 1), dtype=torch.float64)
    path = path_layers(model, layers, layer, 2, "right")
    if len(path) == 1:
        raise RecipeError("got the image as the layer with variant='released', whose maps are made inside the model")
    return tuple(PathLayer(each.site, nodes, weights) if each.interpolated else each for each in path)


def released_attention(model: Adapter, images: Tensor, targets: Sequence[Target], path: Path) -> list[Attribution]:
    """Return the attribution of each target on a transformer."""
    vit = as_transformer(model)
    every = vit.every("probabilities")
    averages = AttentionIntegral(vit, images, targets, path, released_term, every, "zero", "zero", 0, constant=True)()
    return on_grid(vit, images, rolled_once(vit, averages))


def released_attention_cost(model: Adapter, path: Path, targets: int) -> Passes:
    """Return what `released_attention` costs per image."""
    vit = as_transformer(model)
    return attention_cost(vit, path, vit.every("probabilities"), targets)


def released_maps(
    name: str, model: Convolutional, images: Tensor, targets: Sequence[Target], path: Path
) -> list[Attribution]:
    """Return the attribution of each target on a CNN.

    Images are taken one by one: baselines are minima over all points of one image.
    """
    by_image = []
    for row in range(len(images)):
        taken = [target.take([row] * path[0].count) for target in targets]
        points = images[row : row + 1] * path[0].nodes.to(images).view(-1, 1, 1, 1)
        below = advance(model, points, IMAGE, path[1].site)
        if name == "iia3":
            by_image.append(_iia3(model, below, path, taken))
        else:
            by_image.append(_terms(name, model, below, path[1], taken))
    maps = [torch.stack(rows) for rows in zip(*by_image, strict=True)]
    return [Attribution(values[None], map_grid(values, images)) for values in maps]


def released_cost(name: str, model: Convolutional, path: Path, targets: int) -> Passes:
    """Return what `released_maps` costs per image."""
    count, end = path[0].count, path[-1].site
    paths = count**2 if name == "iia3" else 1
    forward = forward_cost(model, IMAGE, path[1].site, count) + paths * forward_cost(model, end, None, count)
    if name == "iia3":
        forward += count * forward_cost(model, path[1].site, end, count)
    return Passes(forward, targets * paths * count * model.remaining(end))


def _iia3(model: Convolutional, below: Tensor, path: Path, targets: Sequence[Target]) -> list[Tensor]:
    """Interpolate both layers from the smallest activation over all points of the image."""
    lower, upper = path[1:]
    lowest = below.amin(dim=0, keepdim=True)
    terms = []
    for a in lower.nodes.tolist():
        u = advance(model, torch.lerp(lowest, below, a), lower.site, upper.site)
        r = u.amin(dim=0, keepdim=True)
        terms += [_terms("iia3", model, torch.lerp(r, u, b), upper, targets) for b in upper.nodes.tolist()]
    return [torch.stack(of_target).sum(dim=0) for of_target in zip(*terms, strict=True)]


def _terms(name: str, model: Convolutional, v: Tensor, layer: PathLayer, targets: Sequence[Target]) -> list[Tensor]:
    """Return each target's sum over points and channels: (height, width)."""
    gradients = gradients_at(model, v, layer.site, targets, relu=layer.site == model.cam_layer)
    active = v.relu()
    products = {
        "iia2": lambda g: active * g,
        "iia3": lambda g: (active * g).relu(),
        "img": lambda g: active * g.relu(),
        "act": lambda g: active * g.relu() * layer.count,
    }
    return [products[name](gradient).sum(dim=(0, 1)) for gradient in gradients]
