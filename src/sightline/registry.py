"""Registries: one decorator, discovery by walking the rooms, outside packages by entry point.

``METHODS``, ``OPERATORS`` and ``METRICS`` map a name to its :class:`Spec`. A file that registers something is found by
itself; an outside package joins by naming a module under the entry-point group ``sightline.plugins``.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache, wraps
from importlib.metadata import entry_points
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from sightline.docstrings import documentation
from sightline.errors import RecipeError, RegistryError

T = TypeVar("T", bound=type)
NEEDS = frozenset({"gradient", "layers", "attention", "tokens", "cuts", "masks", "method"})


@dataclass(frozen=True, slots=True)
class Spec:
    """What a registry knows of one name.

    Attributes:
        name: as written in recipes.
        kind: method, operator or metric.
        family: the word it is listed under.
        cite: key in references.bib, empty for what has no paper.
        cost: what it costs, for people; `build().cost(model)` says it exactly.
        needs: what the model must offer: gradient, layers, attention, tokens, cuts; for metrics also what the case must
            hold: masks, method.
        direction: for metrics, "higher" or "lower" is better; empty otherwise.
        agnostic: for methods, whether the map ignores the class.
        parity: what the implementation has been checked against.
        build: the class; calling it gives the method, operator or metric.
    """

    name: str
    kind: str
    family: str
    cite: str
    cost: str
    needs: frozenset[str]
    direction: str
    agnostic: bool
    parity: str
    build: Callable[..., Any]

    @property
    def summary(self) -> str:
        """The first sentence of the documentation."""
        return (inspect.getdoc(self.build) or "").strip().split("\n", 1)[0]

    @property
    def doc(self) -> str:
        """The docstring, with the options that base classes document."""
        return documentation(self.build)


_SPECS: dict[type, Spec] = {}


def is_registered(thing: object) -> bool:
    """Tell whether a built thing has a name, or comes from outside."""
    return type(thing) in _SPECS


def spec_of(thing: object) -> Spec:
    """Return the spec of a built method, operator or metric."""
    try:
        return _SPECS[type(thing)]
    except KeyError:
        raise RegistryError(
            f"{type(thing).__name__} is not registered; decorate the class with METHODS.register(...)"
        ) from None


class Registry(Mapping[str, Spec]):
    """Names of one kind; iterates in alphabetical order."""

    def __init__(self, kind: str, room: str) -> None:
        self.kind = kind
        self.room = room
        self._specs: dict[str, Spec] = {}
        self._walked = False

    def register(
        self,
        name: str,
        *,
        family: str,
        cite: str = "",
        cost: str = "",
        needs: tuple[str, ...] = (),
        direction: str = "",
        agnostic: bool = False,
        parity: str = "",
    ) -> Callable[[T], T]:
        """Enter a frozen dataclass under `name`."""
        if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
            raise RegistryError(f"got the name {name!r}; a name is lower case letters, digits and underscores")
        if unknown := set(needs) - NEEDS:
            raise RegistryError(f"{name} needs {sorted(unknown)}, which no model offers; choose from {sorted(NEEDS)}")
        if direction not in ("", "higher", "lower"):
            raise RegistryError(f"{name} has direction={direction!r}; write 'higher' or 'lower'")

        def enter(cls: T) -> T:
            self._check(name, cls)
            _refuse_unknown_words(name, cls)
            spec = Spec(name, self.kind, family, cite, cost, frozenset(needs), direction, agnostic, parity, build=cls)
            self._specs[name] = _SPECS[cls] = spec
            return cls

        return enter

    def _check(self, name: str, cls: type) -> None:
        if not is_dataclass(cls) or not cls.__dataclass_params__.frozen:  # type: ignore[attr-defined]
            raise RegistryError(
                f"{cls.__module__}.{cls.__name__} must be a frozen dataclass to be registered as {name}"
            )
        if name in self._specs:
            other = self._specs[name].build
            raise RegistryError(
                f"the {self.kind} {name!r} is registered twice, by {other.__module__} and by {cls.__module__}; "
                "rename one"
            )

    def _walk(self) -> None:
        if self._walked:
            return
        self._walked = True
        package = importlib.import_module(f"sightline.{self.room}")
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
        load_plugins()

    def __getitem__(self, name: str) -> Spec:
        self._walk()
        try:
            return self._specs[name]
        except KeyError:
            raise RecipeError(unknown(name, self.kind, self._specs)) from None

    def __contains__(self, name: object) -> bool:
        self._walk()
        return name in self._specs

    def __iter__(self) -> Iterator[str]:
        self._walk()
        return iter(sorted(self._specs))

    def __len__(self) -> int:
        self._walk()
        return len(self._specs)


def _refuse_unknown_words(name: str, cls: Any) -> None:
    """Make a class refuse a word that one of its options does not know, however it is built.

    An option is one of a few words where its annotation says ``Literal``. What else it may be is not looked at, and
    neither are words where any text will do.
    """
    build = cls.__init__
    options = [field.name for field in fields(cls)]

    @wraps(build)
    def checked(self: Any, *args: Any, **given: Any) -> None:
        known = _words(cls)
        for option, value in [*zip(options, args, strict=False), *given.items()]:
            if isinstance(value, str) and value not in known.get(option, (value,)):
                raise RecipeError(f"{name} got {option}={value!r}; choose from {', '.join(known[option])}")
        build(self, *args, **given)

    cls.__init__ = checked


@cache
def hints_of(cls: type) -> dict[str, Any]:
    """Return the annotations of a class, resolved."""
    from sightline.types import Method  # loads torch

    return get_type_hints(cls, localns={"Method": Method})


@cache
def _words(cls: type) -> dict[str, tuple[str, ...]]:
    """Return the words that each option knows, for options that take no other text."""
    found = {}
    for field in fields(cls):
        kinds = _kinds(hints_of(cls)[field.name])
        words = tuple(word for kind in kinds if get_origin(kind) is Literal for word in get_args(kind))
        if words and str not in kinds:
            found[field.name] = tuple(word for word in words if isinstance(word, str))
    return found


def _kinds(hint: Any) -> tuple[Any, ...]:
    """Take a union apart."""
    if get_origin(hint) not in (Union, UnionType):
        return (hint,)
    return tuple(kind for part in get_args(hint) for kind in _kinds(part))


def no_such(name: str, kind: str) -> str:
    """Say that a name is unknown."""
    return f"there is no {kind} called {name!r}"


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that may have been meant, None where none is close."""
    return next(iter(difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)), None)


def unknown(name: str, kind: str, known: Iterable[str], otherwise: str = "") -> str:
    """Say that a name is unknown, and which one may have been meant; where none is close, what to do `otherwise`."""
    near = nearest(name, known)
    hint = f"did you mean {near!r}?" if near else otherwise or f"see `sightline list {kind}s`"
    return f"{no_such(name, kind)}; {hint}"


_plugins_loaded = False


def load_plugins() -> None:
    """Import the modules that outside packages name under the entry-point group sightline.plugins, once."""
    global _plugins_loaded
    if _plugins_loaded:
        return
    _plugins_loaded = True
    for point in entry_points(group="sightline.plugins"):
        point.load()


METHODS = Registry("method", "methods")
OPERATORS = Registry("operator", "operators")
METRICS = Registry("metric", "metrics")
