"""Targets of tasks beyond classification: a region of a segmentation, a box of a detector, likeness to an embedding.

The output of such a model is flat, (batch, number), as every method and metric expects it; a target that `explain` has
resolved knows the shape of one image's output, and reads it in that shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from sightline.errors import TargetError
from sightline.targets.boxes import overlap
from sightline.targets.classes import Link, log_probabilities, probabilities

__all__ = ["OBJECT", "Box", "Region", "Similarity", "TaskScore", "target_mask"]

TaskScore = Literal["logit", "probability", "log_probability"]
OBJECT = 4  # the column of a detection that says how sure it is; its corners stand before, its labels after it


@dataclass(frozen=True, slots=True, eq=False)
class Region:
    """The mean logit of a label over a region of a segmentation: why the model sees that label there.

    For models whose output is ``dense``, a class per pixel. In `rise`, insertion and deletion it is the mean
    probability of the label in the region.

    Attributes:
        label: of the region, by number or name; None for the label that covers most of the image, background aside.
        mask: where, bool, (height, width) for all images or (batch, height, width), at any resolution; None for where
            the model predicts the label in the image that is explained.
        score: what is averaged: logit, probability or log_probability.
        link: how logits become probabilities, by default as the model's output says.
        shape: channels, height and width of one image's output; `explain` fills it in.
    """

    label: int | str | tuple[int, ...] | None = None
    mask: Tensor | None = None
    score: TaskScore = field(default="logit", kw_only=True)
    link: Link | None = field(default=None, kw_only=True, repr=False)
    shape: tuple[int, int, int] | None = field(default=None, kw_only=True, repr=False)

    def __call__(self, logits: Tensor) -> Tensor:
        dense = self._dense(logits)
        labels = self._labels(len(dense))
        weights = self._weights(dense)
        rows = torch.arange(len(dense), device=dense.device)
        read = self._read(dense)[rows, torch.tensor(labels, device=dense.device)]
        return (read * weights).sum(dim=(1, 2)) / weights.sum(dim=(1, 2))

    def take(self, rows: Sequence[int]) -> Region:
        label = tuple(self.label[row] for row in rows) if isinstance(self.label, tuple) else self.label
        several = self.mask is not None and self.mask.ndim == 3 and len(self.mask) > 1
        mask = self.mask[list(rows)] if several and self.mask is not None else self.mask
        return replace(self, label=label, mask=mask)

    def _dense(self, logits: Tensor) -> Tensor:
        """Return the logits as (batch, channel, height, width)."""
        if logits.ndim == 4:
            return logits
        if self.shape is None:
            raise TargetError(
                f"got logits of shape {tuple(logits.shape)} for a Region; (batch, label, height, width) is needed: "
                "give the target to explain() with a segmentation model, or adapt(model, output='dense')"
            )
        dense: Tensor = logits.unflatten(1, self.shape)
        return dense

    def _labels(self, count: int) -> tuple[int, ...]:
        if self.label is None or isinstance(self.label, str):
            raise TargetError(f"Region({self.label!r}) has no label number yet; give the target to explain()")
        return (self.label,) * count if isinstance(self.label, int) else self.label

    def _weights(self, dense: Tensor) -> Tensor:
        """Return the share of each cell that lies in the region, (batch or 1, height, width)."""
        if self.mask is None:
            raise TargetError(f"Region({self.label!r}) has no mask yet; give the target to explain(), or give mask=…")
        mask = self.mask if self.mask.ndim == 3 else self.mask[None]
        if len(mask) not in (1, len(dense)):
            raise TargetError(f"got {len(mask)} masks for {len(dense)} images; give one, or one per image")
        mask = mask.to(dense)
        if mask.shape[-2:] == dense.shape[-2:]:
            return mask
        return F.interpolate(mask[:, None], dense.shape[-2:], mode="area")[:, 0]

    def _read(self, dense: Tensor) -> Tensor:
        if self.score == "logit":
            return dense
        last = dense.movedim(1, -1)
        read = probabilities if self.score == "probability" else log_probabilities
        # over two axes: `libra` takes a softmax or sigmoid of more for attention or gates
        return read(last.flatten(0, -2), self.link).view(last.shape).movedim(-1, 1)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Region):
            return NotImplemented
        same = (self.label, self.score, self.link, self.shape) == (other.label, other.score, other.link, other.shape)
        return same and _equal(self.mask, other.mask)

    __hash__ = None  # type: ignore[assignment]  # a mask has no hash


@dataclass(frozen=True, slots=True, eq=False)
class Box:
    r"""A detection: why the detector sees this object there.

    For models whose output is ``boxes``. With gradients it is the probability of the label at the detection that
    matches best, by overlap times that probability. In `rise`, `d_rise`, insertion and deletion it is the likeness to
    the detection in the whole image :cite:p:`petsiuk2021`, the largest over all detections j of

    .. math:: \mathrm{IoU}(b, b_j) \; o_j \; \cos(p, p_j)

    with boxes b, objectness o and label probabilities p, so that both follow the same object.

    Attributes:
        box: which, by rank: 0 for the surest detection; or x1, y1, x2, y2 in pixels of the image that the model is
            given; None for the surest, of the label if there is one.
        label: of the object, by number or name; None for that of the detection.
        score: what is read: logit for the probability of the matched detection, probability for the likeness above, or
            log_probability for its logarithm.
        reference: the detection of each image as it was found; `explain` fills it in.
        size: height and width of the image; `explain` fills it in.
    """

    box: int | tuple[float, float, float, float] | None = None
    label: int | str | None = None
    score: TaskScore = field(default="logit", kw_only=True)
    reference: Tensor | None = field(default=None, kw_only=True, repr=False)
    size: tuple[int, int] | None = field(default=None, kw_only=True, repr=False)

    def __post_init__(self) -> None:
        if isinstance(self.box, tuple | list) and len(self.box) != 4:
            raise TargetError(f"got the box {self.box}; four numbers are needed: x1, y1, x2, y2 in pixels")
        if isinstance(self.box, list):
            object.__setattr__(self, "box", tuple(self.box))

    def __call__(self, logits: Tensor) -> Tensor:
        wanted = self._reference(len(logits)).to(logits)
        found = logits if logits.ndim == 3 else logits.unflatten(1, (-1, wanted.shape[-1]))
        shared = overlap(wanted[:, None, :OBJECT], found[..., :OBJECT])
        if self.score == "logit":
            return _matched(found, shared, self._labels(wanted))
        alike = F.cosine_similarity(wanted[:, None, OBJECT + 1 :], found[..., OBJECT + 1 :], dim=-1)
        likeness = (shared * found[..., OBJECT] * alike).amax(dim=1)
        if self.score == "probability":
            return likeness
        return likeness.clamp(min=torch.finfo(likeness.dtype).tiny).log()

    def matched(self, logits: Tensor) -> Tensor:
        """Return which detection of each image is the object, (batch,), by overlap times the label's probability."""
        wanted = self._reference(len(logits)).to(logits)
        found = logits if logits.ndim == 3 else logits.unflatten(1, (-1, wanted.shape[-1]))
        shared = overlap(wanted[:, None, :OBJECT], found[..., :OBJECT])
        return (shared * _of_label(found, self._labels(wanted))).argmax(dim=1)

    def take(self, rows: Sequence[int]) -> Box:
        several = self.reference is not None and len(self.reference) > 1
        return replace(self, reference=self.reference[list(rows)]) if several and self.reference is not None else self

    def mask(self, row: int = 0) -> Tensor:
        """Return which pixels of an image lie in the box, (height, width) of 1 and 0, as `evaluate` takes masks."""
        if self.reference is None or self.size is None:
            raise TargetError("the box of this target is not known yet; take the target of an attribution")
        height, width = self.size
        x1, y1, x2, y2 = self.corners(row)
        x, y = torch.arange(width) + 0.5, torch.arange(height) + 0.5
        return ((y >= y1) & (y <= y2)).long()[:, None] * ((x >= x1) & (x <= x2)).long()

    def corners(self, row: int = 0) -> tuple[float, float, float, float]:
        """Return x1, y1, x2, y2 of an image's box in pixels."""
        assert self.reference is not None
        assert self.size is not None
        height, width = self.size
        x1, y1, x2, y2 = self.reference[row if len(self.reference) > 1 else 0, :OBJECT].tolist()
        return x1 * width, y1 * height, x2 * width, y2 * height

    def label_of(self, row: int = 0) -> int:
        """Return the label of an image's box."""
        reference = self._reference(row + 1)
        return int(self._labels(reference)[row])

    def _reference(self, count: int) -> Tensor:
        if self.reference is None:
            raise TargetError(f"{self!r} has not been looked for yet; give the target to explain() with a detector")
        return self.reference.expand(count, -1) if len(self.reference) == 1 else self.reference

    def _labels(self, wanted: Tensor) -> Tensor:
        if isinstance(self.label, int):
            return torch.full((len(wanted),), self.label, device=wanted.device)
        return wanted[:, OBJECT + 1 :].argmax(dim=1)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Box):
            return NotImplemented
        same = (self.box, self.label, self.score, self.size) == (other.box, other.label, other.score, other.size)
        return same and _equal(self.reference, other.reference)

    __hash__ = None  # type: ignore[assignment]


