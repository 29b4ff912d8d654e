"""Registries: one decorator, discovery by walking a package, outside packages by entry point.

``METHODS``, ``OPERATORS`` and ``METRICS`` map a name to its :class:`Spec`; ``sightline.data.DATASETS`` is a registry of
the same class. A file that registers something is found by itself; an outside package joins by naming a module under
the entry-point group ``sightline.plugins``.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import wraps
from importlib.metadata import entry_points
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from sightline.catalogue.docstrings import documentation
from sightline.catalogue.options import check_options_when_built
from sightline.errors import RecipeError, RegistryError

NEEDS = frozenset({"gradient", "layers", "attention", "tokens", "cuts", "language", "masks", "method"})


class BaseSpec:
    """What every registry knows of a name: its class, and with it the documentation."""

    __slots__ = ()
    name: str
    build: Callable[..., Any]

    @property
    def doc(self) -> str:
        """The docstring, with the options that base classes document."""
        return documentation(self.build)

    @property
    def summary(self) -> str:
        """The first line of the documentation."""
        return (inspect.getdoc(self.build) or "").strip().split("\n", 1)[0]


@dataclass(frozen=True, slots=True)
class Spec(BaseSpec):
    """What is known of a method, an operator or a metric.

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


def _spec(
    name: str,
    kind: str,
    build: type,
    *,
    family: str,
    cite: str = "",
    cost: str = "",
    needs: tuple[str, ...] = (),
    direction: str = "",
    agnostic: bool = False,
    parity: str = "",
) -> Spec:
    """Check what a method, an operator or a metric says of itself."""
    if wrong := set(needs) - NEEDS:
        raise RegistryError(f"{name} needs {sorted(wrong)}, which no model offers; choose from {sorted(NEEDS)}")
    if direction not in ("", "higher", "lower"):
        raise RegistryError(f"{name} has direction={direction!r}; write 'higher' or 'lower'")
    return Spec(name, kind, family, cite, cost, frozenset(needs), direction, agnostic, parity, build)


def _declare_peak(cls: Any) -> None:
    """Let the cost that a method declares hold its peak as well.

    The model derives it from the passes and the needs. A method that holds more, or less, says so itself:
    ``peak(model)``, in bytes for one image.
    """
    cost = getattr(cls, "cost", None)
    if cost is None:
        return

    @wraps(cost)
    def with_peak(self: Any, model: Any) -> Any:
        passes = cost(self, model)
        own = self.peak(model) if hasattr(self, "peak") else model.peak(passes, needs_of(self))
        return replace(passes, peak=max(passes.peak, own))

    cls.cost = with_peak


def needs_of(thing: Any) -> frozenset[str]:
    """Return what a method needs of a model, with all the methods it is made of."""
    spec = find_spec(thing)
    if spec is None:
        return frozenset()
    inner = (getattr(thing, option.name, None) for option in fields(thing))
    return spec.needs.union(*(needs_of(part) for part in inner))


Class = TypeVar("Class", bound=type)
Facts = ParamSpec("Facts")
S = TypeVar("S", bound=BaseSpec)

_SPECS: dict[type, Any] = {}
_REGISTRIES: dict[str, Registry[..., Any]] = {}


def find_spec(thing: object) -> Spec | None:
    """Return the spec of a built method, operator or metric; None for one from outside the registries."""
    return _SPECS.get(type(thing))


def is_registered(thing: object) -> bool:
    """Tell whether the class of an object is registered; methods from outside the registries are not."""
    return type(thing) in _SPECS


def spec_of(thing: object) -> Spec:
    """Return the spec of a built method, operator or metric."""
    try:
        spec: Spec = _SPECS[type(thing)]
    except KeyError:
        raise RegistryError(
            f"{type(thing).__name__} is not registered; decorate the class with METHODS.register(...)"
        ) from None
    return spec


def registered(kind: str) -> list[BaseSpec]:
    """Return what modules that are already imported have registered, without importing more."""
    return list(_REGISTRIES[kind]._specs.values()) if kind in _REGISTRIES else []


class Registry(Mapping[str, S], Generic[Facts, S]):
    """Registered classes by name, in alphabetical order.

    Args:
        kind: what one of them is called, for instance "method".
        package: the package whose modules register them; it is imported when the registry is first read.
        spec: makes a spec of (name, kind, class) and the facts that `register` is given.
    """

    def __init__(self, kind: str, package: str, spec: Callable[Concatenate[str, str, type, Facts], S]) -> None:
        self.kind = kind
        self.package = package
        self._spec = spec
        self._specs: dict[str, S] = {}
        self._walked = False
        _REGISTRIES.setdefault(kind, self)

    def register(self, name: str, *args: Facts.args, **facts: Facts.kwargs) -> Callable[[Class], Class]:
        """Return a decorator that registers a frozen dataclass under `name`; its fields are its options."""
        if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
            raise RegistryError(f"got the name {name!r}; a name is lower case letters, digits and underscores")

        def enter(cls: Class) -> Class:
            self._check(name, cls)
            spec = self._spec(name, self.kind, cls, *args, **facts)
            check_options_when_built(name, cls)
            if self.kind in ("method", "operator"):
                _declare_peak(cls)
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
        package = importlib.import_module(self.package)
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
        load_plugins()

    def __getitem__(self, name: str) -> S:
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


METHODS = Registry("method", "sightline.methods", _spec)
OPERATORS = Registry("operator", "sightline.operators", _spec)
METRICS = Registry("metric", "sightline.metrics", _spec)
