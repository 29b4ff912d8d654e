"""Where the numbers of a run come from: facts, versions, the command to run it again, and the references."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from sightline.citations import bibtex_of, references, specs_of
from sightline.errors import SightlineError

if TYPE_CHECKING:
    from sightline.bench.store.store import Store
    from sightline.bench.tables.table import Table
    from sightline.bench.unit import Manifest

__all__ = ["bibtex", "command", "packages", "run_facts", "versions"]

_TARGETS = {"label": "the label", "predicted": "the predicted class"}


def run_facts(
    name: str, manifest: Manifest | None, store: Store, rows: Any, table: Table, images: int
) -> list[tuple[str, str]]:
    """Return the facts below the page's heading: plan, data set, models, number of images and methods, dates."""
    is_control = {row.recipe: row.control for row in table.rows}
    controls = sum(is_control.values())
    methods = f"{len(is_control) - controls} methods" + (f", {controls} controls" if controls else "")
    models = list(dict.fromkeys(row.model for row in table.rows))
    if manifest:
        models = [info.model for info in manifest.models if info.model in models]
    facts = [
        ("Plan", name),
        ("Data", ", ".join(dict.fromkeys(map(str, rows["dataset"])))),
        ("", f"{images:,} images"),
        ("Model" if len(models) == 1 else "Models", ", ".join(models)),
        ("", methods),
        ("Explained:", _TARGETS.get(manifest.config.target if manifest else "", "")),
        ("Run", _dates(store)),
    ]
    return [(key, value) for key, value in facts if value]


def _dates(store: Store) -> str:
    """Return when the first and the last unit were written; empty where files have no dates."""
    if store.folder is None:
        return ""
    times = [path.stat().st_mtime for name in ("units", "packs") for path in (store.folder / name).rglob("*.parquet")]
    if not times:
        return ""
    first, last = (datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%d %H:%M") for time in (min(times), max(times)))
    return f"{first} UTC" if first == last else f"{first} to {last[11:] if first[:10] == last[:10] else last} UTC"


def versions(rows: Any) -> list[tuple[str, str]]:
    """Return the version of each package, all of them where the rows disagree."""
    by_package: dict[str, dict[str, None]] = {}
    for text in dict.fromkeys(rows["versions"]):
        for name, version in json.loads(text or "{}").items():
            by_package.setdefault(str(name), {})[str(version)] = None
    return [(name, ", ".join(distinct)) for name, distinct in by_package.items()]


def packages(manifest: Manifest | None) -> list[dict[str, str]]:
    """Return name, version and source digest of the packages whose methods, operators and metrics took part.

    Empty where the store does not say.
    """
    recorded = () if manifest is None else manifest.packages
    return [{"name": package.name, "version": package.version, "digest": package.digest} for package in recorded]


def command(store: str, manifest: Manifest | None) -> str:
    """Return the command lines that run the benchmark and report it again."""
    report = f"sightline report {store}"
    return f"{manifest.command}\n{report}" if manifest and manifest.command else report


def bibtex(rows: Any, plan: Mapping[str, Any], dataset: str) -> str:
    """Return the references of methods, operators, metrics, data set and plan in BibTeX."""
    from sightline.data.dataset import DATASETS

    specs = []
    for recipe in (*dict.fromkeys(rows["recipe"]), *dict.fromkeys(rows["metric"])):
        try:
            specs += specs_of(str(recipe))
        except SightlineError:  # of a package that is not installed here
            continue
    name = dataset.partition("(")[0]
    keys = [*plan.get("cite", ()), *(DATASETS[name].cite.split(",") if name in DATASETS else ())]
    known, of_specs = references(), bibtex_of(specs)
    cited = [known[key.strip()].bibtex for key in keys if key.strip() in known]
    return "\n\n".join([*(entry for entry in dict.fromkeys(cited) if entry not in of_specs), of_specs])
