"""Digests of source code: which code a recipe stands for, and which packages that code comes from.

A recipe names classes: a method, its operators, a metric. Two versions of a class write two different numbers under the
same recipe, so the digest of its source is part of a unit's key and stands in every row. For one class it covers

* of sightline: the module that defines the class, and every module of sightline which that module imports, directly or
  through others; what only draws or saves attributions is left out. A change anywhere else leaves the key as it is.
* of any other package, such as a plug-in: all of its Python files, and the modules of sightline that these import.
* the name and the version of both.

Files count with their path inside the package and their text, line endings aside, so that the digest is the same on
every machine. A comment counts, too: nothing here judges which changes matter. Other libraries do not count; their
versions stand in the rows. A class that was typed at a prompt or in a notebook has no file: its rows are used again in
the same session only.

A digest is taken once per class and process, and belongs to the class that was loaded: editing a file under a running
process changes neither.
"""

from __future__ import annotations

import ast
import hashlib
import secrets
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib.metadata import entry_points, packages_distributions, version
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import sightline
from sightline.bench.unit import Package, SourceDigests, key_of
from sightline.errors import InputError

__all__ = ["OURS", "digest_modules", "digest_sources", "modules_behind", "our_modules_in"]

OURS = "sightline"
# Attributions draw and save themselves through these; no number depends on them.
DRAWING = frozenset({"sightline.report.views", "sightline.attribution_file"})
SESSION = secrets.token_bytes(16)  # stands for the text of what has no file


class Distribution(NamedTuple):
    """A package as it is installed."""

    name: str
    version: str


Files = Mapping[str, str]  # path inside the package -> digest of the text
Sources = Mapping[Distribution, Files]


def digest_sources(recipes: Sequence[str], metrics: Sequence[str]) -> SourceDigests:
    """Return a digest of the source behind each recipe and metric, and the packages it comes from.

    Args:
        recipes: of methods, such as ``plus(libra(ixg))``; all of their parts count.
        metrics: recipes of metrics.

    Raises:
        InputError: files of a plug-in that was loaded cannot be read any more.
    """
    methods, judges = _classes_of(recipes, metrics)
    return SourceDigests(
        {recipe: _digest(classes) for recipe, classes in methods.items()},
        {metric: _digest(classes) for metric, classes in judges.items()},
        _packages(frozenset().union(*methods.values(), *judges.values())),
    )


def _classes_of(
    recipes: Sequence[str], metrics: Sequence[str]
) -> tuple[dict[str, frozenset[type]], dict[str, frozenset[type]]]:
    """Return the classes that recipes and metrics name."""
    from sightline.recipe import parse, parse_metric, parts  # loads torch

    methods = {recipe: frozenset(map(type, parts(parse(recipe)))) for recipe in recipes}
    return methods, {metric: frozenset(map(type, parts(parse_metric(metric)))) for metric in metrics}


def modules_behind(recipes: Sequence[str], metrics: Sequence[str], others: Iterable[str] = ()) -> tuple[str, ...]:
    """Return the modules of sightline behind recipes, metrics and other modules, and all that these import, by name."""
    methods, judges = _classes_of(recipes, metrics)
    classes = frozenset().union(*methods.values(), *judges.values())
    return tuple(sorted(_reached({each.__module__ for each in classes} | set(others))))


def our_modules_in(packages: Sequence[str]) -> tuple[str, ...]:
    """Return the names of all modules of sightline in some of its packages."""
    return tuple(sorted(name for name in _our_modules() if name.startswith(tuple(f"{each}." for each in packages))))


def digest_modules(names: Sequence[str]) -> dict[str, str]:
    """Return the digest of each module of sightline, as this process first read it; empty of one that is gone."""
    return {name: _digest_text(_our_text(name)) if name in _our_modules() else "" for name in names}


@cache
def _digest(classes: frozenset[type]) -> str:
    sources = _sources_of_all(classes)
    return key_of([[*distribution, dict(files)] for distribution, files in sorted(sources.items())])


def _packages(classes: frozenset[type]) -> tuple[Package, ...]:
    sources = sorted(_sources_of_all(classes).items())
    return tuple(Package(*distribution, key_of(dict(files))) for distribution, files in sources)


def _sources_of_all(classes: Iterable[type]) -> dict[Distribution, dict[str, str]]:
    merged: dict[Distribution, dict[str, str]] = {}
    for each in classes:
        for distribution, files in _sources_of(each).items():
            merged.setdefault(distribution, {}).update(files)
    return merged


@cache
def _sources_of(cls: type) -> Sources:
    """Return the files that decide what a class does, by the package they belong to."""
    name = cls.__module__
    if name.partition(".")[0] == OURS:
        return {_our_distribution(): _our_files({name})}
    package = _package_of(name)
    try:
        texts = {name: SESSION} if package is None else _texts_of(package)
    except OSError as error:
        raise InputError(f"the source of {name} cannot be read ({error}); install its package again") from None
    imported = {module for text in texts.values() for module in _imports(text)}
    return {
        _distribution_of(package) if package else Distribution(name, ""): {
            path: _digest_text(text) for path, text in texts.items()
        },
        _our_distribution(): _our_files(imported),
    }


