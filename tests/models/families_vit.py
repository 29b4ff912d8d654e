"""Tiny vision transformers of every supported family, built from configurations with random weights.

`FAMILIES` maps a name to a `Family`: how to build the model, what its own library computes, and what the adapter should
say of it. All have three blocks and 32 channels, and take images of 32×32 pixels unless the table says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from sightline.extras import require

CLASSES = 7
EMBEDDING = 12


@dataclass(frozen=True)
class Family:
    """One model and what is known of it.

    Attributes:
        build: returns it, in eval mode, the same weights every time.
        output: what its library computes for images: logits, or an image embedding.
        pool: what its classifier reads.
        prefix: tokens before the patches.
        size: the images it takes.
        grid: patches from top to bottom and from left to right.
        bias: whether its attention adds a bias for every pair of positions to its scores.
    """

    build: Callable[[], nn.Module]
    output: Callable[[Any, Tensor], Tensor]
    pool: str = "cls"
    prefix: int = 1
    size: tuple[int, int] = (32, 32)
    grid: tuple[int, int] = (4, 4)
    bias: bool = False


def images(family: Family, count: int = 2, seed: int = 0) -> Tensor:
    """Return random images that a family takes."""
    return torch.randn(count, 3, *family.size, generator=torch.Generator().manual_seed(seed))


def randomised(model: nn.Module, seed: int = 0) -> nn.Module:
    """Give every parameter values that matter: libraries start heads, biases, tokens and layer scales at zero."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
            elif parameter.ndim > 1:
                fan_in = parameter[0].numel() if len(parameter) > 1 else 2
                parameter.copy_(torch.randn(parameter.shape, generator=generator) / fan_in**0.5)
    return model.eval()


def _plain(model: Any, pixels: Tensor) -> Tensor:
    return model(pixels)


def _logits(model: Any, pixels: Tensor) -> Tensor:
    return model(pixels).logits


# ---- timm ----------------------------------------------------------------------------------------------------------

TINY = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 3, "num_heads": 2, "num_classes": CLASSES}


def _timm(name: str, **options: Any) -> nn.Module:
    torch.manual_seed(0)
    return randomised(require("timm").create_model(name, **TINY | options))


def timm_family(
    name: str, pool: str = "cls", prefix: int = 1, options: dict[str, Any] | None = None, **said: Any
) -> Family:
    return Family(partial(_timm, name, **options or {}), _plain, pool, prefix, **said)


TIMM = {
    "timm/vit": timm_family("vit_base_patch16_224"),
    "timm/gap": timm_family("vit_base_patch16_224", "mean", options={"global_pool": "avg"}),
    "timm/classless": timm_family(
        "vit_base_patch16_224", "mean", 0, options={"class_token": False, "global_pool": "avg"}
    ),
    "timm/distilled": timm_family("deit_tiny_distilled_patch16_224", "cls+distilled", 2),
    "timm/deit3": timm_family("deit3_small_patch16_224"),
    "timm/dinov2": timm_family("vit_small_patch14_dinov2"),
    "timm/registers": timm_family("vit_small_patch14_reg4_dinov2", prefix=5),
    "timm/clip": timm_family("vit_base_patch16_clip_224", options={"num_classes": EMBEDDING}),
    "timm/layer_scale": timm_family("vit_base_patch16_224", options={"init_values": 0.5}),
    "timm/map": timm_family("vit_base_patch16_siglip_224", "map", 0),
    "timm/qk_norm": timm_family("vit_base_patch16_224", options={"qk_norm": True}),
    "timm/oblong": timm_family("vit_base_patch16_224", options={"img_size": (32, 48)}, size=(32, 48), grid=(4, 6)),
    "timm/hybrid": timm_family(
        "vit_tiny_r_s16_p8_224", options={"img_size": 96, "patch_size": 8}, size=(96, 96), grid=(3, 3)
    ),
    "timm/eva": timm_family("eva_giant_patch14_224", "mean"),
    "timm/eva02": timm_family("eva02_tiny_patch14_224", "mean"),
    "timm/eva02_cls": timm_family("eva02_tiny_patch14_224", options={"global_pool": "token"}),
    "timm/rope_mixed": timm_family("vit_small_patch16_rope_mixed_224"),
    "timm/naflex": timm_family("naflexvit_base_patch16_gap", "mean", 4, size=(32, 48), grid=(4, 6)),
    "timm/naflex_map": timm_family("naflexvit_base_patch16_map", "map", 1),
    "timm/naflex_rotary": timm_family("naflexvit_base_patch16_gap", "mean", 4, options={"rope_type": "axial"}),
    "timm/beit": timm_family("beit_base_patch16_224", "mean", bias=True),
    "timm/beit_shared": timm_family(
        "beit_base_patch16_224",
        bias=True,
        options={"use_shared_rel_pos_bias": True, "use_rel_pos_bias": False, "global_pool": "token"},
    ),
    "timm/dinov3_any_size": timm_family("vit_small_patch16_dinov3", "mean", 5, size=(32, 48), grid=(4, 6)),
    "timm/dinov3": timm_family("vit_small_patch16_dinov3", "mean", 5, options={"dynamic_img_size": False}),
}

