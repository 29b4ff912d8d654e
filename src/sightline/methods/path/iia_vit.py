"""Iterated integrals over images and attention probabilities.

A rollout needs the gradient at every block, so every point has a backward pass of its own. Forward passes are shared:
the blocks before the first interpolated attention run once per interpolated image, and each point after them is
differentiated through that graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from sightline.errors import UnsupportedModel
from sightline.methods.attention.attention import last_blocks
from sightline.methods.path.baselines import ImageBaseline, LayerBaseline, baseline_attention, baseline_images
from sightline.methods.path.iia_layers import IMAGE, Path, PathLayer, not_interpolated
from sightline.methods.path.integrands import (
    Integrand,
    Joining,
    as_integrand,
    gradient_rollout,
    joined,
    row_normalised,
    weighted,
)
from sightline.models.adapter import Adapter
from sightline.models.capture import Change
from sightline.models.memory import held
from sightline.models.passes import in_batches, take_rows
from sightline.models.vit.adapter import VisionTransformer
from sightline.types import Attribution, Passes, Target

DIFFERENCE = "difference from the baseline"
ATTENTION = 2.5  # times that of all blocks: the probabilities, their gradients, and products of both
Term = Callable[[Tensor, Sequence[Tensor], Sequence[Tensor]], Tensor]


@dataclass(frozen=True, eq=False)
class AttentionIntegral:
    """An iterated integral that ends at the attention probabilities of a block.

    Attributes:
        path: the image, then blocks; the last is where the map is made.
        term: what a point contributes, given the difference of the last layer's attention from its baseline, and the
            attention and the gradient at every one of `sites`; axis 0 is the point.
        sites: where gradients are needed.
        constant: whether interpolated attention is detached, so that gradients of earlier blocks do not flow through.
    """

    model: VisionTransformer
    images: Tensor
    targets: Sequence[Target]
    path: Path
    term: Term
    sites: Sequence[str]
    layer_baseline: LayerBaseline
    image_baseline: ImageBaseline
    seed: int
    constant: bool = False

    def __call__(self) -> Tensor:
        """Return the integral of the terms for every image and target: (batch, target, …)."""
        image, baseline = self.path[0], self.images
        if image.interpolated:
            baseline = baseline_images(self.image_baseline, self.model, self.images, self.seed)

        def work(part: slice) -> Tensor:
            index = torch.arange(part.start, part.stop)
            rows, step = (index // image.count).tolist(), index % image.count
            nodes, weights = image.at(step, self.images)
            tokens = self.model.start(torch.lerp(take_rows(baseline, rows), take_rows(self.images, rows), nodes))
            terms = self._integrate(tokens, 0, {}, rows)
            return terms * weights.view(-1, *[1] * (terms.ndim - 1))

        size = self.model.images_at_once(lambda: _of_point(self.model))
        terms = torch.cat(in_batches(work, len(self.images) * image.count, size))
        total: Tensor = terms.unflatten(0, (-1, image.count)).sum(dim=1)
        return total

    def _integrate(self, tokens: Tensor, part: int, seen: dict[str, Tensor], rows: Sequence[int]) -> Tensor:
        """Run one part of the model for every point on its path, and everything after it; return the weighted sum."""
        layer, first, last = parts(self.model, self.path)[part]
        total = torch.zeros((), dtype=tokens.dtype, device=tokens.device)
        for node, weight in zip(layer.nodes.tolist(), layer.weights.tolist(), strict=True):
            noted = dict(seen)
            sites = [name for name in self.model.every("probabilities", first)[: last - first] if name in self.sites]
            with ExitStack() as stack:
                if layer.site != IMAGE:
                    stack.enter_context(self.model.edit({layer.site: self._interpolate(layer, node, noted, rows)}))
                captured = stack.enter_context(self.model.capture(*sites, gradient=True)) if sites else {}
                output = self.model.run(tokens, first, last)
                logits = self.model.finish(output) if last == self.model.depth else None
            noted |= captured
            if logits is None:
                total = total + self._integrate(output, part + 1, noted, rows) * weight
            else:
                total = total + self._terms(logits, noted, rows) * weight
        return total

    def _interpolate(self, layer: PathLayer, node: float, noted: dict[str, Tensor], rows: Sequence[int]) -> Change:
        """Interpolate a block's attention, and note its difference from the baseline."""

        def change(u: Tensor) -> Tensor:
            seed = self.seed + self.path.index(layer)
            r = baseline_attention(self.layer_baseline, u.detach(), self.images, rows, seed)
            noted[DIFFERENCE] = u.detach() - r
            if not layer.interpolated:
                return u
            return torch.lerp(r, u.detach() if self.constant else u, node)

        return change

    def _terms(self, logits: Tensor, noted: dict[str, Tensor], rows: Sequence[int]) -> Tensor:
        """Return what each point contributes to each target: (point, target, …)."""
        seen = {name: noted[name] for name in self.sites}
        terms = []
        for target in self.targets:
            with torch.enable_grad():
                score = target.take(rows)(logits)
            gradients = self.model.gradients(score, seen, retain=True)
            values = [value.detach() for value in seen.values()]
            terms.append(self.term(noted[DIFFERENCE], values, list(gradients.values())))
        return torch.stack(terms, dim=1)


