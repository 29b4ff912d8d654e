"""The versions that decide a result: sightline's own, and those of the libraries that took part."""

from __future__ import annotations

import platform
import sys
from importlib.metadata import version

__all__ = ["versions"]

LIBRARIES = ("torch", "torchvision", "timm", "transformers", "open_clip", "PIL")


def versions() -> dict[str, str]:
    """Return the version of sightline, of Python, and of each library that has been imported."""
    imported = {name: getattr(sys.modules.get(name), "__version__", None) for name in LIBRARIES}
    found = {name: str(number) for name, number in imported.items() if number}
    return {"sightline": version("sightline"), "python": platform.python_version(), **found}