# ---- torchvision ---------------------------------------------------------------------------------------------------


def _torchvision(**options: Any) -> nn.Module:
    torch.manual_seed(0)
    size = {"image_size": 32, "patch_size": 8, "num_layers": 3, "num_heads": 2, "hidden_dim": 32, "mlp_dim": 64}
    module = require("torchvision.models.vision_transformer")
    return randomised(module.VisionTransformer(**size, num_classes=CLASSES, **options))


TORCHVISION = {
    "torchvision/vit": Family(_torchvision, _plain),
    "torchvision/representation": Family(partial(_torchvision, representation_size=16), _plain),
}

# ---- transformers --------------------------------------------------------------------------------------------------

ENCODER = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2, "image_size": 32, "patch_size": 8}
TEXT = {
    "hidden_size": 24, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 100,
    "max_position_embeddings": 16, "eos_token_id": 99, "bos_token_id": 98, "pad_token_id": 0,
}  # fmt: skip


def _transformers(config: str, model: str, **options: Any) -> nn.Module:
    library = require("transformers")
    torch.manual_seed(0)
    built = getattr(library, config)(**ENCODER | {"intermediate_size": 64, "num_labels": CLASSES} | options)
    return randomised(getattr(library, model)(built))


def _transformers_clip(model: str) -> nn.Module:
    library = require("transformers")
    torch.manual_seed(0)
    vision = ENCODER | {"intermediate_size": 64, "projection_dim": EMBEDDING}
    if model.startswith("CLIPVision"):
        return randomised(getattr(library, model)(library.CLIPVisionConfig(**vision)))
    config = library.CLIPConfig(vision_config=vision, text_config=TEXT, projection_dim=EMBEDDING, num_labels=CLASSES)
    return randomised(getattr(library, model)(config))


def _transformers_siglip(model: str) -> nn.Module:
    library = require("transformers")
    torch.manual_seed(0)
    vision = ENCODER | {"intermediate_size": 64}
    if model == "SiglipVisionModel":
        return randomised(library.SiglipVisionModel(library.SiglipVisionConfig(**vision)))
    text = TEXT | {"hidden_size": 32, "projection_size": 32}
    config = library.SiglipConfig(vision_config=vision, text_config=text, num_labels=CLASSES)
    return randomised(getattr(library, model)(config))


def _transformers_siglip2(model: str) -> nn.Module:
    library = require("transformers")
    torch.manual_seed(0)
    vision = {key: size for key, size in ENCODER.items() if key != "image_size"}
    vision |= {"intermediate_size": 64, "num_patches": 16}
    if model == "Siglip2VisionModel":
        return randomised(library.Siglip2VisionModel(library.Siglip2VisionConfig(**vision)))
    text = TEXT | {"hidden_size": 32, "projection_size": 32}
    config = library.Siglip2Config(vision_config=vision, text_config=text, num_labels=CLASSES)
    return randomised(getattr(library, model)(config))


