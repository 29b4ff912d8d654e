"""Versions of the software that decides a result: sightline, Python, and the libraries that were loaded."""

from __future__ import annotations

import platform
import sys
from importlib.metadata import version

__all__ = ["versions"]

LIBRARIES = ("torch", "torchvision", "timm", "transformers", "open_clip", "PIL", "numpy")


def versions() -> dict[str, str]:
    """Return the versions of sightline, Python, and those of the libraries above that this process has loaded.

    >>> {"sightline", "python"} <= set(versions())
    True
    """
    loaded = {name: getattr(sys.modules.get(name), "__version__", None) for name in LIBRARIES}
    libraries = {name: str(number) for name, number in loaded.items() if number}
    return {"sightline": version("sightline"), "python": platform.python_version(), **libraries}
