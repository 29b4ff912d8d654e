"""Recipes: methods as text, and back.

A recipe has the syntax of a Python call and holds names and literals only: ``skip_plus(ixg)``, ``ig(steps=20)``,
``mda(seed=caap, gamma=0.5)``. The same string is the command-line argument, the key of a stored row and the row of a
table. Metrics and data sets are written the same way. Nothing is evaluated or imported to read it (`read_call`).
"""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from functools import cache
from typing import TYPE_CHECKING, Any

from sightline.catalogue.aliases import registered_name, unknown_method
from sightline.catalogue.options import default_of, default_text, hints_of, missing_options
from sightline.errors import RecipeError
from sightline.registry import (
    METHODS,
    METRICS,
    OPERATORS,
    BaseSpec,
    Spec,
    check_option,
    find_spec,
    is_registered,
    no_such,
)

if TYPE_CHECKING:
    from sightline.types import Method

FROM_PYTHON = ("fill", "tuned")  # options that may hold what no text can

__all__ = [
    "LONGEST",
    "Call",
    "check_names",
    "example",
    "is_call",
    "options",
    "parse",
    "parse_metric",
    "parts",
    "read_call",
    "specs_of",
    "text",
]

# ---- methods --------------------------------------------------------------------------------------------------------


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
    spec = find_spec(method)
    if spec is None:
        return str(method)
    written: list[str] = []
    for name, default in _defaults(spec.build).items():
        value = getattr(method, name)
        if value == default:
            continue
        if _is_method_field(spec, name) and value is not None:
            inner = text(value)
            written.append(inner if default is MISSING and not written else f"{name}={inner}")
        else:
            written.append(f"{name}={_value_text(value)}")
    return f"{spec.name}({', '.join(written)})" if written else spec.name


@cache
def _defaults(cls: Any) -> dict[str, Any]:
    """Return the options of a class with their defaults, MISSING where there is none."""
    return {field.name: default_of(field) for field in fields(cls)}


def _value_text(value: object) -> str:
    """Write a literal as it is, and a function of the user's own by its name, which `parse` will not know."""
    return getattr(value, "__qualname__", type(value).__name__) if callable(value) else repr(value)


def parts(method: object) -> list[object]:
    """Return a method and every method inside it, outermost first."""
    spec = find_spec(method)
    if spec is None:
        return [method]
    values = {field.name: getattr(method, field.name) for field in fields(method)}  # type: ignore[arg-type]
    inner = [value for name, value in values.items() if _is_method_field(spec, name) and value is not None]
    return [method, *(part for value in inner for part in parts(value))]


def specs_of(method: object) -> list[Spec]:
    """Return the specs of a method and of every method inside it, outermost first; none for what is not registered."""
    return [spec for part in parts(method) if (spec := find_spec(part)) is not None]


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
    for registry in (METHODS, OPERATORS):
        if call.name in registry:  # before the aliases: a plug-in may register a name that is one here
            return _construct(registry[call.name], call)
        if (name := registered_name(call.name)) in registry:
            return _construct(registry[name], call)
    raise RecipeError(unknown_method(call.name, [*METHODS, *OPERATORS]))


def _construct(spec: Spec, call: Call) -> Any:
    names = [field.name for field in fields(spec.build)]  # type: ignore[arg-type]
    given = call.bind(names)
    check_names(spec.name, given, names)
    values = {name: _option(spec, name, value) for name, value in given.items()}
    try:
        return spec.build(**values)
    except TypeError:
        if missing := missing_options(spec.build, values):
            raise RecipeError(f"{spec.name} needs {missing[0]}, for instance {example(spec)}") from None
        raise


def _option(spec: Spec, name: str, value: Any) -> Any:
    """Build or check the value of one option."""
    if _is_method_field(spec, name):
        if value is not None and not isinstance(value, Call):
            raise RecipeError(f"{spec.name} got {value!r} where a method belongs, for instance {example(spec)}")
        return None if value is None else _build(value)
    if isinstance(value, Call) and spec.kind == "metric":
        python = ", or build it in Python where it is a function or a model" if name in FROM_PYTHON else ""
        raise RecipeError(f"cannot read {str(value)!r} as the option {name} of {spec.name}; give a literal{python}")
    if isinstance(value, Call):
        raise RecipeError(f"{spec.name} got the method {text(_build(value))!r} for the option {name}; give a literal")
    return check_option(spec.name, name, value, hints_of(spec.build)[name])


