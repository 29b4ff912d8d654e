"""Ask the method of a case again: on another model, on other images, or about another class."""

from __future__ import annotations

import torch
from torch import Tensor

from sightline.metrics.case import Case
from sightline.models.adapter import Adapter
from sightline.models.batch import in_batches
from sightline.models.precision import full_precision
from sightline.types import Attribution, Target


def maps_again(
    case: Case, *, model: Adapter | None = None, images: Tensor | None = None, target: Target | None = None
) -> Tensor:
    """Return the method's maps at image size, (batch, height, width), with whatever is given in place of the case's."""
    found = attributions_again(case, model=model, images=images, target=target)
    maps = torch.cat([part.pixels() for part in found]).detach()
    return full_precision(maps)


def attributions_again(
    case: Case, *, model: Adapter | None = None, images: Tensor | None = None, target: Target | None = None
) -> list[Attribution]:
    """Return what the method says, in as many parts as the batch had to be cut into."""
    method = case.explained_by()
    asked = case.model if model is None else model
    shown = case.images if images is None else images
    aim = case.target if target is None else target

    def part(rows: slice) -> Attribution:
        return method(asked, shown[rows], aim.take(range(rows.start, rows.stop)))

    with torch.inference_mode(False), torch.no_grad():
        return in_batches(part, len(shown), asked.batch)
