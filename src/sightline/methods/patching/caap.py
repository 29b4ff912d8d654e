"""CAAP: causal attribution via activation patching."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from sightline.errors import RecipeError, UnsupportedModel
from sightline.methods.blank import BlankName
from sightline.methods.multi_target import Choose, MultiTarget
from sightline.methods.patching.cnn import CELLS, memory_of_cnn, patched_logits_of_cnn, share_of_cnn
from sightline.methods.patching.neighbourhood import Shape, check_neighbourhood
from sightline.methods.patching.record import Patching
from sightline.methods.patching.tokens import memory_of_patching, patched_logits
from sightline.methods.scored import Score, score_blank, score_cells, scored
from sightline.models.adapter import Adapter
from sightline.models.cnn.adapter import Convolutional
from sightline.models.vit.adapter import VisionTransformer
from sightline.registry import METHODS
from sightline.types import Attribution, Passes, Target, TokenGrid


@dataclass(frozen=True, slots=True, eq=False)
class PatchingDetails:
    """The details of an attribution by activation patching.

    Attributes:
        blank: the score of the blank image under the target, (batch,): that of a patch without any evidence.
    """

    blank: Tensor

    @classmethod
    def join(cls, parts: Sequence[Self]) -> Self:
        """Concatenate the details of consecutive batches."""
        return cls(torch.cat([part.blank for part in parts]))

    def take(self, rows: Sequence[int]) -> Self:
        """Return the details of these images of the batch."""
        return replace(self, blank=self.blank[list(rows)])


def attributions(
    model: Adapter, logits: Tensor, blank: Tensor, grid: TokenGrid, targets: Sequence[Target], score: Score | None
) -> list[Attribution]:
    """Return each target's attribution from the logits of every cell, (batch, cell, class), and of the blank image."""
    maps = []
    for target in (scored(target, score, model) for target in targets):
        values = score_cells(logits, target).view(1, -1, grid.height, grid.width)
        maps.append(Attribution(values, grid, details=PatchingDetails(score_blank(blank, target, len(logits)))))
    return maps


def usual_grid(model: VisionTransformer) -> TokenGrid:
    """Return the grid by which costs are declared."""
    return model.grid_for(model.default_size)