def _is_method_field(spec: Spec, name: str) -> bool:
    from sightline.types import Method  # loads torch

    hint = hints_of(spec.build)[name]
    return hint is Method or Method in getattr(hint, "__args__", ())


# ---- the syntax -----------------------------------------------------------------------------------------------------

LONGEST = 10_000  # characters; a recipe is a line
DEEPEST = 100  # calls, tuples and signs inside one another


@dataclass(frozen=True, slots=True)
class Call:
    """A name with values, as it was written.

    Attributes:
        name: what is called.
        arguments: values without a name, in order.
        options: values by name. A value is None, a bool, a number, a text, a tuple of these, or another call.
    """

    name: str
    arguments: tuple[Any, ...] = ()
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __str__(self) -> str:
        named = [f"{key}={_written(value)}" for key, value in self.options.items()]
        written = [*map(_written, self.arguments), *named]
        return f"{self.name}({', '.join(written)})" if written else self.name

    def names(self) -> Iterator[str]:
        """Yield the name of this call and of every call inside it, outermost first."""
        yield self.name
        for value in (*self.arguments, *self.options.values()):
            if isinstance(value, Call):
                yield from value.names()

    def bind(self, options: Sequence[str]) -> dict[str, Any]:
        """Return all values by name: those without one belong to `options`, in order.

        Raises:
            RecipeError: there are more values than options, or an option is given twice.
        """
        if len(self.arguments) > len(options):
            raise RecipeError(f"{self.name} takes {len(options)} settings, got {len(self.arguments)} in {str(self)!r}")
        values = dict(zip(options, self.arguments, strict=False))
        for key, value in self.options.items():
            if key in values:
                raise RecipeError(f"{self.name} got {key} twice in {str(self)!r}; write it once")
            values[key] = value
        return values


def read_call(text: str, kind: str = "recipe", usage: str = "name(option=value)") -> Call:
    """Read a name, or a call of one.

    Args:
        text: such as ``ig(steps=20)``.
        kind: what it should be, for sentences about what it is not.
        usage: how to write it.

    Raises:
        RecipeError: the text is no call, or holds more than names and literals.
    """
    if not isinstance(text, str) or not text.strip():
        raise RecipeError(f"got {text!r} as a {kind}; write a name, for instance {usage}")
    if len(text) > LONGEST:
        raise RecipeError(f"got a {kind} of {len(text)} characters; at most {LONGEST} are read")
    node = _parsed(text)
    if node is None:
        raise RecipeError(f"cannot read {text!r} as a {kind}, which holds names and literals only; write {usage}")
    if (depth := _depth(node)) > DEEPEST:
        raise RecipeError(f"got a {kind} nested {depth} deep; at most {DEEPEST} are read")
    return _call(node, f"the {kind} {text!r}")


def is_call(text: str) -> bool:
    """Tell whether a text is a name or a call of one, whatever its values are."""
    return _parsed(text) is not None


def _parsed(text: str) -> ast.expr | None:
    try:
        node = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    named = isinstance(node, ast.Name) or (isinstance(node, ast.Call) and isinstance(node.func, ast.Name))
    return node if named else None


def _depth(node: ast.AST) -> int:
    """Count how deep a tree is, without descending into it."""
    depth, level = 0, [node]
    while level:
        depth, level = depth + 1, [child for each in level for child in ast.iter_child_nodes(each)]
    return depth


def _call(node: ast.expr, where: str) -> Call:
    match node:
        case ast.Name(id=name):
            return Call(name)
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=keywords):
            if any(keyword.arg is None for keyword in keywords):
                raise RecipeError(f"{name} got **; write the options out, one by one")
            names = [str(keyword.arg) for keyword in keywords]
            if repeated := [key for key in names if names.count(key) > 1]:
                raise RecipeError(f"{name} got {repeated[0]} twice in {where}; write it once")
            options = {str(keyword.arg): _value(keyword.value, where) for keyword in keywords}
            return Call(name, tuple(_value(argument, where) for argument in arguments), options)
    raise RecipeError(f"cannot read {ast.unparse(node)!r} in {where}; it may hold names and literals only")


def _value(node: ast.expr, where: str) -> Any:
    try:
        value = ast.literal_eval(node)
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return _call(node, where)
    return _frozen(value, where)


def _frozen(value: Any, where: str) -> Any:
    if isinstance(value, list | tuple):
        return tuple(_frozen(item, where) for item in value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise RecipeError(f"got {value!r} in {where}; options are numbers, texts, True, False, None or tuples")


def _written(value: Any) -> str:
    return str(value) if isinstance(value, Call) else repr(value)
