"""Mask the evidence of each class in turn, and see what becomes of the probability of every class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sightline import api
from sightline.errors import InputError, TargetError
from sightline.models.inputs import adapt, as_batch, seen_pixels
from sightline.perturb.curve import importance_order, ranks
from sightline.perturb.fill import make_fill
from sightline.types import Attribution, Logit

__all__ = ["MaskedEvidence", "mask_evidence", "strongest"]


@dataclass(frozen=True, eq=False)
class MaskedEvidence:
    """What masking the evidence of each class does to one image.

    Attributes:
        maps: the attribution of each class.
        removed: the pixels that were masked for each class, (class, height, width).
        seen: the masked images, (class, 3, height, width), uint8.
        before: the probability of each class of the image as it is.
        after: the probability of each class, in columns, when the evidence of a class, in rows, is masked.
    """

    maps: tuple[Attribution, ...]
    removed: Tensor
    seen: Tensor
    before: tuple[float, ...]
    after: tuple[tuple[float, ...], ...]

    @property
    def labels(self) -> tuple[str, ...]:
        """What the classes are called."""
        return tuple(one.labels[0] if one.labels else "" for one in self.maps)


def mask_evidence(
    model: Any, image: Any, maps: Sequence[Attribution], *, share: float = 0.1, fill: str = "black"
) -> MaskedEvidence:
    """Mask the strongest evidence of each class, and read the probabilities of all of them.

    Args:
        model: as for `explain`, with probabilities.
        image: one image, the one that was explained.
        maps: its attributions, one per class, by one method.
        share: of the pixels that are masked, the strongest first; pixels without positive evidence are never masked.
        fill: what masked pixels become: black, white, mean, zero or blur.
    """
    if not 0 < share <= 1:
        raise InputError(f"got share={share}; a share of the pixels lies above 0 and up to 1")
    adapter = adapt(model)
    batch = as_batch(adapter, image)
    if len(batch) != 1 or any(len(one) != 1 for one in maps):
        raise InputError("evidence is masked in one image at a time; give one image and its attributions")
    classes = [_class_of(one) for one in maps]
    removed = torch.stack([strongest(one.pixels()[0], share) for one in maps]).to(batch.device)
    with api.ready(adapter), torch.no_grad():
        masked = torch.where(removed[:, None], make_fill(fill)(adapter, batch), batch)
        probabilities = adapter.probabilities(adapter.check_logits(adapter.predict(torch.cat([batch, masked]))))
    table = probabilities[:, classes].double().cpu().tolist()
    after = tuple(tuple(row) for row in table[1:])
    return MaskedEvidence(tuple(maps), removed.cpu(), seen_pixels(adapter, masked), tuple(table[0]), after)


def strongest(values: Tensor, share: float) -> Tensor:
    """Return which pixels of a map are among the largest `share` and positive, (height, width)."""
    count = round(share * values.numel())
    place = ranks(importance_order(values[None])).reshape(values.shape)
    return (place < count) & (values > 0)


def _class_of(attribution: Attribution) -> int:
    target = attribution.target
    if not isinstance(target, Logit):
        raise TargetError(f"got a map of {type(target).__name__}; evidence is masked for classes, so explain a class")
    return target.index if isinstance(target.index, int) else target.index[0]
