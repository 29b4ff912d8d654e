"""Masks of the evidence, as localisation metrics read them: 1 evidence, 0 background, -1 ignored."""

from __future__ import annotations

from torch import Tensor

from sightline.metrics.case import Case, Measurement, flags_where, join_flags


def labels_of(case: Case) -> tuple[Tensor, Tensor]:
    """Return which pixels are evidence and which are labelled at all, each (batch, height·width)."""
    masks = case.evidence.flatten(1)
    return masks > 0, masks >= 0


def measured(case: Case, values: Tensor, flags: tuple[str, ...]) -> Measurement:
    """Return the scores with their flags; where an image has no evidence, NaN and that as the reason."""
    empty = ~(case.evidence > 0).flatten(1).any(dim=1)
    own = tuple("" if none else flag for none, flag in zip(empty.tolist(), flags, strict=True))
    joined = join_flags(case.flags, own, flags_where(empty, "no foreground"))
    return Measurement(values.masked_fill(empty, float("nan")), flags=joined)


def ratio(above: Tensor, below: Tensor) -> Tensor:
    """Divide counts; nothing by nothing is 0."""
    return above / below.where(below > 0, 1)
