"""E-CAAP: activation patching with the attention to the blank image computed once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from sightline.errors import RecipeError
from sightline.methods.blank import BlankName
from sightline.methods.multi_target import Choose, MultiTarget
from sightline.methods.patching.caap import attributions, last_layer, usual_grid, with_tokens
from sightline.methods.patching.neighbourhood import Shape, check_neighbourhood
from sightline.methods.patching.prefix import Copies, add_own, added_scores, own_scores
from sightline.methods.patching.record import Patching
from sightline.methods.patching.tokens import memory_of_patching, patched_logits
from sightline.methods.scored import Score
from sightline.models.adapter import Adapter
from sightline.models.capture import Attend
from sightline.models.vit.adapter import VisionTransformer
from sightline.registry import METHODS
from sightline.types import Attribution, Passes, Target

BlankMean = Literal["attention", "uniform"]


@METHODS.register(
    "e_caap",
    family="patching",
    cite="caap2026",
    cost="about 2 forwards",
    needs=("attention", "tokens"),
    parity="its formula written out patch by patch, float64, 1e-9; no authors' code is public",
)
@dataclass(frozen=True, slots=True)
class EfficientCaap(MultiTarget):
    r"""E-CAAP: an approximation of CAAP that aggregates the attention to the blank image into one token.

    .. math:: u_i = \frac{\sum_{j \in S(i) \cup P} e^{q_i k_j / \sqrt d}\, v_j + Z_i\, \bar v}
                         {\sum_{j \in S(i) \cup P} e^{q_i k_j / \sqrt d} + Z_i}, \qquad
        Z_i = \frac{T - |S(i)|}{T} \sum_j e^{q' k^0_j / \sqrt d}

    is the attention output of each head for class token i: P are its own prefix tokens, :math:`q'` is the class token's
    query in the blank image's run and :math:`\bar v` the mean of the blank image's values, weighted by that query's
    attention. It approximates ``caap(frozen=True)`` at the same cost (docs/guide/caap.md has the figures).

    Attributes:
        blank: as in caap.
        radius: as in caap.
        shape: as in caap.
        start: as in caap.
        blank_mean: how the blank image's values are averaged: by attention, or uniform, the paper's equation 9.
        score: as in caap.
        seed: of the noise.
    """

    blank: BlankName = "white"
    radius: int = 1
    shape: Shape = "box"
    start: int = 1
    blank_mean: BlankMean = "attention"
    score: Score | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        check_neighbourhood(self.radius, self.shape)
        if self.start < 0:
            raise RecipeError(f"got start={self.start}; the first layer is 0")
        if self.blank_mean not in ("attention", "uniform"):
            raise RecipeError(f"got blank_mean={self.blank_mean!r}; choose attention or uniform")

    def multi_target(
        self, model: Adapter, images: Tensor, targets: Sequence[Target], *, every_layer: bool = False
    ) -> list[Attribution]:
        return self._explain(model, images, lambda _: targets, clean=False)

    def multi_target_chosen(self, model: Adapter, images: Tensor, choose: Choose) -> list[Attribution]:
        """Explain the targets that are chosen once the images' own logits are known."""
        return self._explain(model, images, choose, clean=True)

    @torch.no_grad()
    def _explain(self, model: Adapter, images: Tensor, choose: Choose, *, clean: bool) -> list[Attribution]:
        transformer = with_tokens(model, "e_caap")
        attention = partial(to_source, self.blank_mean)
        logits = patched_logits(transformer, images, self._patching(transformer), attention, clean=clean)
        grid = transformer.grid_of(images)
        return attributions(model, logits.cells, logits.blank, grid, choose(logits.clean), self.score)

    def can_choose(self, model: Adapter) -> bool:
        return True

    def choosing_cost(self, model: Adapter) -> Passes:
        transformer = with_tokens(model, "e_caap")
        return Passes(self._patching(transformer).rest(transformer))

    def multi_target_cost(self, model: Adapter, count: int, *, every_layer: bool = False) -> Passes:
        transformer = with_tokens(model, "e_caap")
        return Passes(self._patching(transformer).cost(transformer, usual_grid(transformer)))

    def peak(self, model: Adapter) -> int:
        """Return the bytes held for one image: what is recorded of it and of the blank image, and the copies."""
        transformer = with_tokens(model, "e_caap")
        return memory_of_patching(transformer, self._patching(transformer))

    def _patching(self, model: VisionTransformer) -> Patching:
        last = last_layer(model.depth, self.start, model.depth, model.name)
        return Patching(self.blank, self.seed, self.radius, self.shape, self.start, last)


def to_source(mean: BlankMean, copies: Copies, block: int) -> Attend:
    """Attend to the copy's own prefix, to the source image where patched, and to the blank image as a single token."""
    prefix, keys, values = copies.prefix, copies.keys(block), copies.values(block)
    blank_keys, blank_values = (x[block][0, :, prefix:] for x in (copies.blank.keys, copies.blank.values))
    blank_queries = copies.blank.queries[block][0, :, :prefix]
    patched = torch.cat([part.near.sum(dim=1) for part in copies.parts]).view(-1, prefix, 1)
    left = (1 - patched.to(keys) / blank_keys.shape[1]).log()  # (copy, prefix, 1)

    def attend(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        blank = blank_queries * scale @ blank_keys.mT  # (head, prefix, patch)
        total = blank.logsumexp(dim=-1, keepdim=True)
        shares = blank.softmax(dim=-1) if mean == "attention" else torch.full_like(blank, 1 / blank.shape[-1])
        queries = copies.by_image(q)
        of_blank = (total[:, None] + left).flatten(1, 2).expand(*queries.shape[:3], 1)
        own = copies.by_image(own_scores(q, k).mul_(scale))
        fixed = torch.cat([own, of_blank], dim=-1)  # (image, head, row, prefix + 1)
        other, mixed = [], []
        for part in copies.parts:
            scores = added_scores(part.of_source, queries[:, :, part.rows], keys[:, :, part.tokens], scale)
            weights = torch.cat([fixed[:, :, part.rows], scores], dim=-1).softmax(dim=-1)
            other.append(weights[..., : prefix + 1])
            mixed.append(weights[..., prefix + 1 :] @ values[:, :, part.tokens])
        of_source, others = (copies.by_copy(torch.cat(parts, dim=2)) for parts in (mixed, other))
        outputs = of_source.addcmul_(others[..., prefix:], shares @ blank_values)
        return add_own(outputs, others[..., :prefix], v)

    return attend
