"""Convolutional networks of torchvision and timm, step by step.

ResNet (with Wide ResNet and ResNeXt), DenseNet, VGG, ConvNeXt, EfficientNet, MobileNetV2 and V3; the hierarchical
transformers are in hierarchical.py, networks that keep a map as tokens in token_maps.py, those of Hugging Face
transformers in transformers.py. A model whose class overrides the forward that a plan describes is left to the
generic adapter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sightline.errors import SiteError
from sightline.models.cnn import hierarchical, pyramids, token_maps, transformers
from sightline.models.cnn.adapter import Stepwise
from sightline.models.cnn.steps import Plan, Step, before_strides, each, head, same, step, writes
from sightline.models.facts import IMAGENET, torchvision_facts, transformers_facts
from sightline.models.signature import ancestor
from sightline.models.vit.timm import timm_facts

FORWARDS = ("forward", "_forward_impl", "forward_features", "forward_head")


# ---- ResNet ----------------------------------------------------------------------------------------------------

STAGES = ("layer1", "layer2", "layer3", "layer4")


def torchvision_resnet(model: Any) -> Plan:
    """conv1, bn1, relu, maxpool; four stages of residual blocks; avgpool, fc."""
    end = head(lambda x: model.fc(torch.flatten(model.avgpool(x), 1)), model.avgpool, model.fc)
    return Plan((*_resnet(model, "relu"), end), STAGES)


def timm_resnet(model: Any) -> Plan:
    """As torchvision's, with act1 for relu."""
    return Plan((*_resnet(model, "act1"), _timm_head(model)), STAGES)


def _resnet(model: Any, relu: str) -> Iterator[Step]:
    for name in ("conv1", "bn1", relu, "maxpool"):
        yield step(name, getattr(model, name))
    for name in STAGES:
        yield from each(name, getattr(model, name), unit=True)


# ---- DenseNet --------------------------------------------------------------------------------------------------


def torchvision_densenet(model: Any) -> Plan:
    """Dense blocks and transitions; `features` ends with norm5, before the ReLU."""

    def classify(x: Tensor) -> Tensor:
        pooled = F.adaptive_avg_pool2d(F.relu(x), (1, 1))
        return model.classifier(torch.flatten(pooled, 1))  # type: ignore[no-any-return]

    return Plan((*_densenet(model), same("features"), head(classify)), _dense_layers(model, "features.norm5"))


def timm_densenet(model: Any) -> Plan:
    """As torchvision's; norm5 holds the ReLU too, so the map before it is the output of norm5's own dropout."""
    norm = model.features.norm5
    if not hasattr(norm, "drop") or not hasattr(norm, "act"):
        return Plan((*_densenet(model), same("features"), _timm_head(model)), _dense_layers(model, "features.norm5"))

    def normalise(x: Tensor) -> Tensor:
        x = F.batch_norm(x, norm.running_mean, norm.running_var, norm.weight, norm.bias, eps=norm.eps)
        return norm.drop(x)  # type: ignore[no-any-return]

    steps = (
        *list(_densenet(model))[:-1],
        Step("features.norm5.drop", normalise),
        Step("features.norm5", norm.act, writes=writes(norm.act)),
        same("features"),
        _timm_head(model),
    )
    return Plan(steps, _dense_layers(model, "features.norm5.drop"))


def _densenet(model: Any) -> Iterator[Step]:
    for child, module in model.features.named_children():
        name = f"features.{child}"
        if child.startswith("denseblock"):
            for number, layer in module.named_children():
                # the layer's own output is only its new channels; the cut is everything so far
                grow = partial(_grow, layer)
                yield Step(f"{name}.{number}.concat", grow, unit=True, writes=writes(layer), module=f"{name}.{number}")
            yield same(name)
        elif child.startswith("transition"):
            yield from each(name, module)
        else:
            yield step(name, module)


def _grow(layer: nn.Module, x: Tensor) -> Tensor:
    return torch.cat([x, layer(x)], dim=1)


def _dense_layers(model: Any, last: str) -> tuple[str, ...]:
    blocks = [f"features.{name}" for name, _ in model.features.named_children() if name.startswith("denseblock")]
    return (*blocks[:-1], last)


