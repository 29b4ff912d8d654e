"""The report of a plan with panels: that of each, and the published table that they make together."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from sightline.bench.plan import make_plan
from sightline.bench.store.store import Store
from sightline.bench.tables.paper_table import PanelResult, PaperTable, paper_table
from sightline.errors import InputError, SightlineError
from sightline.files import write_atomically
from sightline.report.benchmark.assemble import BenchmarkReport, benchmark_report

__all__ = ["paper_report", "save_paper_table"]


def paper_report(
    stores: Mapping[str, str], *, run: str | None = None, resamples: int = 2000
) -> tuple[dict[str, BenchmarkReport], PaperTable | None]:
    """Read the panels of a plan, and lay their numbers out as the paper does, where the plan says how.

    Args:
        stores: where the rows of each panel are, by its name; `sightline.bench.panels.panel_stores` finds them.
        run: the plan's name; by default the last one run.
        resamples: bootstrap resamples behind each confidence interval.

    Raises:
        InputError: no panel has a finished unit.
    """
    reports: dict[str, BenchmarkReport] = {}
    missing: InputError | None = None
    for name, store in stores.items():
        try:
            reports[name] = benchmark_report(store, run=run, resamples=resamples)
        except InputError as error:
            missing = missing or error
    if not reports and missing is not None:
        raise missing
    results = [panel for report in reports.values() if (panel := _panel(report)) is not None]
    return reports, paper_table(results)


def _panel(report: BenchmarkReport) -> PanelResult | None:
    """Return what the paper's table needs of a report; None where the store does not hold its plan."""
    if report.manifest is None:
        return None
    try:
        plan = make_plan(report.manifest.plan, f"the plan of {report.store}")
    except SightlineError:
        return None
    return PanelResult(plan, report.table)


def save_paper_table(paper: PaperTable, store: str, folder: Path | None = None) -> list[Path]:
    """Write the published table as Markdown and CSV, by default beside the other tables; return the paths."""
    inside = Store(store).folder
    chosen = folder or (inside / "report" if inside else Path("sightline-report"))
    files = []
    for suffix, text in (("md", paper.to_markdown()), ("csv", paper.to_csv())):
        path = chosen / f"paper.{suffix}"
        write_atomically(path, text.encode())
        files.append(path)
    return files
