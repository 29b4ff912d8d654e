"""Options: the fields of a registered dataclass, what they may hold, what they mean.

A value is checked against the annotation of its field. Types are checked where text becomes a value, in recipes
(`check_option`); words out of a few and numbers are checked by the class itself, however it is built (`check_options`).
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import MISSING, Field, fields
from functools import cache, wraps
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin, get_type_hints

from sightline.catalogue.ranges import Range, range_of
from sightline.errors import RecipeError

if TYPE_CHECKING:
    from pydantic import TypeAdapter

__all__ = [
    "HasOptions",
    "check_option",
    "check_options",
    "check_options_when_built",
    "default_of",
    "default_text",
    "hints_of",
    "is_number",
    "kinds_of",
    "missing_options",
    "numbers_in",
    "option_texts",
    "without_options",
]

_ATTRIBUTES = re.compile(r"^Attributes:\n(?P<body>(?:[ ]+[^\n]*\n?|\n)*)", flags=re.MULTILINE)
_ATTRIBUTE = re.compile(r"^    (?P<name>\w+): ", flags=re.MULTILINE)


class HasOptions:
    """Base of a dataclass with options that are checked; gives it the ``__post_init__`` that does so."""

    __slots__ = ()

    def __post_init__(self) -> None:
        """Check the options; registration adds that of words and numbers, a class that overrides this adds its own."""


def check_options_when_built(name: str, cls: Any) -> None:
    """Make a registered class check the words and numbers of its options before anything else, however it is built."""
    post_init: Callable[[Any], None] | None = getattr(cls, "__post_init__", None)
    if post_init is None:  # the class was made without one, so that its __init__ calls none: a plug-in's, as a rule
        init = cls.__init__

        @wraps(init)
        def build(self: Any, *args: Any, **options: Any) -> None:
            init(self, *args, **options)
            check_options(self, f"{name} got", cls)

        cls.__init__ = build
        return

    @wraps(post_init)
    def checked(self: Any) -> None:
        check_options(self, f"{name} got", cls)
        post_init(self)

    cls.__post_init__ = checked


def check_options(thing: Any, got: str = "got", cls: type | None = None) -> None:
    """Refuse a word that an option of a dataclass does not know, and a number out of its range.

    An option is one of a few words where its annotation says ``Literal``. The range of a number is that of its name, or
    the one its annotation gives (`sightline.catalogue.ranges`). Of other values, such as arrays, nothing is asked.

    Args:
        thing: the built object.
        got: how the sentence begins, for instance "ig got".
        cls: the class whose fields are looked at; None is the object's own.
    """
    for option, hint in _word_options(cls or type(thing)):
        value = getattr(thing, option)
        if words := _expected_words(value, hint):
            raise RecipeError(f"{got} {option}={value!r}; choose from {', '.join(words)}")
    for option, (limits, hint) in _limits(cls or type(thing)).items():
        value = getattr(thing, option)
        if not _fits(value, hint):
            raise RecipeError(f"{got} {option}={_short(value)}; {_wanted(option, value, hint)}")
        for number in numbers_in(value):
            if not limits.least <= number <= limits.most:
                raise RecipeError(f"{got} {option}={_short(value)}; {_out_of_range(option, number, limits)}")


def check_option(owner: str, option: str, value: Any, hint: Any) -> Any:
    """Check a value against the annotation of an option; a word out of a few is left to the class, which knows it.

    Raises:
        RecipeError: it is of another type.
    """
    from pydantic import ValidationError

    if isinstance(value, str) and any(get_origin(kind) is Literal for kind in kinds_of(hint)):
        return value
    try:
        return _validator(hint).validate_python(value)
    except ValidationError as error:
        reason = error.errors()[0]["msg"]
        reason = f"{reason[0].lower()}{reason[1:]} ({_annotation(hint)})"
        raise RecipeError(f"{owner} got {option}={value!r}; {reason}") from None


@cache
def _validator(hint: Any) -> TypeAdapter[Any]:
    from pydantic import ConfigDict, TypeAdapter

    return TypeAdapter(hint, config=ConfigDict(strict=True))


@cache
def hints_of(cls: type, *, annotated: bool = False) -> dict[str, Any]:
    """Return the annotations of a class, resolved; without what ``Annotated`` adds to them unless `annotated`."""
    from sightline.types import Method  # loads torch

    return get_type_hints(cls, localns={"Method": Method}, include_extras=annotated)


def default_of(field: Field[Any]) -> Any:
    """Return the default of an option, MISSING where it has none."""
    return field.default_factory() if field.default_factory is not MISSING else field.default


def default_text(field: Field[Any]) -> str:
    """Write the default of an option as text; "required" where it has none."""
    default = default_of(field)
    return "required" if default is MISSING else repr(default)


def missing_options(cls: Any, given: Any) -> list[str]:
    """Return the options that have no default and are not given."""
    return [field.name for field in fields(cls) if default_of(field) is MISSING and field.name not in given]


def option_texts(cls: Any) -> dict[str, str]:
    """Return what each option means, from the ``Attributes:`` of the class and of the classes it derives from."""
    texts: dict[str, str] = {}
    for base in cls.__mro__:
        for section in _ATTRIBUTES.finditer(inspect.cleandoc(base.__dict__.get("__doc__") or "")):
            names = list(_ATTRIBUTE.finditer(section["body"]))
            ends = [name.start() for name in names[1:]] + [len(section["body"])]
            for name, end in zip(names, ends, strict=True):
                texts.setdefault(name["name"], " ".join(section["body"][name.end() : end].split()))
    return {field.name: texts[field.name] for field in fields(cls) if field.name in texts}


def without_options(doc: str) -> str:
    """Return a docstring without its ``Attributes:``."""
    return _ATTRIBUTES.sub("", doc)


@cache
def _word_options(cls: type) -> tuple[tuple[str, Any], ...]:
    """Return the options that hold words out of a few, with their annotations."""
    hints = hints_of(cls)
    return tuple((f.name, hints[f.name]) for f in fields(cls) if "Literal" in str(hints[f.name]))


@cache
def _limits(cls: type) -> dict[str, tuple[Range, Any]]:
    """Return for each option the range of the numbers it may hold, and its annotation."""
    annotated, hints = hints_of(cls, annotated=True), hints_of(cls)
    return {f.name: (range_of(f.name, annotated[f.name]), hints[f.name]) for f in fields(cls)}


def _fits(value: Any, hint: Any) -> bool:
    """Tell whether a value is of a type that the annotation names, as far as numbers, texts and tuples of them go."""
    return any(_is_a(value, kind) for kind in kinds_of(hint))


def _is_a(value: Any, kind: Any) -> bool:
    if kind in (int, float):
        return is_number(value) and (kind is float or isinstance(value, Integral))
    if kind in (str, bool, NoneType):
        return isinstance(value, kind)
    if get_origin(kind) is Literal:
        return isinstance(value, str | int | NoneType) and value in get_args(kind)
    if get_origin(kind) is tuple:
        inner = get_args(kind)
        each = inner[:1] * len(value) if inner[1:] == (...,) and isinstance(value, tuple | list) else inner
        return isinstance(value, tuple | list) and len(each) == len(value) and all(map(_fits, value, each))
    return True  # a method, a path, a function: whoever uses it will tell


def is_number(value: Any) -> bool:
    """Tell whether a value is a number, of Python or of NumPy; True and False are not."""
    return isinstance(value, Real) and not isinstance(value, bool)


def numbers_in(value: Any) -> Iterator[Any]:
    """Yield a number, or all that a tuple or list holds."""
    if is_number(value):
        yield value
    elif isinstance(value, tuple | list):
        for item in value:
            yield from numbers_in(item)


def _short(value: Any) -> str:
    """Write a value for a sentence; of whole numbers too long to print how long they are."""
    if isinstance(value, int) and value.bit_length() > 256:
        return f"(a number of {value.bit_length()} bits)"
    return repr(value)


def _wanted(option: str, value: Any, hint: Any) -> str:
    """Say what an option takes."""
    kinds = kinds_of(hint)
    if option == "fill" and callable(value):
        return "an in-painter has to know which whole pixels are missing; give it to a metric such as deletion"
    if not set(kinds) <= {int, float, NoneType}:
        return f"give a value of the type {_annotation(hint)}"
    return f"give a {'' if float in kinds else 'whole '}number{', or None' if NoneType in kinds else ''}"


def _annotation(hint: Any) -> str:
    return inspect.formatannotation(hint).replace("typing.", "").replace("Literal", "one of ")


def _out_of_range(option: str, number: Any, limits: Range) -> str:
    if number != number or number in (math.inf, -math.inf):
        advice = "choose a finite number"
    else:
        advice = "choose a larger number" if number < limits.least else "choose a smaller number"
    return f"{option} is {limits}; {advice}"


def _expected_words(value: Any, hint: Any) -> tuple[str, ...]:
    """Return the words that were expected where another came, nothing where the value may be right."""
    kinds = kinds_of(hint)
    if isinstance(value, str):
        words = tuple(word for kind in kinds if get_origin(kind) is Literal for word in get_args(kind))
        return words if words and value not in words and str not in kinds else ()
    if isinstance(value, tuple):
        for kind in kinds:
            inner = get_args(kind) if get_origin(kind) is tuple else ()
            each = inner[:1] * len(value) if inner[1:] == (...,) else inner
            for item, item_hint in zip(value, each, strict=False):
                if words := _expected_words(item, item_hint):
                    return words
    return ()


def kinds_of(hint: Any) -> tuple[Any, ...]:
    """Take a union apart."""
    if get_origin(hint) not in (Union, UnionType):
        return (hint,)
    return tuple(kind for part in get_args(hint) for kind in kinds_of(part))
