"""The joint search: what it asks for, what it costs, and that its exchange only gains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import sightline
from sightline.models.passes import counting
from sightline.perturb.endpoints import BLURS, Endpoints
from sightline.perturb.search import joint
from sightline.perturb.search.composites import Composite, Search, side_by_side
from sightline.perturb.search.greedy import Rule, most_passes, passes
from sightline.perturb.search.joint import JointPace, most_together, together
from sightline.perturb.segments import grid_segments
from sightline.types import Custom

SEGMENTS = grid_segments((8, 8), (4, 4))


def grouped(images: Tensor) -> Tensor:
    """Logits of a function to which segments add in groups, so that what one adds depends on those before it."""
    cells = torch.nn.functional.avg_pool2d(images.mean(dim=1, keepdim=True), 2).flatten(1)
    weights = torch.rand(16, 16, dtype=cells.dtype, generator=torch.Generator().manual_seed(0)) ** 8
    return (cells @ weights).pow(4).sum(dim=1, keepdim=True)


def first(logits: Tensor) -> Tensor:
    return logits[:, 0]


def ends(image: Tensor) -> Endpoints:
    blank = torch.zeros_like(image)
    full, empty = grouped(torch.stack([image, blank]))[:, 0].tolist()
    return Endpoints(image, blank, blank, full, empty, empty, 31)


def search(points: Endpoints, pace: JointPace) -> tuple[list[int], list[float]]:
    searches = [together(points, SEGMENTS, list(range(16)), pace)]
    (found,) = side_by_side(sightline.adapt(grouped), Custom(first), searches)
    return found


@pytest.fixture
def bright() -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.rand(3, 8, 8, dtype=torch.float64, generator=generator) for _ in range(3)]


def areas(order: Sequence[int], image: Tensor) -> list[float]:
    """Return insertion minus deletion at the boundaries of blocks of two, one composite at a time."""
    points, found = ends(image), []
    for boundary in range(2, 16, 2):
        inserted, deleted = Composite(image, points.blank, SEGMENTS), Composite(points.blank, image, SEGMENTS)
        for segment in order[:boundary]:
            inserted.paste(segment)
            deleted.paste(segment)
        rising, falling = (float(grouped(each.canvas[None])) / points.full for each in (inserted, deleted))
        found.append(rising - falling)
    return found


def unchanged(curves: Any, order: list[int], *rest: Any) -> Search[list[int]]:
    return order
    yield


def test_an_exchange_never_lowers_a_boundary_and_raises_some(
    bright: list[Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(joint, "PASSES", 20.0)
    monkeypatch.setattr(joint, "PLACED", 1.0)
    exchanged = [areas(search(ends(image), JointPace(4))[0], image) for image in bright]
    monkeypatch.setattr(joint, "_exchange", unchanged)
    greedy = [areas(search(ends(image), JointPace(4))[0], image) for image in bright]
    pairs = [pair for new, old in zip(exchanged, greedy, strict=True) for pair in zip(new, old, strict=True)]
    assert all(new >= old - 1e-12 for new, old in pairs)
    assert sum(new > old + 0.01 for new, old in pairs) >= 3


def test_the_scores_are_those_of_the_deletion(bright: list[Tensor]) -> None:
    order, scores = search(ends(bright[0]), JointPace(16))
    canvas, at = bright[0].clone(), []
    for segment in order:
        SEGMENTS.paste(canvas, torch.zeros_like(canvas), segment)
        at.append(float(grouped(canvas[None])))
    assert scores[1::2] == pytest.approx(at[1::2], abs=1e-12)  # measured at the boundaries of blocks of two
    halfway = [(one + other) / 2 for one, other in zip([ends(bright[0]).full, *at[1::2]], at[1::2], strict=False)]
    assert scores[::2] == pytest.approx(halfway, abs=1e-12)


@pytest.mark.parametrize("pace", [
    JointPace(16), JointPace(3), JointPace(5, per_step=4),
    JointPace(16, deleting=False), JointPace(16, inserting=False),
])  # fmt: skip
@pytest.mark.parametrize("most", [2.5, 4.3, 9.0])
def test_passes_stay_below_what_is_allowed(
    most: float, pace: JointPace, bright: list[Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(joint, "PASSES", most)
    for image in bright:
        with counting() as meter:
            order, _ = search(ends(image), pace)
        assert sorted(order) == list(range(16))
        assert 0 < meter.passes.forward <= most_together(16)


@pytest.mark.parametrize("inserted", [1, 7, 29, 48, 100])
def test_it_takes_a_quarter_of_the_exact_searchs_passes(inserted: int) -> None:
    exact = passes(196, inserted, Rule(28))
    fixed = 2 + len(BLURS) + 2 * 223 + 54 + 25  # both also pay for the ends, two curves, the comparison and the seed
    assert most_passes(196, Rule(28, joint=True)) + fixed <= 1410
    assert most_passes(196, Rule(28, joint=True)) + fixed <= (exact + fixed) / 4


def test_a_set_is_measured_once(bright: list[Tensor]) -> None:
    asked: list[tuple[int, ...]] = []
    points = ends(bright[0])
    searching = together(points, SEGMENTS, list(range(16)), JointPace(16, deleting=False))
    question = next(searching)
    while True:
        canvases = [question.composite.canvas.clone() for _ in question.groups]
        for canvas, group in zip(canvases, question.groups, strict=True):
            question.composite.draw(canvas, group)
        if torch.equal(question.composite.canvas, points.blank):
            asked += [tuple(group) for group in question.groups]
        try:
            question = searching.send(grouped(torch.stack(canvases))[:, 0])
        except StopIteration:
            break
    assert len(asked) == len(set(asked)) > 30


def test_insertion_alone_does_not_depend_on_the_blank_image(bright: list[Tensor]) -> None:
    points = ends(bright[0])
    grey = torch.full_like(points.blank, 0.7)
    other = replace(points, blank=grey, empty=float(grouped(grey[None])))
    alone, both = JointPace(16, deleting=False), JointPace(16)
    assert search(points, alone)[0] == search(other, alone)[0]
    assert search(points, both)[0] != search(other, both)[0]
