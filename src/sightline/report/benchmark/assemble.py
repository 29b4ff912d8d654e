"""Assemble the report of a benchmark: read a store, compute its table, gather what the page shows, write it.

.. code-block:: python

    report = benchmark_report("runs/first-look")
    report.table.to_frame()
    report.save("first-look-report")
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from sightline import __version__
from sightline.bench.store.store import Store, read_flagged, read_rows, read_scores
from sightline.bench.store.unit_query import count_units
from sightline.bench.tables.table import Table, make_table
from sightline.bench.unit import Manifest
from sightline.errors import InputError, SightlineError
from sightline.extras import require
from sightline.report.benchmark import provenance
from sightline.report.benchmark.gallery_loading import gallery_images, gallery_metric, load_view
from sightline.report.benchmark.page import BenchmarkPage, write_benchmark
from sightline.report.benchmark.row_summary import RowSummary
from sightline.report.benchmark.sanity import sanity_results

__all__ = ["BenchmarkReport", "assemble_page", "benchmark_report", "write_report"]

MOST_ROWS = 500_000  # of which the page of a run is drawn; a larger run shows its first images
MOST_FLAGGED = 100_000  # rows with a flag that the page counts
FEWEST_IMAGES = 64


@dataclass(frozen=True, eq=False, repr=False)
class BenchmarkReport:
    """The results of a benchmark run, read from its store.

    Attributes:
        store: the folder or url that they were read from.
        run: the plan's name.
        table: means, intervals, tests and ranks.
        counts: numbers of ``images``, ``units``, ``missing_units`` and ``failed_maps``.
        summary: what else the rows say as a whole.
        manifest: the plan and what it resolved to; None where the store does not hold that of this run.
        files: what was written: the page and its tables.
    """

    store: str
    run: str
    table: Table
    counts: Mapping[str, int]
    summary: RowSummary
    manifest: Manifest | None = None
    files: Sequence[Path] = ()

    def __repr__(self) -> str:
        shape = f"{self.counts['images']} images, {len(self.summary.recipes)} recipes"
        return f"BenchmarkReport({self.run!r}, {shape}, {len(self.summary.metrics)} metrics)"

    @cached_property
    def rows(self) -> Any:
        """A pandas frame, one row per image, recipe and metric; read when it is asked for, since it may be large."""
        return read_rows(self.store, self.run)

    @cached_property
    def page_rows(self) -> Any:
        """The rows behind the page's curves, gallery and failures: all, or of a large run those of its first images.

        Rows with a flag are among them whatever their image.
        """
        if not self._is_large or self.manifest is None:
            return self.rows
        first = read_rows(self.store, self.run, images=self._first_images)
        flagged = read_flagged(self.store, MOST_FLAGGED)
        flagged = [flagged.astype(first.dtypes.to_dict())] if len(flagged) else []
        joined = require("pandas").concat([first, *flagged], ignore_index=True)
        order = ["model", "recipe", "metric", "image"]
        return joined.drop_duplicates([*order, "unit"]).sort_values(order, kind="stable", ignore_index=True)

    @property
    def _is_large(self) -> bool:
        return self.manifest is not None and self.summary.rows > MOST_ROWS

    @property
    def _first_images(self) -> tuple[str, ...]:
        """The images that the page of a large run shows."""
        images = self.manifest.images if self.manifest else ()
        return images[: max(len(images) * MOST_ROWS // max(self.summary.rows, 1), FEWEST_IMAGES)]

    @property
    def warnings(self) -> list[str]:
        """What a reader must know before relying on the numbers, in sentences."""
        sentences = _warnings(self.counts, self.summary)
        if self._is_large:
            shown, total = len(self._first_images), self.counts["images"]
            sentences.append(
                f"the run is large: curves, gallery and sanity verdicts are drawn from {shown:,} of {total:,} images; "
                "tables, intervals and tests are of all"
            )
        return sentences

    @property
    def packages(self) -> list[dict[str, str]]:
        """Name, version and source digest of the packages whose methods, operators and metrics took part."""
        return provenance.packages(self.manifest)

    def json(self) -> dict[str, Any]:
        """Return everything as plain data; ``table`` holds the rows of the table."""
        return self._json(self.table.to_json())

    def json_parts(self) -> dict[str, Any]:
        """Return the same for whoever writes it piece by piece, see `Table.json_parts`."""
        return self._json(self.table.json_parts())

    def _json(self, table: dict[str, Any]) -> dict[str, Any]:
        return {
            **table,
            "run": self.run,
            **self.counts,
            "packages": self.packages,
            "files": [str(path) for path in self.files],
            "version": __version__,
        }

    def save(self, folder: Path | str | None = None, *, gallery: int = 16) -> BenchmarkReport:
        """Write the page and its tables into a folder, and return the report with their paths in `files`.

        Args:
            folder: by default ``report`` in the store, or ``sightline-report`` here where the store is a url.
            gallery: how many images the gallery shows per model; 0 for none.
        """
        inside = Store(self.store).folder
        chosen = Path(folder) if folder else inside / "report" if inside else Path("sightline-report")
        return replace(self, files=write_benchmark(assemble_page(self, gallery=gallery), chosen))


def benchmark_report(
    store: str | os.PathLike[str], *, run: str | None = None, resamples: int = 2000
) -> BenchmarkReport:
    """Read the results of a benchmark run and compute its table; a run that is not finished is read as far as it is.

    Args:
        store: the folder or url of the run.
        run: the plan's name; by default the last one run.
        resamples: bootstrap resamples behind each confidence interval.

    Raises:
        InputError: there is no store, or no finished unit in it.
    """
    url = os.fspath(store)
    summary = RowSummary()
    table = make_table(summary.watch(read_scores(url, run)), resamples=resamples)
    if not summary.rows:
        of_run = f" of the run {run!r}" if run else ""
        raise InputError(f"{url} holds no finished unit{of_run}; `sightline bench resume` goes on")
    opened = Store(url)
    manifest = _manifest(opened, summary.run)
    return BenchmarkReport(
        store=url,
        run=summary.run or (manifest.name if manifest else ""),
        table=replace(table, packages=manifest.packages if manifest else ()),
        counts=_counts(opened, manifest, summary),
        summary=summary,
        manifest=manifest,
    )


def write_report(
    store: str | os.PathLike[str],
    folder: Path | str | None = None,
    *,
    run: str | None = None,
    gallery: int = 16,
    resamples: int = 2000,
) -> BenchmarkReport:
    """Read the results of a benchmark run and write its page and tables, as ``sightline report`` does."""
    return benchmark_report(store, run=run, resamples=resamples).save(folder, gallery=gallery)


def assemble_page(report: BenchmarkReport, *, gallery: int = 16) -> BenchmarkPage:
    """Gather what the page shows; the gallery loads each model's preprocessing and the data set where it can."""
    manifest, rows, table = report.manifest, report.page_rows, report.table
    plan = dict(manifest.plan) if manifest else {}
    metric = gallery_metric(table)
    models = dict.fromkeys(row.model for row in table.rows) if gallery else {}
    views = {model: load_view(manifest, model) for model in models}
    labels = [int(label) for label in rows["label"].dropna().unique()]
    return BenchmarkPage(
        title=str(plan.get("title") or report.run),
        rows=rows,
        table=table,
        images=report.counts["images"],
        plan=plan,
        models=[info.model for info in manifest.models] if manifest else (),
        metrics=list(dict.fromkeys(name for info in manifest.models for name in info.metrics)) if manifest else (),
        intro=[text for text in (plan.get("source", ""), *plan.get("notes", ())) if text],
        facts=provenance.run_facts(report.run, manifest, Store(report.store), rows, table, report.counts["images"]),
        warnings=[f"{text[:1].upper()}{text[1:]}.".replace("`", "") for text in report.warnings],
        gallery=gallery_images(report.store, rows, table, metric, gallery, views),
        gallery_metric=metric,
        labels={model: {label: view.label(label) for label in labels} for model, view in views.items()},
        sanity=sanity_results(rows),
        left_out={info.model: info.left_out for info in manifest.models} if manifest else {},
        skipped=manifest.skipped if manifest else (),
        versions=provenance.versions(rows),
        packages=report.packages,
        command=provenance.command(report.store, manifest),
        bibtex=provenance.bibtex(rows, plan, manifest.dataset if manifest else str(rows["dataset"].iloc[0])),
    )


