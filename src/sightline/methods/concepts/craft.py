"""Concepts of an image and how much each matters for a class, by Sobol indices: after CRAFT."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sightline.errors import RecipeError
from sightline.methods.cam.fusion import Layer
from sightline.methods.concepts.factorisation import Components, check_count, factorise
from sightline.methods.layer_tail import LayerAndTail, layer_and_tail, tail_cost, trunk_cost
from sightline.methods.multi_target import MultiTarget
from sightline.methods.sampling.sobol import designs, total_order
from sightline.methods.scored import Score, score_cells, scored
from sightline.models.adapter import Adapter
from sightline.models.passes import in_batches
from sightline.registry import METHODS
from sightline.types import Attribution, Passes, Target, map_grid


@METHODS.register(
    "craft",
    family="concepts",
    cite="fel2023",
    cost="the model up to the layer, and samples × (components + 1) times from there on",
    needs=("layers",),
    parity="closed form: importance of planted components under a linear head; no reference numbers",
)
@dataclass(frozen=True, slots=True)
class Craft(MultiTarget):
    r"""Concept attribution after CRAFT: components of a layer's activations, weighted by their Sobol indices.

    .. math:: A_{ij} = \sum_{c=1}^{K} S_c\, U_{c,ij}, \qquad F_{kij} \approx o_k + \sum_c W_{kc}\, U_{c,ij}, \qquad
        S_c = \text{total Sobol index of } m_c \text{ in } s\bigl(o + W (m \odot U)\bigr)

    The activations, less each channel's minimum o, are factorised as by ``dff``; the components are then scaled by
    masks m between 0 and 1, and :math:`S_c` is the share of the score's variance that component c takes part in.
    Unlike CRAFT, which learns concepts from crops of many images, these are the image's own. Never negative; any number
    of targets costs the same. ``details`` has the channels' weights, shares and importance of every component.

    Attributes:
        components: how many, K.
        samples: masks of each design.
        layer: a layer's name or index, by default that of class activation maps; of a transformer, the block whose
            tokens are factorised as they enter it.
        score: the score of the class: logit, probability or log_probability; None for the target itself.
    """

    components: int = 5
    samples: int = 32
    layer: Layer = None
    score: Score | None = None

    def __post_init__(self) -> None:
        if self.components < 1 or self.samples < 2:
            raise RecipeError(f"got components={self.components}, samples={self.samples}; give 1 and 2 at least")

    def multi_target(
        self, model: Adapter, images: Tensor, targets: Sequence[Target], *, every_layer: bool = False
    ) -> list[Attribution]:
        targets = [scored(target, self.score, model) for target in targets]
        layer = layer_and_tail(model, images, self.layer)
        cells = layer.activation.detach().double().flatten(2)
        check_count(self.components, cells)
        lowest = cells.amin(dim=2, keepdim=True)
        pairs = [factorise(matrix, self.components) for matrix in cells - lowest]
        vectors, maps = torch.stack([w for w, _ in pairs]), torch.stack([u for _, u in pairs])
        logits = self._masked_logits(model, layer, vectors, maps, lowest)
        total = (cells - lowest).square().sum(dim=(1, 2)).clamp(min=torch.finfo(cells.dtype).tiny)
        shares = maps.square().sum(dim=2) / total[:, None]
        found = []
        for target in targets:
            scores = score_cells(logits, target).unflatten(1, (self.components + 1, self.samples))
            importance = total_order(scores[:, 0], scores[:, 1:], "jansen")
            values = torch.einsum("bc,bcn->bn", importance.double(), maps).unflatten(1, layer.activation.shape[-2:])
            details = Components(vectors.transpose(1, 2), shares, importance)
            values = values.to(images.dtype)
            found.append(Attribution(values[None], map_grid(values, images), details=details))
        return found

    def _masked_logits(
        self, model: Adapter, layer: LayerAndTail, vectors: Tensor, maps: Tensor, lowest: Tensor
    ) -> Tensor:
        """Return the logits with the components of each image scaled by every mask, (batch, mask, class)."""
        masks = designs(self.samples, self.components).flatten(0, 1).to(maps)
        shape = layer.activation.shape[1:]

        def logits_of(row: int) -> Tensor:
            def work(part: slice) -> Tensor:
                some = masks[part]
                rebuilt = lowest[row] + vectors[row] @ (some[:, :, None] * maps[row])
                return layer.tail(rebuilt.view(-1, *shape).to(layer.activation), [row] * len(some))

            return torch.cat(in_batches(work, len(masks), model.batch))

        with torch.no_grad():
            return torch.stack([logits_of(row) for row in range(len(maps))])

    def multi_target_cost(self, model: Adapter, count: int, *, every_layer: bool = False) -> Passes:
        runs = self.samples * (self.components + 1)
        batches = [min(model.batch, runs - first) for first in range(0, runs, model.batch)]
        return trunk_cost(model, self.layer) + tail_cost(model, self.layer, batches)
