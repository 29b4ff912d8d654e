"""FullGrad: what is joined and refused; its completeness on transformers is tested with `libra`."""

from __future__ import annotations

from dataclasses import fields

import pytest
from torch import Tensor, nn
from torch.testing import assert_close

import sightline


@pytest.mark.parametrize("variant", ["pgc", "simple", "smooth"])
def test_a_variant_for_cnns_is_refused_on_a_transformer(variant: str, tiny_vit: nn.Module, images: Tensor) -> None:
    with pytest.raises(
        sightline.errors.UnsupportedModel, match=f"got variant='{variant}', which is for convolutional .* full_grad$"
    ):
        sightline.explain(tiny_vit, images, f"full_grad(variant='{variant}')", target=0)


@pytest.mark.parametrize(("recipe", "network"), [("full_grad", "tiny_vit"), ("lrp", "tiny_cnn")])
def test_details_of_batches_are_joined_and_images_taken_out(
    recipe: str, network: str, images: Tensor, request: pytest.FixtureRequest
) -> None:
    model = request.getfixturevalue(network)
    whole = sightline.explain(model, images, recipe, target=1).details
    rows = [sightline.explain(model, images[row : row + 1], recipe, target=1).details for row in (0, 1)]
    joined, turned = type(whole).join(rows), whole.take([1, 0]).take([1])
    for name in [field.name for field in fields(whole)]:
        assert_close(getattr(joined, name), getattr(whole, name))
        assert_close(getattr(turned, name), getattr(rows[0], name))
