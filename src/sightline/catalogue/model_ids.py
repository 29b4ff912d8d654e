"""Ids of models, one or more for each family; every other name that its library knows loads as well.

They stand apart from what loads them, `sightline.models.zoo`, so that listing them needs no torch.
"""

from __future__ import annotations

from fnmatch import fnmatchcase

__all__ = ["KNOWN", "list_models"]

KNOWN = {
    "bundled": ("shapes-vit", "shapes-cnn", "shapes-segmenter", "shapes-detector"),
    "package": ("efficientnet_lite0",),
    "timm": (
        "vit_tiny_patch16_224", "vit_small_patch16_224", "vit_base_patch16_224",
        "deit_small_patch16_224", "deit_small_distilled_patch16_224", "deit3_base_patch16_224",
        "vit_small_patch14_dinov2", "vit_small_patch14_reg4_dinov2", "eva_large_patch14_196",
        "eva02_small_patch14_336", "vit_base_patch16_clip_224", "resnet50", "wide_resnet50_2", "densenet121", "vgg16",
        "convnext_tiny", "efficientnet_b0", "tf_efficientnet_lite0", "mobilenetv2_100", "mobilenetv3_large_100",
        "swin_tiny_patch4_window7_224", "swinv2_tiny_window8_256", "maxvit_tiny_tf_224", "coatnet_0_rw_224",
    ),
    "torchvision": (
        "vit_b_16", "resnet18", "resnet50", "resnet101", "wide_resnet50_2", "densenet161", "densenet201", "vgg16",
        "convnext_base", "efficientnet_b0", "mobilenet_v2", "mobilenet_v3_large", "swin_t", "swin_v2_t",
    ),
    "hf": (
        "google/vit-base-patch16-224", "facebook/deit-small-patch16-224",
        "facebook/deit-base-distilled-patch16-224", "facebook/dinov2-small-imagenet1k-1-layer",
    ),
    "openclip": ("ViT-B-32:openai", "ViT-B-16:openai", "ViT-B-16:laion2b_s34b_b88k"),
}  # fmt: skip


def list_models(pattern: str = "") -> list[str]:
    """Return ids that load, one or more for each family; every other name that its library knows loads as well.

    `pattern` is a part of the id, or a pattern with ``*``.
    """
    ids = [f"{library}/{name}" for library, names in KNOWN.items() for name in names]
    return [name for name in ids if pattern in name or fnmatchcase(name, pattern)]
