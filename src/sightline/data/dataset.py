"""Open a data set from a line of text, a table of a plan, or the path of a folder.

>>> open_dataset("shapes(count=3, seed=1)").ids
('shape-000000', 'shape-000001', 'shape-000002')

The text has the syntax of a Python call and holds literals only: ``imagenet(root='/data/imagenet', limit=100)``. A path
opens what lies there: a folder with labels.csv, folders of classes, plain images, a CSV file, a saved Hugging Face set.
"""

from __future__ import annotations

import ast
import inspect
import os
from collections.abc import Mapping
from dataclasses import MISSING, fields
from functools import cache
from pathlib import Path
from typing import Any, Protocol, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError

from sightline.data.listed import Choice, Listed, choose
from sightline.data.source import DATASETS, DatasetSpec, Sample
from sightline.errors import InputError, RecipeError
from sightline.registry import nearest, no_such

__all__ = ["DATASETS", "Dataset", "DatasetSpec", "Listed", "Sample", "open_dataset", "options_of"]

HOME = "SIGHTLINE_DATA"  # the variable that names a folder of data sets, so that plans need not say where it is


class Dataset(Protocol):
    """What a run asks of a data set.

    `ids` are in the set's fixed order, after its filters; `skipped` names what was left out, with a reason; `read`
    raises InputError for what is missing or damaged; `digest` is the same for the same data on every machine.
    """

    @property
    def name(self) -> str: ...
    @property
    def ids(self) -> tuple[str, ...]: ...
    @property
    def skipped(self) -> tuple[tuple[str, str], ...]: ...
    def read(self, id: str) -> Sample: ...
    def digest(self) -> str: ...


def open_dataset(given: str | Path | Mapping[str, Any], *, base: Path | None = None) -> Listed:
    """Open a data set.

    Args:
        given: text such as ``shapes(count=40)``, a mapping such as ``{"name": "shapes", "count": 40}``, or a path.
        base: the folder in which relative paths are looked up first; then in the current one, then in the one that the
            variable SIGHTLINE_DATA names.

    Raises:
        RecipeError: no such data set, or a wrong option.
        InputError: a path that does not exist, or a folder that does not hold what it should.
    """
    if isinstance(given, Mapping):
        options = dict(given)
        if not isinstance(name := options.pop("name", None), str):
            raise RecipeError("a data set given as a table needs name, for instance name = 'imagenet'")
        return _open_path(name, options, base) if _is_path(name, options, base) else _open(name, options, base)
    if isinstance(given, Path):
        return _open_path(str(given), {}, base)
    if not given.strip():
        raise RecipeError("got an empty text as a data set; write a name, or the path of a folder")
    if given.partition("(")[0].strip() not in DATASETS and _find(given, base) is not None:
        return _open_path(given, {}, base)
    called = _read_call(given)
    if called is None:
        return _open_path(given, {}, base)
    return _open_path(*called, base) if _is_path(*called, base) else _open(*called, base)


def _is_path(name: str, options: Mapping[str, Any], base: Path | None) -> bool:
    """Tell whether a name is that of a folder: it is no data set, or one that lacks what it needs to be opened."""
    if name in DATASETS:
        needed = {key for key, default in options_of(DATASETS[name]).items() if default == "required"}
        return bool(needed - set(options)) and _find(name, base) is not None
    return not name.isidentifier() or _find(name, base) is not None


def options_of(spec: DatasetSpec) -> dict[str, str]:
    """Return the options of a data set with their defaults, as text; those that every set has come last."""
    found = {one.name: _shown(one) for one in fields(spec.build)}  # type: ignore[arg-type]
    found |= {one.name: _shown(one) for one in fields(Choice) if one.name not in found}
    return found | ({"protocol": "None"} if spec.protocols else {})


def _shown(option: Any) -> str:
    return "required" if option.default is MISSING else repr(option.default)


def _read_call(given: str) -> tuple[str, dict[str, Any]] | None:
    """Read ``name`` or ``name(option=literal, …)``; None where the text is neither, and so perhaps a path."""
    text = given.strip()
    try:
        node = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        if text.endswith(")") and text.partition("(")[0].strip() in DATASETS:
            raise RecipeError(f"cannot read {text!r} as a data set; write name(option=value)") from None
        return None
    match node:
        case ast.Name(id=name):
            return name, {}
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=keywords):
            return name, _read_options(name, arguments, keywords)
    return None


def _read_options(name: str, arguments: list[ast.expr], keywords: list[ast.keyword]) -> dict[str, Any]:
    known = [one.name for one in fields(DATASETS[name].build)]  # type: ignore[arg-type]
    if len(arguments) > len(known):
        raise RecipeError(f"{name} takes {len(known)} options without a name, got {len(arguments)}; name them")
    given = dict(zip(known, map(_literal, arguments), strict=False))
    for keyword in keywords:
        if keyword.arg is None or keyword.arg in given:
            raise RecipeError(f"{name} got {keyword.arg or '**'} where an option belongs once; write option=value")
        given[keyword.arg] = _literal(keyword.value)
    return given


