"""Sobol indices: models whose indices can be written down, and the designs they are estimated from."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import sightline
from sightline import errors
from sightline.methods.sampling.sobol import designs, total_order


def additive(images: Tensor) -> Tensor:
    """Cells of 2×2 that add up with the weights 1, 2, 3, 0."""
    weights = torch.tensor([[1.0, 2.0], [3.0, 0.0]], dtype=torch.float64)
    score = (images[:, 0, ::4, ::4] * weights).sum(dim=(1, 2))
    return torch.stack([score, -score, images[:, 0, 0, 0] * images[:, 0, 0, 4]], dim=1)


@pytest.mark.parametrize(("estimator", "close"), [("jansen", 0.02), ("homma", 0.1), ("glen", 0.02)])
def test_shares_of_an_additive_model_are_its_squared_weights(estimator: str, close: float) -> None:
    images = torch.ones(1, 3, 8, 8, dtype=torch.float64)
    for target in (0, 1):
        recipe = f"sobol(samples=512, cells=2, estimator='{estimator}')"
        got = sightline.explain(additive, images, recipe, target=target).map[0]
        assert_close(got.flatten(), torch.tensor([1.0, 4.0, 9.0, 0.0]).double() / 14, atol=close, rtol=0)


def test_an_interaction_counts_in_full_for_both_cells() -> None:
    images = torch.ones(1, 3, 8, 8, dtype=torch.float64)
    got = sightline.explain(additive, images, "sobol(samples=1024, cells=2)", target=2).map[0].flatten()
    # m n of two uniform values: variance 7/144, E[Var | other] = E[other²]/12 = 1/36
    assert_close(got, torch.tensor([4 / 7, 4 / 7, 0.0, 0.0]).double(), atol=0.02, rtol=0)


def test_designs_redraw_one_cell_at_a_time() -> None:
    masks = designs(8, 5)
    assert masks.shape == (6, 8, 5)
    changed = masks[1:] != masks[0]
    assert torch.equal(changed.any(dim=1), torch.eye(5, dtype=torch.bool))
    assert masks.min() > 0
    assert masks.max() < 1


def test_scores_that_never_change_have_no_indices() -> None:
    assert_close(total_order(torch.ones(4), torch.ones(3, 4), "jansen"), torch.zeros(3))


@pytest.mark.parametrize("recipe", ["sobol(samples=1)", "sobol(cells=0)", "sobol(cells=103)"])
def test_what_cannot_be_estimated_is_refused(recipe: Any) -> None:
    with pytest.raises(errors.RecipeError, match=r"(samples|cells)=(0|1|103)"):
        sightline.parse(recipe)