# ---- VGG -------------------------------------------------------------------------------------------------------


def torchvision_vgg(model: Any) -> Plan:
    """Convolutions, ReLUs and pools in sequence; avgpool, classifier."""
    end = head(lambda x: model.classifier(torch.flatten(model.avgpool(x), 1)), model.avgpool, model.classifier)
    return _vgg(model, end)


def timm_vgg(model: Any) -> Plan:
    """As torchvision's, with the first two linear layers as convolutions."""
    return _vgg(model, _timm_head(model))


def _vgg(model: Any, end: Step) -> Plan:
    parts = list(model.features.named_children())
    pools = {i for i, (_, part) in enumerate(parts) if isinstance(part, nn.MaxPool2d | nn.AvgPool2d)}
    steps = []
    for i, (child, part) in enumerate(parts):
        ends_unit = i in pools or (isinstance(part, nn.ReLU) and i + 1 not in pools)
        steps.append(step(f"features.{child}", part, unit=ends_unit))
    layers = [f"features.{parts[i - 1][0]}" for i in sorted(pools)] or [f"features.{parts[-1][0]}"]
    return Plan((*steps, same("features"), end), tuple(layers))


# ---- ConvNeXt --------------------------------------------------------------------------------------------------


def torchvision_convnext(model: Any) -> Plan:
    """A stem, then stages (odd numbers) with downsampling between; avgpool and a classifier that starts with a norm."""
    steps: list[Step] = []
    layers: list[str] = []
    for i, (child, part) in enumerate(model.features.named_children()):
        steps.extend(each(f"features.{child}", part, unit=bool(i % 2)))
        layers.extend([f"features.{child}"] if i % 2 else [])
    end = head(lambda x: model.classifier(model.avgpool(x)), model.avgpool, model.classifier)
    return Plan((*steps, same("features"), end), tuple(layers))


def timm_convnext(model: Any) -> Plan:
    """A stem, stages that start with their downsampling, norm_pre; the head pools, then norms."""
    steps = [step("stem", model.stem)]
    layers = []
    for child, stage in model.stages.named_children():
        name = f"stages.{child}"
        steps.append(step(f"{name}.downsample", stage.downsample))
        steps += [*each(f"{name}.blocks", stage.blocks, unit=True), same(name)]
        layers.append(name)
    return Plan((*steps, step("norm_pre", model.norm_pre), _timm_head(model)), tuple(layers))


# ---- EfficientNet, MobileNet -----------------------------------------------------------------------------------


def torchvision_features(model: Any) -> Plan:
    """EfficientNet, MobileNetV2 and V3: a convolution, inverted residuals, in stages or not, a convolution."""
    steps: list[Step] = []
    for child, part in model.features.named_children():
        name = f"features.{child}"
        convolution = type(part).__name__ in ("Conv2dNormActivation", "ConvBNActivation")
        if type(part) is nn.Sequential:
            steps.extend(each(name, part, unit=True))
        else:
            steps.append(step(name, part, unit=not convolution))
    layers = (*before_strides("features", model.features), steps[-1].name)
    pool = getattr(model, "avgpool", None) or nn.AdaptiveAvgPool2d(1)  # MobileNetV2 pools without a module
    end = head(lambda x: model.classifier(torch.flatten(pool(x), 1)), model.classifier)
    return Plan((*steps, same("features"), end), layers)


def timm_efficientnet(model: Any) -> Plan:
    """conv_stem, bn1, stages of blocks, conv_head, bn2 with its activation; pooled and classified."""
    last = (step("conv_head", model.conv_head), step("bn2", model.bn2))
    return Plan((*_inverted(model), *last, _timm_head(model)), (*before_strides("blocks", model.blocks), "bn2"))


def timm_mobilenetv3(model: Any) -> Plan:
    """As EfficientNet, but pooled before the last convolution, so the last blocks' output is the last map."""
    child = list(model.blocks.named_children())[-1][0]
    return Plan((*_inverted(model), _timm_head(model)), (*before_strides("blocks", model.blocks), f"blocks.{child}"))