def _manifest(store: Store, run: str) -> Manifest | None:
    """Return the manifest of a run; None where the store holds that of another, or one that cannot be read."""
    try:
        manifest = store.manifest()
    except SightlineError:
        return None
    return manifest if run in ("", manifest.name) else None


def _counts(store: Store, manifest: Manifest | None, summary: RowSummary) -> dict[str, int]:
    found = count_units(store, manifest) if manifest else 0
    return {
        "images": len(summary.images),
        "units": len(summary.units) or found,
        "missing_units": manifest.unit_count - found if manifest else 0,
        "failed_maps": len(summary.failed_maps),
    }


def _warnings(counts: Mapping[str, int], summary: RowSummary) -> list[str]:
    sentences = []
    if missing := counts["missing_units"]:
        total = missing + counts["units"]
        sentences.append(
            f"the run is not finished: {missing} of {total} units are missing; `sightline bench resume` goes on"
        )
    if failed := counts["failed_maps"]:
        sentences.append(
            f"{failed} map{'' if failed == 1 else 's'} could not be made or scored; the reasons are under Failures"
        )
    if len(summary.versions) > 1:
        sentences.append("the rows come from several versions of sightline or of the packages below it")
    if len(summary.weights) > len({model for model, _ in summary.weights}):
        sentences.append("rows of one model come from different weights; they are put together all the same")
    return sentences
