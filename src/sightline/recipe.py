"""Recipes: methods as text, and back.

A recipe has the syntax of a Python call and holds literals only: ``skip_plus(ixg)``, ``ig(steps=20)``,
``mda(seed=caap, gamma=0.5)``. The same string is the command-line argument, the key of a stored row and the row of a
table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields
from typing import Any

from sightline.catalogue.calls import Call, read_call
from sightline.catalogue.options import check_option, default_of, default_text, hints_of, missing_options
from sightline.errors import RecipeError
from sightline.registry import METHODS, METRICS, OPERATORS, BaseSpec, Spec, is_registered, no_such, spec_of, unknown
from sightline.types import Method

__all__ = ["check_names", "example", "options", "parse", "parse_metric", "parts", "text"]


def parse(recipe: str) -> Method:
    """Build a method from text such as ``skip_plus(ixg)``.

    >>> parse("ig(steps=20)").steps
    20
    """
    method: Method = _build(
        read_call(recipe, usage="method(option=value) or operator(method, option=value), such as skip_plus(ixg)")
    )
    return method


def parse_metric(recipe: str) -> Any:
    """Build a metric from text such as ``insertion(step=448)``."""
    call = read_call(recipe, "metric", "a name, or name(option=value)")
    return _construct(METRICS[call.name], call)


def text(method: object) -> str:
    """Return the canonical recipe of a built method, operator or metric: settings that differ from the defaults.

    A method from outside the registries is named by its own text, which `parse` will not know.
    """
    if not is_registered(method):
        return str(method)
    spec = spec_of(method)
    written: list[str] = []
    for field in fields(method):  # type: ignore[arg-type]
        value, default = getattr(method, field.name), default_of(field)
        if value == default:
            continue
        if _is_method_field(spec, field.name) and value is not None:
            inner = text(value)
            written.append(inner if default is MISSING and not written else f"{field.name}={inner}")
        else:
            written.append(f"{field.name}={value!r}")
    return f"{spec.name}({', '.join(written)})" if written else spec.name


def parts(method: object) -> list[object]:
    """Return a method and every method inside it, outermost first."""
    if not is_registered(method):
        return [method]
    spec = spec_of(method)
    values = {field.name: getattr(method, field.name) for field in fields(method)}  # type: ignore[arg-type]
    inner = [value for name, value in values.items() if _is_method_field(spec, name) and value is not None]
    return [method, *(part for value in inner for part in parts(value))]


def options(spec: BaseSpec) -> dict[str, str]:
    """Return the options of a name with their defaults, as text."""
    every = fields(spec.build)  # type: ignore[arg-type]
    return {f.name: text(default) if is_registered(default := default_of(f)) else default_text(f) for f in every}


def example(spec: Spec) -> str:
    """Return a recipe that shows how the name is written."""
    if spec.kind == "operator":
        other = [name for name in missing_options(spec.build, ()) if not _is_method_field(spec, name)]
        return f"{spec.name}(ixg{''.join(f', {name}=0' for name in other)})"
    return spec.name


def check_names(owner: str, given: Mapping[str, Any], known: Iterable[str]) -> None:
    """Refuse an option that `owner` does not have."""
    names = list(known)
    for name in given:
        if name not in names:
            has = f"it has {', '.join(names)}" if names else "it has none"
            raise RecipeError(f"{no_such(name, 'option')} in {owner}; {has}")


def _build(call: Call) -> Any:
    if call.name in METHODS:
        return _construct(METHODS[call.name], call)
    if call.name in OPERATORS:
        return _construct(OPERATORS[call.name], call)
    raise RecipeError(unknown(call.name, "method", [*METHODS, *OPERATORS]))


def _construct(spec: Spec, call: Call) -> Any:
    names = [field.name for field in fields(spec.build)]  # type: ignore[arg-type]
    given = call.bind(names)
    check_names(spec.name, given, names)
    values = {name: _option(spec, name, value) for name, value in given.items()}
    if missing := missing_options(spec.build, values):
        raise RecipeError(f"{spec.name} needs {missing[0]}, for instance {example(spec)}")
    return spec.build(**values)


def _option(spec: Spec, name: str, value: Any) -> Any:
    """Build or check the value of one option."""
    if _is_method_field(spec, name):
        if value is not None and not isinstance(value, Call):
            raise RecipeError(f"{spec.name} got {value!r} where a method belongs, for instance {example(spec)}")
        return None if value is None else _build(value)
    if isinstance(value, Call) and spec.kind == "metric":
        raise RecipeError(f"cannot read {str(value)!r} as the option {name} of {spec.name}; give a literal")
    if isinstance(value, Call):
        raise RecipeError(f"{spec.name} got the method {text(_build(value))!r} for the option {name}; give a literal")
    return check_option(spec.name, name, value, hints_of(spec.build)[name])


def _is_method_field(spec: Spec, name: str) -> bool:
    hint = hints_of(spec.build)[name]
    return hint is Method or Method in getattr(hint, "__args__", ())
