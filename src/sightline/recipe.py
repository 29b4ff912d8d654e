"""Recipes: methods as text, and back.

A recipe has the syntax of a Python call and holds literals only: ``skip_plus(ixg)``, ``ig(steps=20)``,
``mda(seed=caap, gamma=0.5)``. The same string is the command-line argument, the key of a stored row and the row of a
table.
"""

from __future__ import annotations

import ast
import inspect
from dataclasses import MISSING, Field, fields
from functools import cache
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError

from sightline.errors import RecipeError
from sightline.registry import METHODS, METRICS, OPERATORS, Spec, hints_of, is_registered, no_such, spec_of, unknown
from sightline.types import Method

LONGEST = 10_000  # characters; a recipe is a line, and deeper nesting would only test the parser


def parse(recipe: str) -> Method:
    """Build a method from text such as ``skip_plus(ixg)``.

    >>> parse("ig(steps=20)").steps
    20
    """
    built: Method = _build(_tree(recipe), recipe)
    return built


def parse_metric(recipe: str) -> Any:
    """Build a metric from text such as ``insertion(step=448)``."""
    node = _tree(recipe)
    match node:
        case ast.Name(id=name):
            return METRICS[name].build()
        case ast.Call(func=ast.Name(id=name), args=[], keywords=keywords):
            spec = METRICS[name]
            return spec.build(
                **{_key(k, spec): _option(spec, _key(k, spec), _value(k.value, recipe)) for k in keywords}
            )
    raise RecipeError(f"cannot read {recipe!r} as a metric; write a name, or name(option=value)")


def text(method: object) -> str:
    """Return the canonical recipe of a built method, operator or metric: settings that differ from the defaults.

    A method from outside the registries is named by its own text, which `parse` will not know.
    """
    if not is_registered(method):
        return str(method)
    spec = spec_of(method)
    written: list[str] = []
    for field in fields(method):  # type: ignore[arg-type]
        value = getattr(method, field.name)
        if value == _default(field):
            continue
        if _is_method_field(spec, field.name) and value is not None:
            inner = text(value)
            written.append(inner if _default(field) is MISSING and not written else f"{field.name}={inner}")
        else:
            written.append(f"{field.name}={value!r}")
    return f"{spec.name}({', '.join(written)})" if written else spec.name


def parts(method: object) -> list[object]:
    """Return a method and every method inside it, outermost first."""
    found = [method]
    if not is_registered(method):
        return found
    spec = spec_of(method)
    for field in fields(method):  # type: ignore[arg-type]
        value = getattr(method, field.name)
        if _is_method_field(spec, field.name) and value is not None:
            found.extend(parts(value))
    return found


def options(spec: Spec) -> dict[str, str]:
    """Return the options of a name with their defaults, as text."""
    found = {}
    for field in fields(spec.build):  # type: ignore[arg-type]
        default = _default(field)
        if default is MISSING:
            found[field.name] = "required"
        elif _is_method_field(spec, field.name) and default is not None:
            found[field.name] = text(default)
        else:
            found[field.name] = repr(default)
    return found


def _tree(recipe: str) -> ast.expr:
    if not isinstance(recipe, str) or not recipe.strip():
        raise RecipeError(f"got {recipe!r} as a recipe; write a name, for instance 'ixg' or 'skip_plus(ixg)'")
    if len(recipe) > LONGEST:
        raise RecipeError(f"got a recipe of {len(recipe)} characters; at most {LONGEST} are read")
    try:
        return ast.parse(recipe.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise RecipeError(
            f"cannot read {recipe!r} as a recipe; write method(option=value) or operator(method, option=value)"
        ) from None


def _build(node: ast.expr, recipe: str) -> Any:
    match node:
        case ast.Name(id=name):
            return _construct(_spec(name), [], [], recipe)
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=keywords):
            return _construct(_spec(name), arguments, keywords, recipe)
    raise RecipeError(
        f"cannot read {ast.unparse(node)!r} in the recipe {recipe!r}; "
        "a recipe holds names and literals only, such as skip_plus(ixg) or ig(steps=20)"
    )


