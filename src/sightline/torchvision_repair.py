"""Make torchvision importable next to a torch that was built without CUDA.

torchvision's usual wheel is a CUDA build. Next to a CPU torch its compiled operators cannot be loaded, and
``import torchvision`` fails on the first one it names, taking timm, grad-cam and every other package that imports
torchvision with it. Nothing sightline uses needs those operators, only that their names exist.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

_SYMPTOM = "operator torchvision::nms does not exist"
_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
# A schema lives as long as the library that declared it, so the library lives as long as this module.
_declared: list[torch.library.Library] = []


def repair_torchvision() -> bool:
    """Import torchvision, declaring its missing operators first where that is what stops it.

    Changes nothing where torchvision is absent, healthy or already repaired; every error but that one passes through.

    Returns:
        Whether the operators had to be declared by this call.
    """
    if "torchvision" in sys.modules or importlib.util.find_spec("torchvision") is None:
        return False
    try:
        importlib.import_module("torchvision")
    except RuntimeError as error:
        if str(error) != _SYMPTOM:
            raise
        _forget_torchvision()
        _declare_operators()
        importlib.import_module("torchvision")
        return True
    return False


def _forget_torchvision() -> None:
    """Drop what the failed import left behind: submodules that believe they are loaded."""
    for name in [name for name in sys.modules if name == "torchvision" or name.startswith("torchvision.")]:
        del sys.modules[name]


def _declare_operators() -> None:
    import torch  # only now: most of the command line does without

    if _declared:
        return
    library = torch.library.Library("torchvision", "FRAGMENT")
    for schema in _SCHEMAS:
        library.define(schema)
    _declared.append(library)
