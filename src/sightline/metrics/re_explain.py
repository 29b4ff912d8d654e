"""Run the method of a case again: on another model, on other images, or for another target."""

from __future__ import annotations

import torch
from torch import Tensor

from sightline.metrics.case import Case
from sightline.models.adapter import Adapter
from sightline.models.passes import full_precision, in_batches
from sightline.types import Attribution, Method, Target


def re_explain(
    case: Case,
    *,
    model: Adapter | None = None,
    images: Tensor | None = None,
    target: Target | None = None,
    method: Method | None = None,
) -> list[Attribution]:
    """Return new attributions of the case's method, one per part into which the batch had to be divided.

    Args:
        case: gives the method, and whatever of the following is left out.
        model: another model.
        images: other images, shape (batch, 3, height, width).
        target: another target.
        method: the case's method with other options.
    """
    method = case.explained_by() if method is None else method
    model = case.model if model is None else model
    images = case.images if images is None else images
    target = case.target if target is None else target

    def part(rows: slice) -> Attribution:
        return method(model, images[rows], target.take(range(rows.start, rows.stop)))

    with torch.inference_mode(False), torch.no_grad():
        return in_batches(part, len(images), model.batch)


def re_explained_maps(
    case: Case,
    *,
    model: Adapter | None = None,
    images: Tensor | None = None,
    target: Target | None = None,
    method: Method | None = None,
) -> Tensor:
    """Return the maps of `re_explain` at image size, shape (batch, height, width)."""
    parts = re_explain(case, model=model, images=images, target=target, method=method)
    return full_precision(torch.cat([part.pixels(case.enlarge) for part in parts]).detach())
