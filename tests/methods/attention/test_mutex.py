"""MUTEX: masks and map written out, the authors' masks, scores and map; the scoring of kept tokens it shares."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats
from tests import tiny
from torch import Tensor, nn
from torch.testing import assert_close

import sightline
from sightline.methods.attention.mutex import network_masks
from sightline.methods.kept_tokens import score_masks
from sightline.models.passes import counting


def attention_between_patches(model: nn.Module, images: Tensor) -> list[Tensor]:
    adapter = sightline.adapt(model)
    with torch.no_grad(), adapter.capture("block.*.probabilities") as seen:
        adapter(images)
    return [p[:, :, adapter.prefix :, adapter.prefix :] for p in seen.values()]


def test_masks_match_the_authors_code_on_a_random_vit() -> None:
    model, images, numbers = tiny.reference_vit()
    got = network_masks(attention_between_patches(model, images))[0]
    assert torch.equal(got, torch.from_numpy(numbers["mutex_masks"]).bool())


@pytest.mark.shared
@pytest.mark.slow
def test_matches_the_authors_code_on_a_photograph(shared: Path, real_vit: nn.Module) -> None:
    photo, numbers = np.load(shared / "golden/photo/inputs_A.npz"), np.load(shared / "golden/photo/mutex_A.npz")
    images, adapter = torch.from_numpy(photo["input"]), sightline.adapt(real_vit)
    masks = network_masks(attention_between_patches(real_vit, images))[0]
    assert (masks != torch.from_numpy(numbers["masks"]).bool()).sum() <= 4
    with torch.no_grad():
        scored = score_masks(adapter, adapter.start(images), [masks], [sightline.Probability(int(photo["target"]))])[0]
    assert_close(scored.scores[0], torch.from_numpy(numbers["scores"]), atol=1e-4, rtol=0)
    assert_close(scored.maps()[0].view(14, 14), torch.from_numpy(numbers["map"]), atol=1e-4, rtol=0)
    got = sightline.explain(real_vit, images, "mutex", target=int(photo["target"]))
    assert_close(got.map[0], scored.maps()[0].view(14, 14), atol=1e-5, rtol=0)
    assert got.passes.forward < 55


def test_shapes_of_the_degrees_are_scipys() -> None:
    attention = list(torch.rand(5, 2, 3, 16, 16, dtype=torch.float64))
    masks = network_masks(attention)
    joined = [p.sum(dim=1) for p in attention]
    joined = [m * (m >= 0.01 * m.flatten(1).amax(dim=1)[:, None, None]) for m in joined]
    degrees = torch.stack([m.sum(dim=1) for m in joined]).numpy()  # what a patch receives as a key
    for index, values in ((36, stats.entropy(degrees)), (43, stats.skew(degrees)), (44, stats.kurtosis(degrees))):
        for row in range(2):
            assert_close(masks[row, index], torch.from_numpy(values[row] >= np.sort(values[row])[7]))


def test_a_mask_keeps_half_of_the_patches_and_what_ties() -> None:
    even = torch.full((1, 2, 5, 5), 0.2, dtype=torch.float64)
    assert network_masks([even] * 3).all()  # everything ties, nothing is NaN
    masks = network_masks(list(torch.rand(3, 1, 2, 5, 5, dtype=torch.float64)))
    assert masks.shape == (1, 54, 5)
    assert (masks.sum(dim=-1) >= 3).all()


def test_rounding_does_not_choose_where_all_patches_are_equal() -> None:
    attention = list(torch.rand(3, 1, 2, 16, 16, dtype=torch.float64))
    assert network_masks(attention)[0, 8::9].all()  # three points have the kurtosis -3/2, whatever they are
    assert not network_masks(attention)[0, 7::9].all(dim=1).any()


def test_the_map_is_the_mean_score_of_the_masks_that_keep_a_patch(tiny_vit: nn.Module, images: Tensor) -> None:
    masks = network_masks(attention_between_patches(tiny_vit, images))
    got = sightline.explain(tiny_vit, images, "mutex", target=1).map.flatten(1)
    tokens = tiny_vit._pos_embed(tiny_vit.patch_embed(images))  # type: ignore[operator]
    for row in range(2):
        total = torch.zeros(16, dtype=torch.float64)
        for mask in masks[row]:
            kept = torch.cat([tokens[row, :1], tokens[row, 1:][mask]])[None]
            logits = tiny_vit.forward_head(tiny_vit.norm(tiny_vit.blocks(kept)))  # type: ignore[operator]
            total += logits.softmax(dim=-1)[0, 1].detach() * mask
        assert_close(got[row], total / masks[row].sum(dim=0).clamp(min=1))


def test_equal_masks_are_scored_once_and_count_as_often_as_they_come(tiny_vit: nn.Module, images: Tensor) -> None:
    adapter = sightline.adapt(tiny_vit)
    first, second = torch.arange(16) < 8, torch.arange(16) < 4
    masks = [torch.stack([first, second, first]), second[None]]
    with torch.no_grad(), counting() as meter:
        first, second = score_masks(adapter, adapter.start(images), masks, [sightline.Logit((0, 1))])
    assert meter.passes.forward == pytest.approx((9 + 5 + 5) / 17)
    s = first.scores[0]
    assert s[0] == s[2]
    assert_close(first.maps()[0, [0, 5, 9]], torch.stack([s.mean(), s[0], torch.zeros_like(s[0])]))
    with torch.no_grad():
        whole = score_masks(adapter, adapter.start(images), [torch.ones(1, 16).bool()] * 2, [sightline.Logit((0, 1))])
        assert_close(torch.stack([x.scores[0, 0] for x in whole]), adapter(images)[[0, 1], [0, 1]])
    assert second.scores.shape == (1, 1)


def test_the_score_can_be_the_logit(tiny_vit: nn.Module, images: Tensor) -> None:
    logit = sightline.explain(tiny_vit, images, "mutex(score='logit')", target=1).map
    followed = sightline.explain(tiny_vit, images, "mutex", target=lambda logits: logits[:, 1]).map
    assert_close(logit, followed)
    assert not torch.allclose(logit, sightline.explain(tiny_vit, images, "mutex", target=1).map)


def test_a_single_block_has_no_statistics(tiny_vit: nn.Module, images: Tensor) -> None:
    with pytest.raises(sightline.errors.RecipeError, match="start=2; statistics over blocks need two"):
        sightline.explain(tiny_vit, images, "mutex(start=2)", target=0)
