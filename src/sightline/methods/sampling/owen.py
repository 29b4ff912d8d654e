"""Owen values: Shapley values inside a hierarchy, where coalitions never cut across a group.

A node of a hierarchy is a set of pixels that can be split in two. `Box` splits an image along its axes down to the
pixel; `Group` follows nested tuples of segment numbers, such as ``((0, 1), (2, (3, 4)))``.
"""

from __future__ import annotations

import heapq
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from sightline.errors import ShapeError
from sightline.perturb.segments import Segments

Nested = int | tuple[Any, Any]
Search = Generator[Tensor, list[float], Tensor]


class Node(Protocol):
    """A set of pixels with its place in a hierarchy."""

    @property
    def mask(self) -> Tensor:
        """The pixels, shape (height, width), bool."""
        ...

    @property
    def size(self) -> int:
        """How many leaves it has."""
        ...

    def split(self) -> tuple[Node, Node] | None:
        """Return both halves, None for a leaf."""
        ...


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle of pixels: halved along its longer side, along the rows when both are equal."""

    image: tuple[int, int]
    rows: tuple[int, int]
    columns: tuple[int, int]

    @property
    def mask(self) -> Tensor:
        found = torch.zeros(self.image, dtype=torch.bool)
        found[slice(*self.rows), slice(*self.columns)] = True
        return found

    @property
    def size(self) -> int:
        return (self.rows[1] - self.rows[0]) * (self.columns[1] - self.columns[0])

    def split(self) -> tuple[Box, Box] | None:
        (top, bottom), (left, right) = self.rows, self.columns
        if self.size == 1:
            return None
        if bottom - top >= right - left:
            middle = top + (bottom - top) // 2
            return Box(self.image, (top, middle), self.columns), Box(self.image, (middle, bottom), self.columns)
        middle = left + (right - left) // 2
        return Box(self.image, self.rows, (left, middle)), Box(self.image, self.rows, (middle, right))


@dataclass(frozen=True, slots=True)
class Group:
    """Segments, grouped as nested tuples of their numbers say."""

    pieces: Segments
    members: Nested

    @property
    def mask(self) -> Tensor:
        inside = torch.zeros(self.pieces.count, dtype=torch.bool)
        inside[leaves(self.members)] = True
        return inside[self.pieces.labels.cpu()]

    @property
    def size(self) -> int:
        return len(leaves(self.members))

    def split(self) -> tuple[Group, Group] | None:
        if isinstance(self.members, int):
            return None
        left, right = self.members
        return Group(self.pieces, left), Group(self.pieces, right)


def leaves(members: Nested) -> list[int]:
    """Return the numbers in nested tuples, from left to right."""
    return [members] if isinstance(members, int) else [leaf for half in members for leaf in leaves(half)]


def check_tree(members: Nested, pieces: Segments) -> None:
    """Refuse a hierarchy that does not hold every segment once."""
    if sorted(leaves(members)) != list(range(pieces.count)):
        raise ShapeError(
            f"got a hierarchy of the segments {sorted(leaves(members))}; every number from 0 to {pieces.count - 1} "
            "is needed once"
        )


def nearby(pieces: Segments) -> Nested:
    """Group segments by where they lie: halved, again and again, along the axis on which their centres spread most.

    On a grid these are the halves that `Box` makes of its cells.
    """
    height, width = pieces.labels.shape
    rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    at = torch.stack([pieces.means(x.to(pieces.labels.device).double()).cpu() for x in (rows, columns)])

    def grouped(members: Tensor) -> Nested:
        if len(members) == 1:
            return int(members[0])
        spread = at[:, members].amax(dim=1) - at[:, members].amin(dim=1)
        along = at[0 if spread[0] >= spread[1] else 1, members]
        places = along.unique()
        # neighbours in a row of a grid stay together: the cut goes between different places where there are any
        below = along < places[len(places) // 2] if len(places) > 1 else torch.arange(len(members)) < len(members) // 2
        return grouped(members[below]), grouped(members[~below])

    return grouped(torch.arange(pieces.count))


@dataclass(order=True, slots=True)
class _Open:
    """A node still to be split, in a context that is there beside it; the most promising comes first."""

    promise: float
    turn: int
    node: Node = field(compare=False)
    context: tuple[Node, ...] = field(compare=False)
    without: float = field(compare=False)
    within: float = field(compare=False)
    weight: float = field(compare=False)


def owen_values(root: Node, empty: float, full: float, evaluations: int, per_step: int) -> Search:
    """Share full − empty out along a hierarchy; give the masks to be scored, take their scores, return the map.

    A node that adds :math:`d` to its context is split into a and b; a gets half of what it adds to the context and half
    of what it adds to context and b, and b the same. The nodes with the largest :math:`|d|` times weight go first. When
    no evaluations are left, what a node has is spread evenly over it.

    Args:
        root: all pixels.
        empty: score without any of them.
        full: score with all.
        evaluations: how many masks may be scored, two for each split.
        per_step: how many nodes are split at a time.
    """
    values = torch.zeros(root.mask.shape, dtype=torch.float64)
    waiting = [_Open(0.0, 0, root, (), empty, full, 1.0)]
    turn = 0
    while waiting:
        step: list[tuple[_Open, Node, Node]] = []
        while waiting and len(step) < per_step and 2 * len(step) + 2 <= evaluations:
            first = heapq.heappop(waiting)
            halves = first.node.split()
            if halves is None:
                _spread(values, first)
            else:
                step.append((first, *halves))
        if not step:
            break
        evaluations -= 2 * len(step)
        scores = iter((yield torch.stack([_union(*each.context, half) for each, *halves in step for half in halves])))
        for each, left, right in step:
            with_left, with_right = next(scores), next(scores)
            beside_right, beside_left = (*each.context, right), (*each.context, left)
            for node, context, without, within in (
                (left, each.context, each.without, with_left),
                (right, each.context, each.without, with_right),
                (left, beside_right, with_right, each.within),
                (right, beside_left, with_left, each.within),
            ):
                turn += 1
                weight = each.weight / 2
                promise = -abs(within - without) * weight
                heapq.heappush(waiting, _Open(promise, turn, node, context, without, within, weight))
    for each in waiting:
        _spread(values, each)
    return values


def _union(*nodes: Node) -> Tensor:
    found = nodes[0].mask
    for node in nodes[1:]:
        found |= node.mask
    return found


def _spread(values: Tensor, each: _Open) -> None:
    """Add what a node has to its leaves, the same to each, and a leaf's evenly to its pixels."""
    amount = (each.within - each.without) * each.weight / each.node.size
    if isinstance(each.node, Group):
        pieces, members = each.node.pieces, leaves(each.node.members)
        shares = values.new_zeros(pieces.count)
        shares[members] = amount / pieces.pixels.cpu().double()[members]
        values += shares[pieces.labels.cpu()]
    else:
        values[each.node.mask] += amount
