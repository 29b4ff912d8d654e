"""Owen values: Shapley values with a hierarchy of groups, whose coalitions never split a group outside their own.

A node of the hierarchy is a set of pixels that can be split in two. `Box` splits an image along its axes down to the
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
    """A node of a hierarchy: a set of pixels."""

    @property
    def mask(self) -> Tensor:
        """The pixels, shape (height, width), bool."""
        ...

    @property
    def size(self) -> int:
        """How many leaves are below it."""
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
        inside = torch.zeros(self.image, dtype=torch.bool)
        inside[slice(*self.rows), slice(*self.columns)] = True
        return inside

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
    """Segments, grouped by nested tuples of their numbers."""

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
    """Refuse a hierarchy that does not contain every segment once."""
    if sorted(leaves(members)) != list(range(pieces.count)):
        raise ShapeError(
            f"got a hierarchy of the segments {sorted(leaves(members))}; every number from 0 to {pieces.count - 1} "
            "is needed once"
        )


def spatial_tree(pieces: Segments) -> Nested:
    """Build a hierarchy by position: segments are halved recursively along the axis on which their centres spread most.

    On a grid these are the halves into which `Box` splits its cells.
    """
    height, width = pieces.labels.shape
    rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    centres = torch.stack([pieces.means(x.to(pieces.labels.device).double()).cpu() for x in (rows, columns)])

    def grouped(members: Tensor) -> Nested:
        if len(members) == 1:
            return int(members[0])
        spread = centres[:, members].amax(dim=1) - centres[:, members].amin(dim=1)
        along = centres[0 if spread[0] >= spread[1] else 1, members]
        distinct = along.unique()
        # neighbours in a row of a grid stay together: the split is between different positions where there are any
        below = (
            along < distinct[len(distinct) // 2]
            if len(distinct) > 1
            else torch.arange(len(members)) < len(members) // 2
        )
        return grouped(members[below]), grouped(members[~below])

    return grouped(torch.arange(pieces.count))


@dataclass(order=True, slots=True)
class _Pending:
    """A node to be split, beside the nodes of its context; in a heap those with the largest effect come first."""

    priority: float
    number: int
    node: Node = field(compare=False)
    context: tuple[Node, ...] = field(compare=False)
    score_without: float = field(compare=False)
    score_with: float = field(compare=False)
    weight: float = field(compare=False)


def owen_values(root: Node, empty: float, full: float, evaluations: int, per_step: int) -> Search:
    """Distribute full − empty along a hierarchy: a generator of masks that is sent their scores and returns the map.

    A node that adds :math:`d` to its context is split into a and b; the value of a is half of what it adds to the
    context and half of what it adds to context and b, and likewise for b. Nodes with the largest :math:`|d|` times
    weight are split first. When no evaluations are left, the value of a node is spread evenly over its leaves.

    Args:
        root: all pixels.
        empty: score without any of them.
        full: score with all.
        evaluations: how many masks may be scored, two for each split.
        per_step: how many nodes are split at a time.
    """
    values = torch.zeros(root.mask.shape, dtype=torch.float64)
    heap = [_Pending(0.0, 0, root, (), empty, full, 1.0)]
    number = 0
    while heap:
        step: list[tuple[_Pending, Node, Node]] = []
        while heap and len(step) < per_step and 2 * len(step) + 2 <= evaluations:
            first = heapq.heappop(heap)
            halves = first.node.split()
            if halves is None:
                _spread(values, first)
            else:
                step.append((first, *halves))
        if not step:
            break
        evaluations -= 2 * len(step)
        masks = [_union(*parent.context, half) for parent, *halves in step for half in halves]
        scores = iter((yield torch.stack(masks)))
        for parent, left, right in step:
            with_left, with_right = next(scores), next(scores)
            beside_right, beside_left = (*parent.context, right), (*parent.context, left)
            for node, context, score_without, score_with in (
                (left, parent.context, parent.score_without, with_left),
                (right, parent.context, parent.score_without, with_right),
                (left, beside_right, with_right, parent.score_with),
                (right, beside_left, with_left, parent.score_with),
            ):
                number += 1
                weight = parent.weight / 2
                priority = -abs(score_with - score_without) * weight
                heapq.heappush(heap, _Pending(priority, number, node, context, score_without, score_with, weight))
    for pending in heap:
        _spread(values, pending)
    return values


def _union(*nodes: Node) -> Tensor:
    inside = nodes[0].mask
    for node in nodes[1:]:
        inside |= node.mask
    return inside


def _spread(values: Tensor, pending: _Pending) -> None:
    """Add a node's value to the map: the same to each of its leaves, and a leaf's evenly to its pixels."""
    node = pending.node
    amount = (pending.score_with - pending.score_without) * pending.weight / node.size
    if isinstance(node, Group):
        pieces, members = node.pieces, leaves(node.members)
        shares = values.new_zeros(pieces.count)
        shares[members] = amount / pieces.pixels.cpu().double()[members]
        values += shares[pieces.labels.cpu()]
    else:
        values[node.mask] += amount
