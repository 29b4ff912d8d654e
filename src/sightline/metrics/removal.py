"""Scores of images that lack some of their pixels: what metrics that remove pixels one group at a time share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from sightline.metrics.case import Case
from sightline.metrics.scaling import power_of_two
from sightline.models.passes import in_batches
from sightline.perturb.fill import Fill, fill_where
from sightline.types import Target


def logits_without(case: Case, removed: Iterable[Tensor], fill: Fill) -> Tensor:
    """Return the logits of the images without these pixels, shape (batch, point, class).

    Args:
        case: the model and the images.
        removed: for each image in turn, bool of shape (point, height, width): the pixels that are filled. They are
            asked for one image at a time, so a generator keeps memory small.
        fill: what removed pixels become.
    """
    filled = case.once(("filled images", fill), lambda: fill(case.model, case.images))
    found = []
    for image, other, masks in zip(case.images, filled, removed, strict=True):

        def work(part: slice, image: Tensor = image, other: Tensor = other, masks: Tensor = masks) -> Tensor:
            count = len(masks[part])
            whole = (image.expand(count, -1, -1, -1), other.expand(count, -1, -1, -1))
            return case.model(fill_where(fill, case.model, *whole, masks[part]))

        with torch.no_grad():
            found.append(torch.cat(in_batches(work, len(masks), case.model.batch)))
    return torch.stack(found)


def group_masks(labels: Tensor, count: int) -> Iterable[Tensor]:
    """Return, image by image, the mask of each group, (group, height, width), from labels (batch, height, width)."""
    numbers = torch.arange(count, device=labels.device)[:, None, None]
    return (each == numbers for each in labels)


def group_sums(maps: Tensor, labels: Tensor, count: int) -> Tensor:
    """Add up maps in each group, (batch, height, width) -> (batch, group), up to one positive factor per map.

    >>> group_sums(torch.tensor([[[1.0, 2.0, 4.0]]]), torch.tensor([[[0, 1, 0]]]), 2)
    tensor([[0.6250, 0.2500]], dtype=torch.float64)
    """
    scaled = (maps.double() * power_of_two(maps)).flatten(1)  # so that huge values do not overflow the sum
    return scaled.new_zeros(len(maps), count).scatter_add_(1, labels.flatten(1), scaled)


def ranked_groups(order: Tensor, size: tuple[int, int], count: int) -> Tensor:
    """Cut an order of pixels, (batch, pixel), into this many groups; labels of shape (batch, height, width).

    The groups are as equal as can be; group 0 holds the pixels that come first.

    >>> ranked_groups(torch.tensor([[2, 0, 1, 3]]), (2, 2), 2)
    tensor([[[0, 1],
             [0, 1]]])
    """
    pixels = order.shape[1]
    number = torch.arange(pixels, device=order.device) * count // pixels
    labels = torch.empty_like(order).scatter_(1, order, number.expand_as(order))
    return labels.reshape(len(order), *size)


def stepped_groups(order: Tensor, size: tuple[int, int], step: int) -> tuple[Tensor, int]:
    """Cut an order of pixels into groups of `step`, the last one shorter: labels and how many groups there are."""
    number = torch.arange(order.shape[1], device=order.device).div(step, rounding_mode="floor")
    labels = torch.empty_like(order).scatter_(1, order, number.expand_as(order))
    return labels.reshape(len(order), *size), int(number[-1]) + 1


def sums_and_drops(case: Case, removed: Iterable[Tensor], fill: Fill, target: Target) -> tuple[Tensor, Tensor]:
    """Return the sum of the map in each set of pixels and the drop of the score without it, (batch, point) each.

    Args:
        case: the model, the images and the maps.
        removed: as for `logits_without`.
        fill: what removed pixels become.
        target: what is followed; see `Case.followed`.
    """
    scaled = (case.maps.double() * power_of_two(case.maps)).flatten(1)
    sums: list[Tensor] = []

    def summed() -> Iterator[Tensor]:
        for values, masks in zip(scaled, removed, strict=True):
            sums.append(torch.stack([torch.where(mask, values, 0.0).sum() for mask in masks.flatten(1)]))
            yield masks

    logits = logits_without(case, summed(), fill)
    drops = case.read(target, case.clean)[:, None] - case.read(target, logits)
    return torch.stack(sums), drops.double()
