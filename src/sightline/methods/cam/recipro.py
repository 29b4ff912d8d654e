"""Recipro-CAM: the score of the class when only one cell of a layer's activation is kept; no gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from sightline.errors import SiteError
from sightline.methods.cam.fusion import Layer
from sightline.methods.layer_tail import tails_memory
from sightline.methods.multi_target import MultiTarget
from sightline.methods.scored import Score, score_cells, scored
from sightline.models.adapter import Adapter
from sightline.models.cnn.adapter import Convolutional
from sightline.models.passes import in_batches
from sightline.models.vit.adapter import VisionTransformer
from sightline.registry import METHODS
from sightline.types import Attribution, Passes, Target, map_grid

Variant = Literal["cell", "gaussian"]


@METHODS.register(
    "recipro_cam",
    family="cam",
    cite="byun2022",
    cost="1 forward, and the part of the model after the layer once per cell",
    needs=("layers",),
    parity="the formula written out on a CNN and a ViT, 1e-9; closed form on a linear head; no reference numbers",
)
@dataclass(frozen=True, slots=True)
class ReciproCam(MultiTarget):
    r"""Recipro-CAM: the probability of the class when one cell of a layer's activation is kept, the rest set to zero.

    .. math:: A_{ij} = s\bigl(\operatorname{tail}(F \odot m_{ij})\bigr)

    where :math:`m_{ij}` is one at the cell and zero elsewhere, or a 3×3 Gaussian around it,
    :math:`\tfrac1{16}\bigl[\begin{smallmatrix}1&2&1\\2&4&2\\1&2&1\end{smallmatrix}\bigr]`. On a transformer
    (ViT-ReciproCAM, :cite:t:`byun2023`) the tokens that enter a block and those that leave its first norm are masked
    alike; prefix tokens are kept. No gradients, and any number of targets costs the same. ``caap`` replaces the other
    cells by those of a blank image instead of zeros.

    Attributes:
        layer: a CNN's cut or a transformer's block, as a name or an index; by default the last feature map, or the last
            block.
        variant: cell or gaussian; by default cell on a CNN, gaussian on a transformer, as the authors.
        score: the score of the class: probability, logit or log_probability; None for the target itself.
    """

    layer: Layer = None
    variant: Variant | None = None
    score: Score | None = "probability"

    def multi_target(
        self, model: Adapter, images: Tensor, targets: Sequence[Target], *, every_layer: bool = False
    ) -> list[Attribution]:
        targets = [scored(target, self.score, model) for target in targets]
        with torch.no_grad():
            if isinstance(model, VisionTransformer):
                grid = model.grid_of(images)
                logits, size = self._token_logits(model, images), (grid.height, grid.width)
            else:
                assert isinstance(model, Convolutional)
                logits, size = self._map_logits(model, images)
        maps = [score_cells(logits, target).unflatten(1, size) for target in targets]
        return [Attribution(values[None], map_grid(values, images)) for values in maps]

    def _map_logits(self, model: Convolutional, images: Tensor) -> tuple[Tensor, tuple[int, int]]:
        """Return the logits with each cell of the feature map alone, (batch, cell, class), and how many there are."""
        site = self._cut(model)
        activations = torch.cat(in_batches(lambda part: model.trunk(images[part], site), len(images), model.batch))
        size = (activations.shape[-2], activations.shape[-1])
        masks = cell_masks(size, self.variant or "cell").to(activations)[:, None]

        def tails(activation: Tensor) -> Tensor:
            return torch.cat(
                in_batches(lambda part: model.tail(activation * masks[part], site), len(masks), model.tail_batch)
            )

        return torch.stack([tails(activation) for activation in activations]), size

    def _cut(self, model: Convolutional) -> str:
        site = model.layer(self.layer)
        if site not in model.cuts:
            raise SiteError(
                f"a connection bypasses {site!r} of {model.name}; choose a cut, such as {model.cut_layer!r}"
            )
        return site

    def _token_logits(self, model: VisionTransformer, images: Tensor) -> Tensor:
        """Return the same for the tokens that enter a block."""
        block = self._block(model)
        stream, norm = f"block.{block}.input", f"block.{block}.norm1"
        masked = [stream, *([norm] if norm in model.sites else [])]
        with model.capture(*masked) as seen:
            model(images)
        grid = model.grid_of(images)
        cells = cell_masks((grid.height, grid.width), self.variant or "gaussian").flatten(1)
        masks = F.pad(cells, (grid.prefix, 0), value=1.0).to(images)[..., None]  # (cell, token, 1)

        def tails(row: int) -> Tensor:
            def work(part: slice) -> Tensor:
                kept = {site: seen[site][row] * masks[part] for site in masked}
                with model.edit({site: value for site, value in kept.items() if site != stream}):
                    return model.logits_of(kept[stream], block)

            return torch.cat(in_batches(work, len(masks), model.batch))

        return torch.stack([tails(row) for row in range(len(images))])

    def _block(self, model: VisionTransformer) -> int:
        return int(model.layer(self.layer).split(".")[1])

    def multi_target_cost(self, model: Adapter, count: int, *, every_layer: bool = False) -> Passes:
        if isinstance(model, VisionTransformer):
            grid = model.grid_for(model.default_size)
            return Passes(1 + grid.cells * (1 - self._block(model) / model.depth))
        assert isinstance(model, Convolutional)
        site = self._cut(model)
        height, width = model.shape_at(site, model.known_size)[-2:]
        cells, share = height * width, model.share(site)
        at_once = model.tail_batch
        batches = [min(at_once, cells - first) for first in range(0, cells, at_once)]
        return Passes(share + sum(model.blank_images(site, size) * share + size * (1 - share) for size in batches))

    def peak(self, model: Adapter) -> int:
        """Return the bytes held for one image: those of a batch of activations behind the layer."""
        if isinstance(model, VisionTransformer):
            return tails_memory(model, self.layer, self._block(model))
        assert isinstance(model, Convolutional)
        height, width = model.shape_at(self._cut(model), model.known_size)[-2:]
        return tails_memory(model, self.layer) + torch.float32.itemsize * (height * width) ** 2


def cell_masks(size: tuple[int, int], variant: Variant) -> Tensor:
    """Return one mask per cell of a grid, (cell, height, width): the cell alone, or a 3×3 Gaussian around it.

    >>> cell_masks((1, 3), "gaussian")[1]
    tensor([[0.1250, 0.2500, 0.1250]])
    """
    height, width = size
    alone: Tensor = torch.eye(height * width).unflatten(1, size)
    if variant == "cell":
        return alone
    line = torch.tensor([0.25, 0.5, 0.25])
    blurred: Tensor = F.conv2d(alone[:, None], (line[:, None] * line)[None, None], padding=1)[:, 0]
    return blurred