def parts(model: VisionTransformer, path: Path) -> list[tuple[PathLayer, int, int]]:
    """Return the blocks between interpolations: what is interpolated, the first block, the one after the last.

    The blocks before the first interpolated attention come with the image, which is interpolated already.
    """
    starts = [int(layer.site.split(".")[1]) for layer in path[1:]]
    layers, bounds = (not_interpolated(IMAGE), *path[1:]), pairwise([0, *starts, model.depth])
    return [(layer, first, last) for layer, (first, last) in zip(layers, bounds, strict=True) if last > first]


def attention_cost(model: VisionTransformer, path: Path, sites: Sequence[str], targets: int) -> Passes:
    """Return what an `AttentionIntegral` costs per image."""
    points, forward = path[0].count, 0.0
    for layer, first, last in parts(model, path):
        points *= layer.count
        forward += points * (last - first) / model.depth
    return Passes(forward, points * targets * model.remaining(sites[0]))


def attention_peak(model: VisionTransformer, path: Path, sites: Sequence[str]) -> int:
    """Return the bytes that an `AttentionIntegral` holds for one image: of each point a graph, with attention."""
    share, size = model.remaining(sites[0]), model.images_at_once(lambda: _of_point(model))
    of_point = max(held(model, forwards=1), held(model, graphs=share)) + held(model, attention=ATTENTION * share)
    return min(size, path[0].count) * of_point


def _of_point(model: VisionTransformer) -> int:
    """Return more than the bytes that a point takes, where other images are explained beside it."""
    return held(model, graphs=1, attention=4)


def attention_maps(
    model: VisionTransformer,
    images: Tensor,
    targets: Sequence[Target],
    path: Path,
    integrand: str | Integrand,
    rollout: Joining,
    layer_baseline: LayerBaseline,
    image_baseline: ImageBaseline,
    seed: int,
) -> list[Attribution]:
    """Return the attribution of each target, as the paper defines it."""
    term, sites = paper_term(model, integrand, rollout), gradient_sites(model, path, integrand)
    vit = as_transformer(model)
    scores = AttentionIntegral(vit, images, targets, path, term, sites, layer_baseline, image_baseline, seed)()
    return on_grid(model, images, scores)


def gradient_sites(model: VisionTransformer, path: Path, integrand: str | Integrand) -> list[str]:
    """Return the attention whose gradients an integrand needs: every block's for a rollout, else the last layer's."""
    return model.every("probabilities") if integrand == "gradient_rollout" else [path[-1].site]


def paper_term(model: VisionTransformer, integrand: str | Integrand, rollout: Joining) -> Term:
    """Return (u - r) times the integrand, heads averaged, at the row the classifier reads: (point, start, token)."""

    def with_rollout(difference: Tensor, values: Sequence[Tensor], gradients: Sequence[Tensor]) -> Tensor:
        return read(model, difference.mean(dim=1, keepdim=True) * gradient_rollout(values, gradients, rollout))

    def per_head(difference: Tensor, values: Sequence[Tensor], gradients: Sequence[Tensor]) -> Tensor:
        return read(model, (difference * as_integrand(integrand)(values, gradients)).mean(dim=1, keepdim=True))

    return with_rollout if integrand == "gradient_rollout" else per_head


def released_term(difference: Tensor, values: Sequence[Tensor], gradients: Sequence[Tensor]) -> Tensor:
    """Return every block's attention times gradient: (point, block, to, from)."""
    return torch.stack([weighted(v, g) for v, g in zip(values, gradients, strict=True)], dim=1)


def rolled_once(model: VisionTransformer, averages: Tensor) -> Tensor:
    """Return the rollout of averaged products, as released: (batch, target, block, to, from) to (…, start, token)."""
    matrices = row_normalised(averages.flatten(0, 1)).unbind(dim=1)
    rows: Tensor = read(model, joined(matrices, "product")).unflatten(0, averages.shape[:2])
    return rows


def read(model: VisionTransformer, matrices: Tensor) -> Tensor:
    """Read the classifier's row of (…, to, from) matrices: (…, from)."""
    return torch.einsum("t,...tf->...f", model.readout(matrices.shape[-1]).to(matrices), matrices)


def on_grid(model: VisionTransformer, images: Tensor, scores: Tensor) -> list[Attribution]:
    """Lay (batch, target, start, token) scores on the grid, one attribution per target."""
    grid = model.grid_of(images)
    maps = [grid.to_map(of_target.transpose(0, 1)) for of_target in scores.unbind(dim=1)]
    starts = last_blocks(model, scores.shape[2]) if scores.shape[2] > 1 else ()
    return [Attribution(values, grid, layers=starts) for values in maps]


def as_transformer(model: Adapter) -> VisionTransformer:
    """Return the model as a transformer whose blocks can be run one by one, or refuse it."""
    if isinstance(model, VisionTransformer) and "tokens" in model.offers:
        return model
    raise UnsupportedModel(
        f"the blocks of {model.name} cannot be run from given tokens; explain the transformer inside it"
    )
