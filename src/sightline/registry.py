"""Registries: one decorator, checked options, discovery by walking a package, outside packages by entry point.

``METHODS``, ``OPERATORS`` and ``METRICS`` map a name to its :class:`Spec`; ``sightline.data.DATASETS`` is a registry of
the same class. A file that registers something is found by itself; an outside package joins by naming a module under
the entry-point group ``sightline.plugins``.

The options of a registered class are checked against the annotations of its fields. Types are checked where text
becomes a value, in recipes (`check_option`); words out of a few and numbers are checked by the class itself, however it
is built (`check_options`).
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import math
import pkgutil
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache, wraps
from importlib.metadata import entry_points
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Concatenate, Generic, Literal, ParamSpec, TypeVar, Union, get_args, get_origin

from sightline.catalogue.docstrings import documentation
from sightline.catalogue.options import hints_of
from sightline.catalogue.ranges import Range, range_of
from sightline.errors import RecipeError, RegistryError

if TYPE_CHECKING:
    from pydantic import TypeAdapter

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
    ``peak(model)``, in bytes for one image. An operator that adds one pass at most holds what its methods hold.
    """
    cost = getattr(cls, "cost", None)
    if cost is None:
        return

    @wraps(cost)
    def with_peak(self: Any, model: Any) -> Any:
        passes = cost(self, model)
        own = self.peak(model) if hasattr(self, "peak") else _derived_peak(self, model, passes)
        return replace(passes, peak=max(passes.peak, own))

    cls.cost = with_peak


def _derived_peak(thing: Any, model: Any, passes: Any) -> int:
    """Return the bytes that a method or an operator of this cost holds, by its methods or by the passes."""
    methods = [part for option in fields(thing) if find_spec(part := getattr(thing, option.name)) is not None]
    costs = [method.cost(model) for method in methods]
    forward, backward = (sum(getattr(cost, name) for cost in costs) for name in ("forward", "backward"))
    if methods and passes.forward <= forward + 1 and passes.backward <= backward:
        return int(max(cost.peak for cost in costs))
    return int(max([model.peak(passes, needs_of(thing)), *(cost.peak for cost in costs)]))


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


# ---- options --------------------------------------------------------------------------------------------------------


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


# ---- the registries -------------------------------------------------------------------------------------------------

METHODS = Registry("method", "sightline.methods", _spec)
OPERATORS = Registry("operator", "sightline.operators", _spec)
METRICS = Registry("metric", "sightline.metrics", _spec)
