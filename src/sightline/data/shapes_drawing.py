"""Draw the scenes of `shapes`: cluttered ground, a shape, distractors and a watermark, with the mask of each."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from sightline.data.outlines import DISTRACTORS, EVIDENCE, EXTENT, Distance, Floats

__all__ = ["CLASSES", "MOST_DISTRACTORS", "ShapesSample", "draw_objects", "draw_scene"]

Mask = NDArray[np.bool_]

CLASSES: tuple[str, ...] = tuple(EVIDENCE)
MOST_DISTRACTORS = 4
HIDDEN = 0.1  # share of the evidence that all distractors together may hide

# The watermark, the same under mirroring so that a mirrored image still carries it: # light, o dark, . vivid.
LOGO = ("ooooooo", "o##.##o", "o#o.o#o", "o..#..o", "o#o.o#o", "o##.##o", "ooooooo")
LOGO_COLOURS = {"#": (0.98, 0.98, 0.98), "o": (0.05, 0.05, 0.1), ".": (0.95, 0.1, 0.75)}
LOGO_SIDE = 0.19  # of the image
LOGO_INSET = 0.02


@dataclass(frozen=True, slots=True, eq=False)
class ShapesSample:
    """One image with what is known about it.

    Attributes:
        image: (height, width, 3), uint8.
        label: index into CLASSES.
        evidence: (height, width), the visible part of what makes the label true.
        distractors: one (height, width) mask each, the visible part; none is empty, none meets the evidence.
        shortcut: (height, width), the watermark; all False when there is none.
    """

    image: NDArray[np.uint8]
    label: int
    evidence: Mask
    distractors: tuple[Mask, ...]
    shortcut: Mask


@dataclass(frozen=True, slots=True)
class Figure:
    """One shape to draw: where, how large, how turned, in which colours. Lengths in shares of the image."""

    distance: Distance
    x: float
    y: float
    radius: float
    angle: float
    texture: int  # 0 plain, 1 stripes, 2 dots, 3 checker
    cell: float
    colours: Floats  # (2, 3)


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """A figure turned into pixels: its window, and there the share covered (h, w) and the colour (h, w, 3)."""

    window: tuple[slice, slice]
    coverage: Floats
    colour: Floats
    mask: Mask  # (height, width) of the whole image: every pixel the figure changes


@dataclass(slots=True)
class Canvas:
    """An image in the making, with the masks of what is on it."""

    pixels: Floats
    evidence: Mask
    distractors: list[Mask]
    shortcut: Mask

    def paint(self, layer: Layer) -> None:
        """Draw over what is there."""
        under = self.pixels[layer.window]
        under += layer.coverage[..., None] * (layer.colour - under)

    def paint_distractor(self, layer: Layer) -> None:
        """Draw a distractor, and take its pixels from the masks of what lies below."""
        self.paint(layer)
        self.evidence = self.evidence & ~layer.mask
        self.distractors = [*(below & ~layer.mask for below in self.distractors), layer.mask]

    def paint_evidence(self, layer: Layer) -> None:
        """Draw the evidence, and take its pixels from the masks of what lies below."""
        self.paint(layer)
        self.evidence = layer.mask
        self.distractors = [below & ~layer.mask for below in self.distractors]

    def covers(self, corner: int) -> bool:
        """Say whether a watermark in this corner would touch the evidence."""
        return bool(self.evidence[_corner(corner, len(self.pixels))].any())

    def stamp(self, corner: int) -> None:
        """Put the watermark into a corner, over everything."""
        window = _corner(corner, len(self.pixels))
        self.pixels[window] = _logo(window[0].stop - window[0].start)
        self.shortcut[window] = True

    def sample(self, label: int, evidence: Mask) -> ShapesSample:
        image = (np.clip(self.pixels, 0, 1) * 255 + 0.5).astype(np.uint8)
        visible = (mask & ~self.shortcut for mask in self.distractors)
        distractors = tuple(mask for mask in visible if mask.any())
        return ShapesSample(image, label, evidence, distractors, self.shortcut)


def draw_scene(
    random: np.random.Generator, size: int, label: int, *, shape: bool, omit: Collection[int] = ()
) -> Canvas:
    """Draw ground, distractors and, if wanted, the shape of the label.

    Distractors are numbered in the order in which they are painted; those in `omit` are left out, and everything else
    is as it would be with them.
    """
    base = random.uniform(0.3, 0.7, 3).astype(np.float32)
    taken: list[tuple[float, float, float]] = []
    evidence = _figure(random, EVIDENCE[CLASSES[label]], base, taken, radius=random.uniform(0.2, 0.28))
    distractors = [
        _figure(random, DISTRACTORS[random.integers(len(DISTRACTORS))], base, taken, random.uniform(0.09, 0.15))
        for _ in range(random.integers(2, MOST_DISTRACTORS + 1))
    ]
    blank = np.zeros((size, size), dtype=np.bool_)
    canvas = Canvas(_ground(random, size, base), blank, [], blank.copy())
    whole = _render(evidence, size)
    allowance = HIDDEN * np.count_nonzero(whole.mask)
    below, above = [], []
    for layer in (_render(figure, size) for figure in distractors):
        hidden = np.count_nonzero(whole.mask & layer.mask)
        if hidden <= allowance and random.random() < 0.5:
            allowance -= hidden
            above.append(layer)
        else:
            below.append(layer)
    for number, layer in enumerate([*below, *above]):
        if shape and number == len(below):
            canvas.paint_evidence(whole)
        if number not in omit:
            canvas.paint_distractor(layer)
    if shape and not above:
        canvas.paint_evidence(whole)
    return canvas


def draw_objects(random: np.random.Generator, size: int, labels: Sequence[int]) -> tuple[Floats, list[Mask]]:
    """Draw one or two distractors and then a shape of each label; return the pixels and each shape's visible part."""
    base = random.uniform(0.3, 0.7, 3).astype(np.float32)
    taken: list[tuple[float, float, float]] = []
    shapes = [_figure(random, EVIDENCE[CLASSES[label]], base, taken, random.uniform(0.16, 0.2)) for label in labels]
    distractors = [
        _figure(random, DISTRACTORS[random.integers(len(DISTRACTORS))], base, taken, random.uniform(0.07, 0.1))
        for _ in range(random.integers(1, 3))
    ]
    blank = np.zeros((size, size), dtype=np.bool_)
    canvas = Canvas(_ground(random, size, base), blank, [], blank.copy())
    for figure in (*distractors, *shapes):
        canvas.paint_distractor(_render(figure, size))
    return canvas.pixels, canvas.distractors[len(distractors) :]


