"""Plans of several panels: one published table, whose parts have models, images or methods of their own.

A plan file may hold panels::

    name = "var-table-1"
    metrics = ["region_attribution", "iou", "f1"]

    [[panels]]
    name = "quads-resnet50"
    models = ["timm/resnet50.tv_in1k"]
    …

What stands above the panels holds for each of them; what a panel says itself comes first, and its notes are added. Each
panel is a plan of its own, called ``var-table-1-quads-resnet50``, with a store of its own inside that of the table.
Plans that sightline brings are found by name from anywhere: ``sightline bench run var-table-1``.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sightline.bench.store.store import Store
from sightline.errors import InputError, OutputError, RecipeError
from sightline.registry import unknown

if TYPE_CHECKING:
    from sightline.bench.plan import Plan

__all__ = ["Panel", "PlanFile", "panel_stores", "plan_names", "read_plan_file", "write_panels"]

PANELS = "panels.json"


@dataclass(frozen=True)
class Panel:
    """One panel: a plan, and its short name, empty where the plan has no panels."""

    name: str
    plan: Plan

    def store(self, url: str) -> str:
        """Return where its rows are, inside the store of the whole plan."""
        return f"{url.rstrip('/')}/{self.name}" if self.name else url


@dataclass(frozen=True)
class PlanFile:
    """A plan as it was read: its name, its file, and one panel at least."""

    name: str
    path: Path
    panels: tuple[Panel, ...]


def plan_names() -> dict[str, Path]:
    """Return the plans that sightline brings, by name."""
    installed = Path(str(resources.files("sightline").joinpath("plans")))  # in a wheel
    in_repository = Path(__file__).parents[3] / "plans"
    folder = next((each for each in (installed, in_repository) if each.is_dir()), None)
    return {path.stem: path for path in sorted(folder.glob("*.toml"))} if folder else {}


def read_plan_file(given: str | Path, *, panels: Sequence[str] = (), **changes: Any) -> PlanFile:
    """Read a plan with its panels.

    Args:
        given: a TOML file, or the name of a plan that sightline brings, or of one of its panels.
        panels: the names of those wanted; all where none is named.
        **changes: settings that take the place of the plan's, in every panel, where they are not None.

    Raises:
        InputError: there is no such plan, or no such panel.
        RecipeError: it is not a sound plan.
    """
    from sightline.bench.plan import make_plan  # loads pydantic, which a store of panels does not need

    path, inside = _find(str(given))
    settings = _read(path)
    changes = {key: value for key, value in changes.items() if value is not None}
    if _PAPERS_DATA & set(changes):
        changes["printed"] = {}  # other images or models: the paper's numbers are of something else
    tables = settings.pop("panels", None)
    if tables is None:
        if panels:
            raise InputError(f"{path} has no panels; leave --panel out")
        return PlanFile(str(settings.get("name")), path, (Panel("", make_plan({**settings, **changes}, str(path))),))
    known = _checked_panels(tables, path)
    wanted = [inside] if inside else list(panels) or list(known)
    for name in wanted:
        if name not in known:
            raise InputError(unknown(name, "panel", known, otherwise=f"{path.name} has {', '.join(known)}"))
    chosen = (Panel(name, make_plan(_merged(settings, known[name], changes), f"{path}, {name}")) for name in wanted)
    return PlanFile(str(settings.get("name")), path, tuple(chosen))


_PAPERS_DATA = {"models", "dataset", "limit", "seed", "methods", "metrics", "enlarge"}


def _find(given: str) -> tuple[Path, str]:
    """Return the file of a plan, and the panel that the name means, empty for all."""
    if Path(given).is_file() or given.endswith(".toml"):
        return Path(given), ""
    names = plan_names()
    if given in names:
        return names[given], ""
    for name, path in names.items():
        if given.startswith(f"{name}-") and given.removeprefix(f"{name}-") in _panel_names(path):
            return path, given.removeprefix(f"{name}-")
    raise InputError(unknown(given, "plan", names, otherwise="give a TOML file, or a name that plans/README.md lists"))


def _panel_names(path: Path) -> list[str]:
    return [str(panel.get("name")) for panel in _read(path).get("panels", ()) if isinstance(panel, Mapping)]


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"there is no plan {path}; give a TOML file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"the plan {path} cannot be read: {error}") from None
    except tomllib.TOMLDecodeError as error:
        raise RecipeError(f"{path} is not TOML: {error}") from None


def _checked_panels(tables: Any, path: Path) -> dict[str, Mapping[str, Any]]:
    if not isinstance(tables, list) or not tables or not all(isinstance(each, Mapping) for each in tables):
        raise RecipeError(f"{path}: panels is {tables!r}; write one [[panels]] with name = … for each")
    names = [each.get("name") for each in tables]
    strange = [name for name in names if not isinstance(name, str) or not name or set(name) & set("/\\ ")]
    if strange or len(set(names)) != len(names):
        raise RecipeError(f"{path}: panels are called {names}; give each a short name of its own, without slashes")
    return dict(zip(names, tables, strict=True))


def _merged(settings: Mapping[str, Any], panel: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a panel: the plan's, then its own, then the changes; notes are added up."""
    notes = [note for part in (settings, panel) for note in _as_list(part.get("notes", []))]
    labels = {**settings.get("labels", {}), **panel.get("labels", {})}
    name = f"{settings.get('name', '')}-{panel['name']}"
    return {**settings, **panel, "name": name, "notes": notes, "labels": labels, **changes}


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


# ---- the store of a plan with panels -------------------------------------------------------------------------------


def write_panels(url: str, plan: PlanFile) -> None:
    """Write down which panels the store of a plan holds; those that it held already stay."""
    if not any(panel.name for panel in plan.panels):
        return
    store = Store(url)
    before = _read_panels(store)
    names = list(dict.fromkeys([*before.get("panels", ()), *(panel.name for panel in plan.panels)]))
    try:
        store.files.makedirs(store.path(""), exist_ok=True)
        store.files.pipe_file(store.path(PANELS), json.dumps({"name": plan.name, "panels": names}, indent=1).encode())
    except OSError as error:
        raise OutputError(f"cannot write into the store {url}: {error}; choose another --store") from None


def panel_stores(url: str) -> dict[str, str]:
    """Return the stores of the panels in a store, by name; the store itself, without a name, where it has none."""
    names = _read_panels(Store(url)).get("panels", ())
    return {name: f"{url.rstrip('/')}/{name}" for name in names} or {"": url}


def _read_panels(store: Store) -> dict[str, Any]:
    try:
        content = json.loads(store.read_file(PANELS))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