# ---- sightline itself ------------------------------------------------------------------------------------------------


@cache
def _our_distribution() -> Distribution:
    return Distribution(OURS, sightline.__version__)


def _our_files(names: Iterable[str]) -> dict[str, str]:
    """Return the files of some modules of sightline and of all that they import; other names are passed over."""
    return dict(_our_module(name)[:2] for name in _reached(names))


def _reached(names: Iterable[str]) -> set[str]:
    """Return some modules of sightline and all that they import, without those that only draw."""
    waiting, seen, reached = set(names), set[str](), set[str]()
    while waiting:
        name = waiting.pop()
        seen.add(name)
        if name in _our_modules() and name not in DRAWING:
            reached.add(name)
            waiting |= _our_module(name)[2] - seen
    return reached


@cache
def _our_modules() -> dict[str, Path]:
    """Return every module of sightline by its name; spelled as on disk, also where a file system takes any case."""
    (root,) = map(Path, sightline.__path__)
    modules = {}
    for path in root.rglob("*.py"):
        words = [OURS, *path.relative_to(root).with_suffix("").parts]
        modules[".".join(words[:-1] if words[-1] == "__init__" else words)] = path
    return modules


@cache
def _our_text(name: str) -> bytes:
    return _our_modules()[name].read_bytes()


@cache
def _our_module(name: str) -> tuple[str, str, frozenset[str]]:
    """Return the path of a module inside the package, the digest of its text, and what it imports."""
    path, text = _our_modules()[name], _our_text(name)
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    inside = path.relative_to(Path(sightline.__path__[0]).parent).as_posix()
    return inside, _digest_text(text), frozenset(_imports(text, package))


def _imports(text: bytes, package: str = "") -> Iterator[str]:
    """Yield the name of every module that a file may import, also inside functions; not those for annotations alone.

    ``from sightline.models import adapter`` may mean a module or something inside one, so both names are yielded.
    """
    try:
        waiting: list[ast.AST] = [ast.parse(text)]
    except (SyntaxError, ValueError):  # compiled, or for another version of Python
        return
    while waiting:
        node = waiting.pop()
        match node:
            case ast.If(test=test, orelse=otherwise) if ast.unparse(test).endswith("TYPE_CHECKING"):
                waiting += otherwise
                continue
            case ast.Import(names=aliases):
                yield from (alias.name for alias in aliases)
            case ast.ImportFrom(module=module, names=aliases, level=level):
                words = package.split(".")[: len(package.split(".")) - level + 1] if level else []
                base = ".".join([*words, *([module] if module else [])])
                yield base
                yield from (f"{base}.{alias.name}" for alias in aliases)
        blocks = (ast.stmt, ast.ExceptHandler, ast.match_case)  # an import is a statement, and stands in no expression
        waiting += [child for child in ast.iter_child_nodes(node) if isinstance(child, blocks)]


# ---- other packages --------------------------------------------------------------------------------------------------


def _package_of(name: str) -> ModuleType | None:
    """Return the outermost package around a module, or that module; None where there is no file.

    A namespace is passed over: it holds packages of anybody.
    """
    words = name.split(".")
    around = (sys.modules.get(".".join(words[: depth + 1])) for depth in range(len(words)))
    return next((module for module in around if getattr(module, "__file__", None)), None)


def _texts_of(package: ModuleType) -> dict[str, bytes]:
    """Return the text of every Python file of a package, by its path inside; a module alone is one file."""
    file, inside = Path(str(package.__file__)), package.__name__.replace(".", "/")
    if not hasattr(package, "__path__"):
        return {f"{inside}{file.suffix}": file.read_bytes()}
    texts = {}
    for folder in map(Path, package.__path__):
        for path in folder.rglob("*.py"):
            if path.is_file() and not path.name.startswith("."):
                texts[f"{inside}/{path.relative_to(folder).as_posix()}"] = path.read_bytes()
    return texts


@cache
def _distribution_of(package: ModuleType) -> Distribution:
    """Return the name and version under which a package is installed; its own name where it is not."""
    top = package.__name__.partition(".")[0]
    for point in entry_points(group="sightline.plugins"):
        if point.module.partition(".")[0] == top and point.dist is not None:
            return Distribution(point.dist.name, point.dist.version)
    if names := packages_distributions().get(top):
        return Distribution(names[0], version(names[0]))
    return Distribution(package.__name__, str(getattr(package, "__version__", "")))


def _digest_text(text: bytes) -> str:
    """Return the digest of a file's text, whatever its line endings."""
    return hashlib.blake2b(text.replace(b"\r\n", b"\n").replace(b"\r", b"\n"), digest_size=16).hexdigest()
