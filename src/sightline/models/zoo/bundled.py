"""Build and load the two bundled models, trained on the synthetic `shapes` by scripts/train_shapes.py.

``shapes-vit`` is timm's VisionTransformer and ``shapes-cnn`` is timm's ResNet, both for 64×64 images, both ending in an
8×8 grid, so whatever reads timm models reads these. They learned a known shortcut: a corner watermark means "star".
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from sightline.errors import WeightsError
from sightline.extras import require

__all__ = ["BUNDLED", "IMAGE_SIZE", "MEAN", "NUM_CLASSES", "STD", "load_bundled", "shapes_cnn", "shapes_vit"]

NUM_CLASSES = 8
IMAGE_SIZE = 64
MEAN = (0.5, 0.5, 0.5)
STD = (0.5, 0.5, 0.5)
WEIGHTS = Path(__file__).parent / "weights"


def shapes_vit() -> nn.Module:
    """Build the vision transformer with fresh weights: 6 blocks of 3 heads, an 8×8 grid of tokens and a CLS token.

    Its patch embedding is three small convolutions instead of one large one, with which a transformer learns in
    minutes, from labels alone, what otherwise takes it hours.
    """
    transformer = require("timm.models.vision_transformer")
    model: nn.Module = transformer.VisionTransformer(
        img_size=IMAGE_SIZE,
        patch_size=8,
        embed_dim=96,
        depth=6,
        num_heads=3,
        mlp_ratio=2,
        num_classes=NUM_CLASSES,
        embed_layer=_convolutional_embedding,
    )
    return _described(model, "shapes-vit")


def _convolutional_embedding(**options: Any) -> nn.Module:
    """Build timm's patch embedding with its one convolution replaced by three, each halving the image."""
    embedding: nn.Module = require("timm.layers").PatchEmbed(**options)
    width = options["embed_dim"]
    layers: list[nn.Module] = []
    for inner, outer in pairwise((3, width // 4, width // 2, width)):
        layers += [nn.Conv2d(inner, outer, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(outer), nn.ReLU()]
    embedding.proj = nn.Sequential(*layers, nn.Conv2d(width, width, 1))
    return embedding


def shapes_cnn() -> nn.Module:
    """Build the residual network with fresh weights: 4 stages of one basic block, the last three on an 8×8 map."""
    require("timm")
    from timm.models.resnet import BasicBlock, ResNet

    model: nn.Module = ResNet(
        BasicBlock, (1, 1, 1, 1), num_classes=NUM_CLASSES, output_stride=8, channels=(32, 64, 96, 128)
    )
    return _described(model, "shapes-cnn")


BUNDLED: dict[str, Callable[[], nn.Module]] = {"shapes-vit": shapes_vit, "shapes-cnn": shapes_cnn}


def load_bundled(name: str) -> nn.Module:
    """Load a bundled model with its trained weights, in eval mode."""
    if name not in BUNDLED:
        raise WeightsError(f"no bundled model is called {name!r}; there are {' and '.join(BUNDLED)}")
    state, labels = _read(WEIGHTS / f"{name}.safetensors")
    model = BUNDLED[name]()
    try:
        model.load_state_dict(state, strict=True)
    except RuntimeError as error:
        raise WeightsError(
            f"the weights of {name} do not fit its architecture; run python scripts/train_shapes.py to make new ones"
        ) from error
    return _described(model, name, labels).eval()


def _read(path: Path) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """Return the tensors of a weights file and the class names it carries."""
    if not path.is_file():
        raise WeightsError(
            f"the bundled weights {path.name} are missing; reinstall sightline, or run python scripts/train_shapes.py"
        )
    try:
        with safe_open(path, framework="pt") as file:
            labels = (file.metadata() or {}).get("classes", "")
            state = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 — the file is no mapping
    except (SafetensorError, OSError) as error:
        raise WeightsError(f"the bundled weights {path.name} cannot be read; reinstall sightline") from error
    return state, tuple(labels.split())


def _described(model: nn.Module, name: str, labels: tuple[str, ...] = ()) -> nn.Module:
    """Give a model the description timm gives its own, so that its preprocessing can be read from it."""
    description: dict[str, Any] = {
        "architecture": name,
        "num_classes": NUM_CLASSES,
        "input_size": (3, IMAGE_SIZE, IMAGE_SIZE),
        "mean": MEAN,
        "std": STD,
        "interpolation": "bicubic",
        "crop_pct": 1.0,
        "label_names": labels,
    }
    model.__dict__["pretrained_cfg"] = model.__dict__["default_cfg"] = description
    return model
