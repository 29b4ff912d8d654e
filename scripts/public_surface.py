"""Write down the public names of sightline with their signatures, in tests/architecture/public_surface.json.

    python scripts/public_surface.py            # say what differs from the file
    python scripts/public_surface.py --write    # record what there is now

A test compares the two: a public name that goes away or changes its signature breaks other people's programs, so it is
recorded on purpose, with a news fragment, and never by accident. Annotations are left out: they may become more exact.
"""

from __future__ import annotations

import argparse
import inspect
import json
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

import sightline
from sightline.registry import Registry

FILE = Path(__file__).parent.parent / "tests" / "architecture" / "public_surface.json"
SPECIAL = ("__call__", "__getitem__", "__iter__", "__len__", "_repr_html_")
REGISTRIES = ("METHODS", "OPERATORS", "METRICS")


def surface() -> dict[str, str]:
    """Return what each public name is: the signature of a function, or a word."""
    return dict(sorted(entry for name in sightline.__all__ for entry in _entries(name, getattr(sightline, name))))


def differences(recorded: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Say, one sentence each, what was removed, changed, or added without being recorded."""
    removed = [f"{name} is gone; it was {_shown(name, recorded[name])}" for name in recorded if name not in now]
    changed = [
        f"{name} was {_shown(name, recorded[name])} and is now {_shown(name, now[name])}"
        for name in recorded
        if name in now and recorded[name] != now[name]
    ]
    added = [
        f"{name} is new and not recorded"
        for name in now
        if name not in recorded and not name.startswith(tuple(f"{registry}[" for registry in REGISTRIES))
    ]
    return removed + changed + added


def _entries(name: str, thing: Any) -> Iterator[tuple[str, str]]:
    if isinstance(thing, Registry):
        yield name, "registry"
        for key, spec in thing.items():  # recipes are text that people keep: names and options are public too
            yield f"{name}[{key!r}]", _signature(spec.build)
    elif isinstance(thing, ModuleType):
        yield name, "module"
        for member, value in vars(thing).items():
            if inspect.isclass(value) and value.__module__ == thing.__name__:
                yield f"{name}.{member}", f"subclass of {', '.join(base.__name__ for base in value.__bases__)}"
    elif inspect.isclass(thing):
        yield name, _signature(thing)
        for member in (*_public(thing), *SPECIAL):
            owner = next((base for base in thing.__mro__ if member in vars(base)), None)
            if owner is not None and owner.__module__.startswith("sightline"):
                yield f"{name}.{member}", _kind(vars(owner)[member])
    else:
        yield name, _signature(thing)


def _public(cls: type) -> list[str]:
    return [name for name in dir(cls) if not name.startswith("_")]


def _kind(member: Any) -> str:
    """Return the signature of a method, or what else a member is."""
    if isinstance(member, classmethod | staticmethod):
        return f"{type(member).__name__}{_signature(member.__func__)}"
    if isinstance(member, property | cached_property):
        return "property"
    return _signature(member) if inspect.isfunction(member) else "attribute"


def _signature(function: Any) -> str:
    signature = inspect.signature(function)
    plain = [each.replace(annotation=inspect.Parameter.empty) for each in signature.parameters.values()]
    return str(signature.replace(parameters=plain, return_annotation=inspect.Signature.empty))


def _shown(name: str, signature: str) -> str:
    return f"{name}{signature}" if signature.startswith("(") else signature


def main() -> None:
    """Say what differs, or record it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="record the public names as they are now")
    now = surface()
    if parser.parse_args().write:
        FILE.write_text(json.dumps(now, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        return
    print("\n".join(differences(json.loads(FILE.read_text(encoding="utf-8")), now)) or "nothing differs")


if __name__ == "__main__":
    main()
