"""The nouns: attributions, grids, targets."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.testing import assert_close

from sightline import (
    Attribution,
    Contrast,
    FinerContrast,
    Logit,
    LogProbability,
    Probability,
    ResidualSoftmax,
    TextSimilarity,
    TokenGrid,
)
from sightline.errors import ShapeError, TargetError
from sightline.types import Custom, Passes, PerImage

GRID = TokenGrid(2, 3, prefix=2, image=(8, 12))


@pytest.fixture
def logits() -> Tensor:
    return torch.randn(3, 4, dtype=torch.float64)


def test_a_grid_drops_the_prefix_and_lays_out_rows() -> None:
    scores = torch.arange(8.0).expand(5, 8)
    assert_close(GRID.to_map(scores)[0], torch.tensor([[2.0, 3.0, 4.0], [5.0, 6.0, 7.0]]))


def test_a_grid_refuses_another_number_of_tokens() -> None:
    with pytest.raises(ShapeError, match="got 7 token scores for a grid of 2 prefix tokens and 2×3 cells"):
        GRID.to_map(torch.zeros(7))


@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
def test_pixels_have_image_size_in_every_mode(mode: str) -> None:
    values = torch.randn(1, 2, 2, 3)
    got = Attribution(values, GRID).pixels(mode)
    options = {} if mode == "nearest" else {"align_corners": False}
    assert_close(got, F.interpolate(values[0][:, None], (8, 12), mode=mode, **options)[:, 0])


def test_pixels_of_a_pixel_map_are_the_map() -> None:
    values = torch.randn(1, 2, 8, 12)
    assert torch.equal(Attribution(values, TokenGrid(8, 12, image=(8, 12))).pixels(), values[0])


def test_an_attribution_says_how_its_cells_become_pixels() -> None:
    values = torch.randn(1, 2, 2, 3)
    for enlarge in ("nearest", "bilinear", "bicubic"):
        attribution = Attribution(values, GRID, enlarge=enlarge)
        assert torch.equal(attribution.pixels(), attribution.pixels(enlarge))
        assert attribution[1].enlarge == Attribution.join([attribution[0], attribution[1]]).enlarge == enlarge
    assert torch.equal(Attribution(values, GRID).pixels(), Attribution(values, GRID).pixels("bilinear"))
    with pytest.raises(ShapeError, match="got enlarge='lanczos'; pixels"):
        Attribution(values, GRID, enlarge="lanczos")  # type: ignore[arg-type]


def test_layers_are_called_by_name() -> None:
    values = torch.randn(3, 2, 2, 3)
    attribution = Attribution(values, GRID, layers=(4, 5, 7), own=2)
    assert torch.equal(attribution.map, values[2])
    assert torch.equal(attribution.at(5), values[1])
    assert torch.equal(attribution.pixels("nearest", layer=4), Attribution(values, GRID).pixels("nearest"))
    assert attribution[0].layers == (4, 5, 7)
    assert Attribution(values, GRID).layers == (0, 1, 2)
    assert Attribution(values[:1], GRID).layers == ()
    with pytest.raises(ShapeError, match="got layer=6; the attribution has layers 4, 5, 7"):
        attribution.pixels(layer=6)
    for layers in ((1, 2), (1, 1, 2)):
        with pytest.raises(ShapeError, match="for 3 maps; name each layer once"):
            Attribution(values, GRID, layers=layers)
    with pytest.raises(ShapeError, match="got own=3"):
        Attribution(values, GRID, own=3)


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(ShapeError, match="got mode='lanczos'; pixels"):
        Attribution(torch.zeros(1, 1, 2, 3), GRID).pixels("lanczos")  # type: ignore[arg-type]


def test_values_must_fit_the_grid() -> None:
    with pytest.raises(ShapeError, match=r"got values of shape \(1, 2, 3\) for a grid of 2×3"):
        Attribution(torch.zeros(1, 2, 3), GRID)


def test_targets_read_what_they_say(logits: Tensor) -> None:
    rows = torch.arange(3)
    assert_close(Logit(2)(logits), logits[:, 2])
    assert_close(Logit((1, 0, 3))(logits), logits[rows, [1, 0, 3]])
    assert_close(Probability(2)(logits), logits.softmax(dim=1)[:, 2])
    assert_close(LogProbability((1, 0, 3))(logits), logits.log_softmax(dim=1)[rows, [1, 0, 3]])
    assert_close(Contrast(0, (1, 2, 3))(logits), logits[:, 0] - logits[rows, [1, 2, 3]])
    assert_close(ResidualSoftmax(1)(logits), logits[:, 1] + logits.log_softmax(dim=-1)[:, 1])
    assert_close(FinerContrast(0, ((1, 3),), 0.5)(logits), logits[:, 0] - 0.25 * (logits[:, 1] + logits[:, 3]))


@pytest.mark.parametrize("target", [
    Logit((1, 0, 3)), Probability((1, 0, 3)), LogProbability((1, 0, 3)), Contrast((1, 0, 3),
    (2, 2, 1)), Contrast(1, (0, 2, 3)), ResidualSoftmax((1, 0, 3)), FinerContrast((1, 0, 3), ((0, 2), (1, 2), (0, 1))),
    FinerContrast(1, ((0, 2),), weighted=True),
    Logit(1), PerImage((Logit(1), Probability(0), Contrast(2, 3))), Custom(lambda x: x.sum(dim=1)),
])  # fmt: skip
def test_a_target_follows_its_images(target, logits: Tensor) -> None:
    rows = [2, 0, 0, 1]
    assert_close(target.take(rows)(logits[rows]), target(logits)[rows])


def test_targets_refuse_another_batch(logits: Tensor) -> None:
    with pytest.raises(TargetError, match="got 2 target classes for 3 images"):
        Logit((1, 2))(logits)
    with pytest.raises(TargetError, match="got 1 targets for 3 images"):
        PerImage((Logit(1),))(logits)


def test_text_similarity_is_a_cosine(logits: Tensor) -> None:
    text = (0.5, -1.0, 2.0, 0.1)
    want = F.cosine_similarity(logits, torch.tensor([text], dtype=torch.float64))
    assert_close(TextSimilarity(embedding=text)(logits), want)
    with pytest.raises(TargetError, match="'a cat' has no embedding yet"):
        TextSimilarity("a cat")(logits)
    with pytest.raises(TargetError, match="has 2 numbers and the model's output 4"):
        TextSimilarity(embedding=(1.0, 2.0))(logits)


def test_a_function_must_give_one_number_per_image(logits: Tensor) -> None:
    with pytest.raises(TargetError, match=r"the target function gave \(\) for logits of shape \(3, 4\)"):
        Custom(lambda x: x.sum())(logits)


def test_passes_add_and_scale() -> None:
    assert (Passes(1, 2) + Passes(0.5, 0)) * 2 == Passes(3, 4)
    assert str(Passes(3, 1 / 3)) == "3 forward, 0.3333 backward"
