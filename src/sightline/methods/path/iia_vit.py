"""Iterated integrals over images and attention probabilities.

A rollout needs the gradient at every block, so every point has a backward pass of its own. Forward passes are shared:
the blocks before the first interpolated attention run once per interpolated image, and their graph is gone through
once for each point behind them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from sightline.errors import UnsupportedModel
from sightline.methods.path.baselines import Blank, Reference, blank_images, reference_attention
from sightline.methods.path.iia_route import IMAGE, Stop, plain
from sightline.methods.path.integrands import INTEGRANDS, Joining, gradient_rollout, joined, row_normalised, weighted
from sightline.models.adapter import Adapter
from sightline.models.batch import in_batches
from sightline.models.capture import Change
from sightline.models.vit.adapter import VisionTransformer
from sightline.types import Attribution, Passes, Target

DISTANCE = "distance from the reference"
Answer = Callable[[Tensor, Sequence[Tensor], Sequence[Tensor]], Tensor]


@dataclass(frozen=True, eq=False)
class AttentionIntegral:
    """An iterated integral that ends at the attention probabilities of a block.

    Attributes:
        stops: the image, then blocks; the last is where the map is made.
        answer: what a point contributes, given how far the last stop's attention is from its reference, then the
            attention and the gradient of every watched block; axis 0 is the point.
        watched: the sites whose gradients are needed.
        constant: whether interpolated attention is a constant to the gradients of earlier blocks.
    """

    model: VisionTransformer
    images: Tensor
    targets: Sequence[Target]
    stops: tuple[Stop, ...]
    answer: Answer
    watched: Sequence[str]
    reference: Reference
    blank: Blank
    seed: int
    constant: bool = False

    def __call__(self) -> Tensor:
        """Return the integral of the answers for every image and target: (batch, target, …)."""
        image = self.stops[0]
        blank = blank_images(self.blank, self.model, self.images, self.seed) if image.interpolated else self.images

        def work(part: slice) -> Tensor:
            index = torch.arange(part.start, part.stop)
            rows, step = (index // image.count).tolist(), index % image.count
            nodes, weights = image.at(step, self.images)
            tokens = self.model.start(torch.lerp(blank[rows], self.images[rows], nodes))
            found = self._walk(tokens, 0, {}, rows)
            return found * weights.view(-1, *[1] * (found.ndim - 1))

        found = torch.cat(in_batches(work, len(self.images) * image.count, self.model.batch))
        total: Tensor = found.unflatten(0, (-1, image.count)).sum(dim=1)
        return total

    def _walk(self, tokens: Tensor, part: int, seen: dict[str, Tensor], rows: Sequence[int]) -> Tensor:
        """Run one part of the model for every point on its path, and everything behind it; return the weighted sum."""
        stop, first, last = parts(self.model, self.stops)[part]
        total = torch.zeros((), dtype=tokens.dtype, device=tokens.device)
        for node, weight in zip(stop.nodes.tolist(), stop.weights.tolist(), strict=True):
            noted = dict(seen)
            watched = [
                name for name in self.model.every("probabilities", first)[: last - first] if name in self.watched
            ]
            with ExitStack() as stack:
                if stop.site != IMAGE:
                    stack.enter_context(self.model.edit({stop.site: self._change(stop, node, noted, rows)}))
                now = stack.enter_context(self.model.capture(*watched, gradient=True)) if watched else {}
                onward = self.model.run(tokens, first, last)
                logits = self.model.finish(onward) if last == self.model.depth else None
            noted |= now
            found = self._walk(onward, part + 1, noted, rows) if logits is None else self._answers(logits, noted, rows)
            total = total + found * weight
        return total

    def _change(self, stop: Stop, node: float, noted: dict[str, Tensor], rows: Sequence[int]) -> Change:
        """Interpolate a block's attention, and note how far it is from its reference."""

        def change(u: Tensor) -> Tensor:
            seed = self.seed + self.stops.index(stop)
            r = reference_attention(self.reference, u.detach(), self.images, rows, seed)
            noted[DISTANCE] = u.detach() - r
            if not stop.interpolated:
                return u
            return torch.lerp(r, u.detach() if self.constant else u, node)

        return change

    def _answers(self, logits: Tensor, noted: dict[str, Tensor], rows: Sequence[int]) -> Tensor:
        """Ask for the gradients of every target, and for what they contribute: (point, target, …)."""
        seen = {name: noted[name] for name in self.watched}
        found = []
        for target in self.targets:
            with torch.enable_grad():
                score = target.take(rows)(logits)
            gradients = self.model.gradients(score, seen, retain=True)
            values = [value.detach() for value in seen.values()]
            found.append(self.answer(noted[DISTANCE], values, list(gradients.values())))
        return torch.stack(found, dim=1)


