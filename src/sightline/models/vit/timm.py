"""timm's transformers: VisionTransformer (ViT, DeiT, DINOv2, CLIP), Eva (EVA-02, DINOv3), NaFlexVit and Beit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property, lru_cache
from typing import Any

from torch import Tensor, nn

from sightline.extras import require
from sightline.models.capture import Site
from sightline.models.facts import for_channels
from sightline.models.passes import setting
from sightline.models.signature import COLOURS, input_channels, is_a
from sightline.models.vit.adapter import (
    Block,
    VisionTransformer,
    gather_rotary,
    keeping_bias,
    plain_mlp,
)


class TimmVisionTransformer(VisionTransformer):
    """A timm model with patch_embed, norm_pre, blocks, norm and forward_head."""

    def __init__(self, model: Any, **facts: Any) -> None:
        any_size = getattr(model, "dynamic_img_size", not hasattr(model, "patch_embed"))
        facts.setdefault("input_size", None if any_size else _image_size(model))
        super().__init__(model, **facts)
        self.default_size = self.input_size or _image_size(model)
        self.blocks = tuple(_block(module) for module in model.blocks)
        self.entry = Site(self._first(model), "input")
        self.final_norm = model.norm
        self.prefix = int(model.num_prefix_tokens)
        self.patch = self._multiple = _patch(model)

    def _first(self, model: Any) -> nn.Module:
        """Return the module that the tokens enter first."""
        return model.norm_pre  # type: ignore[no-any-return]

    @property
    def pool(self) -> str:
        if hasattr(self.model, "head_dist"):
            return "cls+distilled"
        if getattr(self.model, "attn_pool", None) is not None:
            return "map"
        return "cls" if self.model.global_pool == "token" else "mean"

    @property
    def pooling_attention(self) -> nn.Module | None:
        return getattr(self.model, "attn_pool", None)

    @cached_property
    def num_classes(self) -> int:
        head = getattr(self.model, "head", None)
        if isinstance(head, nn.Linear):  # a user's own head leaves num_classes as it was
            return head.out_features
        return int(self.model.num_classes) or int(self.model.num_features)  # without a head, the number of features

    @contextmanager
    def interceptable(self) -> Iterator[None]:
        # timm copies the flag into every attention; one built with it off calls softmax itself
        attentions = [block.attention for block in self.blocks]
        with setting("fused_attn", True, [each for each in attentions if getattr(each, "fused_attn", True) is False]):
            yield

    def step(self, tokens: Tensor, index: int, keep: Tensor | None) -> Tensor:
        if index == 0:
            tokens = self.model.norm_pre(tokens)
        return self.model.blocks[index](tokens)  # type: ignore[no-any-return]

    def finish(self, tokens: Tensor) -> Tensor:
        return self.logits(self.model.forward_head(self.model.norm(tokens)))


class TimmEva(TimmVisionTransformer):
    """timm's Eva: as a vision transformer, with rotary positions handed to every block."""

    blocks_see_positions = True

    def step(self, tokens: Tensor, index: int, keep: Tensor | None) -> Tensor:
        if index == 0:
            tokens = self.model.norm_pre(tokens)
        return self.model.blocks[index](tokens, rope=self._rotary(index, keep))  # type: ignore[no-any-return]

    def _rotary(self, index: int, keep: Tensor | None) -> Tensor | None:
        if self.model.rope is None:
            return None
        grid = self.seen_grid
        any_size = getattr(self.model, "dynamic_img_size", True)  # NaFlexVit takes every size
        shape = {"shape": (grid.height, grid.width)} if any_size else {}
        table: Tensor = self.model.rope.get_embed(**shape)
        if getattr(self.model, "rope_mixed", False) or getattr(self.model, "rope_is_mixed", False):
            table = table[index]  # (head, patch, channel)
            if keep is None:
                return table
            return table[:, keep] if keep.ndim == 1 else table[:, keep].transpose(0, 1)
        return gather_rotary(table, keep)


