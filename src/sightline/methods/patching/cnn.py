"""Activation patching on a CNN: one activation, partly the image's and elsewhere a blank image's."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sightline.methods.blank import of_blank
from sightline.methods.layer_tail import tails_memory
from sightline.methods.patching.neighbourhood import regions
from sightline.methods.patching.record import Patching
from sightline.models.cnn.adapter import Convolutional
from sightline.models.passes import in_batches

CELLS = (14, 14)
MASKS = 9  # bytes for each cell and each value of the map, while the masks are made


def patched_logits_of_cnn(model: Convolutional, images: Tensor, patching: Patching) -> tuple[Tensor, Tensor]:
    """Return the logits with each cell patched into the blank image, (batch, cell, class), and the blank's, (1, class).

    All later units depend on this activation alone, so patching earlier units as well would change nothing.
    """
    site = model.units[patching.last - 1]
    blank, blank_logits = of_blank(
        model, images, patching.blank, patching.seed, site, lambda image: _trunk_and_logits(model, image, site)
    )
    masks = regions(CELLS, (blank.shape[-2], blank.shape[-1]), patching.radius, patching.shape)
    masks = masks.to(blank.device)[:, None]

    def tails(source: Tensor) -> Tensor:
        def work(cells: slice) -> Tensor:
            return model.tail(torch.where(masks[cells], source, blank), site)

        return torch.cat(in_batches(work, len(masks), model.tail_batch))

    sources = torch.cat(in_batches(lambda rows: model.trunk(images[rows], site), len(images), model.batch))
    return torch.stack([tails(source) for source in sources]), blank_logits


def _trunk_and_logits(model: Convolutional, image: Tensor, site: str) -> tuple[Tensor, Tensor]:
    activation = model.trunk(image, site)
    return activation, model.tail(activation, site)


def memory_of_cnn(model: Convolutional, patching: Patching) -> int:
    """Return the bytes held for one image: those of a batch of activations, and a mask for every cell."""
    site = model.units[patching.last - 1]
    masks = CELLS[0] * CELLS[1] * math.prod(model.shape_at(site, model.known_size)[-2:])
    return tails_memory(model, site) + MASKS * masks


def share_of_cnn(model: Convolutional, patching: Patching) -> float:
    """Return the forward passes that one image costs: a trunk, and a tail per cell."""
    site = model.units[patching.last - 1]
    cells, share = CELLS[0] * CELLS[1], model.share(site)
    at_once = model.tail_batch
    batches = [min(at_once, cells - first) for first in range(0, cells, at_once)]
    return share + sum(model.blank_images(site, size) * share + size * (1 - share) for size in batches)
