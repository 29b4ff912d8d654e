from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.methods import reference_cnn
from torch.testing import assert_close

from sightline import adapt
from sightline.errors import RecipeError
from sightline.metrics.case import Case
from sightline.metrics.faithfulness.irof import Irof, superpixels
from sightline.metrics.judge import judge
from sightline.perturb.segments import grid_segments
from sightline.recipe import parse_metric, text
from sightline.types import Logit

GRID = "irof(segments=(2, 3))"


def additive(images):
    """The first class's probability is linear in the pixels."""
    p = 0.05 + 0.9 * images.mean(dim=(1, 2, 3))
    return torch.stack([p.log(), (1 - p).log()], dim=1)


def case(images, maps, model=additive):
    return Case(adapt(model), images, Logit(0), maps)


def score(case, recipe=GRID):
    (values,) = judge(case, recipe).values()
    return values


def test_it_is_that_of_quantus():
    model, image = reference_cnn.network("tiny_cnn")
    numbers = reference_cnn.numbers("metric_quantus_tiny_cnn")
    assert np.array_equal(grid_segments((64, 64), (4, 5)).labels, numbers["irof_segments"])
    maps = torch.from_numpy(numbers["attribution"]).sum(dim=0)[None]
    found = score(Case(adapt(model), image, Logit(2), maps), "irof(segments=(4, 5), fill='running_mean')")
    assert found.item() == pytest.approx(numbers["irof_mean_broadcast"].item(), abs=1e-5)


def test_by_hand():
    images = torch.rand(1, 3, 4, 6, dtype=torch.float64)
    means = images.mean(dim=1)[0].reshape(2, 2, 3, 2).mean(dim=(1, 3)).flatten()
    falling = means.sort(descending=True).values
    p = [0.05 + 0.9 * falling[count:].sum().item() / 6 for count in range(7)]
    ratios = np.array(p[1:]) / p[0]
    scores = judge(case(images, images.mean(dim=1)), "irof(segments=(2, 3), fill='zero')")
    (values,), (curve,) = scores.values(), scores.curves.values()
    assert values.item() == pytest.approx(6 - np.trapezoid(ratios))
    np.testing.assert_allclose(curve[0], ratios)


def test_the_true_map_beats_its_shuffle_beats_its_negative():
    images = torch.rand(1, 3, 8, 12, dtype=torch.float64)
    true = images.mean(dim=1)
    pieces = grid_segments((8, 12), (2, 3))
    shuffled = pieces.paint(pieces.means(true[0])[torch.tensor([3, 5, 0, 1, 4, 2])])[None]
    recipe = "irof(segments=(2, 3), fill='zero')"
    best, chance, worst = (score(case(images, maps), recipe).item() for maps in (true, shuffled, -true))
    assert best > chance > worst


def test_the_mean_is_each_channels_own():
    images = torch.rand(1, 3, 4, 6, dtype=torch.float64)
    assert score(case(images, torch.rand(1, 4, 6))).item() != pytest.approx(1)
    flat = images.mean(dim=(2, 3), keepdim=True).expand(-1, -1, 4, 6)
    assert score(case(flat, torch.rand(1, 4, 6))).item() == pytest.approx(1)  # 6 - 5 whole steps: nothing changes


def test_superpixels_follow_the_picture():
    raw = torch.zeros(3, 32, 32)
    raw[:, :, 16:] = 1
    pieces = superpixels(raw, 16)
    assert pieces.count > 4
    for segment in range(pieces.count):
        assert len(raw[0][pieces.labels == segment].unique()) == 1


def test_a_photograph_costs_a_pass_for_each_superpixel():
    down, right = torch.meshgrid(torch.arange(48.0), torch.arange(40.0), indexing="ij")
    raw = torch.stack([(down / 9).sin(), (right / 7).cos(), (down * right / 200).sin()])[None] / 2 + 0.5
    scores = judge(case(raw, torch.rand(1, 48, 40)), "irof(segments=20)")
    (curve,) = scores.curves.values()
    assert 10 < curve.shape[1] < 40
    assert scores.passes.forward == 1 + curve.shape[1]


def test_images_with_different_numbers_of_pieces_share_a_batch():
    images = torch.rand(2, 3, 32, 32)
    images[0] = 0.5
    images[0, :, 8:20, 8:20] = 1
    scores = judge(case(images, torch.rand(2, 32, 32)), "irof(segments=12)")
    (values,), (curve,) = scores.values(), scores.curves.values()
    assert torch.isfinite(values).all()
    for row in range(2):
        alone = judge(case(images[row : row + 1], torch.rand(1, 32, 32)), "irof(segments=12)")
        (length,) = (one.shape[1] for one in alone.curves.values())
        assert torch.isfinite(curve[row, :length]).all()
        assert torch.isnan(curve[row, length:]).all()


def test_a_batch_equals_its_images_one_by_one():
    images, maps = torch.rand(3, 3, 8, 12, dtype=torch.float64), torch.rand(3, 8, 12)
    together = score(case(images, maps))
    alone = torch.cat([score(case(images[row : row + 1], maps[row : row + 1])) for row in range(3)])
    assert_close(together, alone, rtol=0, atol=1e-12)


@pytest.mark.parametrize("value", [0.0, 2.0])
def test_a_constant_map_goes_in_order_and_is_flagged(value):
    images = torch.rand(1, 3, 8, 12)
    scores = judge(case(images, torch.full((1, 8, 12), value)), GRID)
    falling = -grid_segments((8, 12), (2, 3)).labels.float()[None]
    assert_close(next(iter(scores.values())), score(case(images, falling)))
    assert next(iter(scores.flags.values())) == ("constant map",)


def test_one_segment_and_an_answer_of_zero_are_flagged():
    flagged = judge(case(torch.rand(1, 3, 8, 8), torch.rand(1, 8, 8)), "irof(segments=(1, 1))")
    assert next(iter(flagged.flags.values())) == ("one segment",)

    def zero(images):
        return torch.zeros(len(images), 2)

    scores = judge(case(torch.rand(1, 3, 8, 8), torch.rand(1, 8, 8), zero), "irof(segments=(2, 2), score='logit')")
    assert torch.isnan(next(iter(scores.values()))).all()
    assert next(iter(scores.flags.values())) == ("the image scores zero",)


def test_a_grid_finer_than_the_image_is_its_pixels(tiny_vit, images):
    scores = judge(case(torch.rand(1, 3, 2, 3), torch.rand(1, 2, 3)), "irof(segments=(9, 9))")
    assert next(iter(scores.curves.values())).shape == (1, 6)
    whole = judge(Case(adapt(tiny_vit), images, Logit(1), torch.rand(2, 32, 32)), "irof(segments=(4, 4))")
    assert whole.passes.forward == 2 * Irof(segments=(4, 4)).cost(adapt(tiny_vit)).forward


@pytest.mark.parametrize(
    ("recipe", "said"),
    [("irof(segments=0)", "1 or more"), ("irof(segments=(3, 0))", "1 or more"), ("irof(fill='noise')", "fill='noise'")],
)
def test_wrong_options_are_refused_at_once(recipe, said):
    with pytest.raises(RecipeError, match=said):
        parse_metric(recipe)


def test_recipes_come_back_as_they_were():
    for recipe in ("irof", "irof(segments=50)", "irof(segments=(4, 5), fill='running_mean')"):
        assert text(parse_metric(recipe)) == recipe
