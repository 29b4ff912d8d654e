"""Hierarchical transformers and hybrids, which end in a feature map as convolutional networks do, step by step.

Swin (timm, torchvision), Swin v2 and timm's MaxxVit (MaxViT, CoAtNet). Swin keeps its channels last; its cuts do not.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from sightline.models.cnn.steps import Plan, Step, each, head, same, step
from sightline.models.signature import is_a
from sightline.models.survey import IMAGENET_SIZE

IN_WINDOWS = (
    "attends within windows and merges patches between its stages, so no attention leads from its output to all patches"
)


def timm_swin(model: Any) -> Plan:
    """patch_embed, stages that start with their downsampling, norm; the head pools and classifies."""
    steps = [step("patch_embed", model.patch_embed, channels_last=True)]
    names = []
    for child, stage in model.layers.named_children():
        name = f"layers.{child}"
        steps.append(step(f"{name}.downsample", stage.downsample, channels_last=True))
        steps += each(f"{name}.blocks", stage.blocks, unit=True, channels_last=True)
        steps.append(same(name, channels_last=True))
        names.append(name)
    steps.append(step("norm", model.norm, channels_last=True))
    end = Step("head", model.forward_head, cut=False, writes=True)
    return Plan((*steps, end), (*names[:-1], "norm"), no_attention=IN_WINDOWS)


def torchvision_swin(model: Any) -> Plan:
    """A patch embedding, then stages (odd numbers) with patch merging between them; norm, avgpool, head."""
    steps: list[Step] = []
    names = []
    for i, (child, part) in enumerate(model.features.named_children()):
        name = f"features.{child}"
        if i % 2:
            steps.extend(each(name, part, unit=True, channels_last=True))
            names.append(name)
        else:
            steps.append(step(name, part, channels_last=True))
    end = head(lambda x: model.head(model.flatten(model.avgpool(model.permute(x)))), model.avgpool, model.head)
    steps += [same("features", channels_last=True), step("norm", model.norm, channels_last=True)]
    return Plan((*steps, end), (*names[:-1], "norm"), no_attention=IN_WINDOWS)


def timm_maxxvit(model: Any) -> Plan:
    """A stem, stages of blocks, a norm that may be the identity; the head pools and classifies."""
    steps = [step("stem", model.stem)]
    names = []
    for child, stage in model.stages.named_children():
        steps += [*each(f"stages.{child}.blocks", stage.blocks, unit=True), same(f"stages.{child}")]
        names.append(f"stages.{child}")
    last = names[-1] if isinstance(model.norm, nn.Identity) else "norm"
    steps += [step("norm", model.norm), Step("head", model.forward_head, cut=False, writes=True)]
    return Plan(tuple(steps), (*names[:-1], last), no_attention=IN_WINDOWS)


def sizes(model: Any) -> dict[str, Any]:
    """Say which image size a timm model was made for, and whether it takes no other."""
    embed: Any = getattr(model, "patch_embed", None) or getattr(model, "stem", None)
    if is_a(model, "timm.models", "Hiera"):
        return {"input_size": tuple(n * s for n, s in zip(model.unroll.size, model.patch_stride, strict=True))}
    if is_a(model, "timm.models", "Levit"):  # the biases of its attention are those of one map size
        return {"input_size": tuple(int(n) * model.stem.stride for n in model.stages[0].blocks[0].attn.resolution)}
    if getattr(embed, "strict_img_size", False) and getattr(embed, "img_size", None):
        return {"input_size": tuple(map(int, embed.img_size))}
    if is_a(model, "timm.models", "MaxxVit"):  # its last attention window is the whole map
        windows = [part.window_size for part in model.stages.modules() if hasattr(part, "window_size")]
        if windows:
            return {"default_size": tuple(int(cells) * model.feature_info[-1]["reduction"] for cells in windows[-1])}
    config = getattr(model, "pretrained_cfg", None) or {}
    size = config.get("input_size", (3, IMAGENET_SIZE, IMAGENET_SIZE))
    return {"default_size": (int(size[-2]), int(size[-1]))}