def _spec(name: str) -> Spec:
    if name in METHODS:
        return METHODS[name]
    if name in OPERATORS:
        return OPERATORS[name]
    raise RecipeError(unknown(name, "method", [*METHODS, *OPERATORS]))


def _construct(spec: Spec, arguments: list[ast.expr], keywords: list[ast.keyword], recipe: str) -> Any:
    names = [field.name for field in fields(spec.build)]  # type: ignore[arg-type]
    if len(arguments) > len(names):
        raise RecipeError(f"{spec.name} takes {len(names)} settings, got {len(arguments)} in {recipe!r}")
    given = dict(zip(names, (_value(node, recipe) for node in arguments), strict=False))
    for keyword in keywords:
        key = _key(keyword, spec)
        if key in given:
            raise RecipeError(f"{spec.name} got {key} twice in {recipe!r}; write it once")
        given[key] = _value(keyword.value, recipe)
    checked = {key: _option(spec, key, value) for key, value in given.items()}
    missing = [f.name for f in fields(spec.build) if _default(f) is MISSING and f.name not in checked]  # type: ignore[arg-type]
    if missing:
        raise RecipeError(f"{spec.name} needs {missing[0]}, for instance {example(spec)}")
    return spec.build(**checked)


def example(spec: Spec) -> str:
    """Return a recipe that shows how the name is written."""
    if spec.kind == "operator":
        extra = "".join(
            f", {f.name}=0"
            for f in fields(spec.build)  # type: ignore[arg-type]
            if _default(f) is MISSING and not _is_method_field(spec, f.name)
        )
        return f"{spec.name}(ixg{extra})"
    return spec.name


def _key(keyword: ast.keyword, spec: Spec) -> str:
    names = [field.name for field in fields(spec.build)]  # type: ignore[arg-type]
    if keyword.arg is None:
        raise RecipeError(f"{spec.name} got **; write the options out, {', '.join(names)}")
    if keyword.arg not in names:
        known = f"it has {', '.join(names)}" if names else "it has none"
        raise RecipeError(f"{no_such(keyword.arg, 'option')} in {spec.name}; {known}")
    return keyword.arg


def _value(node: ast.expr, recipe: str) -> Any:
    """Read a literal, or a nested recipe."""
    try:
        value = ast.literal_eval(node)
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return _build(node, recipe)
    return _frozen(value, recipe)


def _frozen(value: Any, recipe: str) -> Any:
    if isinstance(value, list | tuple):
        return tuple(_frozen(item, recipe) for item in value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise RecipeError(
        f"got {value!r} in the recipe {recipe!r}; options are numbers, texts, True, False, None or tuples"
    )


def _option(spec: Spec, name: str, value: Any) -> Any:
    """Check one option against the annotation of its field."""
    if _is_method_field(spec, name):
        if value is None or not isinstance(value, bool | int | float | str | tuple):
            return value
        raise RecipeError(f"{spec.name} got {value!r} where a method belongs, for instance {example(spec)}")
    if not isinstance(value, bool | int | float | str | tuple | None):
        raise RecipeError(f"{spec.name} got the method {text(value)!r} for the option {name}; give a literal")
    try:
        return _validator(spec.build, name).validate_python(value)
    except ValidationError as error:
        wanted = (
            inspect.formatannotation(hints_of(spec.build)[name]).replace("typing.", "").replace("Literal", "one of ")
        )
        reason = error.errors()[0]["msg"]
        raise RecipeError(f"{spec.name} got {name}={value!r}; {reason[0].lower()}{reason[1:]} ({wanted})") from None


@cache
def _validator(cls: type, name: str) -> TypeAdapter[Any]:
    return TypeAdapter(hints_of(cls)[name], config=ConfigDict(strict=True))


def _is_method_field(spec: Spec, name: str) -> bool:
    hint = hints_of(spec.build)[name]
    return hint is Method or Method in getattr(hint, "__args__", ())


def _default(field: Field[Any]) -> Any:
    return field.default_factory() if field.default_factory is not MISSING else field.default
