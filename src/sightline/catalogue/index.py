"""The index of registered names, read from the source files without importing them.

Looking up a name, its family or its paper needs no torch: `sightline cite` and `sightline list` read the decorators
``@METHODS.register("gae", family=…, cite=…)`` and the first line of each class's documentation. What plug-ins register
is added from the registries themselves, after importing the plug-ins.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from sightline.catalogue.aliases import registered_name, unknown_method
from sightline.catalogue.options import default_text
from sightline.errors import RecipeError
from sightline.registry import BaseSpec, load_plugins, registered

__all__ = ["KINDS", "IndexEntry", "entries", "find"]

_PACKAGE = Path(__file__).parents[1]
KINDS = ("method", "operator", "metric", "dataset")
_FOLDERS = {"method": "methods", "operator": "operators", "metric": "metrics", "dataset": "data/sets"}


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """What the index knows of a name; the attributes are those of its spec in the registry.

    Attributes:
        kind: method, operator, metric or dataset.
        summary: the first line of the documentation.
        needs, cost, direction, agnostic: of methods, operators and metrics; see `sightline.registry.Spec`.
        layout, filters: of data sets; see `sightline.data.source.DatasetSpec`.
        protocols: of data sets, the names of the protocols.
        options: of data sets, the options with their defaults as text.
    """

    name: str
    kind: str
    family: str
    summary: str
    cite: str = ""
    cost: str = ""
    needs: frozenset[str] = frozenset()
    direction: str = ""
    agnostic: bool = False
    layout: str = ""
    filters: str = ""
    protocols: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)


_FACTS = frozenset(entry.name for entry in fields(IndexEntry))


def entries(kind: str) -> dict[str, IndexEntry]:
    """Return everything of a kind by name, in alphabetical order: what sightline registers, and what plug-ins do."""
    by_name = dict(_from_source(kind))
    if entry_points(group="sightline.plugins"):
        load_plugins()
        for spec in registered(kind):
            by_name.setdefault(spec.name, _from_spec(spec, kind))
    return dict(sorted(by_name.items()))


def find(name: str) -> IndexEntry:
    """Return the entry of a method, an operator, a metric or a data set.

    Raises:
        RecipeError: there is none of this name; the sentence holds the nearest one.
    """
    for read in (_from_source, entries):  # plug-ins are imported only for a name that is not ours
        for kind in KINDS:
            by_name = read(kind)
            if (known := name if name in by_name else registered_name(name)) in by_name:
                return by_name[known]
    raise RecipeError(unknown_method(name, [every for kind in KINDS for every in entries(kind)]))


@cache
def _from_source(kind: str) -> Mapping[str, IndexEntry]:
    """Read the entries of a kind from the files that register them."""
    by_name = {}
    for path in sorted((_PACKAGE / _FOLDERS[kind]).rglob("*.py")):
        for entry in _registrations(path, kind):
            by_name[entry.name] = entry
    return by_name


def _registrations(path: Path, kind: str) -> Iterator[IndexEntry]:
    registry = f"{kind.upper()}S"
    text = path.read_text(encoding="utf-8")
    if f"@{registry}.register(" not in text:
        return
    module = ast.parse(text)
    constants = dict(_constants(module))
    for node in module.body:
        for decorator in getattr(node, "decorator_list", ()):
            match decorator:
                case ast.Call(
                    func=ast.Attribute(value=ast.Name(id=where), attr="register"),
                    args=[ast.Constant(value=str(name))],
                    keywords=keywords,
                ) if where == registry and isinstance(node, ast.ClassDef):
                    facts = {str(k.arg): _value(k.value, constants) for k in keywords if k.arg in _FACTS}
                    yield _entry(name, kind, node, facts)


def _constants(module: ast.Module) -> Iterator[tuple[str, Any]]:
    """Yield the names that a module gives to literals: ``FAMILY = "faithfulness"``."""
    for node in module.body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                try:
                    yield name, ast.literal_eval(value)
                except (ValueError, TypeError):
                    continue


def _value(node: ast.expr, constants: Mapping[str, Any]) -> Any:
    return constants[node.id] if isinstance(node, ast.Name) else ast.literal_eval(node)


def _entry(name: str, kind: str, node: ast.ClassDef, facts: dict[str, Any]) -> IndexEntry:
    summary = (ast.get_docstring(node) or "").strip().split("\n", 1)[0]
    facts["needs"] = frozenset(facts.get("needs", ()))
    facts["layout"] = inspect.cleandoc(facts.get("layout", ""))
    facts["protocols"] = tuple(facts.get("protocols", ()))
    if kind == "dataset":
        facts["options"] = _dataset_options(dict(_defaults(node)), facts["protocols"])
    return IndexEntry(name, kind, summary=summary, **facts)


def _dataset_options(own: Mapping[str, str], protocols: tuple[str, ...]) -> dict[str, str]:
    """Return the options of a data set: its own, those that every set has, and the protocol where it has any."""
    common = {name: default for name, default in _selection().items() if name not in own}
    return {**own, **common, **({"protocol": "None"} if protocols else {})}


@cache
def _selection() -> dict[str, str]:
    """Return the options that every data set has."""
    module = ast.parse((_PACKAGE / "data" / "selection.py").read_text(encoding="utf-8"))
    classes = (node for node in module.body if isinstance(node, ast.ClassDef))
    return dict(_defaults(next(node for node in classes if node.name == "Selection")))


def _defaults(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    """Yield the fields of a dataclass with their defaults as text."""
    for statement in node.body:
        match statement:
            case ast.AnnAssign(target=ast.Name(id=name), value=None):
                yield name, "required"
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                yield name, ast.unparse(value)


def _from_spec(spec: BaseSpec, kind: str) -> IndexEntry:
    """Turn the spec of a plug-in into an entry."""
    facts = {name: getattr(spec, name) for name in _FACTS if name not in ("kind", "options") and hasattr(spec, name)}
    facts["protocols"] = tuple(facts.get("protocols", ()))
    if kind == "dataset":
        own = {option.name: default_text(option) for option in fields(spec.build)}  # type: ignore[arg-type]
        facts["options"] = _dataset_options(own, facts["protocols"])
    return IndexEntry(kind=kind, **facts)
