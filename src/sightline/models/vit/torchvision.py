"""torchvision's VisionTransformer: vit_b_16 and its siblings, class-token models with nn.MultiheadAttention inside."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from torch import Tensor, nn

from sightline.extras import require
from sightline.models.capture import Site
from sightline.models.facts import IMAGENET_RESIZE, torchvision_facts
from sightline.models.signature import is_a
from sightline.models.survey import IMAGENET_SIZE
from sightline.models.vit.adapter import Block, VisionTransformer, plain_mlp


class TorchvisionTransformer(VisionTransformer):
    """A torchvision model with encoder.layers, encoder.ln and heads."""

    pool = "cls"
    prefix = 1

    def __init__(self, model: Any, **facts: Any) -> None:
        size = int(model.image_size)
        presets = require("torchvision.transforms._presets")
        preprocess = presets.ImageClassification(
            crop_size=size, resize_size=IMAGENET_RESIZE if size == IMAGENET_SIZE else size
        )
        defaults = {"input_size": (size, size), "preprocess": preprocess}
        super().__init__(model, **torchvision_facts(model) | defaults | facts)
        self.blocks = tuple(_block(module) for module in model.encoder.layers)
        # positions are in, and the dropout behind them is the identity outside training
        self.entry = Site(model.encoder.layers[0], "input")
        self.final_norm = model.encoder.ln
        self.patch = int(model.patch_size), int(model.patch_size)

    @cached_property
    def num_classes(self) -> int | None:
        linear = [module for module in self.model.heads.modules() if isinstance(module, nn.Linear)]
        return linear[-1].out_features if linear else len(self.labels) or None  # the head may be a user's own

    def step(self, tokens: Tensor, index: int, keep: Tensor | None) -> Tensor:
        return self.model.encoder.layers[index](tokens)  # type: ignore[no-any-return]

    def finish(self, tokens: Tensor) -> Tensor:
        return self.logits(self.model.heads(self.model.encoder.ln(tokens)[:, 0]))


def _block(module: Any) -> Block:
    layers = [layer for layer in module.mlp if not isinstance(layer, nn.Dropout)]
    return Block(
        module,
        attention=module.self_attention,
        norm1=module.ln_1,
        norm2=module.ln_2,
        mlp=module.mlp,
        projection=module.self_attention.out_proj,
        mlp_layers=plain_mlp(*layers) if len(layers) == 3 else None,
    )


def recognise(model: nn.Module, facts: dict[str, Any]) -> VisionTransformer | None:
    """Adapt torchvision's VisionTransformer."""
    return TorchvisionTransformer(model, **facts) if is_a(model, "torchvision.models", "VisionTransformer") else None
