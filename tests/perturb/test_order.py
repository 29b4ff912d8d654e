from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from sightline.errors import InputError, RecipeError
from sightline.perturb.curve import importance_order, ranks

# few distinct values, so that ties are the rule
coarse_maps = st.lists(st.integers(-2, 2), min_size=1, max_size=30).map(lambda v: torch.tensor(v).float()[None, None])


def test_the_most_important_pixel_comes_first():
    maps = torch.tensor([[[0.1, -3.0], [7.0, 0.2]], [[4.0, 3.0], [2.0, 1.0]]])
    assert importance_order(maps).tolist() == [[2, 3, 0, 1], [0, 1, 2, 3]]


@settings(max_examples=50, deadline=None)
@given(coarse_maps)
def test_equal_pixels_keep_their_row_major_order(maps):
    values = maps.flatten().tolist()
    want = sorted(range(len(values)), key=lambda index: (-values[index], index))
    assert importance_order(maps)[0].tolist() == want


def test_a_large_coarse_map_is_ordered_as_numpy_orders_it():
    maps = torch.randint(0, 4, (2, 96, 96), generator=torch.Generator().manual_seed(0)).float()
    want = np.argsort(-maps.flatten(1).numpy(), axis=1, kind="stable")
    assert_close(importance_order(maps), torch.from_numpy(want), rtol=0, atol=0)


def test_minus_zero_and_zero_are_equal():
    assert importance_order(torch.tensor([[[-0.0, 0.0, -0.0]]])).tolist() == [[0, 1, 2]]


@settings(max_examples=50, deadline=None)
@given(coarse_maps, st.integers(0, 3))
def test_random_ties_only_move_equal_pixels(maps, seed):
    values = maps.flatten()
    order = importance_order(maps, tie="random", seed=seed)[0]
    assert sorted(order.tolist()) == list(range(len(values)))
    assert_close(values[order], values.sort(descending=True).values)


def test_random_ties_depend_on_the_seed_and_the_map_but_not_on_the_batch():
    maps = torch.zeros(2, 8, 8)
    maps[1] = 1.0
    batch = importance_order(maps, tie="random", seed=3)
    assert_close(batch[1:], importance_order(maps[1:], tie="random", seed=3))
    assert_close(batch[:1], importance_order(maps[:1], tie="random", seed=3))
    assert not torch.equal(batch, importance_order(maps, tie="random", seed=4))
    assert not torch.equal(batch[0], torch.arange(64))


@settings(max_examples=50, deadline=None)
@given(coarse_maps, st.floats(0.5, 100), st.floats(-10, 10))
def test_an_increasing_change_of_the_map_keeps_the_order(maps, factor, shift):
    assert_close(importance_order(maps * factor + shift), importance_order(maps))


@settings(max_examples=50, deadline=None)
@given(coarse_maps)
def test_ranks_are_the_inverse_of_the_order(maps):
    order = importance_order(maps)
    places = ranks(order)
    assert_close(places.gather(1, order), torch.arange(order.shape[1])[None])
    assert_close(order.gather(1, places), torch.arange(order.shape[1])[None])


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_map_that_cannot_be_ranked_is_named(bad):
    maps = torch.zeros(3, 4, 4)
    maps[1, 2, 2] = bad
    with pytest.raises(InputError, match="map of image 1 holds NaN or infinite"):
        importance_order(maps)


def test_maps_without_a_batch_axis_are_refused():
    with pytest.raises(InputError, match=r"\(4, 4\); \(batch, height, width\) is needed"):
        importance_order(torch.zeros(4, 4))


def test_an_unknown_tie_rule_is_refused():
    with pytest.raises(RecipeError, match="tie='first'"):
        importance_order(torch.zeros(1, 2, 2), tie="first")
