"""Tiny networks of every convolutional and hierarchical family, built from configurations with random weights.

`FAMILIES` maps a name to a `Family`: how to build the model, and what the adapter should say of it. All take images of
64×64 pixels. `OWN` holds users' own networks, which no family knows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sightline.extras import require

CLASSES = 7
SIZE = 64


@dataclass(frozen=True)
class Family:
    """One model and what is known of it.

    Attributes:
        build: returns it, in eval mode, the same weights every time.
        cam: the default CAM layer.
        before: the layer of index -2.
        units: residual blocks, convolutions with their ReLU, or dense layers.
        grid: cells of the default CAM layer from top to bottom, and from left to right.
    """

    build: Callable[[], nn.Module]
    cam: str
    before: str
    units: int
    grid: int = 2


def images(count: int = 2, seed: int = 0) -> Tensor:
    return torch.randn(count, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(seed))


def randomised(model: nn.Module) -> nn.Module:
    """Give every tensor values that matter: libraries start biases, layer scales and statistics at zero or one."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))
            elif parameter.ndim > 1:
                fan_in = max(parameter[0].numel(), 1)
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * (2 / fan_in) ** 0.5)
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean.add_(0.1 * torch.randn(module.num_features, generator=generator))
    return model.eval()


# ---- torchvision -----------------------------------------------------------------------------------------------


def _torchvision(name: str) -> Any:
    return require(f"torchvision.models.{name}")


def torchvision_resnet() -> nn.Module:
    module = _torchvision("resnet")
    return module.ResNet(module.BasicBlock, [1, 2, 2, 1], num_classes=CLASSES)


def torchvision_wide_resnet() -> nn.Module:
    module = _torchvision("resnet")
    return module.ResNet(module.Bottleneck, [1, 1, 2, 1], num_classes=CLASSES, width_per_group=128)


def torchvision_densenet() -> nn.Module:
    return _torchvision("densenet").DenseNet(8, (2, 2, 3, 2), 16, bn_size=2, num_classes=CLASSES)


def torchvision_vgg(batch_norm: bool = False) -> nn.Module:
    module = _torchvision("vgg")
    with torch.device("meta"):  # its own classifier alone has a hundred million weights
        model = module.VGG(nn.Identity(), num_classes=CLASSES, init_weights=False)
    model.features = module.make_layers([8, "M", 12, 12, "M", 16, 16, "M"], batch_norm)
    model.classifier = nn.Sequential(nn.Linear(16 * 49, 20), nn.ReLU(True), nn.Dropout(), nn.Linear(20, CLASSES))
    return model


def torchvision_convnext() -> nn.Module:
    module = _torchvision("convnext")
    widths = [(8, 12, 1), (12, 16, 1), (16, 20, 2), (20, None, 1)]
    return module.ConvNeXt([module.CNBlockConfig(*width) for width in widths], num_classes=CLASSES)


def torchvision_swin(version: int = 1) -> nn.Module:
    module = _torchvision("swin_transformer")
    later = {"block": module.SwinTransformerBlockV2, "downsample_layer": module.PatchMergingV2} if version == 2 else {}
    return module.SwinTransformer([4, 4], 8, [1, 1, 2, 1], [1, 2, 2, 4], [2, 2], num_classes=CLASSES, **later)


# ---- timm ------------------------------------------------------------------------------------------------------


def _timm(name: str) -> Any:
    return require(f"timm.models.{name}")


def timm_named(name: str, **options: Any) -> Callable[[], nn.Module]:
    return lambda: require("timm").create_model(name, num_classes=CLASSES, **options)


def timm_resnet() -> nn.Module:
    module = _timm("resnet")
    return module.ResNet(
        module.Bottleneck, (1, 1, 2, 1), num_classes=CLASSES, channels=(8, 12, 16, 20), stem_type="deep"
    )


def timm_densenet() -> nn.Module:
    return _timm("densenet").DenseNet(8, (2, 2, 3, 2), num_classes=CLASSES)


