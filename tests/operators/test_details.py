"""The details of an attribution: those of several batches joined are those of one, and images can be taken out."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import pytest
import torch
from tests import tiny
from torch import Tensor
from torch.testing import assert_close

import sightline
from sightline.types import Attribution, Logit

TARGETS = [1, 0, 3, 2, 4]
RECIPES = [
    "var(ixg, classes='top3', distribution=True)",
    "var(caap, classes='best_worst')",
    "plus(var(gae, distribution=True, at='grid'))",
    "caap",
    "absolute(e_caap)",
    "decompx(form='forward')",
    "mda(seed=ixg, cells=3, steps=4, search='exact')",
    "mda(seed=ixg, cells=3, steps=4, search='exact', segments='slic')",
]


def same(got: Any, want: Any) -> None:
    """Compare details, number by number."""
    assert type(got) is type(want)
    if isinstance(want, Tensor):
        assert_close(got, want, rtol=1e-9, atol=1e-12)
    elif isinstance(want, np.ndarray):
        np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-12)
    elif is_dataclass(want):
        for field in fields(want):
            same(getattr(got, field.name), getattr(want, field.name))
    elif isinstance(want, tuple):
        assert len(got) == len(want)
        for pair in zip(got, want, strict=True):
            same(*pair)
    elif isinstance(want, float):
        assert got == pytest.approx(want, rel=1e-9, abs=1e-12)
    else:
        assert got == want


def batches(recipe: str) -> tuple[Attribution, list[Attribution]]:
    """Explain five images in one batch, and in batches of the adapter's two."""
    adapter = sightline.adapt(tiny.vit().double())
    adapter.batch = 2
    images = torch.randn(5, 3, 32, 32, dtype=torch.float64)
    parts = [
        sightline.explain(adapter, images[first : first + 2], recipe, target=TARGETS[first : first + 2])
        for first in range(0, 5, adapter.batch)
    ]
    return sightline.explain(adapter, images, recipe, target=TARGETS, batch_size=5), parts


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_details_of_several_batches_join_to_those_of_one(recipe: str) -> None:
    whole, parts = batches(recipe)
    assert len(parts) == 3
    same(type(parts[0].details).join([part.details for part in parts]), whole.details)


@pytest.mark.parametrize("recipe", RECIPES)
def test_images_are_taken_out_in_any_order(recipe: str) -> None:
    whole, parts = batches(recipe)
    same(whole.details.take([2, 3]), parts[1].details)
    same(whole.details.take([4]), parts[2].details)
    same(whole.details.take([3, 2]), parts[1].details.take([1, 0]))


def test_joined_details_still_change_the_density() -> None:
    whole, parts = batches("mda(seed=ixg, cells=3, steps=4, search='exact')")
    joined = type(parts[0].details).join([part.details for part in parts])
    assert_close(joined.with_density(0.6).values, whole.details.with_density(0.6).values)
    assert_close(joined.take([3]).with_density(0.6).values, whole.details.with_density(0.6).values[:, 3:4])


def test_batches_with_other_numbers_of_classes_are_joined_as_one_batch_of_them_is() -> None:
    recipe = "var(ixg, classes=(0, 1), distribution=True)"
    method, adapter = sightline.parse(recipe), sightline.adapt(tiny.vit().double())
    images = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    parts = [method(adapter, images[row : row + 1], Logit(target)).details for row, target in enumerate((1, 3))]
    assert [part.classes.shape[1] for part in parts] == [2, 3]
    joined = type(parts[0]).join(parts)
    assert joined.classes.tolist() == [[1, 0, -1], [3, 0, 1]]
    assert not joined.distribution[2, :, 0].any()
    same(joined, sightline.explain(adapter, images, method, target=[1, 3]).details)
