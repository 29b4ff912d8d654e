"""Read docs/coverage.toml, what other libraries have and the recipe that says the same here, or why there is none.

And docs/measured/parity.csv: how closely numbers agree where both were computed in one process.
"""

from __future__ import annotations

import csv
import importlib
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import sightline
from sightline.recipe import parse, parse_metric

DOCS = Path(__file__).parent.parent / "docs"
FILE = DOCS / "coverage.toml"
PARITY = DOCS / "measured" / "parity.csv"
LIBRARIES = {
    "captum": "Captum",
    "grad_cam": "grad-cam",
    "torchcam": "torchcam",
    "zennit": "zennit",
    "quantus": "Quantus",
    "latec": "LATEC",
    "xplique": "Xplique",
    "pair": "PAIR saliency",
    "papers": "Papers without a library",
}


@dataclass(frozen=True)
class Counterpart:
    """A name of another library.

    Attributes:
        library: its key in LIBRARIES.
        kind: methods or metrics.
        name: as that library writes it.
        how: method, metric, call or none.
        text: the recipe, the call, or the reason why there is none.
        target: the kind of target that it needs, a public name; empty for classes.
    """

    library: str
    kind: str
    name: str
    how: str
    text: str
    target: str = ""

    def check(self) -> None:
        """Build what the line names; an error where it does not exist."""
        if self.target and self.target not in sightline.__all__:
            raise ValueError(f"{self.library} {self.name}: there is no target {self.target}")
        if self.how == "method":
            parse(self.text)
        elif self.how == "metric":
            parse_metric(self.text)
        elif self.how == "call":
            module, _, name = self.text.rpartition(".")
            if not hasattr(importlib.import_module(module), name):
                importlib.import_module(self.text)
        elif self.how != "none" or not self.text:
            raise ValueError(f"{self.library} {self.name}: write method, metric, call or none")


def counterparts(file: Path = FILE) -> Iterator[Counterpart]:
    """Yield every line of the file."""
    for library, kinds in tomllib.loads(file.read_text(encoding="utf-8")).items():
        for kind, names in kinds.items():
            for name, said in names.items():
                target = said.pop("target", "")
                ((how, text),) = said.items()
                yield Counterpart(library, kind, name, how, text, target)


def coverage_page() -> str:
    """Return the page as Markdown: one table per library and kind."""
    lines = [
        "# Coverage of other libraries",
        "",
        "What other libraries offer, and the recipe that says the same here, or the reason why there is none. A recipe "
        "names the counterpart; the page of the method says which variant was compared with which library, and how "
        "closely.",
        "",
    ]
    given = list(counterparts())
    for library, title in LIBRARIES.items():
        for kind in ("methods", "metrics"):
            rows = [each for each in given if (each.library, each.kind) == (library, kind)]
            if rows:
                lines += [f"## {title}: {kind}", "", "| there | here |", "| --- | --- |", *map(_row, rows), ""]
    return "\n".join(lines)


def parity_page() -> str:
    """Return the page of comparisons with other packages as Markdown."""
    with PARITY.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    packages = sorted({row["peer"].partition(" ")[0] for row in rows}, key=str.casefold)
    head = ["name", "compared with", "version", "largest difference", "asserted"]
    lines = [
        "# Parity with other packages",
        "",
        f"{len(rows)} comparisons with {len(packages)} packages ({', '.join(packages)}), each computed in the same "
        "process by the test suite on small networks with random weights, or on random maps. A difference is relative "
        "to the largest magnitude among the peer's numbers; the last column is the bound that a test asserts. Several "
        "peers compute in single precision. `make parity` measures the table again.",
        "",
        f"| {' | '.join(head)} |",
        f"| {' | '.join(['---'] * len(head))} |",
    ]
    for row in rows:
        cells = (f"`{row['name']}`", f"`{row['peer']}`", row["version"], row["difference"], row["bound"])
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def _row(each: Counterpart) -> str:
    here = f"–, {each.text}" if each.how == "none" else f"`{each.text}`"
    here += f" with a target `{each.target}`" if each.target else ""
    return f"| `{each.name}` | {here} |"
