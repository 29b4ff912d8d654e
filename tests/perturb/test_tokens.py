from __future__ import annotations

import pytest
import torch
from tests import tiny
from torch.testing import assert_close

from sightline import adapt
from sightline.errors import InputError
from sightline.extras import require
from sightline.models.passes import counting
from sightline.perturb.tokens import drop_top, keep_top, run_on_tokens

SMALL = {"img_size": 32, "patch_size": 8, "embed_dim": 16, "depth": 3, "num_heads": 2, "num_classes": 5}
FAMILIES = {
    "cls": {},
    "mean": {"class_token": False, "global_pool": "avg"},
    "registers": {"reg_tokens": 2},
    "rotary": {"use_rot_pos_emb": True},
}
CELLS = 16


def build(family):
    if family != "rotary":
        return adapt(tiny.vit(**FAMILIES[family]).double())
    eva = require("timm.models.eva").Eva(**SMALL, **FAMILIES[family])
    return adapt(tiny.awake(eva).eval().double())


@pytest.fixture(params=FAMILIES)
def model(request):
    return build(request.param)


@pytest.fixture
def images():
    return torch.randn(2, 3, 32, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def some(count, seed=0):
    """A different random choice of patches for each of two images."""
    generator = torch.Generator().manual_seed(seed)
    return torch.stack([torch.randperm(CELLS, generator=generator)[:count] for _ in range(2)])


@torch.no_grad()
def test_all_patches_kept_is_the_plain_forward(model, images):
    everything = some(CELLS)
    assert_close(run_on_tokens(model, model.start(images), everything), model(images))


@torch.no_grad()
def test_what_was_dropped_has_no_influence_and_what_was_kept_has(model, images):
    tokens, keep = model.start(images), some(6)
    before = run_on_tokens(model, tokens, keep)
    dropped = torch.ones(2, CELLS, dtype=torch.bool).scatter_(1, keep, False)
    changed = tokens.clone()
    changed[:, model.prefix :][dropped] += 5.0
    assert_close(run_on_tokens(model, changed, keep), before, rtol=0, atol=0)
    changed[:, model.prefix :][~dropped] += torch.randn_like(changed[:, model.prefix :][~dropped])
    assert (run_on_tokens(model, changed, keep) - before).abs().min() > 1e-6


@torch.no_grad()
def test_the_order_in_which_patches_are_named_does_not_matter(model, images):
    tokens, keep = model.start(images), some(6)
    assert_close(run_on_tokens(model, tokens, keep.flip(1)), run_on_tokens(model, tokens, keep), rtol=0, atol=0)


@torch.no_grad()
def test_a_batch_equals_its_images_one_by_one(model, images):
    keep = some(6)
    alone = [run_on_tokens(model, model.start(images[i : i + 1]), keep[i : i + 1]) for i in range(2)]
    assert_close(run_on_tokens(model, model.start(images), keep), torch.cat(alone))


@torch.no_grad()
def test_fewer_tokens_are_fewer_passes(images):
    model = build("cls")
    with counting() as meter:
        run_on_tokens(model, model.start(images), some(8))
    assert meter.passes.forward == pytest.approx(2 * 9 / 17)


@torch.no_grad()
def test_a_class_token_can_stand_alone_and_a_mean_cannot(images):
    none = torch.empty(2, 0, dtype=torch.int64)
    model = build("registers")
    assert torch.isfinite(run_on_tokens(model, model.start(images), none)).all()
    model = build("mean")
    with pytest.raises(InputError, match="reads the patches"):
        run_on_tokens(model, model.start(images), none)


@pytest.mark.parametrize(
    ("keep", "message"),
    [
        ([[0, 16], [1, 2]], "got patches 0 to 16; there are 0 to 15"),
        ([[0, -1], [1, 2]], "got patches -1 to 2"),
        ([[3, 3], [1, 2]], "same patch twice"),
        ([[3, 4]], r"keep of shape \(1, 2\) for 2 images"),
        ([3, 4], r"keep of shape \(2,\) for 2 images"),
    ],
)
def test_patches_that_do_not_fit_are_refused(images, keep, message):
    model = build("cls")
    with pytest.raises(InputError, match=message):
        run_on_tokens(model, model.start(images), torch.tensor(keep))


def test_the_top_is_kept_in_row_major_order_and_the_rest_is_its_complement():
    maps = torch.rand(3, 4, 5, generator=torch.Generator().manual_seed(0))
    kept, left = keep_top(maps, 0.3), drop_top(maps, 0.3)
    assert kept.shape == (3, 6)
    assert_close(torch.cat([kept, left], dim=1).sort(dim=1).values, torch.arange(20).expand(3, -1))
    assert_close(kept, kept.sort(dim=1).values)
    lowest_kept = maps.flatten(1).gather(1, kept).amin(dim=1)
    assert (lowest_kept >= maps.flatten(1).gather(1, left).amax(dim=1)).all()


@pytest.mark.parametrize(
    ("cells", "fraction", "count"),
    [(196, 0.1, 19), (100, 0.29, 29), (196, 0, 0), (196, 1, 196), (10, 0.7, 7), (7, 0.5, 3)],
)
def test_the_count_is_the_whole_part_of_the_fraction(cells, fraction, count):
    maps = torch.rand(2, 1, cells)
    assert keep_top(maps, fraction).shape == (2, count)
    assert drop_top(maps, fraction).shape == (2, cells - count)


@pytest.mark.parametrize("fraction", [-0.1, 1.1, float("nan")])
def test_a_fraction_outside_zero_to_one_is_refused(fraction):
    with pytest.raises(InputError, match="a number from 0 to 1"):
        keep_top(torch.rand(1, 2, 2), fraction)
