"""What is kept of a job that is done: its numbers, and a page that needs nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sightline.app.jobs import Job
from sightline.audit.ranking import Ranking
from sightline.files import write_output
from sightline.report.views import ranking_page

__all__ = ["keep_job", "page_of", "result_of"]


def ranking_of(job: Job) -> Ranking:
    """Return the ranking that `sightline.rank` would give."""
    return Ranking(job.question.model, () if job.image is None else (job.image,))


def result_of(job: Job) -> dict[str, Any]:
    """Return everything but the pictures, as plain data."""
    return ranking_of(job).json()


def page_of(job: Job) -> bytes:
    """Return the page of the ranked panel."""
    return ranking_page(ranking_of(job)).encode("utf-8", errors="replace")


def keep_job(job: Job, folder: Path) -> None:
    """Write the page and the numbers into a folder of the job's own."""
    write_output(folder / job.identifier / "index.html", page_of(job))
    write_output(folder / job.identifier / "result.json", json.dumps(result_of(job), indent=2).encode())