def _literal(node: ast.expr) -> Any:
    """Read a literal; a call or a name inside is the text of another data set."""
    if isinstance(node, ast.Call | ast.Name):
        return ast.unparse(node)
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        raise RecipeError(f"cannot read {ast.unparse(node)!r} as an option; options are literals") from None


def _open(name: str, options: dict[str, Any], base: Path | None) -> Listed:
    spec = DATASETS[name]
    options = _with_protocol(spec, options)
    hints, general = _hints(spec.build), _hints(Choice)
    for key in options:
        if key not in hints and key not in general:
            known = [*options_of(spec)]
            raise RecipeError(f"{no_such(key, 'option')} in {name}; it has {', '.join(known)}")
    own = {key: _checked(name, key, value, hints[key], base) for key, value in options.items() if key in hints}
    rest = {k: _checked(name, k, value, general[k], base) for k, value in options.items() if k not in hints}
    for one in fields(spec.build):  # type: ignore[arg-type]
        if one.default is MISSING and one.name not in own:
            raise RecipeError(f"{name} needs {one.name}, for instance {name}({one.name}='…')")
    return choose(spec.build(**own), name, Choice(**rest))


def _with_protocol(spec: DatasetSpec, options: dict[str, Any]) -> dict[str, Any]:
    """Fill in what a paper's protocol fixes and the options leave open."""
    options = dict(options)
    wanted = options.pop("protocol", None)
    if wanted is None:
        return options
    if wanted not in spec.protocols:
        raise RecipeError(f"{spec.name} has no protocol {wanted!r}; it has {', '.join(spec.protocols) or 'none'}")
    fixed = {**spec.protocols[wanted], **options}
    if fixed.get("confidence") and fixed.get("predictions") is None:
        raise RecipeError(
            f"the protocol {wanted!r} keeps what its model classified surely; give predictions='table.csv' "
            "with the columns id, predicted and probability"
        )
    return fixed


def _checked(name: str, key: str, value: Any, hint: Any, base: Path | None) -> Any:
    """Check an option against its annotation; find a path, open a data set inside."""
    if hint is Listed:
        return value if isinstance(value, Listed) else open_dataset(value, base=base)
    if Path in (hint, *getattr(hint, "__args__", ())):
        if value is None:
            return None
        if not isinstance(value, str | Path):
            raise RecipeError(f"{name} got {key}={value!r}; give the path as text")
        found = _find(value, base)
        if found is None:
            raise InputError(f"{name} got {key}={str(value)!r}, which does not exist; check the path, or set {HOME}")
        return found
    try:
        return _validator(hint).validate_python(tuple(value) if isinstance(value, list) else value)
    except ValidationError as error:
        wanted = inspect.formatannotation(hint).replace("typing.", "").replace("Literal", "one of ")
        reason = error.errors()[0]["msg"]
        raise RecipeError(f"{name} got {key}={value!r}; {reason[0].lower()}{reason[1:]} ({wanted})") from None


@cache
def _hints(cls: Any) -> dict[str, Any]:
    return get_type_hints(cls)


@cache
def _validator(hint: Any) -> TypeAdapter[Any]:
    return TypeAdapter(hint, config=ConfigDict(strict=True))


def _find(given: str | Path, base: Path | None) -> Path | None:
    """Return where a path leads: below `base`, the current folder or $SIGHTLINE_DATA; None where nothing is there."""
    try:
        path = Path(given).expanduser()
        tops = [base, Path(), Path(os.environ[HOME]) if os.environ.get(HOME) else None]
        return next((top / path for top in tops if top is not None and (top / path).exists()), None)
    except (OSError, ValueError, RuntimeError):  # too long, a null byte, a user that does not exist
        return None


def _open_path(given: str, options: dict[str, Any], base: Path | None) -> Listed:
    path = _find(given, base)
    if path is None:
        bare = given.partition("(")[0].strip()
        near = nearest(bare, DATASETS)
        hint = f"did you mean {near!r}?" if near else "see `sightline list datasets`"
        raise InputError(f"{given!r} is neither a data set nor a path that exists; {hint}")
    return _open(_layout(path), {"root": path, **options}, base)


def _layout(path: Path) -> str:
    """Tell by what lies at a path how it is read."""
    if path.is_file():
        if path.suffix.lower() != ".csv":
            raise InputError(f"{path} is a file; give a folder of images, or a .csv file that lists them")
        return "csv"
    if (path / "labels.csv").is_file():
        return "labelled"
    if any((path / name).is_file() for name in ("dataset_info.json", "dataset_dict.json")):
        return "hub"
    return "folder"
