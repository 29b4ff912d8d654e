"""Options: the fields of a registered dataclass, what they may hold, what they mean.

A value is checked against the annotation of its field. Numbers and the like are checked where text becomes a value, in
recipes (`check_option`); words out of a few are checked by the class itself, however it is built (`check_words`).
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import MISSING, Field, fields
from functools import cache, wraps
from types import UnionType
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin, get_type_hints

from sightline.errors import RecipeError

if TYPE_CHECKING:
    from pydantic import TypeAdapter

__all__ = [
    "HasOptions",
    "check_option",
    "check_words",
    "check_words_when_built",
    "default_of",
    "default_text",
    "hints_of",
    "missing_options",
    "option_texts",
    "without_options",
]

_ATTRIBUTES = re.compile(r"^Attributes:\n(?P<body>(?:[ ]+[^\n]*\n?|\n)*)", flags=re.MULTILINE)
_ATTRIBUTE = re.compile(r"^    (?P<name>\w+): ", flags=re.MULTILINE)


class HasOptions:
    """Base of a dataclass with options that are words out of a few; gives it the ``__post_init__`` that checks them."""

    __slots__ = ()

    def __post_init__(self) -> None:
        """Check the options; registration adds the check of words, a class that overrides this adds its own."""


def check_words_when_built(name: str, cls: Any) -> None:
    """Make a registered class check the words of its options before anything else, however it is built."""
    post_init: Callable[[Any], None] | None = getattr(cls, "__post_init__", None)
    if post_init is None:  # the class was made without one, so that its __init__ calls none: a plug-in's, as a rule
        init = cls.__init__

        @wraps(init)
        def build(self: Any, *args: Any, **options: Any) -> None:
            init(self, *args, **options)
            check_words(self, f"{name} got", cls)

        cls.__init__ = build
        return

    @wraps(post_init)
    def checked(self: Any) -> None:
        check_words(self, f"{name} got", cls)
        post_init(self)

    cls.__post_init__ = checked


def check_words(thing: Any, got: str = "got", cls: type | None = None) -> None:
    """Refuse a word that an option of a dataclass does not know.

    An option is one of a few words where its annotation says ``Literal``. What else it may be is not looked at, and
    neither are words where any text will do.

    Args:
        thing: the built object.
        got: how the sentence begins, for instance "ig got".
        cls: the class whose fields are looked at; None is the object's own.
    """
    for option, hint in _word_options(cls or type(thing)):
        value = getattr(thing, option)
        if words := _expected_words(value, hint):
            raise RecipeError(f"{got} {option}={value!r}; choose from {', '.join(words)}")


def check_option(owner: str, option: str, value: Any, hint: Any) -> Any:
    """Check a value against the annotation of an option; a word out of a few is left to the class, which knows it.

    Raises:
        RecipeError: it is of another type.
    """
    from pydantic import ValidationError

    if isinstance(value, str) and any(get_origin(kind) is Literal for kind in _kinds(hint)):
        return value
    try:
        return _validator(hint).validate_python(value)
    except ValidationError as error:
        wanted = inspect.formatannotation(hint).replace("typing.", "").replace("Literal", "one of ")
        reason = error.errors()[0]["msg"]
        raise RecipeError(f"{owner} got {option}={value!r}; {reason[0].lower()}{reason[1:]} ({wanted})") from None


@cache
def _validator(hint: Any) -> TypeAdapter[Any]:
    from pydantic import ConfigDict, TypeAdapter

    return TypeAdapter(hint, config=ConfigDict(strict=True))


@cache
def hints_of(cls: type) -> dict[str, Any]:
    """Return the annotations of a class, resolved."""
    from sightline.types import Method  # loads torch

    return get_type_hints(cls, localns={"Method": Method})


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


def _expected_words(value: Any, hint: Any) -> tuple[str, ...]:
    """Return the words that were expected where another came, nothing where the value may be right."""
    kinds = _kinds(hint)
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


def _kinds(hint: Any) -> tuple[Any, ...]:
    """Take a union apart."""
    if get_origin(hint) not in (Union, UnionType):
        return (hint,)
    return tuple(kind for part in get_args(hint) for kind in _kinds(part))
