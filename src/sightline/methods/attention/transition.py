"""Transition attention maps: attention as a Markov chain, weighted by integrated gradients (see `bi_attention`)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from sightline.methods.attention.attention import last_blocks, read_rows, transformer
from sightline.methods.attention.bi_attention import (
    AttentionPath,
    integrated_attention_gradients,
    last_attention_gradients,
)
from sightline.models.adapter import Adapter
from sightline.models.vit.adapter import VisionTransformer
from sightline.registry import METHODS
from sightline.types import Attribution, Passes, Target


class _Transition(AttentionPath):
    """The classifier's row of the last attention, multiplied by earlier blocks, times the integrated gradients."""

    __slots__ = ()

    @property
    @abstractmethod
    def twice(self) -> bool:
        """Whether the last block is applied twice."""

    @abstractmethod
    def first_block(self, model: VisionTransformer) -> int:
        """Return the index of the first block of the product."""

    def multi_target(
        self, model: Adapter, images: Tensor, targets: Sequence[Target], *, every_layer: bool = False
    ) -> list[Attribution]:
        model = transformer(model)
        start = 0 if every_layer else self.first_block(model)
        sites = model.every("probabilities", start)
        captured, at_image = last_attention_gradients(model, images, targets, sites)
        states = torch.stack(self._states(model, [captured[name].mean(dim=1) for name in sites]))
        grid = model.grid_of(images)
        weights = integrated_attention_gradients(model, images, targets, self.steps, at_image)
        maps = [grid.to_map(states * read_rows(model, weight)) for weight in weights]
        blocks, own = last_blocks(model, len(sites)), self.first_block(model) - start
        return [Attribution(values, grid, layers=blocks, own=own) for values in maps]

    def _states(self, model: VisionTransformer, attention: Sequence[Tensor]) -> list[Tensor]:
        """Return the state of the Markov chain at each block, (batch, from)."""
        state = read_rows(model, attention[-1])
        states = []
        for index, matrix in reversed(list(enumerate(attention))):
            if self.twice or index < len(attention) - 1:
                state = state + torch.einsum("bt,btf->bf", state, matrix)
            states.append(state)
        return states[::-1]

    def multi_target_cost(self, model: Adapter, count: int, *, every_layer: bool = False) -> Passes:
        return Passes(self.steps, count * self.steps / transformer(model).depth)


@METHODS.register(
    "tam",
    family="attention",
    cite="yuan2021",
    cost="steps forward, steps/blocks backward",
    needs=("attention", "gradient"),
    parity="authors' code, random and real ViT, 1e-4; float64 1e-8",
)
@dataclass(frozen=True, slots=True)
class TransitionAttentionMaps(_Transition):
    r"""TAM, transition attention maps: attention as a Markov chain, times integrated gradients of the last attention.

    .. math:: A = \Bigl(r^\top \bar P_{L-1} \prod_{\ell=L-2}^{\text{start}} (I + \bar P_\ell)\Bigr) \odot r^\top W,
        \qquad \bar P_\ell = \frac1H \sum_h P_{\ell,h}

    with W the mean gradient of the last block's attention along the path from a zero image to the image. Traces
    information flow through the blocks, for one class.

    Attributes:
        steps: points of the path behind W, both ends included.
        start: the first block of the product; by default a third of the depth (4 of 12), and 0 for variant="mda".
        variant: "paper" as above, or "mda", which is ``t_attn``: the last block counts twice.
    """

    steps: int = 20
    start: int | None = None
    variant: Literal["paper", "mda"] = "paper"

    @property
    def twice(self) -> bool:
        return self.variant == "mda"

    def first_block(self, model: VisionTransformer) -> int:
        usual = 0 if self.twice else model.depth // 3
        start = usual if self.start is None else self.start
        transformer(model, start)
        return start


@METHODS.register(
    "t_attn",
    family="attention",
    cite="yuan2021",
    cost="steps forward, steps/blocks backward",
    needs=("attention", "gradient"),
    parity="code of mda2025, random and real ViT, 1e-4; float64 1e-8",
)
@dataclass(frozen=True, slots=True)
class TransitionAttention(_Transition):
    r"""Transition attention maps as in the tables of the MDA paper, with the last block applied twice.

    .. math:: A = \Bigl(r^\top \bar P_{L-1} \prod_{\ell=L-1}^{\text{start}} (I + \bar P_\ell)\Bigr) \odot r^\top W

    For comparison with published numbers; it deviates from ``tam``, the original method.

    Attributes:
        steps: points of the path behind W, both ends included.
        start: the first block of the product.
    """

    steps: int = 20
    start: int = 0

    @property
    def twice(self) -> bool:
        return True

    def first_block(self, model: VisionTransformer) -> int:
        transformer(model, self.start)
        return self.start