class TimmNaFlex(TimmEva):
    """timm's NaFlexVit on whole images: as a vision transformer of any size, with or without rotary positions."""

    def step(self, tokens: Tensor, index: int, keep: Tensor | None) -> Tensor:
        if self.model.rope is not None:
            return super().step(tokens, index, keep)
        return TimmVisionTransformer.step(self, tokens, index, keep)


class TimmBeit(TimmVisionTransformer):
    """timm's Beit: as a vision transformer, with a bias for the relative position of two tokens in every attention."""

    blocks_see_positions = True

    def _first(self, model: Any) -> nn.Module:
        return model.blocks[0]  # type: ignore[no-any-return]  # the dropout before it is the identity outside training

    def step(self, tokens: Tensor, index: int, keep: Tensor | None) -> Tensor:
        shared = None if self.model.rel_pos_bias is None else self.model.rel_pos_bias()
        with keeping_bias(self, index, keep):
            return self.model.blocks[index](tokens, shared_rel_pos_bias=shared)  # type: ignore[no-any-return]


def _image_size(model: Any) -> tuple[int, int]:
    if not hasattr(model, "patch_embed"):  # NaFlexVit takes every size, and says for which it was made
        height, width = model.pretrained_cfg["input_size"][1:]
        return int(height), int(width)
    height, width = model.patch_embed.img_size
    return int(height), int(width)


def _patch(model: Any) -> tuple[int, int]:
    if not hasattr(model, "patch_embed"):
        height, width = model.embeds.patch_size
        return int(height), int(width)
    height, width = _image_size(model)
    rows, columns = model.patch_embed.grid_size
    return height // rows, width // columns  # a hybrid's patch is larger than its patch embedding's kernel


def _block(module: Any) -> Block:
    mlp = getattr(module, "mlp", None)
    return Block(
        module,
        attention=module.attn if hasattr(module, "attn") else module,
        norm1=getattr(module, "norm1", None),
        norm2=getattr(module, "norm2", None),
        mlp=mlp,
        projection=getattr(getattr(module, "attn", None), "proj", None),
        mlp_layers=plain_mlp(*(getattr(mlp, name, None) for name in ("fc1", "act", "fc2"))),
        scales=("gamma_1", "gamma_2") if hasattr(module, "gamma_1") else ("ls1.gamma", "ls2.gamma"),
    )


_FAMILIES = {
    "Eva": TimmEva,
    "NaFlexVit": TimmNaFlex,
    "Beit": TimmBeit,
    "VisionTransformer": TimmVisionTransformer,
}


def recognise(model: nn.Module, facts: dict[str, Any]) -> VisionTransformer | None:
    """Adapt timm's VisionTransformer, Eva, NaFlexVit and Beit, and their subclasses."""
    for name, adapter in _FAMILIES.items():
        if is_a(model, "timm.models", name):
            return adapter(model, **timm_facts(model) | facts)
    return None


def timm_facts(model: nn.Module) -> dict[str, Any]:
    """Read a timm model's own preprocessing and, where it names them or they are ImageNet's, its class names."""
    from timm import data  # it is here, since the model is its

    config = data.resolve_model_data_config(model)
    size = getattr(getattr(model, "patch_embed", None), "img_size", None)
    if size is not None and not getattr(model, "dynamic_img_size", False):
        config["input_size"] = (COLOURS, *size)  # a transformer built for another size than its description's
    described: dict[str, Any] = getattr(model, "pretrained_cfg", None) or {}
    facts: dict[str, Any] = {
        "name": described.get("architecture", ""),
        "preprocess": data.create_transform(**config, is_training=False),
        "mean": config["mean"],
        "std": config["std"],
    }
    labels = tuple(described.get("label_names") or ())
    subset = data.infer_imagenet_subset(model)
    if labels and len(labels) == getattr(model, "num_classes", None):
        facts["labels"] = labels
    elif subset is not None:
        facts["labels"] = _imagenet_labels(subset)
    channels = input_channels(model)
    return facts if channels == COLOURS else for_channels(facts, channels)


@lru_cache(maxsize=8)
def _imagenet_labels(subset: str) -> tuple[str, ...]:
    info = require("timm.data").ImageNetInfo(subset)
    return tuple(info.index_to_description(index) for index in range(info.num_classes()))
