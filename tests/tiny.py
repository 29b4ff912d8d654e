"""Networks small enough to test everything on, and the reference models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from sightline.extras import require

GOLDEN = Path(__file__).parent / "golden"


def vit(**options: Any) -> nn.Module:
    """A timm vision transformer of three blocks on 32×32 images with 8×8 patches."""
    settings: dict[str, Any] = {
        "img_size": 32,
        "patch_size": 8,
        "embed_dim": 16,
        "depth": 3,
        "num_heads": 2,
        "num_classes": 5,
        "mlp_ratio": 2,
    }
    torch.manual_seed(1)
    module = require("timm.models.vision_transformer")
    model: nn.Module = module.VisionTransformer(**settings | options)
    return awake(model).eval()


def awake(model: nn.Module) -> nn.Module:
    """Give every parameter a random value of some size, so that nothing is zero or one by initialisation."""
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * (0.3 if "weight" in name else 0.1))
    return model


class Cnn(nn.Module):
    """Convolutions, batch norms, a pool, and one in-place ReLU module used three times."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.conv1 = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.norm1 = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 12, 3, padding=1)
        self.norm2 = nn.BatchNorm2d(12)
        self.conv3 = nn.Conv2d(12, 12, 3, stride=2, padding=1)
        self.relu = nn.ReLU(inplace=True)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(12, 5)
        awake(self)

    def forward(self, images: Tensor) -> Tensor:
        x = self.relu(self.norm1(self.conv1(images)))
        x = self.relu(self.norm2(self.conv2(x)))
        x = self.relu(self.conv3(x))
        return self.head(self.pool(x).flatten(1))


def reference_vit(dtype: torch.dtype = torch.float32, eps: float = 1e-6) -> tuple[nn.Module, Tensor, Any]:
    """The random ViT of the reference numbers, its image, and the numbers."""
    numbers = np.load(GOLDEN / "random_vit.npz")
    model = vit(img_size=224, patch_size=32, embed_dim=48, depth=4, num_heads=3, num_classes=10)
    model.load_state_dict(
        {k.removeprefix("weights/"): torch.from_numpy(numbers[k]) for k in numbers if "weights/" in k}
    )
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            module.eps = eps
    return model.to(dtype), torch.from_numpy(numbers["images"]).to(dtype), numbers


def real_vit(shared: Path) -> nn.Module:
    """The real ImageNet ViT-Tiny/16 of the shared folder."""
    model: nn.Module = require("timm").create_model("vit_tiny_patch16_224")
    model.load_state_dict(load_file(shared / "weights" / "vit_tiny_patch16_224.safetensors"))
    return model.eval()


def min_max(values: Tensor) -> Tensor:
    """Scale to [0, 1], as the reference numbers are compared."""
    values = values.double()
    return (values - values.min()) / (values.max() - values.min())
