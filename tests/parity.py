"""Numbers beside those of another package in the same process, gathered into a table of the largest differences.

A test that compares with a package takes the fixture ``parity`` and says what was compared, with whom and how closely:

    parity("grad_cam", "grad-cam GradCAM", got, want, 1e-5)

``make parity`` runs these tests alone and writes docs/measured/parity.csv. A whole run in CI fails where a row of that
file was not measured again.
"""

from __future__ import annotations

import csv
import importlib.metadata
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

ROOT = Path(__file__).parent.parent
TABLE = ROOT / "docs" / "measured" / "parity.csv"
COLUMNS = ("name", "peer", "version", "difference", "bound")
PACKAGES = {"PAIR": "saliency"}  # where a peer is not called as its package is
PROPERTY = "parity"

Key = tuple[str, str]


@dataclass(frozen=True)
class Row:
    """What was compared, with which version of which package, the largest difference, and the bound that is asserted.

    A difference is relative to the largest magnitude among the peer's numbers.
    """

    name: str
    peer: str
    version: str
    difference: float
    bound: float

    def joined(self, other: Row) -> Row:
        """Return the row that stands for both: the larger difference under the looser bound."""
        worst = max(self.difference, other.difference)
        return Row(self.name, self.peer, self.version, worst, max(self.bound, other.bound))

    def cells(self) -> tuple[str, ...]:
        """Return the row as it is written."""
        return self.name, self.peer, self.version, f"{self.difference:.1e}", f"{self.bound:.0e}"


def largest_difference(got: Any, want: Any) -> float:
    """Return the largest difference, relative to the largest magnitude among the numbers wanted.

    >>> largest_difference([1.0, 2.0], [1.0, 4.0])
    0.5
    """
    ours, theirs = map(_exact, (got, want))
    if ours.shape != theirs.shape:
        raise AssertionError(f"shapes {tuple(ours.shape)} and {tuple(theirs.shape)} cannot be compared")
    scale = theirs.abs().max()
    return float((ours - theirs).abs().max() / (scale if scale > 0 else 1.0))


def _exact(numbers: Any) -> Tensor:
    """Return numbers in double precision; those of a list are not rounded on the way."""
    return numbers.detach().double() if isinstance(numbers, Tensor) else torch.from_numpy(np.array(numbers, float))


def compare(name: str, peer: str, got: Any, want: Any, bound: float) -> Row:
    """Return the row of one comparison; an error where the difference is above the bound, or is not a number."""
    package = peer.partition(" ")[0]
    difference = largest_difference(got, want)
    assert difference <= bound, f"{name} differs from {peer} by {difference:.1e}, and at most {bound:.0e} is claimed"
    return Row(name, peer, importlib.metadata.version(PACKAGES.get(package, package)), difference, bound)


def fixture(record_property: Callable[[str, object], None]) -> Callable[..., None]:
    """Return the function that compares and leaves a row with the report of the test."""

    def parity(name: str, peer: str, got: Any, want: Any, bound: float) -> None:
        row = compare(name, peer, got, want, bound)
        record_property(PROPERTY, [row.name, row.peer, row.version, row.difference, row.bound])

    return parity


def gather(rows: Iterable[Row]) -> dict[Key, Row]:
    """Return one row for each name and peer."""
    found: dict[Key, Row] = {}
    for row in rows:
        key = (row.name, row.peer)
        found[key] = found[key].joined(row) if key in found else row
    return dict(sorted(found.items()))


def read(path: Path = TABLE) -> list[Row]:
    """Read a table."""
    with path.open(encoding="utf-8", newline="") as file:
        return [
            Row(row["name"], row["peer"], row["version"], float(row["difference"]), float(row["bound"]))
            for row in csv.DictReader(file)
        ]


def write(rows: Iterable[Row], path: Path = TABLE) -> None:
    """Write a table."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(row.cells() for row in rows)


@dataclass(eq=False)
class Collector:
    """The plugin: keeps the rows of all tests, those of other processes too, and writes or checks the table."""

    config: pytest.Config
    rows: list[Row] = field(default_factory=list)
    missing: list[Key] = field(default_factory=list)

    @property
    def out(self) -> str | None:
        """The file to write."""
        chosen: str | None = self.config.getoption("--parity")
        return chosen

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Leave out tests that compare with nobody where only the table is wanted."""
        if self.out is None:
            return
        wanted = [item for item in items if PROPERTY in getattr(item, "fixturenames", ())]
        config.hook.pytest_deselected(items=[item for item in items if item not in wanted])
        items[:] = wanted

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the rows of a test that passed."""
        if report.when == "call" and report.passed:
            self.rows += [Row(*value) for name, value in report.user_properties if name == PROPERTY]  # type: ignore[misc]

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write the table, or fail a whole run in CI that did not measure every row of it again."""
        if hasattr(self.config, "workerinput"):
            return
        found = gather(self.rows)
        if self.out is not None:
            if found:
                write(found.values(), Path(self.out))
        elif os.environ.get("CI") and self._whole():
            self.missing = [(row.name, row.peer) for row in read() if (row.name, row.peer) not in found]
            if self.missing and session.exitstatus == pytest.ExitCode.OK:
                session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def _whole(self) -> bool:
        chosen = {Path(arg).resolve() for arg in self.config.args}
        return ROOT / "tests" in chosen and not self.config.getoption("keyword")

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Say what was written, or what is missing."""
        if self.out is not None:
            terminalreporter.write_line(f"{len(gather(self.rows))} comparisons written to {self.out}")
        for name, peer in self.missing:
            terminalreporter.write_line(f"{name} was not compared with {peer}; run make parity")
