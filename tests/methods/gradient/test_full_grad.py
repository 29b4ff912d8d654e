"""FullGrad on transformers: its completeness is tested with `libra`; here, what belongs to CNNs alone."""

from __future__ import annotations

import pytest
from torch import Tensor, nn

import sightline


@pytest.mark.parametrize("variant", ["pgc", "simple", "smooth"])
def test_a_variant_for_cnns_is_refused_on_a_transformer(variant: str, tiny_vit: nn.Module, images: Tensor) -> None:
    with pytest.raises(
        sightline.errors.UnsupportedModel, match=f"got variant='{variant}', which is for convolutional .* full_grad$"
    ):
        sightline.explain(tiny_vit, images, f"full_grad(variant='{variant}')", target=0)
