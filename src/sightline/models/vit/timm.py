"""timm's transformers: VisionTransformer (ViT, DeiT, DeiT-3, DINOv2, CLIP towers, hybrids) and Eva (EVA, EVA-02)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cached_property
from typing import Any

from torch import Tensor, nn

from sightline.errors import InputError
from sightline.models.capture import Site
from sightline.models.facts import is_a, timm_facts
from sightline.models.vit.adapter import Block, VisionTransformer, first_path, gather_rotary, plain_mlp


class TimmVisionTransformer(VisionTransformer):
    """A timm model with patch_embed, norm_pre, blocks, norm and forward_head."""

    def __init__(self, model: Any, **facts: Any) -> None:
        facts.setdefault("input_size", None if getattr(model, "dynamic_img_size", False) else _image_size(model))
        super().__init__(model, **facts)

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        return tuple(_block(module) for module in self.model.blocks)

    @property
    def entry(self) -> Site:
        return Site(self.model.norm_pre, "input")

    @property
    def final_norm(self) -> nn.Module | None:
        return self.model.norm  # type: ignore[no-any-return]

    @property
    def prefix(self) -> int:
        return int(self.model.num_prefix_tokens)

    @property
    def patch(self) -> tuple[int, int]:
        embed = self.model.patch_embed
        height, width = _image_size(self.model)
        rows, columns = embed.grid_size
        return height // rows, width // columns  # a hybrid's patch is larger than its patch embedding's kernel

    @property
    def pool(self) -> str:
        if hasattr(self.model, "head_dist"):
            return "cls+distilled"
        if getattr(self.model, "attn_pool", None) is not None:
            return "map"
        return "cls" if self.model.global_pool == "token" else "mean"

    @cached_property
    def num_classes(self) -> int:
        head = getattr(self.model, "head", None)
        if isinstance(head, nn.Linear):  # a user's own head leaves num_classes as it was
            return head.out_features
        return int(self.model.num_classes) or int(self.model.num_features)  # without a head, the number of features

    def check_size(self, size: tuple[int, int]) -> None:
        super().check_size(size)
        if any(side % step for side, step in zip(size, self.patch, strict=True)):
            raise InputError(
                f"got images of {size[0]}×{size[1]} pixels; {self.name} needs multiples of its patch, "
                f"{self.patch[0]}×{self.patch[1]}"
            )

    @contextmanager
    def interceptable(self) -> Iterator[None]:
        # timm copies the flag into every attention; one built with it off calls softmax itself
        with ExitStack() as stack:
            for block in self.blocks:
                attention: Any = block.attention
                if getattr(attention, "fused_attn", True) is False:
                    stack.callback(setattr, attention, "fused_attn", False)
                    attention.fused_attn = True
            yield

    def step(self, tokens: Tensor, index: int, keep: Tensor | None) -> Tensor:
        if index == 0:
            tokens = self.model.norm_pre(tokens)
        return self.model.blocks[index](tokens)  # type: ignore[no-any-return]

    def finish(self, tokens: Tensor) -> Tensor:
        return self.logits(self.model.forward_head(self.model.norm(tokens)))


class TimmEva(TimmVisionTransformer):
    """timm's Eva: as a vision transformer, with rotary positions handed to every block."""

    def step(self, tokens: Tensor, index: int, keep: Tensor | None) -> Tensor:
        if index == 0:
            tokens = self.model.norm_pre(tokens)
        return self.model.blocks[index](tokens, rope=self._rotary(index, keep))  # type: ignore[no-any-return]

    def _rotary(self, index: int, keep: Tensor | None) -> Tensor | None:
        if self.model.rope is None:
            return None
        if self.model.dynamic_img_size:
            raise InputError(
                f"{self.name} was built for images of any size, so its blocks cannot be run apart from an image; "
                "build it without dynamic_img_size"
            )
        table: Tensor = self.model.rope.get_embed()
        if getattr(self.model, "rope_mixed", False):
            table = table[index]  # (head, patch, channel)
            if keep is None:
                return table
            return table[:, keep] if keep.ndim == 1 else table[:, keep].transpose(0, 1)
        return gather_rotary(table, keep)


def _image_size(model: Any) -> tuple[int, int]:
    height, width = model.patch_embed.img_size
    return int(height), int(width)


def _block(module: Any) -> Block:
    return Block(
        module,
        attention=module.attn if hasattr(module, "attn") else module,
        norm1=getattr(module, "norm1", None),
        norm2=getattr(module, "norm2", None),
        mlp=getattr(module, "mlp", None),
        projection=first_path(module, ("attn.proj",)),
        mlp_layers=plain_mlp(*(first_path(module, (f"mlp.{name}",)) for name in ("fc1", "act", "fc2"))),
        scales=("gamma_1", "gamma_2") if hasattr(module, "gamma_1") else ("ls1.gamma", "ls2.gamma"),
    )


def recognise(model: nn.Module, facts: dict[str, Any]) -> VisionTransformer | None:
    """Adapt timm's VisionTransformer and Eva, and their subclasses."""
    for name, adapter in (("Eva", TimmEva), ("VisionTransformer", TimmVisionTransformer)):
        if is_a(model, "timm.models", name):
            return adapter(model, **timm_facts(model) | facts)
    return None
