"""Make torchvision importable next to a torch that was built without CUDA.

torchvision's usual wheel is a CUDA build. Next to a CPU torch its compiled operators cannot be loaded, and
``import torchvision`` fails on the first one it names, taking timm, grad-cam and every other package that imports
torchvision with it. Most of torchvision needs only that their names exist; for its detection models non-maximum
suppression is given in Python, and its own Python version of RoI align is used, without compiling it.
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
        _use_python_operators()
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
    from sightline.targets.boxes import non_maximum_suppression

    library = torch.library.Library("torchvision", "FRAGMENT")
    for schema in _SCHEMAS:
        library.define(schema)
    library.impl("nms", non_maximum_suppression, "CompositeExplicitAutograd")
    _declared.append(library)


def _use_python_operators() -> None:
    """Let torchvision's detection models run: nms as declared here, RoI align in torchvision's own Python version."""
    boxes, align = (sys.modules.get(f"torchvision.ops.{name}") for name in ("boxes", "roi_align"))
    if boxes is not None:
        vars(boxes)["_assert_has_ops"] = lambda: None
    eager = getattr(vars(align).get("_roi_align"), "__wrapped__", None) if align is not None else None
    if align is not None and eager is not None:
        vars(align).update(_roi_align=eager, is_compile_supported=lambda _device: True)
