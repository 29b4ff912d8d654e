"""Optional packages: imported when first needed, named with their pip line when missing."""

from __future__ import annotations

import importlib
from types import ModuleType

from sightline.errors import MissingExtra
from sightline.torchvision_repair import repair_torchvision

# Packages that import torchvision, or use it where they find it, and fail where it fails.
_NEED_TORCHVISION = frozenset(
    {"open_clip", "pytorch_grad_cam", "quantus", "timm", "torchcam", "torchvision", "transformers", "zennit"}
)


def require(module: str, *, extra: str) -> ModuleType:
    """Import a module of an optional package.

    Args:
        module: its full name, such as ``timm`` or ``matplotlib.pyplot``.
        extra: the extra of sightline that installs it.

    Raises:
        MissingExtra: the package is not installed; the message holds the pip line.
    """
    package = module.partition(".")[0]
    if package in _NEED_TORCHVISION:
        repair_torchvision()
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != package:  # something else is missing: inside the package, or one that it needs itself
            raise
        raise MissingExtra(f'{package} is not installed; pip install "sightline[{extra}]"') from error
