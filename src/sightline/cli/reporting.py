"""One run of ``sightline report``: read a store, make its table, gather what the page shows, write it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.text import Text

from sightline import __version__
from sightline.audit.benchmarked import soundness
from sightline.bench.store.store import Store, read_rows
from sightline.bench.table import Table, make_table
from sightline.bench.unit import Manifest
from sightline.citations import bibtex_of, references, specs_of
from sightline.cli import console
from sightline.cli.gallery import choose_metric, exhibits, see
from sightline.cli.staged_output import writing
from sightline.cli.tables import fields_table, score
from sightline.errors import InputError, SightlineError
from sightline.report.benchmark.failures import FAILED
from sightline.report.benchmark.page import TABLES, BenchmarkPage, write_benchmark

__all__ = ["Answer", "Question", "answer"]

SHOWN = 12  # lines per metric in the terminal


@dataclass(frozen=True)
class Question:
    """What the user asked for."""

    store: str
    run: str | None = None
    out: Path | None = None
    write: bool = True
    gallery: int = 16
    resamples: int = 2000


@dataclass(frozen=True)
class Answer:
    """What was found, and where it was written."""

    run: str
    table: Table
    counts: Mapping[str, int]
    files: Sequence[Path] = field(default_factory=tuple)

    def json(self) -> dict[str, Any]:
        """Return everything for a script to read; ``table`` holds the lines."""
        told = {"run": self.run, **self.counts, "files": [str(path) for path in self.files], "version": __version__}
        return {**self.table.to_json(), **told}

    def show(self) -> None:
        """Print a short table per model and metric, and where the page is."""
        for model, metric in dict.fromkeys((line.model, line.metric) for line in self.table.rows):
            lines = [line for line in self.table.rows if (line.model, line.metric) == (model, metric)]
            sign = "higher" if lines[0].direction != "lower" else "lower"
            rows = [_cells(line) for line in lines[:SHOWN]]
            heads = ("rank", "method", "mean", "95 % interval", "ties", "over control", "")
            console.show(fields_table(rows, heads, title=f"{model}, {metric} ({sign} is better)"), "")
        for path in self.files[:1]:
            console.show(Text(f"page: {console.plain(path)}"))


def _cells(line: Any) -> tuple[str, ...]:
    return (
        "–" if line.rank is None else str(line.rank),
        line.recipe,
        score(line.mean),
        f"{score(line.low)} to {score(line.high)}",
        line.group or "–",
        "" if line.control else score(line.margin),
        "control" if line.control else "class-agnostic" if line.agnostic else "",
    )


def answer(question: Question) -> Answer:
    """Do what was asked."""
    store = Store(question.store)
    rows = read_rows(question.store, question.run)
    if not len(rows):
        raise InputError(
            f"{question.store} holds no finished unit{_of(question.run)}; `sightline bench resume` goes on"
        )
    manifest = _manifest(store, str(rows["run"].iloc[0]))
    with console.waiting("resampling"):
        table = make_table(rows, resamples=question.resamples, packages=manifest.packages if manifest else ())
    counts = _counts(store, manifest, rows)
    told = Answer(str(rows["run"].iloc[0]), table, counts)
    for sentence in _warnings(counts, rows):
        console.note(sentence)
    if not question.write:
        return told
    page = _page(question, store, manifest, rows, table, counts)
    folder = question.out or (store.folder / "report" if store.folder else Path("sightline-report"))
    with writing(folder) as outbox, console.waiting("drawing"):
        write_benchmark(page, outbox.staging)
    return Answer(told.run, table, counts, [folder / name for name in ("index.html", *TABLES)])


def _of(run: str | None) -> str:
    return f" of the run {run!r}" if run else ""


def _manifest(store: Store, run: str) -> Manifest | None:
    """Return what the store says of its run; None where that is another one, or cannot be read."""
    try:
        found = store.manifest()
    except SightlineError:
        return None
    return found if found.name == run else None


def _counts(store: Store, manifest: Manifest | None, rows: Any) -> dict[str, int]:
    failed = rows[rows["flag"].fillna("").str.startswith(FAILED)]
    units = {unit.key for unit in manifest.units()} if manifest else set()
    return {
        "images": int(rows["image"].nunique()),
        "units": int(rows["unit"].nunique()),
        "missing_units": len(units - store.keys()),
        "failed_maps": len(failed.drop_duplicates(["model", "recipe", "image"])),
    }


def _warnings(counts: Mapping[str, int], rows: Any) -> list[str]:
    """Say what a reader must know before believing the numbers."""
    found = []
    if missing := counts["missing_units"]:
        whole = missing + counts["units"]
        found.append(
            f"the run is not finished: {missing} of {whole} units are missing; `sightline bench resume` goes on"
        )
    if failed := counts["failed_maps"]:
        found.append(
            f"{failed} map{'' if failed == 1 else 's'} could not be made or scored; the reasons are under Failures"
        )
    if rows["versions"].nunique() > 1:
        found.append("the rows come from several versions of sightline or of the packages below it")
    if rows.groupby("model")["weights"].nunique().max() > 1:
        found.append("rows of one model come from different weights; they are put together all the same")
    return found


def _page(
    question: Question, store: Store, manifest: Manifest | None, rows: Any, table: Table, counts: Mapping[str, int]
) -> BenchmarkPage:
    plan = dict(manifest.plan) if manifest else {}
    metric = choose_metric(table)
    models = dict.fromkeys(line.model for line in table.rows) if question.gallery else {}
    eyes = {model: see(manifest, model) for model in models}
    name = str(rows["run"].iloc[0])
    return BenchmarkPage(
        title=str(plan.get("title") or name),
        rows=rows,
        table=table,
        plan=plan,
        models=[one.model for one in manifest.models] if manifest else (),
        metrics=list(dict.fromkeys(name for one in manifest.models for name in one.metrics)) if manifest else (),
        lede=[text for text in (plan.get("source", ""), *plan.get("notes", ())) if text],
        facts=_facts(name, manifest, store, rows, table),
        warnings=[f"{text[:1].upper()}{text[1:]}.".replace("`", "") for text in _warnings(counts, rows)],
        exhibits=exhibits(question.store, rows, table, metric, question.gallery, eyes),
        gallery_metric=metric,
        labels={
            model: {int(label): eye.label(int(label)) for label in rows["label"].dropna().unique()}
            for model, eye in eyes.items()
        },
        soundness=soundness(rows),
        left_out={one.model: one.left_out for one in manifest.models} if manifest else {},
        skipped=manifest.skipped if manifest else (),
        versions=_versions(rows),
        command=_command(question, manifest),
        bibtex=_bibtex(rows, plan, manifest.dataset if manifest else str(rows["dataset"].iloc[0])),
    )


def _facts(name: str, manifest: Manifest | None, store: Store, rows: Any, table: Table) -> list[tuple[str, str]]:
    recipes = {line.recipe: line.control for line in table.rows}
    controls = sum(recipes.values())
    methods = f"{len(recipes) - controls} methods" + (f", {controls} controls" if controls else "")
    run = dict.fromkeys(line.model for line in table.rows)
    models = [one.model for one in manifest.models if one.model in run] if manifest else list(run)
    target = manifest.config.target if manifest else ""
    found = [
        ("Plan", name),
        ("Data", ", ".join(dict.fromkeys(map(str, rows["dataset"])))),
        ("", f"{rows['image'].nunique():,} images"),
        ("Model" if len(models) == 1 else "Models", ", ".join(models)),
        ("", methods),
        ("Explained:", {"label": "the label", "predicted": "the predicted class"}.get(target, "")),
        ("Run", _when(store)),
    ]
    return [(key, value) for key, value in found if value]


def _when(store: Store) -> str:
    """Say on which days the units were written; nothing where files have no dates."""
    if store.folder is None:
        return ""
    times = [path.stat().st_mtime for path in (store.folder / "units").rglob("*.parquet")]
    days = [datetime.fromtimestamp(when, UTC).strftime("%Y-%m-%d %H:%M") for when in (min(times), max(times))]
    first, last = days
    return f"{first} UTC" if first == last else f"{first} to {last[11:] if first[:10] == last[:10] else last} UTC"


def _versions(rows: Any) -> list[tuple[str, str]]:
    """Return the version of each package, all of them where the rows disagree."""
    found: dict[str, dict[str, None]] = {}
    for text in dict.fromkeys(rows["versions"]):
        for name, version in json.loads(text or "{}").items():
            found.setdefault(str(name), {})[str(version)] = None
    return [(name, ", ".join(versions)) for name, versions in found.items()]


def _command(question: Question, manifest: Manifest | None) -> str:
    report = f"sightline report {question.store}"
    return f"{manifest.command}\n{report}" if manifest and manifest.command else report


def _bibtex(rows: Any, plan: Mapping[str, Any], dataset: str) -> str:
    """Gather the papers behind methods, operators, metrics, data set and plan."""
    from sightline.data.dataset import DATASETS

    specs = []
    for recipe in (*dict.fromkeys(rows["recipe"]), *dict.fromkeys(rows["metric"])):
        try:
            specs += specs_of(str(recipe))
        except SightlineError:  # of a package that is not installed here
            continue
    name = dataset.partition("(")[0]
    keys = [*plan.get("cite", ()), *(DATASETS[name].cite.split(",") if name in DATASETS else ())]
    known, told = references(), bibtex_of(specs)
    more = [known[key.strip()].bibtex for key in keys if key.strip() in known]
    return "\n\n".join([*(entry for entry in dict.fromkeys(more) if entry not in told), told])
