"""Disconnected mosaics: exact zeros outside the cell, a perfect map scores 1, and the model stays as it is."""

from __future__ import annotations

import pytest
import torch
from tests.models.fingerprint import fingerprint
from torch.testing import assert_close

import sightline
from sightline import adapt, explain
from sightline.audit.evidence.disconnected import aggregate_maps, score_on_mosaics
from sightline.errors import InputError, RecipeError, UnsupportedModel
from sightline.models.disconnected import cell_mask, cut, disconnect, mosaic

GRADIENTS = ["gradient(variant='norm')", "ixg", "ig(steps=4)", "smooth_grad(samples=3)"]


def pictures(count=4):
    return torch.randn(count, 3, 32, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


def test_a_mosaic_is_cut_back_into_its_cells():
    whole = mosaic(pictures(6), (3, 2))
    assert whole.shape == (1, 3, 96, 64)
    assert_close(cut(whole, (3, 2))[0], pictures(6))
    assert_close(whole[0, :, 32:64, 32:], pictures(6)[3])


@pytest.mark.parametrize("kind", ["tiny_vit", "tiny_cnn"])
def test_the_score_of_a_cell_is_that_of_the_model_on_the_cell(kind, request):
    model = request.getfixturevalue(kind)
    split = disconnect(adapt(model))
    with torch.no_grad():
        assert_close(split.predict(mosaic(pictures()))[0], model(pictures()).flatten())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["tiny_vit", "tiny_cnn"])
@pytest.mark.parametrize("recipe", GRADIENTS)
def test_gradients_are_exactly_zero_outside_the_cell(kind, recipe, request):
    model = request.getfixturevalue(kind)
    before = fingerprint(model)
    split = disconnect(adapt(model))
    maps = explain(split, mosaic(pictures()), recipe, target=2 * 5 + 1).pixels()[0]
    inside = cell_mask((64, 64), (2, 2), 2).bool()
    assert (maps[~inside] == 0).all()
    assert (maps[inside] != 0).any()
    assert fingerprint(model) == before


@pytest.mark.filterwarnings("ignore")
def test_what_cannot_look_elsewhere_scores_one_and_what_looks_nowhere_scores_chance(tiny_cnn):
    found = score_on_mosaics(adapt(tiny_cnn), pictures(8), [0, 1, 2, 3, 4, 0, 1, 2], ["ixg", "random"])
    assert_close(found.scores["ixg"], torch.ones(8, dtype=torch.float64))
    assert found.chance == 0.25
    assert abs(found.scores["random"].mean() - found.chance) < 0.03
    assert found.maps["ixg"].shape == (8, 64, 64)


def test_a_perfect_map_scores_one_and_one_elsewhere_zero(tiny_cnn):
    split, image = disconnect(adapt(tiny_cnn)), mosaic(pictures())
    mask = cell_mask((64, 64), (2, 2), 3)[None]
    for maps, want in ((mask.double(), 1.0), (1.0 - mask.double(), 0.0)):
        scores = sightline.evaluate(split, image, maps, "grid_pointing", target=3 * 5, masks=mask)
        assert scores["grid_pointing"].item() == want


def test_partly_disconnected_features_lie_in_the_cell_and_gradients_reach_over_its_border(tiny_cnn):
    model = adapt(tiny_cnn)
    split = disconnect(model, connection="part")
    image = mosaic(pictures())
    gradient = explain(split, image, "gradient(variant='norm')", target=0).pixels()[0]
    inside = cell_mask((64, 64), (2, 2), 0).bool()
    far = cell_mask((64, 64), (2, 2), 3).bool()
    assert (gradient[inside] != 0).any()
    assert gradient[~inside].abs().sum() > 0, "the receptive field crosses the border"
    assert gradient[far][-100:].abs().sum() == 0


def test_bins_hold_the_mean_of_the_maps_in_the_order_of_their_scores():
    maps = torch.arange(1.0, 5.0).reshape(4, 1, 1) * torch.tensor([[[1.0, -1.0]]])
    maps[0, 0] = torch.tensor([0.0, 2.0])
    found = aggregate_maps(maps, torch.tensor([0.1, 0.9, 0.8, 0.2]), bins=2)
    assert_close(found[:, 0], torch.tensor([[1.0, -1.0], [0.5, 0.0]]))


def test_what_cannot_be_is_refused(tiny_vit, tiny_cnn):
    with pytest.raises(UnsupportedModel, match="cannot see a mosaic as one picture"):
        disconnect(adapt(tiny_vit), connection="part")
    with pytest.raises(UnsupportedModel, match="without gradients"):
        disconnect(adapt(lambda images: torch.from_numpy(images.detach().numpy().mean(axis=(2, 3)))))
    with pytest.raises(RecipeError, match="choose from full, part"):
        disconnect(adapt(tiny_cnn), connection="none")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="as many as fill every cell"):
        mosaic(pictures(3))
    with pytest.raises(InputError, match="sides must be multiples"):
        cut(torch.zeros(1, 3, 5, 4), (2, 2))
    with pytest.raises(InputError, match="a label for each"):
        score_on_mosaics(adapt(tiny_cnn), pictures(3), [0, 1, 2], ["ixg"])