def timm_vgg() -> nn.Module:
    return _timm("vgg").VGG([8, "M", 12, 12, "M", 16, 16, "M"], num_classes=CLASSES, mlp_ratio=0.01)


def timm_convnext(**options: Any) -> nn.Module:
    return _timm("convnext").ConvNeXt(depths=(1, 1, 2, 1), dims=(8, 12, 16, 20), num_classes=CLASSES, **options)


def timm_swin(version: str = "") -> nn.Module:
    cls = getattr(_timm(f"swin_transformer{version and '_v2'}"), f"SwinTransformer{version.upper()}")
    return cls(SIZE, 4, num_classes=CLASSES, embed_dim=8, depths=(1, 1, 2, 1), num_heads=(1, 2, 2, 4), window_size=4)


def timm_token_map(module: str, cls: str, **options: Any) -> Callable[[], nn.Module]:
    return lambda: getattr(_timm(module), cls)(num_classes=CLASSES, **{"img_size": SIZE} | options)


ISOTROPIC = {"patch_size": 16, "embed_dim": 32}
LEVIT = {"embed_dim": (16, 24, 32), "key_dim": 8, "depth": (1, 2, 1), "num_heads": (1, 2, 2), "stem_type": "s8"}


PYRAMID = {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 2, 1], "num_attention_heads": [1, 2, 2, 4]}


