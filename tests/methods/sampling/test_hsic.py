"""HSIC: the estimator by hand and written out, masks, and where the evidence is known."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import sightline
from sightline.data.shapes import Shapes
from sightline.errors import RecipeError
from sightline.methods.sampling.hsic import Dependence, dependence, latin_masks, sobol_masks


def test_by_hand_on_two_samples() -> None:
    """z = (1, 0), s = (1, 3), σ = 2: z̃ = (½, −½), L = (1, e^−½; e^−½, 1), so 2/2 · ½ (1 − e^−½)."""
    got = dependence(torch.tensor([[True], [False]]), torch.tensor([[1.0, 3.0]]))
    assert_close(got, torch.tensor([[0.5 * (1 - torch.exp(torch.tensor(-0.5)))]]))


def written_out(masks: Tensor, scores: Tensor, sigma: Tensor) -> Tensor:
    """Kernel matrices centred on both sides, and the sum of their product, cell by cell."""
    count = len(masks)
    centre = torch.eye(count, dtype=torch.float64) - 1 / count
    outputs = torch.exp(-((scores[:, None] - scores) ** 2) / (2 * sigma**2))
    criteria = []
    for cell in masks.double().T:
        inputs = 1 + (0.5 - (cell[:, None] - cell) ** 2)
        criteria.append(((centre @ inputs @ centre) * (centre @ outputs @ centre).T).sum() / count)
    return torch.stack(criteria)


@pytest.mark.parametrize("width", ["median", "distance"])
def test_equals_the_estimator_written_out(width: Any) -> None:
    masks, scores = torch.rand(40, 6) > 0.4, torch.randn(40, dtype=torch.float64) + 2
    pairs = [abs(a - b) for i, a in enumerate(scores.tolist()) for b in scores.tolist()[i + 1 :]]
    sigma = scores.quantile(0.5) if width == "median" else torch.tensor(pairs, dtype=torch.float64).quantile(0.5)
    assert_close(dependence(masks, scores[None], width)[0], written_out(masks, scores, sigma), atol=1e-12, rtol=0)


def test_what_the_score_does_not_depend_on_gets_next_to_nothing() -> None:
    masks = latin_masks(1000, 16, torch.Generator().manual_seed(1))
    scores = masks[:, 3].double() + 1
    criteria = dependence(masks, scores[None])[0]
    assert criteria.argmax() == 3
    assert criteria[3] > 100 * criteria[torch.arange(16) != 3].max()
    alone = dependence(masks, torch.rand(1, 1000, dtype=torch.float64) + 1)[0]
    assert alone.max() < criteria[3] / 100


def test_dependence_is_seen_in_whatever_way_it_comes() -> None:
    """A cell that only widens the scores has no correlation with them."""
    masks = latin_masks(1000, 4, torch.Generator().manual_seed(2))
    sign = torch.randint(2, (1000,), generator=torch.Generator().manual_seed(3)) * 2.0 - 1
    scores = 5 + sign * (1 + 2 * masks[:, 1])
    assert dependence(masks, scores[None].double(), "distance")[0].argmax() == 1


def test_equal_scores_depend_on_nothing_and_zero_has_no_width() -> None:
    masks = torch.rand(20, 3) > 0.5
    assert_close(dependence(masks, torch.zeros(1, 20)), torch.zeros(1, 3), atol=1e-7, rtol=0)
    mixed = torch.cat([torch.zeros(15), torch.ones(5)])[None]
    assert torch.isfinite(dependence(masks, mixed)).all()


def test_a_constant_on_all_scores_changes_nothing_by_distance() -> None:
    masks, scores = torch.rand(30, 5) > 0.5, torch.randn(1, 30, dtype=torch.float64)
    assert_close(dependence(masks, scores, "distance"), dependence(masks, scores + 7, "distance"))


def test_sobol_masks_are_the_first_digits_of_the_sequence() -> None:
    points = torch.quasirandom.SobolEngine(64).draw(501, dtype=torch.float64)[1:]
    masks = sobol_masks(500, 64)
    assert torch.equal(masks, points > 0.5)
    assert masks.double().mean(dim=0).sub(0.5).abs().max() < 0.01
    assert len(masks.T.unique(dim=0)) == 64
    assert torch.equal(masks, sobol_masks(500, 64))


def test_latin_masks_show_each_cell_half_the_time() -> None:
    for samples in (10, 11):
        masks = latin_masks(samples, 7, torch.Generator().manual_seed(0))
        assert masks.sum(dim=0).tolist() == [samples // 2] * 7


class Cell(nn.Module):
    """Class k is the brightness of the k-th quarter of the image."""

    def forward(self, images: Tensor) -> Tensor:
        return nn.functional.adaptive_avg_pool2d(images.mean(dim=1, keepdim=True), 2).flatten(1)


@pytest.mark.parametrize("recipe", ["hsic(cells=2, samples=64)", "hsic(cells=2, samples=64, variant='latin')"])
def test_finds_the_quarter_that_a_class_looks_at(recipe: str) -> None:
    images = torch.rand(2, 3, 16, 16) + 1
    got = sightline.explain(Cell().eval(), images, recipe, target=(2, 1))
    assert got.map.flatten(1).argmax(dim=1).tolist() == [2, 1]
    assert got.map.shape == (2, 2, 2)
    assert got.passes.forward == 128


@pytest.mark.filterwarnings("ignore:.*constant map")
@pytest.mark.parametrize("variant", ["sobol", "latin"])
def test_a_constant_score_gives_zeros_and_not_its_rounding(variant: str, images: Tensor) -> None:
    recipe = f"hsic(samples=21, variant='{variant}')"
    got = sightline.explain(lambda x: x.new_full((len(x), 3), 0.1), images, recipe, target=1)
    assert (got.map == 0).all()
    assert got.flags == ("constant map", "constant map")


def test_repeats_itself_from_its_seed(tiny_cnn: nn.Module, images: Tensor) -> None:
    first, same, other = (
        sightline.explain(tiny_cnn, images, f"hsic(samples=20, cells=4, variant='latin', seed={seed})", 1).map
        for seed in (3, 3, 4)
    )
    assert torch.equal(first, same)
    assert not torch.allclose(first, other)


def test_the_map_is_that_of_masked_images(tiny_cnn: nn.Module, images: Tensor) -> None:
    masks = sobol_masks(12, 16)
    shown = masks.double().unflatten(1, (4, 4)).repeat_interleave(8, dim=1).repeat_interleave(8, dim=2)
    with torch.no_grad():
        scores = tiny_cnn(images[0] * shown[:, None])[:, 2]
    want = written_out(masks, scores, scores.quantile(0.5)).unflatten(0, (4, 4))
    assert_close(sightline.explain(tiny_cnn, images[:1], "hsic(samples=12, cells=4)", target=2).map[0], want)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bundled/shapes-vit", "bundled/shapes-cnn"])
def test_ranks_the_evidence_first(name: str) -> None:
    adapter, batch = sightline.load(name), Shapes(seed=77).draw(10)
    images, masks = adapter.normalise(batch.images), batch.evidence.long()
    precisions = {}
    for recipe in ("hsic(samples=250)", "random"):
        attribution = sightline.explain(adapter, images, recipe, batch.labels)
        scores = sightline.evaluate(adapter, images, attribution, ["average_precision"], batch.labels, masks)
        precisions[recipe[:4]] = scores["average_precision"]
    margin = precisions["hsic"] - precisions["rand"]
    assert margin.mean() > 5 * margin.std() / len(margin) ** 0.5
    assert precisions["hsic"].mean() > 3 * precisions["rand"].mean()


@pytest.mark.parametrize(
    "options", [{"samples": 1}, {"cells": 0}, {"cells": 200}, {"variant": "x"}, {"width": "x"}, {"blank": "segment"}]
)
def test_refuses_what_cannot_be(options: dict[str, Any]) -> None:
    with pytest.raises(RecipeError):
        Dependence(**options)
