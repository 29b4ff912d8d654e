"""How long do methods and metrics take beside those of other packages, and beside the bare passes of the model?

::

    python benchmarks/peers.py --quick                               # every pair once on a small network
    python benchmarks/peers.py --model resnet50 --only ig            # one method
    python benchmarks/peers.py --csv docs/measured/peers.csv         # everything; rows measured before are replaced

Both sides run in one process on one thread, in turn, on the same picture with the same steps, samples and batches; what
counts is processor time. `peer / ours` is the median over rounds with a bootstrap interval, above one where sightline
is faster. `ours / bare` is what a job costs beside the same passes of the model with nothing around them. Models:
ViT-Tiny, EfficientNet-Lite0 and a ResNet-50 with random weights, at 224 pixels.
"""

from __future__ import annotations

import argparse
import csv
import importlib.metadata
import statistics
import sys
import warnings
from collections.abc import Iterator
from dataclasses import astuple, dataclass, fields
from pathlib import Path

import torch
from pairs import PAIRS
from pairs.pair import Pair, Setting, bare_passes
from pairs.timing import Ratio, in_turn, ratio

import sightline

WEIGHTS = Path(__file__).parents[2] / "shared" / "weights" / "vit_tiny_patch16_224.safetensors"
MODELS = {"vit_tiny": 4, "efficientnet_lite0": 4, "resnet50": 2}  # and how many steps or samples are taken on each
PACKAGES = {"PAIR": "saliency"}  # where a peer is not called as its package is
WANTED = 0.98  # the least ratio that is good enough
QUICK = "bundled/shapes-cnn"


@dataclass(frozen=True)
class Row:
    """One line of the table, as it is written."""

    model: str
    recipe: str
    peer: str
    version: str
    ratio: str
    low: str
    high: str
    bare: str
    milliseconds: str
    rounds: int
    reason: str


def load(name: str) -> sightline.Adapter:
    """Load a model; ViT-Tiny has its own weights where they are at hand and random ones elsewhere."""
    torch.manual_seed(0)
    if name == "vit_tiny":
        known = f"file:{WEIGHTS}@timm/vit_tiny_patch16_224"
        return sightline.load(known) if WEIGHTS.is_file() else sightline.load("timm/vit_tiny_patch16_224")
    if name == "efficientnet_lite0":
        return sightline.load("package/efficientnet_lite0")
    return sightline.load(QUICK) if name == "quick" else sightline.load("torchvision/resnet50", pretrained=False)


def setting_of(name: str, count: int) -> Setting:
    """Return a model with one picture of noise, and how many steps or samples are taken."""
    adapter = load(name)
    adapter.model.eval()
    height, width = adapter.default_size
    images = torch.randn(1, 3, height, width, generator=torch.Generator().manual_seed(0))
    return Setting(adapter, images, 3, count)


def version(peer: str) -> str:
    """Return the version of a peer's package, empty where it is not installed."""
    package = peer.partition(" ")[0]
    try:
        return importlib.metadata.version(PACKAGES.get(package, package))
    except importlib.metadata.PackageNotFoundError:
        return ""


def measure(pair: Pair, setting: Setting, model: str, rounds: int, budget: float) -> Row:
    """Run both sides of a pair, and the bare passes, in turn."""
    jobs = {"ours": pair.job(setting)}
    reason = pair.reason
    try:
        jobs["peer"] = pair.theirs(setting)
        jobs["peer"]()
    except Exception as error:  # peers refuse models for reasons of their own
        jobs.pop("peer", None)
        reason = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:100]
    if pair.bare:
        jobs["bare"] = bare_passes(setting, pair)
    taken = in_turn(jobs, rounds, budget)
    found = ratio(taken["peer"], taken["ours"]) if "peer" in taken else None
    bare = ratio(taken["ours"], taken["bare"]) if "bare" in taken else None
    return row(pair, setting, model, found, bare, taken["ours"], reason)


def row(
    pair: Pair, setting: Setting, model: str, found: Ratio | None, bare: Ratio | None, ours: list[float], reason: str
) -> Row:
    """Return a line of the table."""
    cells = ("", "", "") if found is None else tuple(f"{value:.2f}" for value in found)
    beside = "" if bare is None else f"{bare.median:.2f}"
    taken = f"{1e3 * statistics.median(ours):.1f}"
    return Row(model, pair.text(setting), pair.peer, version(pair.peer), *cells, beside, taken, len(ours), reason)


def chosen(only: list[str], kind: str) -> Iterator[Pair]:
    """Return the pairs that were asked for, whose peer is installed and takes the kind of model."""
    for pair in PAIRS:
        wanted = not only or {pair.name, pair.peer, pair.peer.partition(" ")[0]} & {*only}
        if wanted and kind in pair.kinds and version(pair.peer) and (only or not pair.long):
            yield pair


def write(rows: list[Row], path: Path) -> None:
    """Write rows into a table, in place of those of the same model, recipe and peer."""
    names = [field.name for field in fields(Row)]
    kept: dict[tuple[str, ...], list[str]] = {}
    if path.is_file():
        with path.open(encoding="utf-8", newline="") as file:
            kept = {(each["model"], each["recipe"], each["peer"]): [*each.values()] for each in csv.DictReader(file)}
    kept |= {(each.model, each.recipe, each.peer): [*map(str, astuple(each))] for each in rows}
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerows([names, *sorted(kept.values(), key=lambda cells: (cells[1], cells[2], cells[0]))])


def line(found: Row) -> str:
    """Return a row as it is printed."""
    interval = f"{found.ratio or '–':>6} ({found.low}–{found.high})"
    beside = f"bare {found.bare or '–':>5}"
    return f"{found.model:18} {found.recipe:58} {found.peer:32} {interval:20} {beside} {found.reason}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", default=[], help="a method, metric, peer or package; repeatable")
    parser.add_argument("--model", action="append", choices=[*MODELS], help="by default all of them; repeatable")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--budget", type=float, default=20.0, help="processor seconds of a pair, three rounds at least")
    parser.add_argument("--csv", type=Path, help="a table to write the rows into")
    parser.add_argument("--quick", action="store_true", help="one round on a small network, to see that all pairs run")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")  # peers warn of hooks and of tensors
    torch.set_num_threads(1)
    models = {"quick": 2} if asked.quick else {name: MODELS[name] for name in asked.model or MODELS}
    for model, count in models.items():
        setting = setting_of(model, count)
        for pair in chosen(asked.only, setting.kind):
            found = measure(pair, setting, model, 1 if asked.quick else asked.rounds, asked.budget)
            print(line(found), flush=True)
            if asked.csv and not asked.quick:
                write([found], asked.csv)


if __name__ == "__main__":
    sys.exit(main())