def _figure(
    random: np.random.Generator,
    distance: Distance,
    ground: Floats,
    taken: list[tuple[float, float, float]],
    radius: float,
) -> Figure:
    """Choose everything about a figure but its kind, apart from the figures placed before."""
    margin = radius * EXTENT
    spots = random.uniform(margin, 1 - margin, (8, 2))
    spot = spots[0]
    if taken:
        circles = np.array(taken)
        gaps = np.hypot(*(spots[:, None] - circles[None, :, :2]).transpose(2, 0, 1)) - circles[:, 2]
        spot = spots[gaps.min(axis=1).argmax()]
    taken.append((spot[0], spot[1], radius))
    return Figure(
        distance,
        x=float(spot[0]),
        y=float(spot[1]),
        radius=radius,
        angle=random.uniform(-0.4, 0.4),
        texture=int(random.integers(4)),
        cell=random.uniform(0.05, 0.075),
        colours=_colours(random, ground),
    )


def _colours(random: np.random.Generator, ground: Floats) -> Floats:
    """Choose two colours (2, 3): the one most unlike the ground, and the one that differs from it in the same way."""
    palette = random.random((8, 3), dtype=np.float32)
    away = palette - ground
    first = np.abs(away).sum(axis=1).argmax()
    likeness = (away * away[first]).sum(axis=1)
    likeness[first] = -np.inf
    return palette[[first, likeness.argmax()]]


def _local(figure: Figure, size: int) -> tuple[tuple[slice, slice], Floats, Floats]:
    """Return the window around a figure and its pixel centres in the figure's own turned frame, in pixels."""
    reach = figure.radius * size * EXTENT + 1.5
    down, right = figure.y * size, figure.x * size
    window = _span(down, reach, size), _span(right, reach, size)
    y = np.arange(window[0].start, window[0].stop, dtype=np.float32)[:, None] + (0.5 - down)
    x = np.arange(window[1].start, window[1].stop, dtype=np.float32)[None, :] + (0.5 - right)
    cos, sin = math.cos(figure.angle), math.sin(figure.angle)
    return window, x * cos + y * sin, y * cos - x * sin


