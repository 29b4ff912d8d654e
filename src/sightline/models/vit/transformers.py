"""Hugging Face transformers: ViT, DeiT, DINOv2, DINOv3, BEiT, CLIP and SigLIP, as classifiers and as bare backbones.

The output of a CLIP or SigLIP model is the image embedding before it is normalised; that of a backbone without a head
(`ViTModel`, `Dinov2Model`, …) the class token after the last norm, or what its own pooling makes of the tokens.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import torch
from torch import Tensor, nn

from sightline.errors import TargetError
from sightline.models.capture import Site
from sightline.models.facts import CLIP, IMAGENET, transformers_facts
from sightline.models.passes import setting
from sightline.models.signature import is_a
from sightline.models.vit.adapter import (
    Block,
    VisionTransformer,
    first_attribute,
    first_path,
    gather_rotary,
    keeping_bias,
    plain_mlp,
)

# How each model type's checkpoints normalise, used when no processor says better.
_NORMALISATION = {
    "deit": IMAGENET,
    "dinov2": IMAGENET,
    "dinov2_with_registers": IMAGENET,
    "dinov3_vit": IMAGENET,
    "clip_vision_model": CLIP,
}


class TransformersVit(VisionTransformer):
    """A transformers model around a ViT-like trunk.

    `processor` (an image processor, or CLIP's processor with its tokenizer) says how images are prepared; `tokenizer`
    lets a `CLIPModel` read texts.
    """

    def __init__(self, model: Any, head: Head, *, processor: Any = None, tokenizer: Any = None, **facts: Any) -> None:
        self.trunk = first_attribute(model, _TRUNKS) or model
        self.head = head
        self.tokenizer = tokenizer if tokenizer is not None else getattr(processor, "tokenizer", None)
        config = self.trunk.config
        defaults: dict[str, Any] = {"input_size": None if self._any_size else self._own_size}
        defaults |= _NORMALISATION.get(config.model_type, {})
        defaults |= transformers_facts(model, processor)
        if not head.classifier:
            defaults |= {"labels": (), "output": "embedding"}
        super().__init__(model, **defaults | facts)
        self.default_size = self.input_size or self._own_size
        self.blocks = tuple(_block(module) for module in self._layers)
        self.entry = Site(self._norm_pre or self._layers[0], "input")
        # CLIP's last norm sees the pooled class token, not the tokens; SigLIP's of the same name sees the tokens
        after = ("post_layernorm",) if head.norm_before_pool else ()
        self.final_norm = first_attribute(self.trunk, ("layernorm", "norm", *after))
        single = ("cls_token", "class_embedding", "distillation_token")
        tokens = sum(hasattr(self.trunk.embeddings, name) for name in single)
        self.prefix = tokens + int(getattr(config, "num_register_tokens", 0))
        self.patch = _pair(config.patch_size)

    @property
    def _own_size(self) -> tuple[int, int]:
        return _pair(self.trunk.config.image_size)

    @property
    def _any_size(self) -> bool:
        return str(self.trunk.config.model_type).startswith("dino")  # it fits its positions to the image

    @property
    def _layers(self) -> Any:
        return first_attribute(first_attribute(self.trunk, ("encoder", "model")) or self.trunk, ("layers", "layer"))

    @property
    def _norm_pre(self) -> nn.Module | None:
        return getattr(self.trunk, "pre_layrnorm", None)  # CLIP's, misspelt there

    @property
    def pool(self) -> str:
        by_class = self.head.read is _own_pooling and self.trunk.pooler.layernorm is None
        return "cls" if by_class else self.head.pool

    @property
    def pooling_attention(self) -> nn.Module | None:
        return first_path(self.trunk, ("head.attention",)) if self.pool == "map" else None

    @cached_property
    def num_classes(self) -> int | None:
        last = getattr(self.model, self.head.classifier or "visual_projection", None)
        features = None if self.head.classifier else self.trunk.config.hidden_size  # without a head
        return getattr(last, "out_features", None) or features or len(self.labels) or None

    @property
    def _multiple(self) -> tuple[int, int]:  # type: ignore[override]
        return self.patch if self.input_size is None else (1, 1)

    def interceptable(self) -> AbstractContextManager[None]:
        return plain_attention(self.modules)

    def forward(self, images: Tensor) -> Any:
        if self.head.classifier:
            return self.model(images)
        output = self.trunk(pixel_values=images, return_dict=True)
        features = output.pooler_output if self.head.pooled else output.last_hidden_state[:, 0]
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
            inputs = self._tokenise(texts)
            pooled = self.model.text_model(**inputs, return_dict=True).pooler_output
            projection = getattr(self.model, "text_projection", None)  # SigLIP's text model has it inside
            return pooled if projection is None else projection(pooled)  # type: ignore[no-any-return]

    def _tokenise(self, texts: Sequence[str]) -> dict[str, Tensor]:
        """Turn texts into token numbers, padded as the model was trained, or say which text is too long."""
        config = getattr(self.model.config, "text_config", self.model.config)
        longest, tokenizer = int(config.max_position_embeddings), cast(Any, self.tokenizer)
        for text in texts:
            count = len(tokenizer([text])["input_ids"][0])
            if count > longest:
                raise TargetError(
                    f"the text {text[:40]!r} has {count} tokens and {self.name} reads {longest}; give a shorter text"
                )
        whole = str(config.model_type).startswith("siglip")  # trained on padded texts, without a mask
        padding = {"padding": "max_length", "max_length": longest} if whole else {"padding": True}
        tokens = tokenizer(list(texts), **padding, return_tensors="pt")
        names = ("input_ids",) if whole else ("input_ids", "attention_mask")
        return {name: tokens[name].to(self.device) for name in names}


class TransformersDinov3(TransformersVit):
    """DINOv3: rotary positions, made from the image's size, are handed to every block."""

    blocks_see_positions = True

    def step(self, tokens: Tensor, index: int, keep: Tensor | None) -> Tensor:
        image = tokens.new_empty(1, 1, *self.seen_grid.image)  # its shape, type and device are all that is read
        rotary = tuple(gather_rotary(table, keep) for table in self.trunk.rope_embeddings(image))
        return self._layers[index](tokens, position_embeddings=rotary)  # type: ignore[no-any-return]


class TransformersBeit(TransformersVit):
    """BEiT: a bias for the relative position of two tokens, shared by the blocks or each block's own."""

    blocks_see_positions = True

    def step(self, tokens: Tensor, index: int, keep: Tensor | None) -> Tensor:
        grid = self.seen_grid
        shared = self.trunk.shared_position_bias
        bias = None if shared is None else shared((grid.height, grid.width))
        with keeping_bias(self, index, keep):
            return self._layers[index](tokens, attention_mask=bias, resolution=grid.image)  # type: ignore[no-any-return]


@contextmanager
def plain_attention(modules: Sequence[nn.Module]) -> Iterator[None]:
    """Make the attention of these modules call scaled_dot_product_attention, where it can be intercepted.

    Attention looks its implementation up in its configuration at every call. Setting it in one configuration sets those
    inside it too, so the parents, which come first among modules, go back before their children.
    """
    held: list[Any] = [getattr(module, "config", None) for module in modules]
    configs = {id(config): config for config in held if hasattr(config, "_attn_implementation")}
    changed = any(config._attn_implementation != "sdpa" for config in configs.values())
    with setting("_attn_implementation", "sdpa", list(configs.values()) if changed else []):
        yield


@dataclass(frozen=True)
class Head:
    """What a model does after its blocks and the norm behind them.

    Attributes:
        pool: what it reads.
        read: turns an adapter and the normed tokens into the output.
        classifier: the attribute whose size is the number of classes, empty where there are none.
        pooled: whether a backbone's own pooling makes its features; else they are the class token's.
        norm_before_pool: whether the norm called post_layernorm is that of the tokens.
    """

    pool: str
    read: Callable[[TransformersVit, Tensor], Tensor]
    classifier: str = "classifier"
    pooled: bool = False
    norm_before_pool: bool = False


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


def _attention_pool(adapter: TransformersVit, tokens: Tensor) -> Tensor:
    return adapter.trunk.head(tokens)  # type: ignore[no-any-return]


def _own_pooling(adapter: TransformersVit, tokens: Tensor) -> Tensor:
    pooled = adapter.trunk.pooler(tokens)
    classifier = getattr(adapter.model, "classifier", None)
    return pooled if classifier is None else classifier(pooled)  # type: ignore[no-any-return]


def _project(model: Any, features: Tensor) -> Tensor:
    projection = getattr(model, "visual_projection", None)
    return features if projection is None else projection(features)


_TRUNKS = ("vit", "deit", "dinov2", "dinov2_with_registers", "beit", "vision_model")
_FEATURES = Head("cls", _features, classifier="")
_CLIP = Head("cls", _features, classifier="", pooled=True)
SIGLIP = Head("map", _attention_pool, classifier="", pooled=True, norm_before_pool=True)
SIGLIP_CLASSIFIER = Head("mean", _mean_patch, norm_before_pool=True)
_HEADS = {
    "ViTForImageClassification": Head("cls", _class_token),
    "DeiTForImageClassification": Head("cls", _class_token),
    "DeiTForImageClassificationWithTeacher": Head("cls+distilled", _two_tokens, classifier="cls_classifier"),
    "Dinov2ForImageClassification": Head("cls+mean", _class_and_mean),
    "Dinov2WithRegistersForImageClassification": Head("cls+mean", _class_and_mean),
    "CLIPForImageClassification": Head("mean", _mean_patch),
    "CLIPModel": _CLIP,
    "CLIPVisionModelWithProjection": _CLIP,
    "CLIPVisionModel": _CLIP,
    "SiglipModel": SIGLIP,
    "SiglipVisionModel": SIGLIP,
    "SiglipForImageClassification": SIGLIP_CLASSIFIER,
    "BeitForImageClassification": Head("mean", _own_pooling),
    "BeitModel": Head("mean", _own_pooling, classifier="", pooled=True),
    "DINOv3ViTModel": _FEATURES,
    "ViTModel": _FEATURES,
    "DeiTModel": _FEATURES,
    "Dinov2Model": _FEATURES,
    "Dinov2WithRegistersModel": _FEATURES,
}


def _block(module: Any) -> Block:
    gated = first_path(module, ("mlp.gate_proj",)) is not None
    own_scales = isinstance(getattr(module, "lambda_1", None), Tensor)  # BEiT's; the number 1 where there are none
    return Block(
        module,
        attention=first_attribute(module, ("attention", "self_attn")),
        norm1=first_attribute(module, ("layernorm_before", "norm1", "layer_norm1")),
        norm2=first_attribute(module, ("layernorm_after", "norm2", "layer_norm2")),
        mlp=getattr(module, "mlp", None),
        projection=first_path(module, ("attention.o_proj", "attention.output.dense", "self_attn.out_proj")),
        mlp_layers=plain_mlp(
            None if gated else first_path(module, ("mlp.fc1", "mlp.up_proj")),
            first_path(module, ("mlp.activation_fn", "mlp.activation", "mlp.act_fn")),
            first_path(module, ("mlp.fc2", "mlp.down_proj")),
        ),
        scales=("lambda_1", "lambda_2") if own_scales else ("layer_scale1.lambda1", "layer_scale2.lambda1"),
    )


def _no_masks(layer: nn.Module) -> list[None]:
    """Fill the masks that a layer insists on; how many there are differs between layers and versions."""
    parameters = inspect.signature(layer.forward).parameters.values()
    return [None for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD and p.default is p.empty][1:]


def _pair(size: Any) -> tuple[int, int]:
    height, width = (size, size) if isinstance(size, int) else size
    return int(height), int(width)


def recognise(model: nn.Module, facts: dict[str, Any]) -> VisionTransformer | None:
    """Adapt the models of ViT, DeiT, DINOv2, DINOv3, BEiT, CLIP and SigLIP that turn an image into one vector."""
    for name, head in _HEADS.items():
        if is_a(model, "transformers.models", name):
            return _checked(_KINDS.get(name, TransformersVit)(model, head, **facts))
    return None


_KINDS: dict[str, type[TransformersVit]] = {
    "DINOv3ViTModel": TransformersDinov3,
    "BeitForImageClassification": TransformersBeit,
    "BeitModel": TransformersBeit,
}


def _checked(adapter: TransformersVit) -> TransformersVit | None:
    """Decline a backbone that was built without the pooling its output would come from."""
    trunk = adapter.trunk
    if adapter.head.read is _attention_pool:
        return adapter if hasattr(trunk, "head") else None
    if adapter.head.read is _own_pooling:
        return adapter if trunk.pooler is not None else None
    return adapter
