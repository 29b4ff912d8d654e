"""Simple insertion and deletion: a patch pasted into a blank image, or replaced by it, in pixels."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sightline.methods.blank import BlankName, blank_image
from sightline.methods.multi_target import MultiTarget
from sightline.methods.patching.neighbourhood import Shape, check_neighbourhood, neighbourhoods
from sightline.methods.scored import Score, score_cells, scored
from sightline.models.adapter import Adapter
from sightline.models.passes import in_batches
from sightline.models.vit.adapter import VisionTransformer
from sightline.registry import METHODS
from sightline.types import Attribution, Passes, Target, TokenGrid

CELLS = 14  # from top to bottom and from left to right where the model has no patches


@dataclass(frozen=True, slots=True)
class PatchPerturbation(MultiTarget):
    """Combine the image with a blank one, a neighbourhood at a time; a subclass says which is pasted into which."""

    blank: BlankName = "white"
    radius: int = 1
    shape: Shape = "box"
    score: Score | None = "probability"
    seed: int = 0

    def __post_init__(self) -> None:
        check_neighbourhood(self.radius, self.shape)

    @abstractmethod
    def _logits(self, model: Adapter, images: Tensor, masks: CellMasks, blank: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the logits per cell, (batch, cell, class), and those of the image itself where they are compared."""

    @torch.no_grad()
    def multi_target(
        self, model: Adapter, images: Tensor, targets: Sequence[Target], *, every_layer: bool = False
    ) -> list[Attribution]:
        grid = patch_grid(model, (images.shape[-2], images.shape[-1]))
        masks = CellMasks.of(grid, self.radius, self.shape, images.device)
        logits, clean = self._logits(model, images, masks, blank_image(model, images, self.blank, self.seed))
        attributions = []
        for target in (scored(target, self.score, model) for target in targets):
            values = score_cells(logits, target)
            values = values if clean is None else target(clean)[:, None] - values
            attributions.append(Attribution(values.view(1, -1, grid.height, grid.width), grid))
        return attributions


def patch_grid(model: Adapter, size: tuple[int, int]) -> TokenGrid:
    """Return a transformer's own patches; on any other model 14×14 cells, fewer on smaller images."""
    if isinstance(model, VisionTransformer):
        return model.grid_for(size)
    return TokenGrid(min(CELLS, size[0]), min(CELLS, size[1]), image=size)


@dataclass(frozen=True, eq=False, slots=True)
class CellMasks:
    """The pixels of each cell's neighbourhood, made for the cells that are asked for: all of them need not fit.

    Attributes:
        near: which cells are neighbours, shape (cell, cell), bool.
        cell: the cell of each pixel, shape (height, width).
    """

    near: Tensor
    cell: Tensor

    @classmethod
    def of(cls, grid: TokenGrid, radius: int, shape: Shape, device: torch.device) -> CellMasks:
        """Return the masks of the cells of a grid."""
        rows, columns = (
            torch.arange(pixels, device=device) * cells // pixels
            for cells, pixels in zip((grid.height, grid.width), grid.image, strict=True)
        )
        near = neighbourhoods(grid.height, grid.width, radius, shape).to(device)
        return cls(near, rows[:, None] * grid.width + columns[None])

    def __len__(self) -> int:
        return len(self.near)

    def __getitem__(self, cells: Tensor) -> Tensor:
        return self.near[cells][:, self.cell]


def mixed_logits(model: Adapter, inside: Tensor, outside: Tensor, masks: CellMasks) -> Tensor:
    """Return the logits of one batch of images within each mask and another outside it, (batch, mask, class)."""
    batch = max(len(inside), len(outside))
    inside, outside = (x.expand(batch, -1, -1, -1) for x in (inside, outside))

    def work(part: slice) -> Tensor:
        pair = torch.arange(part.start, part.stop, device=inside.device)
        image, mask = pair // len(masks), pair % len(masks)
        return model(torch.where(masks[mask][:, None], inside[image], outside[image]))

    return torch.cat(in_batches(work, batch * len(masks), model.batch)).view(batch, len(masks), -1)


@METHODS.register(
    "simple_insertion",
    family="patching",
    cite="caap2026",
    cost="1 forward per patch",
    parity="one model call per pasted image, written out, float64, 1e-12; no authors' code is public",
)
@dataclass(frozen=True, slots=True)
class SimpleInsertion(PatchPerturbation):
    r"""Simple insertion: the score of a blank image with one patch and its neighbours pasted in.

    .. math:: A_i = s\bigl(m_i \odot x + (1 - m_i) \odot x_0\bigr)

    with the pixels :math:`m_i` of patch i and its neighbours and the blank image :math:`x_0`. The input-level
    counterpart of ``caap``. It runs on any model: on a transformer's own patches, else on 14×14 cells.

    Attributes:
        blank: white, black, mean, noise or blurred_noise, as in caap.
        radius: of the neighbourhood that is pasted with a patch, in patches.
        shape: of the neighbourhood: box, or manhattan for a diamond.
        score: probability, logit or log_probability; None for the target itself. A target that is no single class is
            used as it is.
        seed: of the noise.
    """

    def _logits(self, model: Adapter, images: Tensor, masks: CellMasks, blank: Tensor) -> tuple[Tensor, Tensor | None]:
        return mixed_logits(model, images, blank, masks), None

    def multi_target_cost(self, model: Adapter, count: int, *, every_layer: bool = False) -> Passes:
        return Passes(patch_grid(model, model.default_size).cells)


@METHODS.register(
    "simple_deletion",
    family="patching",
    cite="caap2026",
    cost="1 forward, and 1 per patch",
    parity="one model call per erased image, written out, float64, 1e-12; no authors' code is public",
)
@dataclass(frozen=True, slots=True)
class SimpleDeletion(PatchPerturbation):
    r"""Simple deletion: the drop in score when one patch and its neighbours are replaced by a blank image.

    .. math:: A_i = s(x) - s\bigl((1 - m_i) \odot x + m_i \odot x_0\bigr)

    with the pixels :math:`m_i` of patch i and its neighbours and the blank image :math:`x_0`. The paper names no sign;
    here a drop is positive. It runs on any model: on a transformer's own patches, else on 14×14 cells.

    Attributes:
        blank: white, black, mean, noise or blurred_noise, as in caap.
        radius: of the neighbourhood that is covered with a patch, in patches.
        shape: of the neighbourhood: box, or manhattan for a diamond.
        score: probability, logit or log_probability; None for the target itself. A target that is no single class is
            used as it is.
        seed: of the noise.
    """

    def _logits(self, model: Adapter, images: Tensor, masks: CellMasks, blank: Tensor) -> tuple[Tensor, Tensor | None]:
        return mixed_logits(model, blank, images, masks), model.predict(images)

    def multi_target_cost(self, model: Adapter, count: int, *, every_layer: bool = False) -> Passes:
        return Passes(patch_grid(model, model.default_size).cells + 1)