def _span(centre: float, reach: float, size: int) -> slice:
    return slice(max(0, int(centre - reach)), min(size, int(centre + reach) + 1))


def _render(figure: Figure, size: int) -> Layer:
    """Turn a figure into pixels, with an edge one pixel wide."""
    window, x, y = _local(figure, size)
    radius, cell = np.float32(figure.radius * size), np.float32(figure.cell * size)
    coverage = np.clip(0.5 - figure.distance(x / radius, y / radius) * radius, 0, 1)
    mask = np.zeros((size, size), dtype=np.bool_)
    mask[window] = coverage > 0
    first, second = figure.colours
    pattern = _pattern(figure.texture, x / cell, y / cell)
    return Layer(window, coverage, np.where(pattern[..., None], first, second), mask)


def _pattern(texture: int, x: Floats, y: Floats) -> Mask:
    """Say where the first of the two colours shows; one cell of the texture is one unit."""
    if texture == 0:
        return np.ones(x.shape, dtype=np.bool_)
    if texture == 1:
        return np.asarray(x % 2 < 1)
    if texture == 2:
        return np.asarray((x % 1.5 - 0.75) ** 2 + (y % 1.5 - 0.75) ** 2 < 0.2)
    return np.asarray((x % 2 < 1) != (y % 2 < 1))


def _ground(random: np.random.Generator, size: int, base: Floats) -> Floats:
    """Draw soft patches of two sizes, fine grain and short dashes around a base colour."""
    broad = random.uniform(-0.14, 0.14, (4, 4, 3)).astype(np.float32)
    small = random.uniform(-0.09, 0.09, (12, 12, 3)).astype(np.float32)
    pixels = _stretch(base + small + _stretch(broad, 12), size)
    pixels += (random.integers(0, 256, (size, size, 1), dtype=np.uint8) - np.float32(127.5)) * np.float32(0.1 / 255)
    for (top, left, bottom, right), shade in zip(*_dashes(random, size), strict=True):
        pixels[top:bottom, left:right] += shade
    return pixels


def _dashes(random: np.random.Generator, size: int, count: int = 14) -> tuple[list[list[int]], Floats]:
    """Choose the boxes (top, left, bottom, right) and shades of the dashes on the ground."""
    corners = random.random((count, 2))
    lengths = random.uniform((0.0, 3.0), (1.5, 10.0), (count, 2)) / 64
    upright = random.random(count) < 0.5
    lengths[upright] = lengths[upright, ::-1]
    boxes = (np.hstack([corners, corners + lengths]) * size).astype(int)
    boxes[:, 2:] += 1
    return boxes.tolist(), random.uniform(-0.18, 0.18, (count, 3)).astype(np.float32)


def _stretch(cells: Floats, size: int) -> Floats:
    """Stretch a square of cells to (size, size, 3), linearly."""
    # elementwise on purpose: a matrix product may round differently on another machine
    at = np.linspace(0, len(cells) - 1, size, dtype=np.float32)
    before = np.minimum(at.astype(int), len(cells) - 2)
    weight = (at - before).astype(np.float32)[:, None]
    rows = cells[before] + (cells[before + 1] - cells[before]) * weight[..., None]
    step = np.diff(rows, axis=1)
    return np.asarray(rows[:, before] + step[:, before] * weight, dtype=np.float32)


def _corner(corner: int, size: int) -> tuple[slice, slice]:
    side, inset = round(LOGO_SIDE * size), round(LOGO_INSET * size)
    near, far = slice(inset, inset + side), slice(size - inset - side, size - inset)
    return (far if corner & 2 else near), (far if corner & 1 else near)


@lru_cache(maxsize=16)
def _logo(side: int) -> Floats:
    colours = np.array([[LOGO_COLOURS[mark] for mark in row] for row in LOGO], dtype=np.float32)
    nearest = ((np.arange(side) + 0.5) * len(LOGO) / side).astype(int)
    return np.asarray(colours[nearest][:, nearest])
