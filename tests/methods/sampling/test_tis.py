"""Transformer input sampling: k-means laws, the formula written out, the authors' scores and map on their masks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tests import tiny
from torch import Tensor, nn
from torch.testing import assert_close

import sightline
from sightline.methods.kept_tokens import attributions, score_masks
from sightline.methods.sampling.tis import k_means, largest


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.mark.shared
@pytest.mark.slow
def test_matches_the_authors_code_on_a_photograph_given_its_masks(shared: Path, real_vit: nn.Module) -> None:
    photo, numbers = np.load(shared / "golden/photo/inputs_A.npz"), np.load(shared / "golden/photo/tis_A.npz")
    images, adapter = torch.from_numpy(photo["input"]), sightline.adapt(real_vit)
    masks = torch.from_numpy(np.unpackbits(numbers["masks_packed"], axis=1)[:, :196]).bool()
    centres = torch.from_numpy(numbers["centroids"])
    assert torch.equal(largest(centres, 98), masks)
    with torch.no_grad():
        target = sightline.Probability(int(photo["target"]))
        (scored,) = score_masks(adapter, adapter.start(images), [masks], [target])
        (given,) = attributions(adapter, images, [scored])
    assert_close(scored.scores[0], torch.from_numpy(numbers["scores"]), atol=1e-4, rtol=0)
    got = given.map[0]
    assert_close(tiny.min_max(got), tiny.min_max(torch.from_numpy(numbers["map"])), atol=1e-4, rtol=0)


def test_k_means_finds_what_is_apart() -> None:
    centres = torch.tensor([[0.0, 0.0], [10.0, 0.0], [0.0, 10.0]], dtype=torch.float64)
    rows = (centres[:, None] + 0.1 * torch.randn(3, 20, 2, dtype=torch.float64)).flatten(0, 1)
    centres, members = k_means(rows, 12, 100, generator())
    kept = centres[members > 0]
    assert members.sum() == 60
    assert (torch.cdist(centres, kept).amin(dim=1) < 0.5).all()
    nearest = torch.cdist(rows, kept).argmin(dim=1)
    for index in range(len(kept)):  # settled: every centre is the mean of the rows nearest to it
        assert_close(kept[index], rows[nearest == index].mean(dim=0), atol=1e-2, rtol=0)


def test_a_cluster_without_members_has_the_centre_zero() -> None:
    rows = torch.tensor([[1.0, 2.0], [1.0, 2.0]])
    centres, members = k_means(rows, 5, 10, generator())
    assert members.tolist() == [2, 0, 0, 0, 0]
    assert centres.tolist() == [[1, 2], *[[0, 0]] * 4]


def test_a_channel_drawn_twice_is_one_centre() -> None:
    rows = torch.randn(48, 16, dtype=torch.float64)
    drawn = torch.randint(48, (40,), generator=generator())
    _, members = k_means(rows, 40, 1, generator())
    seen: set[int] = set()
    for index, count in zip(drawn.tolist(), members.tolist(), strict=True):
        assert (count == 0) == (index in seen)
        seen.add(index)


def test_the_largest_entries_are_marked_the_last_of_equal_ones() -> None:
    got = largest(torch.tensor([[0.1, 0.5, 0.3, 0.2], [0.0, 0.0, 0.0, 0.0]]), 2)
    assert got.tolist() == [[False, True, True, False], [False, False, True, True]]


@pytest.mark.parametrize("variant", ["released", "filled"])
def test_the_map_is_the_formula_written_out(variant: str, tiny_vit: nn.Module, images: Tensor) -> None:
    features, tokens = [], tiny_vit._pos_embed(tiny_vit.patch_embed(images[:1]))  # type: ignore[operator]
    x = tokens
    for block in tiny_vit.blocks:  # type: ignore[union-attr]
        x = block(x)
        features.append(x[0, 1:].T.detach())
    centres, members = k_means(torch.cat(features), 30, 100, sightline.seeds.generators(0, images)[0])
    assert (members == 0).any()
    masks = largest(centres if variant == "released" else centres[members > 0], 8)
    total = torch.zeros(16, dtype=torch.float64)
    for mask in masks:
        kept = torch.cat([tokens[:, :1], tokens[:, 1:][:, mask]], dim=1)
        logits = tiny_vit.forward_head(tiny_vit.norm(tiny_vit.blocks(kept)))  # type: ignore[operator]
        total += logits.softmax(dim=-1)[0, 2].detach() * mask
    got = sightline.explain(tiny_vit, images[:1], f"tis(samples=30, variant={variant!r})", target=2)
    assert_close(got.map.flatten(), total / masks.sum(dim=0).clamp(min=1))
    assert got.passes.forward == pytest.approx(1 + len(masks.unique(dim=0)) * 9 / 17)


def test_the_seed_and_the_image_alone_decide(tiny_vit: nn.Module, images: Tensor) -> None:
    together = sightline.explain(tiny_vit, images, "tis(samples=6)", target=0).map
    turned = sightline.explain(tiny_vit, images.flip(0), "tis(samples=6)", target=0).map
    assert_close(together, turned.flip(0))
    assert not torch.allclose(together, sightline.explain(tiny_vit, images, "tis(samples=6, seed=1)", target=0).map)


@pytest.mark.parametrize(
    "options", ["samples=0", "ratio=0.0", "ratio=1.5", "variant='mine'", "score='loss'", "steps=0"]
)
def test_options_that_make_no_sense_are_refused(options: str) -> None:
    with pytest.raises(sightline.errors.RecipeError, match="got "):
        sightline.recipe.parse(f"tis({options})")