def last_layer(last: int | None, start: int, depth: int, name: str) -> int:
    """Return the last patched layer: two thirds of the depth, rounded up, unless one is given."""
    chosen = max(-(-2 * depth // 3), start) if last is None else last
    if not start <= chosen <= depth:
        raise RecipeError(f"got start={start} and last={chosen}; {name} has layers 0 to {depth}, and start comes first")
    return chosen


@METHODS.register(
    "caap",
    family="patching",
    cite="caap2026",
    cost="about 4 forwards, 2 when frozen; on a CNN 1 trunk and 196 tails",
    needs=("layers",),
    parity="the source's Algorithm 1 patch by patch, float64, 1e-9; no authors' code is public",
)
@dataclass(frozen=True, slots=True)
class Caap(MultiTarget):
    r"""CAAP: causal attribution by patching each image patch's activations into the forward pass of a blank image.

    .. math:: A_i = s\bigl(c^*_i\bigr), \qquad
        h^l(c^*_i)_j = \begin{cases} h^l(x)_j & j \in S(i) \\ h^l(x_0)_j & \text{else} \end{cases}
        \quad l_s \le l \le l_e

    where :math:`h^l` are the tokens after l blocks, :math:`x_0` is the blank image and :math:`S(i)` patch i with its
    neighbours. Measures the causal effect of a patch's internal representation on the score. The class token starts as
    the blank image's at layer :math:`l_s`; after :math:`l_e` the patched tokens are free as well. All patches run at
    once, and every class comes from the same run. `details.blank` holds the score of the blank image, whose forward
    pass is kept with the model and not counted. On a CNN the activation after unit :math:`l_e` is patched, on a grid of
    14×14 cells. Which settings localise best: docs/guide/caap.md.

    Attributes:
        blank: white, black, mean (the training set's mean colour), noise (standard normal after normalisation) or
            blurred_noise.
        radius: of the neighbourhood that is patched with a patch, in patches.
        shape: of the neighbourhood: box, or manhattan for a diamond.
        start: the first patched layer; layer l is the input of block l. On a CNN it changes nothing.
        last: the last patched layer, by default two thirds of the depth, rounded up; on a CNN the unit.
        frozen: keep the patched tokens at the source image's to the end; the same as last = depth, and faster.
        score: logit, probability or log_probability; by default the target itself.
        seed: of the noise.
    """

    blank: BlankName = "white"
    radius: int = 1
    shape: Shape = "box"
    start: int = 1
    last: int | None = None
    frozen: bool = False
    score: Score | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        check_neighbourhood(self.radius, self.shape)
        if self.start < 0 or (self.last is not None and self.last < self.start):
            raise RecipeError(f"got start={self.start} and last={self.last}; 0 ≤ start ≤ last is needed")

    def multi_target(
        self, model: Adapter, images: Tensor, targets: Sequence[Target], *, every_layer: bool = False
    ) -> list[Attribution]:
        if isinstance(model, Convolutional):
            unit = self._last(model, len(model.units), start=1)
            with torch.no_grad():
                logits, blank = patched_logits_of_cnn(model, images, self._patching(unit))
            grid = TokenGrid(*CELLS, image=(images.shape[-2], images.shape[-1]))
            return attributions(model, logits, blank, grid, targets, self.score)
        return self._on_tokens(model, images, lambda _: targets, clean=False)

    def multi_target_chosen(self, model: Adapter, images: Tensor, choose: Choose) -> list[Attribution]:
        """Explain the targets that are chosen once the images' logits are known, which a transformer's run yields."""
        return self._on_tokens(model, images, choose, clean=True)

    @torch.no_grad()
    def _on_tokens(self, model: Adapter, images: Tensor, choose: Choose, *, clean: bool) -> list[Attribution]:
        transformer = with_tokens(model, "caap")
        patching = self._patching(self._last(model, transformer.depth, self.start))
        logits = patched_logits(transformer, images, patching, clean=clean)
        grid = transformer.grid_of(images)
        return attributions(model, logits.cells, logits.blank, grid, choose(logits.clean), self.score)

    def can_choose(self, model: Adapter) -> bool:
        return not isinstance(model, Convolutional)

    def choosing_cost(self, model: Adapter) -> Passes:
        transformer = with_tokens(model, "caap")
        return Passes(self._patching(self._last(model, transformer.depth, self.start)).rest(transformer))

    def multi_target_cost(self, model: Adapter, count: int, *, every_layer: bool = False) -> Passes:
        if isinstance(model, Convolutional):
            return Passes(share_of_cnn(model, self._patching(self._last(model, len(model.units), start=1))))
        transformer = with_tokens(model, "caap")
        patching = self._patching(self._last(model, transformer.depth, self.start))
        return Passes(patching.cost(transformer, usual_grid(transformer)))

    def peak(self, model: Adapter) -> int:
        """Return the bytes held for one image: what is recorded of it and of the blank image, and the copies."""
        if isinstance(model, Convolutional):
            return memory_of_cnn(model, self._patching(self._last(model, len(model.units), start=1)))
        transformer = with_tokens(model, "caap")
        return memory_of_patching(transformer, self._patching(self._last(model, transformer.depth, self.start)))

    def _last(self, model: Adapter, depth: int, start: int) -> int:
        return last_layer(depth if self.frozen else self.last, start, depth, model.name)

    def _patching(self, last: int) -> Patching:
        return Patching(self.blank, self.seed, self.radius, self.shape, self.start, last)


def with_tokens(model: Adapter, name: str) -> VisionTransformer:
    """Refuse a model whose blocks cannot be run on given tokens."""
    if isinstance(model, VisionTransformer) and "tokens" in model.offers:
        return model
    raise UnsupportedModel(
        f"{name} patches activations inside the model, and {model.name} shows none that can be replaced; "
        "use simple_insertion, which puts patches into a blank image"
    )
