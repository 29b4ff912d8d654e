"""Frames of insertion and deletion: the images that the model is shown, and its score of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from sightline import api
from sightline.errors import InputError
from sightline.models.inputs import adapt, as_batch, seen_pixels
from sightline.perturb.curve import importance_order, ranks, read_scores, scored
from sightline.perturb.endpoints import find_endpoints
from sightline.types import Attribution

__all__ = ["Film", "insertion_film"]

Baseline = Literal["blur", "zero", "black"]


@dataclass(frozen=True, eq=False)
class Film:
    """Insertion and deletion of one image, frame by frame.

    Attributes:
        recipe: whose map orders the pixels.
        label: the class that is scored.
        shares: of the pixels that are inserted, or deleted, in each frame: from 0 to 1.
        inserted: the frames of insertion, (frame, 3, height, width), uint8.
        deleted: the frames of deletion.
        insertion: the score of each frame of insertion, a probability where the model has them.
        deletion: the score of each frame of deletion.
    """

    recipe: str
    label: str
    shares: tuple[float, ...]
    inserted: Tensor
    deleted: Tensor
    insertion: tuple[float, ...]
    deletion: tuple[float, ...]


def insertion_film(
    model: Any,
    image: Any,
    attribution: Attribution,
    *,
    frames: int = 6,
    start: Baseline = "blur",
    end: Baseline = "zero",
) -> Film:
    """Insert the pixels of one image in the order of its map, and delete them in that order.

    Args:
        model: as for `explain`.
        image: one image, the one that was explained.
        attribution: its map.
        frames: steps from none of the pixels to all of them.
        start: where insertion starts: blur (in which the class is not recognised), zero or black.
        end: where deletion ends, likewise.
    """
    adapter = adapt(model)
    batch = as_batch(adapter, image)
    if len(batch) != 1 or len(attribution) != 1 or attribution.target is None:
        raise InputError("a film is made of one image at a time; give one image and what explain returned for it")
    if frames < 1:
        raise InputError(f"got frames={frames}; give one step at least")
    with api.ready(adapter), torch.no_grad():
        target = scored(attribution.target, "probability" if adapter.has_probabilities else "logit", adapter)
        ends = find_endpoints(adapter, batch, target, start, end)[0]
        place = ranks(importance_order(attribution.pixels().to(batch.device))).reshape(1, *batch.shape[-2:])
        shares = [frame / frames for frame in range(frames + 1)]
        chosen = torch.stack([place < round(share * place.numel()) for share in shares])
        inserted = torch.where(chosen, ends.image, ends.blurred)
        deleted = torch.where(chosen, ends.blank, ends.image)
        rows = target.take([0] * (2 * len(shares)))
        values = read_scores(adapter, rows, adapter.predict(torch.cat([inserted, deleted]))).tolist()
    return Film(
        attribution.recipe,
        attribution.labels[0] if attribution.labels else "",
        tuple(shares),
        seen_pixels(adapter, inserted),
        seen_pixels(adapter, deleted),
        tuple(values[: len(shares)]),
        tuple(values[len(shares) :]),
    )
