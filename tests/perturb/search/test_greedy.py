"""The greedy search: what it asks for, and what it costs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import sightline
from sightline.models.passes import counting
from sightline.perturb.endpoints import BLURS, Endpoints, find_endpoints
from sightline.perturb.search import greedy as greedy_module
from sightline.perturb.search.composites import Composite, Measure, Search, side_by_side
from sightline.perturb.search.greedy import Rule, greedy, most_passes, passes, released_length
from sightline.perturb.search.interior_point import early_fit
from sightline.perturb.search.lazy import Pace
from sightline.perturb.search.magnitudes import convex_fit
from sightline.perturb.search.shortlist import Shortlist
from sightline.perturb.segments import grid_segments
from sightline.types import Custom

SEGMENTS = grid_segments((8, 8), (4, 4))


def brightness(images: Tensor) -> Tensor:
    """Logits of a function: how bright all pixels are, and nothing else."""
    return images.mean(dim=(1, 2, 3))[:, None] - 2


def first(logits: Tensor) -> Tensor:
    return logits[:, 0]


def ends(image: Tensor) -> Endpoints:
    blank = torch.zeros_like(image)
    return Endpoints(image, blank, blank, float(image.mean()) - 2, -2.0, -2.0, 31)


def run(images: list[Tensor], rule: Rule, seed: list[int] | None = None) -> list[Any]:
    model = sightline.adapt(brightness)
    searches = [greedy(ends(image), SEGMENTS, seed or list(range(16)), rule) for image in images]
    return side_by_side(model, Custom(first), searches)


def by_brightness(image: Tensor) -> list[int]:
    return SEGMENTS.means(image.mean(dim=0)).argsort(descending=True).tolist()


@pytest.fixture
def bright() -> list[Tensor]:
    return [torch.rand(3, 8, 8, dtype=torch.float64) for _ in range(3)]


@pytest.mark.parametrize(
    "rule",
    [
        Rule(16),
        Rule(16, tau=1),
        Rule(16, tau=0),
        Rule(16, per_step=5),
        Rule(16, fast=True),
        Rule(16, lazy=True),
        Rule(16, joint=True),
    ],
)
def test_images_side_by_side_find_their_own_orders(rule: Rule, bright: list[Tensor]) -> None:
    for image, found in zip(bright, run(bright, rule), strict=True):
        assert list(found.order) == by_brightness(image)
        assert found.deletion[-1] == pytest.approx(float(image.mean()) - 2)
        assert len(found.deletion) == 16


def test_a_window_keeps_to_the_seed(bright: list[Tensor]) -> None:
    (found,) = run(bright[:1], Rule(1), seed=list(range(16)))
    assert found.order == tuple(range(16))


def test_of_equal_candidates_the_first_is_taken() -> None:
    (found,) = run([torch.ones(3, 8, 8)], Rule(4, tau=1), seed=[*range(8, 16), *range(8)])
    assert found.order == (*range(8, 16), *range(8))


@pytest.mark.parametrize("rule", [
    Rule(5), Rule(16), Rule(5, tau=0), Rule(5, tau=1), Rule(5, per_step=2), Rule(6, fast=True), Rule(16, fast=True),
    Rule(6, per_step=3, fast=True), Rule(4, per_step=4, fast=True), Rule(5, lazy=True), Rule(16, lazy=True),
    Rule(5, tau=0, lazy=True), Rule(5, tau=1, lazy=True), Rule(6, per_step=3, lazy=True),
    Rule(5, joint=True), Rule(16, joint=True), Rule(5, tau=0, joint=True), Rule(5, tau=1, joint=True),
    Rule(6, per_step=3, joint=True),
])  # fmt: skip
def test_passes_are_known_beforehand(rule: Rule, bright: list[Tensor]) -> None:
    with counting() as meter:
        (found,) = run(bright[:1], rule)
    spent, wanted = meter.passes.forward, passes(16, len(found.insertion), rule)
    assert spent <= wanted if rule.fast or rule.joint else spent == wanted
    assert wanted <= most_passes(16, rule)
    assert meter.passes.backward == 0


@pytest.mark.parametrize("inserted", [1, 7, 29, 48, 60, 100, 196])
def test_a_fast_search_takes_less_than_half_of_the_exact_ones_passes(inserted: int) -> None:
    exact, fast = passes(196, inserted, Rule(28)), passes(196, inserted, Rule(28, fast=True))
    fixed = 2 + len(BLURS) + 2 * 223 + 25  # both also pay for the ends, two curves, and the seed
    assert fast + fixed <= (exact + fixed) / 2


@pytest.mark.parametrize("inserted", [1, 7, 29, 48])
def test_a_lazy_search_takes_a_quarter_of_the_exact_ones_passes(inserted: int) -> None:
    exact, lazy = passes(196, inserted, Rule(28)), passes(196, inserted, Rule(28, lazy=True))
    fixed = 2 + len(BLURS) + 2 * 223 + 54 + 25  # both also pay for the ends, two curves, the comparison and the seed
    assert lazy + fixed <= (exact + fixed) / 4


def curious(images: Tensor) -> Tensor:
    """Logits of a function in which segments matter together, so that gains change from step to step."""
    cells = torch.nn.functional.avg_pool2d(images.mean(dim=1, keepdim=True), 2).flatten(1)
    mixed = torch.rand(16, 16, dtype=cells.dtype, generator=torch.Generator().manual_seed(0))
    return torch.sin(3 * cells @ mixed).sum(dim=1, keepdim=True)


def test_a_lazy_search_that_measures_all_candidates_one_by_one_is_the_exact_one(
    bright: list[Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = sightline.adapt(curious)
    scores = [float(curious(torch.stack([image, torch.zeros_like(image)]))[0]) for image in bright]
    empty = float(curious(torch.zeros(1, 3, 8, 8, dtype=torch.float64)))
    points = [
        Endpoints(image, torch.zeros_like(image), torch.zeros_like(image), full, empty, empty, 31)
        for image, full in zip(bright, scores, strict=True)
    ]

    def orders(rule: Rule) -> list[Any]:
        searches = [greedy(point, SEGMENTS, list(range(16)), rule) for point in points]
        return [
            (found.order, found.insertion, found.deletion) for found in side_by_side(model, Custom(first), searches)
        ]

    for options in ({}, {"tau": 0.0}, {"tau": 1.0}):
        assert orders(Rule(12, lazy=True, **options)) != orders(Rule(12, **options))
    monkeypatch.setattr(greedy_module, "AGAIN", 12)
    monkeypatch.setattr(greedy_module, "PARTS", 0)
    monkeypatch.setattr(greedy_module, "LAZY_SHARE", 2.0)
    for options in ({}, {"tau": 0.0}, {"tau": 1.0}):
        for got, want in zip(orders(Rule(12, lazy=True, **options)), orders(Rule(12, **options)), strict=True):
            assert got == want


def test_blocks_shrink_with_what_is_left() -> None:
    pace = Pace(window=28, again=6, parts=10)
    assert [pace.sizes(left) for left in (196, 60, 20, 19, 1)] == [(19, 57), (6, 28), (2, 20), (1, 19), (1, 1)]
    assert Pace(4, 2).sizes(196) == (1, 4)
    assert Pace(4, 2, per_step=3).sizes(196) == (3, 4)


def test_the_exact_search_at_14_by_14_costs_what_the_authors_count() -> None:
    assert passes(196, 7, Rule(28)) == 5117


def test_the_released_program_drops_insertions() -> None:
    rule = Rule(window=4, tau=0.9)
    steps = [(segment, score) for segment, score in enumerate([0.1, 0.92, 0.5, 0.95])]
    assert released_length(steps, 16, rule) == 2  # the first probability of .9, not scaled
    late = [(segment, 0.1) for segment in range(14)]
    assert released_length(late, 16, rule) == 2  # ended 2 into the last 4 of 16


def test_a_shortlist_names_newcomers_the_best_and_those_that_waited() -> None:
    shortlist = Shortlist(size=4, sign=1)
    assert shortlist.choose([5, 3, 8]) == [5, 3, 8]
    shortlist.learn([5, 3, 8, 1, 0, 7], [0.1, 0.5, 0.2, 0.4, 0.3, 0.01], before=0.05)
    shortlist.learn([5, 3, 8, 1, 0], [0.1, 0.5, 0.2, 0.4, 0.3], before=0.05)
    assert shortlist.choose([7, 5, 0, 1, 3, 8, 9]) == [7, 1, 3, 9]  # 9 new, 3 and 1 best, 7 longest ago
    assert Shortlist(4, 1).choose(range(9)) == list(range(9))


def test_scores_below_zero_are_no_obstacle() -> None:
    shortlist = Shortlist(size=2, sign=-1)
    shortlist.learn([0, 1, 2], [-0.5, 0.0, 0.3], before=-0.1)
    assert shortlist.choose([0, 1, 2]) == [0, 1]


def test_a_search_that_asks_nothing_is_over_at_once() -> None:
    def silent() -> Search[str]:
        return "done"
        yield Measure(Composite(torch.zeros(3, 8, 8), torch.zeros(3, 8, 8), SEGMENTS), [])

    assert side_by_side(sightline.adapt(brightness), Custom(first), [silent()]) == ["done"]


def test_ends_blur_until_the_class_is_gone() -> None:
    """One image loses its score with the narrowest blur, the other never does."""
    chequered = (torch.arange(64)[:, None] + torch.arange(64)).remainder(2).mul(2.0).sub(1).expand(3, 64, 64)
    images = torch.stack([chequered, torch.ones(3, 64, 64)])
    model = sightline.adapt(lambda batch: batch.square().mean(dim=(1, 2, 3))[:, None])
    with torch.no_grad(), counting() as meter:
        lost, kept = find_endpoints(model, images, Custom(first))
    assert (lost.side, kept.side) == (31, 101)
    assert lost.blur <= 0.01 < kept.blur
    assert (lost.full, lost.empty) == (1.0, 0.0)
    assert meter.passes.forward == 4 + 1 + len(BLURS)


@pytest.mark.parametrize("name", ["mda_grid_A", "mda_slic_A"])
def test_the_early_fit_stops_where_the_authors_solver_does(name: str, shared: Path) -> None:
    numbers = np.load(shared / "golden" / "photo" / f"{name}.npz")
    for i in (1, 2):
        assert np.abs(early_fit(numbers[f"curve{i}_f64"]) - numbers[f"curve{i}_fit_f64"]).max() < 1e-7


def test_the_early_fit_is_nearly_the_exact_one() -> None:
    curve = np.minimum.accumulate(np.array([1.0, 0.7, 0.8, 0.75, 0.3, 0.35, 0.1, 0.0]))
    assert np.abs(early_fit(curve) - convex_fit(curve)).max() < 1e-3


def test_a_level_of_nothing_lets_the_seed_speak(bright: list[Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    """Below the level a fast deletion follows the seed, three candidates a step; an untrusting one does not."""
    monkeypatch.setattr("sightline.perturb.search.greedy.NOTHING", 2.0)
    (found,) = run(bright[:1], Rule(16, tau=0, fast=True))
    assert found.order == tuple(range(16))
    (found,) = run(bright[:1], Rule(16, tau=0, fast=True, trusting=False))
    assert list(found.order) == by_brightness(bright[0])
