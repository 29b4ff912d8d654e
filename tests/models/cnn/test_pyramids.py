"""transformers' LeViT, whose maps are too coarse for the small images of the other families."""

import pytest
import torch
from tests.models.families_cnn import CLASSES
from tests.models.families_vit import randomised
from torch import nn

import sightline
from sightline import adapt
from sightline.extras import require

SIZE = 96


def levit(kind: str) -> nn.Module:
    library = require("transformers")
    torch.manual_seed(0)
    config = library.LevitConfig(
        image_size=SIZE, hidden_sizes=[16, 24, 32], num_attention_heads=[1, 2, 2], depths=[1, 2, 1], key_dim=[8, 8, 8],
        num_labels=CLASSES,
    )  # fmt: skip
    return randomised(getattr(library, kind)(config))


@pytest.mark.parametrize("kind", ["LevitForImageClassification", "LevitForImageClassificationWithTeacher"])
def test_levit_is_read_step_by_step_and_its_attention_is_followed(kind: str) -> None:
    network = levit(kind)
    model = adapt(network)
    batch = torch.randn(2, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        logits = network(batch).logits
        for cut in model.cuts:  # type: ignore[attr-defined]
            assert torch.allclose(model.tail(model.trunk(batch, cut), cut), logits, atol=1e-5)  # type: ignore[attr-defined]
    assert model.layers == (  # type: ignore[attr-defined]
        "levit.encoder.stages.0.layers.1", "levit.encoder.stages.1.layers.3", "levit.encoder.stages.2.layers.1"
    )  # fmt: skip
    raw, rolled, weighted, cam = sightline.explain(model, batch, ["raw_attention", "rollout", "gae", "grad_cam"])
    assert (raw.map.shape[1:], rolled.map.shape[1:], weighted.map.shape[1:]) == ((2, 2), (6, 6), (6, 6))
    assert torch.allclose(rolled.map.sum(dim=(1, 2)), torch.ones(2), atol=1e-5)
    assert cam.map.shape[1:] == (2, 2)
    with torch.no_grad():
        assert torch.equal(network(batch).logits, logits)
