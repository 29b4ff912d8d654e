"""Segmentations and detectors of transformers by their id: saved to a folder, loaded, and explained."""

from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from tests.models.tasks.test_boxes import deformable, detr, rt_detr, yolos
from tests.models.tasks.test_dense import segformer
from torch import nn

import sightline
from sightline import Box, Region, errors
from sightline.extras import require

SQUARE = {"height": 64, "width": 64}


def upernet() -> nn.Module:
    library = require("transformers")
    stages = ["stage1", "stage2", "stage3", "stage4"]
    backbone = library.ConvNextConfig(depths=[1] * 4, hidden_sizes=[8, 8, 16, 16], out_features=stages)
    config = library.UperNetConfig(backbone_config=backbone, hidden_size=16, num_labels=4, use_auxiliary_head=False)
    return library.UperNetForSemanticSegmentation(config)  # type: ignore[no-any-return]


def dpt() -> nn.Module:
    library = require("transformers")
    config = library.DPTConfig(
        hidden_size=16, num_hidden_layers=4, num_attention_heads=2, intermediate_size=16, image_size=64, patch_size=16,
        backbone_out_indices=[0, 1, 2, 3], neck_hidden_sizes=[8, 8, 16, 16], fusion_hidden_size=16, num_labels=4,
        use_auxiliary_head=False,
    )  # fmt: skip
    return library.DPTForSemanticSegmentation(config)  # type: ignore[no-any-return]


BUILT: dict[str, tuple[Any, str]] = {
    "segformer": (segformer, "Segformer"),
    "upernet": (upernet, "Segformer"),
    "dpt": (dpt, "DPT"),
    "detr": (lambda: detr("Detr"), "Detr"),
    "conditional detr": (lambda: detr("ConditionalDetr"), "ConditionalDetr"),
    "deformable detr": (deformable, "DeformableDetr"),
    "rt-detr": (rt_detr, "RTDetr"),
    "yolos": (yolos, "Yolos"),
}


@pytest.mark.parametrize("name", BUILT)
def test_models_of_tasks_are_loaded_by_their_id_and_explained(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    build, processor = BUILT[name]
    network = build().eval()
    network.save_pretrained(tmp_path)
    getattr(require("transformers"), f"{processor}ImageProcessor")(size=SQUARE).save_pretrained(tmp_path)
    Image.effect_noise((64, 64), 80).convert("RGB").save(tmp_path / "noise.png")
    model = sightline.load(f"hf/{tmp_path}")
    boxes = "detr" in name or name == "yolos"
    assert model.output == ("boxes" if boxes else "dense")
    normalised = name != "rt-detr"  # whose images stay between 0 and 1
    assert (model.mean != (0.0, 0.0, 0.0)) == normalised
    batch = sightline.api.as_batch(model, tmp_path / "noise.png")
    assert batch.shape == (1, 3, 64, 64)
    assert (float(batch.min()) >= 0) != normalised
    with torch.no_grad():
        assert torch.equal(model.model(batch).logits, network(batch).logits)
    target: Any = Box(0) if boxes else Region(1, torch.ones(64, 64, dtype=torch.bool))
    found = sightline.explain(model, tmp_path / "noise.png", ["ixg", "rise(samples=2)"], target=target)
    assert float(found[0].map.abs().max()) > 0


def test_masks_of_queries_are_said_to_be_unread(tmp_path: Path) -> None:
    library = require("transformers")
    library.MaskFormerConfig(architectures=["MaskFormerForInstanceSegmentation"]).save_pretrained(tmp_path)
    with pytest.raises(errors.UnsupportedModel, match="gives masks of queries, which sightline cannot read yet"):
        sightline.load(f"hf/{tmp_path}", pretrained=False)