def _inverted(model: Any) -> Iterator[Step]:
    yield from (step("conv_stem", model.conv_stem), step("bn1", model.bn1))
    for child, stage in model.blocks.named_children():
        yield from each(f"blocks.{child}", stage, unit=True)
    yield same("blocks")


def _timm_head(model: Any) -> Step:
    return Step("head", model.forward_head, cut=False, writes=True)


# ---- which is which --------------------------------------------------------------------------------------------

PLANS: dict[tuple[str, str], Callable[[Any], Plan]] = {
    ("torchvision.models", "ResNet"): torchvision_resnet,
    ("torchvision.models", "DenseNet"): torchvision_densenet,
    ("torchvision.models", "VGG"): torchvision_vgg,
    ("torchvision.models", "ConvNeXt"): torchvision_convnext,
    ("torchvision.models", "EfficientNet"): torchvision_features,
    ("torchvision.models", "MobileNetV2"): torchvision_features,
    ("torchvision.models", "MobileNetV3"): torchvision_features,
    ("torchvision.models", "SwinTransformer"): hierarchical.torchvision_swin,
    ("timm.models", "ResNet"): timm_resnet,
    ("timm.models", "DenseNet"): timm_densenet,
    ("timm.models", "VGG"): timm_vgg,
    ("timm.models", "ConvNeXt"): timm_convnext,
    ("timm.models", "EfficientNet"): timm_efficientnet,
    ("timm.models", "MobileNetV3"): timm_mobilenetv3,
    ("timm.models", "SwinTransformer"): hierarchical.timm_swin,
    ("timm.models", "SwinTransformerV2"): hierarchical.timm_swin,
    ("timm.models", "MaxxVit"): hierarchical.timm_maxxvit,
    ("timm.models", "Cait"): token_maps.timm_cait,
    ("timm.models", "Xcit"): token_maps.timm_xcit,
    ("timm.models", "LevitDistilled"): token_maps.timm_levit,
    ("timm.models", "Levit"): token_maps.timm_levit,
    ("timm.models", "MlpMixer"): token_maps.timm_mixer,
    ("timm.models", "Hiera"): token_maps.timm_hiera,
    ("transformers.models", "SwinForImageClassification"): transformers.swin,
    ("transformers.models", "Swinv2ForImageClassification"): transformers.swin,
    ("transformers.models", "LevitForImageClassification"): pyramids.levit,
    ("transformers.models", "LevitForImageClassificationWithTeacher"): pyramids.levit,
    ("transformers.models", "PvtForImageClassification"): pyramids.pvt,
    ("transformers.models", "PvtV2ForImageClassification"): pyramids.pvt_v2,
    ("transformers.models", "ConvNextForImageClassification"): transformers.convnext,
    ("transformers.models", "ConvNextV2ForImageClassification"): transformers.convnext,
}


def recognise(model: nn.Module, facts: dict[str, Any]) -> Stepwise | None:
    """Adapt the families above and their subclasses, unless they run otherwise."""
    for (package, name), plan in PLANS.items():
        cls = ancestor(model, package, name)
        if cls is None or _runs_otherwise(model, cls):
            continue
        try:
            return Stepwise(model, plan, **_read_facts(model, package) | facts)
        except (AttributeError, IndexError, SiteError):
            return None  # parts were removed; the generic adapter reads what is left
    return None


def _read_facts(model: nn.Module, package: str) -> dict[str, Any]:
    """Read what a library says of its model: sizes, preprocessing, class names."""
    if package == "transformers.models":
        return {**IMAGENET, **transformers.size(model), **transformers_facts(model)}
    read = timm_facts(model) if package == "timm.models" else torchvision_facts(model)
    return hierarchical.sizes(model) | read


def _runs_otherwise(model: nn.Module, cls: type) -> bool:
    """Tell whether a subclass, or an attribute of the model, overrides the forward that a plan describes."""
    return any(
        name in vars(model) or getattr(type(model), name, None) is not getattr(cls, name, None) for name in FORWARDS
    )
