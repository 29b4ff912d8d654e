"""open_clip: CLIP, CustomTextCLIP and CoCa with a transformer as visual tower, and such towers alone.

The output is the image embedding before it is normalised. The tower is open_clip's own VisionTransformer or, inside a
`TimmModel`, one of timm's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from sightline.errors import TargetError
from sightline.extras import require
from sightline.models.capture import Site
from sightline.models.facts import CLIP
from sightline.models.signature import is_a
from sightline.models.vit import timm as vit_timm
from sightline.models.vit.adapter import Block, VisionTransformer, plain_mlp
from sightline.models.vit.wrapped import WrappedTransformer

_BPE_SIZE = 49408  # words of the vocabulary that open_clip ships, and of every model trained with it


class OpenClipTransformer(VisionTransformer):
    """open_clip's VisionTransformer, alone or inside a CLIP model. `tokenizer` is open_clip's own unless given."""

    prefix = 1

    def __init__(self, model: Any, *, tokenizer: Any = None, **facts: Any) -> None:
        self.tower = getattr(model, "visual", model)
        self.tokenizer = tokenizer
        height, width = self.tower.image_size
        super().__init__(model, **{"input_size": (int(height), int(width))} | _facts(self.tower) | facts)
        self.blocks = tuple(_block(module) for module in self.tower.transformer.resblocks)
        self.entry = Site(self.tower.ln_pre, "input")
        pooled_first = self.tower.final_ln_after_pool or self.pool == "map"
        self.final_norm = None if pooled_first else self.tower.ln_post
        height, width = self.tower.patch_size
        self.patch = int(height), int(width)

    @property
    def pool(self) -> str:
        if self.tower.attn_pool is not None:
            return "map"
        return "mean" if self.tower.pool_type == "avg" else "cls"

    @property
    def pooling_attention(self) -> nn.Module | None:
        return getattr(self.tower.attn_pool, "attn", None)

    @cached_property
    def num_classes(self) -> int:
        return int(self.tower.output_dim if self.tower.proj is not None else self.tower.ln_post.normalized_shape[0])

    def forward(self, images: Tensor) -> Any:
        return self.tower(images)

    def step(self, tokens: Tensor, index: int, keep: Tensor | None) -> Tensor:
        if index == 0:
            tokens = self.tower.ln_pre(tokens)
        return self.tower.transformer.resblocks[index](tokens)  # type: ignore[no-any-return]

    def finish(self, tokens: Tensor) -> Tensor:
        pooled, _ = self.tower._pool(tokens)  # it knows every order of norm and pooling
        return self.logits(pooled if self.tower.proj is None else pooled @ self.tower.proj)

    def encode_text(self, texts: Sequence[str]) -> Tensor:
        return _encode(self, texts) if hasattr(self.model, "encode_text") else super().encode_text(texts)


class OpenClipTimm(WrappedTransformer):
    """A timm transformer inside open_clip's `TimmModel`, alone or as the visual tower of a CLIP model."""

    offers = VisionTransformer.offers

    def __init__(self, model: Any, trunk: VisionTransformer, *, tokenizer: Any = None, **facts: Any) -> None:
        self.tower = getattr(model, "visual", model)
        self.tokenizer = tokenizer
        super().__init__(model, trunk, **_facts(self.tower) | facts)

    @cached_property
    def num_classes(self) -> int | None:
        linear = [module for module in self.tower.head.modules() if isinstance(module, nn.Linear)]
        return linear[-1].out_features if linear else self.inner.num_classes

    def check_size(self, size: tuple[int, int]) -> None:
        self.inner.check_size(size)

    def forward(self, images: Tensor) -> Any:
        return self.tower(images)

    def finish(self, tokens: Tensor) -> Tensor:
        return self.logits(self.tower.head(self.inner.finish(tokens)))

    def encode_text(self, texts: Sequence[str]) -> Tensor:
        return _encode(self, texts) if hasattr(self.model, "encode_text") else super().encode_text(texts)


def _block(module: Any) -> Block:
    return Block(
        module,
        attention=module.attn,
        norm1=module.ln_1,
        norm2=module.ln_2,
        mlp=module.mlp,
        projection=getattr(module.attn, "out_proj", None),
        mlp_layers=plain_mlp(*(getattr(module.mlp, name, None) for name in ("c_fc", "gelu", "c_proj"))),
        scales=("ls_1.gamma", "ls_2.gamma"),
    )


def _encode(adapter: OpenClipTransformer | OpenClipTimm, texts: Sequence[str]) -> Tensor:
    """Run the model's own text tower."""
    tokenizer = _own_tokenizer(adapter) if adapter.tokenizer is None else adapter.tokenizer
    for each in texts:
        _check_length(each, tokenizer, adapter)
    with torch.no_grad(), adapter.evaluating():
        return adapter.model.encode_text(tokenizer(list(texts)).to(adapter.device))  # type: ignore[no-any-return]


def _check_length(text: str, tokenizer: Any, adapter: OpenClipTransformer | OpenClipTimm) -> None:
    """Refuse a text that open_clip would cut off without a word."""
    longest = getattr(tokenizer, "context_length", None)
    if callable(inner := getattr(tokenizer, "tokenizer", None)):  # that of transformers
        count = len(inner([text])["input_ids"][0])
    elif hasattr(tokenizer, "encode"):
        count = len(tokenizer.encode(text)) + 2  # where the text begins and ends
    else:
        return
    if longest is not None and count > longest:
        raise TargetError(
            f"the text {text[:40]!r} has {count} tokens and {adapter.name} reads {longest}; give a shorter text"
        )


def _own_tokenizer(adapter: OpenClipTransformer | OpenClipTimm) -> Any:
    text = getattr(adapter.model, "text", adapter.model)
    words = getattr(text, "vocab_size", None)
    if words != _BPE_SIZE:
        raise TargetError(
            f"{adapter.name} reads a vocabulary of {words} words, not the {_BPE_SIZE} of open_clip's own tokenizer; "
            "call adapt(model, tokenizer=open_clip.get_tokenizer(name))"
        )
    return require("open_clip").SimpleTokenizer(context_length=text.context_length)


def _facts(tower: Any) -> dict[str, Any]:
    """Read the preprocessing that open_clip's factory left on the tower; CLIP's normalisation where it left none."""
    config = getattr(tower, "preprocess_cfg", None)
    if not config:
        return {**CLIP, "output": "embedding"}
    transform = require("open_clip.transform")
    known = {field.name for field in fields(transform.PreprocessCfg)}
    prepared = transform.PreprocessCfg(**{name: value for name, value in config.items() if name in known})
    preprocess = transform.image_transform_v2(prepared, is_train=False)
    return {"preprocess": preprocess, "mean": prepared.mean, "std": prepared.std, "output": "embedding"}


def recognise(model: nn.Module, facts: dict[str, Any]) -> VisionTransformer | None:
    """Adapt open_clip's models with a transformer as visual tower, and such towers alone."""
    tower: Any = getattr(model, "visual", model) if _is_clip(model) else model
    if is_a(tower, "open_clip", "VisionTransformer"):
        return OpenClipTransformer(model, **facts)
    if is_a(tower, "open_clip", "TimmModel") and (trunk := vit_timm.recognise(tower.trunk, {})) is not None:
        return OpenClipTimm(model, trunk, **facts)
    return None


def _is_clip(model: nn.Module) -> bool:
    return any(is_a(model, "open_clip", name) for name in ("CLIP", "CustomTextCLIP", "CoCa"))