def transformers_model(name: str, **options: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        library = require("transformers")
        config = getattr(library, f"{name}Config")(image_size=SIZE, num_labels=CLASSES, **options)
        return getattr(library, f"{name}ForImageClassification")(config)

    return build


def _family(build: Callable[[], nn.Module], *known: Any) -> Family:
    def seeded() -> nn.Module:
        torch.manual_seed(0)
        return randomised(build())

    return Family(seeded, *known)


FAMILIES = {
    "torchvision resnet": _family(torchvision_resnet, "layer4", "layer3", 6),
    "torchvision wide resnet": _family(torchvision_wide_resnet, "layer4", "layer3", 5),
    "torchvision densenet": _family(torchvision_densenet, "features.norm5", "features.denseblock3", 9),
    "torchvision vgg": _family(torchvision_vgg, "features.11", "features.6", 5, 16),
    "torchvision vgg with norms": _family(lambda: torchvision_vgg(True), "features.16", "features.9", 5, 16),
    "torchvision convnext": _family(torchvision_convnext, "features.7", "features.5", 5),
    "torchvision efficientnet": _family(
        lambda: _torchvision("efficientnet").efficientnet_b0(num_classes=CLASSES), "features.8", "features.5", 16
    ),
    "torchvision mobilenetv2": _family(
        lambda: _torchvision("mobilenetv2").mobilenet_v2(num_classes=CLASSES, width_mult=0.25),
        "features.18", "features.13", 17,
    ),
    "torchvision mobilenetv3": _family(
        lambda: _torchvision("mobilenetv3").mobilenet_v3_small(num_classes=CLASSES), "features.12", "features.8", 11
    ),
    "torchvision swin": _family(torchvision_swin, "norm", "features.5", 5),
    "torchvision swin v2": _family(lambda: torchvision_swin(2), "norm", "features.5", 5),
    "timm resnet": _family(timm_resnet, "layer4", "layer3", 5),
    "timm densenet": _family(timm_densenet, "features.norm5.drop", "features.denseblock3", 9),
    "timm vgg": _family(timm_vgg, "features.11", "features.6", 5, 16),
    "timm convnext": _family(timm_convnext, "stages.3", "stages.2", 5),
    "timm convnext, norm first": _family(
        lambda: timm_convnext(head_norm_first=True, conv_mlp=True), "stages.3", "stages.2", 5
    ),
    "timm efficientnet lite": _family(timm_named("tf_efficientnet_lite0"), "bn2", "blocks.4", 16),
    "timm efficientnet": _family(timm_named("test_efficientnet"), "bn2", "blocks.3", 5),
    "timm mobilenetv2": _family(timm_named("mobilenetv2_035"), "bn2", "blocks.4", 17),
    "timm mobilenetv3": _family(timm_named("mobilenetv3_small_050"), "blocks.5", "blocks.3", 12),
    "timm swin": _family(timm_swin, "norm", "layers.2", 5),
    "timm swin v2": _family(lambda: timm_swin("v2"), "norm", "layers.2", 5),
    "timm maxvit": _family(timm_named("maxvit_rmlp_pico_rw_256", img_size=SIZE), "norm", "stages.2", 11),
    "timm cait": _family(
        timm_token_map("cait", "Cait", **ISOTROPIC, depth=3, num_heads=2), "blocks.2", "blocks.1", 3, 4
    ),
    "timm xcit": _family(
        timm_token_map("xcit", "Xcit", **ISOTROPIC, depth=3, num_heads=2, cls_attn_layers=1),
        "blocks.2", "blocks.1", 3, 4,
    ),
    "timm mixer": _family(
        timm_token_map("mlp_mixer", "MlpMixer", **ISOTROPIC, num_blocks=3), "norm", "blocks.1", 3, 4
    ),
    "timm levit": _family(timm_token_map("levit", "Levit", **LEVIT), "stages.2", "stages.1", 4),
    "timm levit distilled": _family(timm_token_map("levit", "LevitDistilled", **LEVIT), "stages.2", "stages.1", 4),
    "timm levit, convolutional": _family(
        timm_token_map("levit", "Levit", **LEVIT, use_conv=True), "stages.2", "stages.1", 4
    ),
    "timm hiera": _family(
        timm_token_map("hiera", "Hiera", img_size=(SIZE, SIZE), embed_dim=8, num_heads=1, stages=(1, 1, 2, 1)),
        "blocks.4", "blocks.3", 5,
    ),
    "transformers swin": _family(
        transformers_model("Swin", embed_dim=8, depths=[1, 1, 2, 1], num_heads=[1, 2, 2, 4], window_size=2),
        "swin.layernorm", "swin.encoder.layers.2.blocks.1", 5,
    ),
    "transformers swin v2": _family(
        transformers_model("Swinv2", embed_dim=8, depths=[1, 1, 2, 1], num_heads=[1, 2, 2, 4], window_size=2),
        "swinv2.layernorm", "swinv2.encoder.layers.2.blocks.1", 5,
    ),
    "transformers pvt": _family(
        transformers_model("Pvt", **PYRAMID), "pvt.encoder.block.2.1", "pvt.encoder.block.1.0", 4, 4
    ),
    "transformers pvt v2": _family(
        transformers_model("PvtV2", **PYRAMID),
        "pvt_v2.encoder.layers.3.layer_norm", "pvt_v2.encoder.layers.2.layer_norm", 5,
    ),
    "transformers convnext": _family(
        transformers_model("ConvNext", hidden_sizes=[8, 12, 16, 20], depths=[1, 1, 2, 1]),
        "convnext.encoder.stages.3", "convnext.encoder.stages.2", 5,
    ),
    "transformers convnext v2": _family(
        transformers_model("ConvNextV2", hidden_sizes=[8, 12, 16, 20], depths=[1, 1, 2, 1]),
        "convnextv2.encoder.stages.3", "convnextv2.encoder.stages.2", 5,
    ),
    "timm coatnet": _family(timm_named("coatnet_pico_rw_224", img_size=SIZE), "norm", "stages.2", 12),
}  # fmt: skip


# ---- users' own ------------------------------------------------------------------------------------------------


def _conv(channels: int, out: int, stride: int = 2) -> list[nn.Module]:
    return [nn.Conv2d(channels, out, 3, stride, 1), nn.BatchNorm2d(out), nn.ReLU(inplace=True)]


class TinyCnn(nn.Module):
    """Three convolutions, a pool, a functional flatten."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(*_conv(3, 8), *_conv(8, 12), *_conv(12, 16))
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(torch.flatten(self.pool(self.features(x)), 1))


class TinyResnet(nn.Module):
    """A stem and three of torchvision's basic blocks, whose one ReLU runs twice."""

    def __init__(self) -> None:
        super().__init__()
        block = _torchvision("resnet").BasicBlock
        self.conv1, self.bn1 = nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8)
        self.relu = nn.ReLU(inplace=True)
        self.layer2 = block(8, 8)
        self.layer3 = block(8, 12, 2, nn.Sequential(nn.Conv2d(8, 12, 1, 2, bias=False), nn.BatchNorm2d(12)))
        self.layer4 = block(12, 16, 2, nn.Sequential(nn.Conv2d(12, 16, 1, 2, bias=False), nn.BatchNorm2d(16)))
        self.avgpool, self.fc = nn.AdaptiveAvgPool2d(1), nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer4(self.layer3(self.layer2(self.relu(self.bn1(self.conv1(x))))))
        return self.fc(torch.flatten(self.avgpool(x), 1))