def parts(model: VisionTransformer, stops: tuple[Stop, ...]) -> list[tuple[Stop, int, int]]:
    """Return the stretches of blocks between interpolations: what is interpolated, first block, last block.

    What runs before the first interpolated attention stands under the image, which needs no more interpolation.
    """
    starts = [int(stop.site.split(".")[1]) for stop in stops[1:]]
    whole = [0, *starts, model.depth]
    found = [(stop, *ends) for stop, ends in zip((plain(IMAGE), *stops[1:]), pairwise(whole), strict=True)]
    return [(stop, first, last) for stop, first, last in found if last > first]


def attention_cost(model: VisionTransformer, stops: tuple[Stop, ...], watched: Sequence[str], targets: int) -> Passes:
    """Return what an `AttentionIntegral` costs per image."""
    points, forward = stops[0].count, 0.0
    for stop, first, last in parts(model, stops):
        points *= stop.count
        forward += points * (last - first) / model.depth
    return Passes(forward, points * targets * model.remaining(watched[0]))


def attention_maps(
    model: VisionTransformer,
    images: Tensor,
    targets: Sequence[Target],
    stops: tuple[Stop, ...],
    integrand: str,
    rollout: Joining,
    reference: Reference,
    blank: Blank,
    seed: int,
) -> list[Attribution]:
    """Return the attribution of each target, as the paper defines it."""
    answer, watched = paper_answer(model, integrand, rollout), watched_sites(model, stops, integrand)
    vit = as_transformer(model)
    found = AttentionIntegral(vit, images, targets, stops, answer, watched, reference, blank, seed)()
    return on_grid(model, images, found)


def watched_sites(model: VisionTransformer, stops: tuple[Stop, ...], integrand: str) -> list[str]:
    """Return the attention whose gradients an integrand asks for: every block's for a rollout, else the last stop's."""
    return model.every("probabilities") if integrand == "gradient_rollout" else [stops[-1].site]


def paper_answer(model: VisionTransformer, integrand: str, rollout: Joining) -> Answer:
    """Return (u - r) times the integrand, heads averaged, at the row the classifier reads: (point, start, token)."""

    def rolled(distance: Tensor, values: Sequence[Tensor], gradients: Sequence[Tensor]) -> Tensor:
        return read(model, distance.mean(dim=1, keepdim=True) * gradient_rollout(values, gradients, rollout))

    def headed(distance: Tensor, values: Sequence[Tensor], gradients: Sequence[Tensor]) -> Tensor:
        return read(model, (distance * INTEGRANDS[integrand](values, gradients)).mean(dim=1, keepdim=True))

    return rolled if integrand == "gradient_rollout" else headed


def released_answer(distance: Tensor, values: Sequence[Tensor], gradients: Sequence[Tensor]) -> Tensor:
    """Return every block's attention times gradient: (point, block, to, from)."""
    return torch.stack([weighted(v, g) for v, g in zip(values, gradients, strict=True)], dim=1)


def rolled_once(model: VisionTransformer, averages: Tensor) -> Tensor:
    """Roll averaged products out, as released: (batch, target, block, to, from) to (…, start, token)."""
    matrices = row_normalised(averages.flatten(0, 1)).unbind(dim=1)
    rows: Tensor = read(model, joined(matrices, "product")).unflatten(0, averages.shape[:2])
    return rows


def read(model: VisionTransformer, matrices: Tensor) -> Tensor:
    """Read the classifier's row of (…, to, from) matrices: (…, from)."""
    return torch.einsum("t,...tf->...f", model.readout(matrices.shape[-1]).to(matrices), matrices)


def on_grid(model: VisionTransformer, images: Tensor, scores: Tensor) -> list[Attribution]:
    """Lay (batch, target, start, token) scores on the grid, one attribution per target."""
    grid = model.grid_of(images)
    return [Attribution(grid.to_map(each.transpose(0, 1)), grid) for each in scores.unbind(dim=1)]


def as_transformer(model: Adapter) -> VisionTransformer:
    """Return a transformer whose blocks can be run one by one, or say that this is none."""
    if isinstance(model, VisionTransformer) and "tokens" in model.offers:
        return model
    raise UnsupportedModel(
        f"the blocks of {model.name} cannot be run from given tokens; explain the transformer inside it"
    )