def _of_label(found: Tensor, labels: Tensor) -> Tensor:
    """Return the probability of each image's label at every detection, (batch, box)."""
    columns = (OBJECT + 1 + labels)[:, None, None].expand(-1, found.shape[1], 1)
    return found.gather(2, columns)[..., 0]


def _matched(found: Tensor, shared: Tensor, labels: Tensor) -> Tensor:
    """Return the probability of a label, (batch,), at the detection whose overlap times that probability is largest."""
    probability = _of_label(found, labels)
    best = (shared * probability).detach().argmax(dim=1, keepdim=True)
    near = shared.gather(1, best).detach() > 0
    return (probability.gather(1, best) * near)[:, 0]


@dataclass(frozen=True, slots=True, eq=False)
class Similarity:
    """The cosine between an image's embedding and another one: why two images are alike to the model.

    For models whose output is an ``embedding``: DINOv2, a CLIP tower, a classifier without its head.

    Attributes:
        to: the other embedding, shape (channel,) for all images or (batch, channel); or an image as `explain` takes
            them, (batch, 3, height, width) included, whose embedding `explain` computes with one pass.
    """

    to: Any

    def __call__(self, logits: Tensor) -> Tensor:
        other = self.to if isinstance(self.to, Tensor) else None
        if other is None or other.ndim > 2:
            raise TargetError("the other image of a Similarity has no embedding yet; give the target to explain()")
        if other.shape[-1] != logits.shape[-1] or (other.ndim == 2 and len(other) not in (1, len(logits))):
            raise TargetError(
                f"got an embedding of shape {tuple(other.shape)} for an output of {tuple(logits.shape)}; "
                "give one of the model's own, or one per image"
            )
        return F.cosine_similarity(logits, other.to(logits), dim=-1)

    def take(self, rows: Sequence[int]) -> Similarity:
        several = isinstance(self.to, Tensor) and self.to.ndim == 2 and len(self.to) > 1
        return Similarity(self.to[list(rows)]) if several else self

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Similarity) and _equal(self.to, other.to)

    __hash__ = None  # type: ignore[assignment]


def target_mask(target: Any, size: tuple[int, int]) -> Tensor | None:
    """Return where in the first image a resolved target lies, bool, (height, width) of this size.

    None for a target that has no place of its own, such as a class.
    """
    if isinstance(target, Box) and target.reference is not None and target.size is not None:
        mask = target.mask()
    elif isinstance(target, Region) and target.mask is not None:
        mask = target.mask if target.mask.ndim == 2 else target.mask[0]
    else:
        return None
    whole = F.interpolate(mask[None, None].float(), size, mode="nearest-exact")[0, 0]
    return (whole > 0).cpu()


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.shape == other.shape and bool((one == other.to(one.device)).all())
    return one is other
