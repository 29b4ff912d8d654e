"""Read ``name(option=value, …)``: the syntax of recipes, metrics and data sets.

It is that of a Python call, and holds names and literals only. Nothing is evaluated or imported to read it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sightline.errors import RecipeError

__all__ = ["LONGEST", "Call", "is_call", "read_call"]

LONGEST = 10_000  # characters; a recipe is a line, and deeper nesting would only test the parser


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
    options: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        named = [f"{key}={_text(value)}" for key, value in self.options.items()]
        written = [*map(_text, self.arguments), *named]
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


def _text(value: Any) -> str:
    return str(value) if isinstance(value, Call) else repr(value)