class TinyVgg(nn.Module):
    """Convolutions, a pool, another pool, two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(*_conv(3, 8), *_conv(8, 12), *_conv(12, 16, 1), nn.MaxPool2d(2))
        self.avgpool = nn.AdaptiveAvgPool2d(2)
        self.classifier = nn.Sequential(nn.Linear(64, 20), nn.ReLU(), nn.Linear(20, CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(torch.flatten(self.avgpool(self.features(x)), 1))


class Functional(nn.Module):
    """ReLUs and pools that are functions, some of them in place."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 8, 3, 2, 1), nn.Conv2d(8, 12, 3, 2, 1)
        self.norm = nn.BatchNorm2d(12)
        self.fc = nn.Linear(12, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv1(x), inplace=True)
        x = self.norm(self.conv2(x)).relu_()
        return self.fc(x.mean(dim=(2, 3)))


class Counting(nn.Module):
    """Notes how many images come in and shapes by that number later, and pools what it rectified twice."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 8, 3, 2, 1), nn.Conv2d(8, 12, 3, 2, 1)
        self.relu = nn.ReLU(inplace=True)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(12, CLASSES)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        count = len(x)
        x = self.relu(self.conv2(self.relu(self.conv1(x))))
        return {"logits": self.fc(self.pool(x).view(count, -1))}


class ChannelsLast(nn.Module):
    """Keeps its channels last after a patchifying convolution, as a mixer of its own kind."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 12, 4, 4)
        self.norm, self.mix = nn.LayerNorm(12), nn.Linear(12, 12)
        self.act = nn.GELU()
        self.fc = nn.Linear(12, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).permute(0, 2, 3, 1)
        return self.fc(self.act(self.mix(self.norm(x))).mean(dim=(1, 2)))


class Wrapped(nn.Module):
    """A known network inside a user's own module, with another head."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = torchvision_resnet()
        self.backbone.fc = nn.Identity()
        self.head = nn.Sequential(nn.Linear(512, 10), nn.ReLU(inplace=True), nn.Linear(10, CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.backbone(x))


def huggingface_resnet() -> nn.Module:
    transformers = require("transformers")
    config = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 12, 16], depths=[1, 1, 1], layer_type="basic", num_labels=CLASSES
    )
    return transformers.ResNetForImageClassification(config)


OWN = {
    "tiny cnn": _family(TinyCnn, "features.8", "features.5", 3, 8),
    "tiny resnet": _family(TinyResnet, "layer4", "layer3", 4, 8),
    "tiny vgg": _family(TinyVgg, "features.8", "features.2", 3, 16),
    "functional": _family(Functional, "norm", "conv2.input", 2, 16),
    "counting": _family(Counting, "pool.input", "conv2.input", 2, 16),
    "channels last": _family(ChannelsLast, "act", "act", 2, 16),
    "wrapped": _family(Wrapped, "backbone.layer4.0", "backbone.layer3.1", 7),
    "huggingface resnet": _family(
        huggingface_resnet, "resnet.encoder.stages.2", "resnet.encoder.stages.1", 4, 4
    ),
    "timm regnet": _family(timm_named("regnetx_002"), "s4", "s3", 14),
}  # fmt: skip
