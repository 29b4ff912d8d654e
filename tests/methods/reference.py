"""Compare a recipe with the authors' numbers, both scaled to [0, 1]."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from tests import tiny
from torch import Tensor, nn
from torch.testing import assert_close

import sightline
from sightline.methods.multi_target import multi_target, multi_target_cost
from sightline.models.passes import counting


def agrees_on_a_random_vit(recipe: str, key: str, eps: float, tolerance: float = 1e-5) -> None:
    model, images, numbers = tiny.reference_vit(eps=eps)
    got = sightline.explain(model, images, recipe, target=3).map[0]
    want = torch.from_numpy(numbers[f"map/{key}"]).reshape(7, 7)
    assert_close(tiny.min_max(got), tiny.min_max(want), atol=tolerance, rtol=0)


def on_a_photograph(
    recipe: str, file: str, shared: Path, model: nn.Module, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Return our map and the reference's, in the precision asked for."""
    photo = np.load(shared / "golden/photo/inputs_A.npz")
    numbers = np.load(shared / f"golden/photo/{file}.npz")
    images = torch.from_numpy(photo["input"]).to(dtype)
    got = sightline.explain(model.to(dtype), images, recipe, target=int(photo["target"])).map[0]
    want = torch.from_numpy(numbers["map_f64" if dtype == torch.float64 else "map"])
    return tiny.min_max(got), tiny.min_max(want)


def shares_one_run(recipe: str, model: nn.Module, images: Tensor, classes: Sequence[int] = (1, 0, 3)) -> None:
    """Check that several targets at once are the targets one by one, for the price declared."""
    adapter, method = sightline.adapt(model), sightline.parse(recipe)
    with torch.no_grad():
        for every_layer in (False, True):
            with counting() as meter:
                together = multi_target(
                    method, adapter, images, [sightline.Logit(c) for c in classes], every_layer=every_layer
                )
            declared = multi_target_cost(method, adapter, len(classes), every_layer=every_layer) * len(images)
            assert abs(meter.passes.forward - declared.forward) < 1e-6
            assert abs(meter.passes.backward - declared.backward) < 1e-6
            assert declared.forward < len(classes) * method.cost(adapter).forward * len(images)
            for index, found in zip(classes, together, strict=True):
                (alone,) = multi_target(method, adapter, images, [sightline.Logit(index)], every_layer=every_layer)
                assert_close(found.values, alone.values, rtol=1e-9, atol=1e-12)
