"""Hugging Face transformers: ViT, DeiT, DINOv2 and CLIP, as classifiers, CLIP models and bare backbones.

The output of a CLIP model is the image embedding before it is normalised; that of a backbone without a head
(`ViTModel`, `Dinov2Model`, `CLIPVisionModel`, …) the class token after the last norm.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from sightline.errors import InputError, TargetError
from sightline.models.capture import Site
from sightline.models.facts import CLIP, IMAGENET, is_a, transformers_facts
from sightline.models.vit.adapter import Block, VisionTransformer, first_attribute, first_path, plain_mlp

# How each model type's checkpoints normalise, used when no processor says better.
_NORMALISATION = {
    "deit": IMAGENET,
    "dinov2": IMAGENET,
    "dinov2_with_registers": IMAGENET,
    "clip_vision_model": CLIP,
}


class TransformersVit(VisionTransformer):
    """A transformers model around a ViT-like trunk.

    `processor` (an image processor, or CLIP's processor with its tokenizer) says how images are prepared; `tokenizer`
    lets a `CLIPModel` read texts.
    """

    def __init__(self, model: Any, head: Head, *, processor: Any = None, tokenizer: Any = None, **facts: Any) -> None:
        self.trunk = first_attribute(model, ("vit", "deit", "dinov2", "dinov2_with_registers", "vision_model")) or model
        self.head = head
        self.tokenizer = tokenizer if tokenizer is not None else getattr(processor, "tokenizer", None)
        config = self.trunk.config
        defaults: dict[str, Any] = {"input_size": None if self._any_size else _pair(config.image_size)}
        defaults |= _NORMALISATION.get(config.model_type, {})
        defaults |= transformers_facts(model, processor)
        if not head.classifier:
            defaults |= {"labels": (), "output": "embedding"}
        super().__init__(model, **defaults | facts)

    @property
    def _any_size(self) -> bool:
        return str(self.trunk.config.model_type).startswith("dinov2")  # it resizes its positions to the image

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        return tuple(_block(module) for module in self._layers)

    @property
    def _layers(self) -> Any:
        return first_attribute(getattr(self.trunk, "encoder", self.trunk), ("layers", "layer"))

    @property
    def _norm_pre(self) -> nn.Module | None:
        return getattr(self.trunk, "pre_layrnorm", None)  # CLIP's, misspelt there

    @property
    def entry(self) -> Site:
        return Site(self._norm_pre or self._layers[0], "input")

    @property
    def final_norm(self) -> nn.Module | None:
        return getattr(self.trunk, "layernorm", None)  # CLIP's last norm sees the pooled class token, not the tokens

    @property
    def prefix(self) -> int:
        distilled = hasattr(self.trunk.embeddings, "distillation_token")
        return 1 + distilled + int(getattr(self.trunk.config, "num_register_tokens", 0))

    @property
    def patch(self) -> tuple[int, int]:
        return _pair(self.trunk.config.patch_size)

    @property
    def pool(self) -> str:
        return self.head.pool

    @cached_property
    def num_classes(self) -> int | None:
        last = getattr(self.model, self.head.classifier or "visual_projection", None)
        features = None if self.head.classifier else self.trunk.config.hidden_size  # without a head
        return getattr(last, "out_features", None) or features or len(self.labels) or None

    def check_size(self, size: tuple[int, int]) -> None:
        super().check_size(size)
        loose = [side for side, step in zip(size, self.patch, strict=True) if side < step or side % step]
        if self.input_size is None and loose:
            raise InputError(
                f"got images of {size[0]}×{size[1]} pixels; {self.name} needs multiples of its patch, "
                f"{self.patch[0]}×{self.patch[1]}"
            )

    @contextmanager
    def interceptable(self) -> Iterator[None]:
        # Attention looks its implementation up in its configuration at every call. Setting it in one configuration sets
        # those inside it too, so the parents, which modules() yields first, go back before their children.
        held: list[Any] = [getattr(module, "config", None) for module in self.modules]
        configs = {id(config): config for config in held if hasattr(config, "_attn_implementation")}
        before = [(config, config._attn_implementation) for config in configs.values()]
        if all(implementation == "sdpa" for _, implementation in before):
            yield
            return
        try:
            for config, _ in before:
                config._attn_implementation = "sdpa"
            yield
        finally:
            for config, implementation in before:
                config._attn_implementation = implementation

    def forward(self, images: Tensor) -> Any:
        if self.head.classifier:
            return self.model(images)
        output = self.trunk(pixel_values=images, return_dict=True)
        features = output.last_hidden_state[:, 0] if self.final_norm is not None else output.pooler_output
        return _project(self.model, features)

    def step(self, tokens: Tensor, index: int, keep: Tensor | None) -> Tensor:
        if index == 0 and self._norm_pre is not None:
            tokens = self._norm_pre(tokens)
        layer = self._layers[index]
        output = layer(tokens, *_no_masks(layer))
        return output[0] if isinstance(output, tuple) else output  # type: ignore[no-any-return]

    def finish(self, tokens: Tensor) -> Tensor:
        if self.final_norm is not None:
            tokens = self.final_norm(tokens)
        return self.logits(self.head.read(self, tokens))

    def encode_text(self, texts: Sequence[str]) -> Tensor:
        if not hasattr(self.model, "text_model"):
            return super().encode_text(texts)
        if self.tokenizer is None:
            raise TargetError(
                f"{self.name} came without its tokenizer, so it cannot read texts; call adapt(model, tokenizer=…) "
                "with transformers' tokenizer for this model"
            )
        with torch.no_grad(), self.evaluating():
            tokens = self.tokenizer(list(texts), padding=True, truncation=True, return_tensors="pt")
            inputs = {name: tokens[name].to(self.device) for name in ("input_ids", "attention_mask")}
            pooled = self.model.text_model(**inputs, return_dict=True).pooler_output
            return self.model.text_projection(pooled)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Head:
    """What a model does after its blocks and the norm behind them.

    Attributes:
        pool: what it reads.
        read: turns an adapter and the normed tokens into the output.
        classifier: the attribute whose size is the number of classes, empty where there are none.
    """

    pool: str
    read: Callable[[TransformersVit, Tensor], Tensor]
    classifier: str = "classifier"


def _class_token(adapter: TransformersVit, tokens: Tensor) -> Tensor:
    return adapter.model.classifier(tokens[:, 0])  # type: ignore[no-any-return]


def _two_tokens(adapter: TransformersVit, tokens: Tensor) -> Tensor:
    model = adapter.model
    mean: Tensor = (model.cls_classifier(tokens[:, 0]) + model.distillation_classifier(tokens[:, 1])) / 2
    return mean


def _class_and_mean(adapter: TransformersVit, tokens: Tensor) -> Tensor:
    both = torch.cat([tokens[:, 0], tokens[:, adapter.prefix :].mean(dim=1)], dim=1)
    return adapter.model.classifier(both)  # type: ignore[no-any-return]


def _mean_patch(adapter: TransformersVit, tokens: Tensor) -> Tensor:
    return adapter.model.classifier(tokens[:, adapter.prefix :].mean(dim=1))  # type: ignore[no-any-return]


def _features(adapter: TransformersVit, tokens: Tensor) -> Tensor:
    norm = getattr(adapter.trunk, "post_layernorm", None)
    return _project(adapter.model, tokens[:, 0] if norm is None else norm(tokens[:, 0]))


def _project(model: Any, features: Tensor) -> Tensor:
    projection = getattr(model, "visual_projection", None)
    return features if projection is None else projection(features)


_FEATURES = Head("cls", _features, classifier="")
_HEADS = {
    "ViTForImageClassification": Head("cls", _class_token),
    "DeiTForImageClassification": Head("cls", _class_token),
    "DeiTForImageClassificationWithTeacher": Head("cls+distilled", _two_tokens, classifier="cls_classifier"),
    "Dinov2ForImageClassification": Head("cls+mean", _class_and_mean),
    "Dinov2WithRegistersForImageClassification": Head("cls+mean", _class_and_mean),
    "CLIPForImageClassification": Head("mean", _mean_patch),
    "CLIPModel": _FEATURES,
    "CLIPVisionModelWithProjection": _FEATURES,
    "CLIPVisionModel": _FEATURES,
    "ViTModel": _FEATURES,
    "DeiTModel": _FEATURES,
    "Dinov2Model": _FEATURES,
    "Dinov2WithRegistersModel": _FEATURES,
}


def _block(module: Any) -> Block:
    return Block(
        module,
        attention=first_attribute(module, ("attention", "self_attn")),
        norm1=first_attribute(module, ("layernorm_before", "norm1", "layer_norm1")),
        norm2=first_attribute(module, ("layernorm_after", "norm2", "layer_norm2")),
        mlp=getattr(module, "mlp", None),
        projection=first_path(module, ("attention.o_proj", "attention.output.dense", "self_attn.out_proj")),
        mlp_layers=plain_mlp(
            first_path(module, ("mlp.fc1",)),
            first_path(module, ("mlp.activation_fn", "mlp.activation")),
            first_path(module, ("mlp.fc2",)),
        ),
        scales=("layer_scale1.lambda1", "layer_scale2.lambda1"),
    )


def _no_masks(layer: nn.Module) -> list[None]:
    """Fill the masks that a layer insists on; how many there are differs between layers and versions."""
    parameters = inspect.signature(layer.forward).parameters.values()
    return [None for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD and p.default is p.empty][1:]


def _pair(size: Any) -> tuple[int, int]:
    height, width = (size, size) if isinstance(size, int) else size
    return int(height), int(width)


def recognise(model: nn.Module, facts: dict[str, Any]) -> VisionTransformer | None:
    """Adapt the models of ViT, DeiT, DINOv2 and CLIP that turn an image into one vector."""
    for name, head in _HEADS.items():
        if is_a(model, "transformers.models", name):
            return TransformersVit(model, head, **facts)
    return None