def _patches(pixels: Tensor) -> dict[str, Any]:
    """Prepare normalised images as transformers' own processor does, without its resizing."""
    cut = require("transformers.models.siglip2.image_processing_siglip2").convert_image_to_patches
    rows = torch.stack([cut(image, 8) for image in pixels])
    shapes = torch.tensor([[pixels.shape[-2] // 8, pixels.shape[-1] // 8]] * len(pixels))
    return {"pixel_values": rows, "pixel_attention_mask": None, "spatial_shapes": shapes}


def _siglip2_features(model: Any, pixels: Tensor) -> Tensor:
    return getattr(model, "vision_model", model)(**_patches(pixels)).pooler_output


def _class_features(model: Any, pixels: Tensor) -> Tensor:
    return model(pixels).last_hidden_state[:, 0]


TRANSFORMERS = {
    "transformers/vit": Family(partial(_transformers, "ViTConfig", "ViTForImageClassification"), _logits),
    "transformers/deit": Family(partial(_transformers, "DeiTConfig", "DeiTForImageClassification"), _logits, prefix=2),
    "transformers/distilled": Family(
        partial(_transformers, "DeiTConfig", "DeiTForImageClassificationWithTeacher"), _logits, "cls+distilled", 2
    ),
    "transformers/dinov2": Family(
        partial(_transformers, "Dinov2Config", "Dinov2ForImageClassification"), _logits, "cls+mean"
    ),
    "transformers/dinov2_swiglu": Family(
        partial(_transformers, "Dinov2Config", "Dinov2ForImageClassification", use_swiglu_ffn=True), _logits, "cls+mean"
    ),
    "transformers/registers": Family(
        partial(_transformers, "Dinov2WithRegistersConfig", "Dinov2WithRegistersForImageClassification"),
        _logits, "cls+mean", 5,
    ),
    "transformers/clip_classifier": Family(
        partial(_transformers_clip, "CLIPForImageClassification"), _logits, "mean"
    ),
    "transformers/clip": Family(
        partial(_transformers_clip, "CLIPModel"), lambda model, pixels: model.get_image_features(pixels).pooler_output
    ),
    "transformers/clip_tower": Family(
        partial(_transformers_clip, "CLIPVisionModelWithProjection"), lambda model, pixels: model(pixels).image_embeds
    ),
    "transformers/clip_backbone": Family(
        partial(_transformers_clip, "CLIPVisionModel"), lambda model, pixels: model(pixels).pooler_output
    ),
    "transformers/siglip": Family(
        partial(_transformers_siglip, "SiglipModel"),
        lambda model, pixels: model.get_image_features(pixels).pooler_output, "map", 0,
    ),
    "transformers/siglip_tower": Family(
        partial(_transformers_siglip, "SiglipVisionModel"), lambda model, pixels: model(pixels).pooler_output, "map", 0
    ),
    "transformers/siglip_classifier": Family(
        partial(_transformers_siglip, "SiglipForImageClassification"), _logits, "mean", 0
    ),
    "transformers/siglip2": Family(
        partial(_transformers_siglip2, "Siglip2Model"), _siglip2_features, "map", 0, size=(32, 48), grid=(4, 6)
    ),
    "transformers/siglip2_tower": Family(
        partial(_transformers_siglip2, "Siglip2VisionModel"), _siglip2_features, "map", 0
    ),
    "transformers/siglip2_classifier": Family(
        partial(_transformers_siglip2, "Siglip2ForImageClassification"),
        lambda model, pixels: model(**_patches(pixels)).logits, "mean", 0, size=(32, 48), grid=(4, 6),
    ),
    "transformers/beit": Family(
        partial(_transformers, "BeitConfig", "BeitForImageClassification", use_relative_position_bias=True),
        _logits, "mean", bias=True,
    ),
    "transformers/beit_shared": Family(
        partial(
            _transformers, "BeitConfig", "BeitForImageClassification",
            use_shared_relative_position_bias=True, use_mean_pooling=False,
        ),
        _logits, bias=True,
    ),
    "transformers/beit_backbone": Family(
        partial(_transformers, "BeitConfig", "BeitModel", use_relative_position_bias=True),
        lambda model, pixels: model(pixels).pooler_output, "mean", bias=True,
    ),
    "transformers/dinov3": Family(
        partial(_transformers, "DINOv3ViTConfig", "DINOv3ViTModel", num_register_tokens=4),
        _class_features, prefix=5, size=(32, 48), grid=(4, 6),
    ),
    "transformers/dinov3_gated": Family(
        partial(_transformers, "DINOv3ViTConfig", "DINOv3ViTModel", use_gated_mlp=True), _class_features
    ),
    "transformers/vit_backbone": Family(partial(_transformers, "ViTConfig", "ViTModel"), _class_features),
    "transformers/dinov2_backbone": Family(partial(_transformers, "Dinov2Config", "Dinov2Model"), _class_features),
}  # fmt: skip

# ---- open_clip -----------------------------------------------------------------------------------------------------

VISION = {"image_size": 32, "patch_size": 8, "width": 32, "layers": 3, "head_width": 16}
WORDS = {"context_length": 16, "width": 24, "heads": 2, "layers": 2, "vocab_size": 100}


def _open_clip(kind: str = "CLIP", text: dict[str, Any] | None = None, **vision: Any) -> nn.Module:
    torch.manual_seed(0)
    library = require("open_clip")
    return randomised(getattr(library, kind)(EMBEDDING, VISION | vision, WORDS | (text or {})))


def _open_clip_timm() -> nn.Module:
    """Build a CLIP whose visual tower is timm's: open_clip takes a name alone, so a smaller one goes in later."""
    model: Any = _open_clip("CustomTextCLIP", timm_model_name="test_vit", timm_pool="token", image_size=160)
    model.visual.trunk = _timm("vit_base_patch16_224", num_classes=0)
    model.visual.head.proj = nn.Linear(32, EMBEDDING, bias=False)
    model.visual.image_size = (32, 32)
    return randomised(model)


def _encode_image(model: Any, pixels: Tensor) -> Tensor:
    return model.encode_image(pixels)


OPEN_CLIP = {
    "open_clip/clip": Family(_open_clip, _encode_image),
    "open_clip/average": Family(partial(_open_clip, pool_type="avg", no_ln_pre=True), _encode_image, "mean"),
    "open_clip/norm_last": Family(partial(_open_clip, final_ln_after_pool=True, ls_init_value=0.5), _encode_image),
    "open_clip/patch_dropout": Family(partial(_open_clip, patch_dropout=0.5), _encode_image),
    "open_clip/attention_pool": Family(
        partial(_open_clip, attentional_pool=True, attn_pooler_queries=4, attn_pooler_heads=2), _encode_image, "map"
    ),
    "open_clip/qk_norm": Family(partial(_open_clip, qk_norm=True), _encode_image),
    "open_clip/custom_text": Family(partial(_open_clip, "CustomTextCLIP"), _encode_image),
    "open_clip/tower": Family(lambda: _open_clip().visual, _plain),
    "open_clip/timm": Family(_open_clip_timm, _encode_image),
}

FAMILIES = TIMM | TORCHVISION | TRANSFORMERS | OPEN_CLIP
