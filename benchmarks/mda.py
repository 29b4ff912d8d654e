r"""Compare MDA's searches on photographs: passes, insertion minus deletion, and how far each is from the first one.

    python benchmarks/mda.py --photographs 10 --rows runs/mda-patches.csv --weights WEIGHTS
    python benchmarks/mda.py --photographs 10 --recipes "mda(cells=7, steps=56)" "mda(cells=7, steps=56, per_step=2)"

The folder holds `labels.csv` (file, label, …) and the photographs, beside it or under `images/`. Those to whose class
the model gives at least `--sure` are taken, in the order of the file. A map is scored as it says it is enlarged: patch
by patch, unless a recipe has ``output='smooth'``.

An exact search takes minutes, so every line is written to `--rows` at once (image, recipe, metric, value), and what is
there already is not done again: a run that was stopped goes on when it is started again, and one with more
photographs or recipes adds to it. `--show` prints the table of what is there.
"""

from __future__ import annotations

import argparse
import csv
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from safetensors.torch import load_file
from torch import Tensor

import sightline
from sightline.api import as_batch
from sightline.extras import require

RECIPES = ("mda", "mda(search='blocks')", "mda(search='fast')", "mda(per_step=2)", "mda(seed=caap)")
METRICS = ("ins_del_mda(step={})", "mas_ins_del(step={})", "ins_del(step={})")
COLUMNS = ("image", "recipe", "metric", "value")
Rows = dict[tuple[str, str], dict[str, float]]  # (image, recipe) -> what was measured, by name


def load(name: str, weights: Path | None) -> sightline.Adapter:
    """Load a timm model, from a weights file where one is given."""
    model = require("timm").create_model(name, pretrained=weights is None)
    if weights is not None:
        model.load_state_dict(load_file(weights))
    return sightline.adapt(model.eval())


def photographs(
    model: sightline.Adapter, folder: Path, skip: int, count: int, sure: float
) -> Iterator[tuple[str, Tensor, int]]:
    """Yield name, image and class of `count` photographs that the model is sure of, after the first `skip` of them."""
    with (folder / "labels.csv").open(encoding="utf-8") as lines:
        for row in csv.DictReader(lines):
            found = [path for path in (folder / row["file"], folder / "images" / row["file"]) if path.is_file()]
            image, label = as_batch(model, found[:1]), int(row["label"])
            if model.predict(image).softmax(dim=-1)[0, label] < sure:
                continue
            if skip:
                skip -= 1
                continue
            yield row["file"], image, label
            count -= 1
            if count == 0:
                return


def one(model: sightline.Adapter, image: Tensor, label: int, recipe: str, step: int) -> dict[str, float]:
    """Run one recipe on one photograph and score its map."""
    start = time.process_time()
    found = sightline.explain(model, image, recipe, target=label)
    row = {"passes": float(found.passes.forward + found.passes.backward), "seconds": time.process_time() - start}
    if hasattr(found.details, "images"):
        (refined,) = found.details.images
        row |= {"inserted": float(refined.search.inserted), "kept_seed": float(refined.kept_seed)}
    named = [metric.format(step) for metric in METRICS]
    scores = sightline.evaluate(model, image, found, named, target=label)
    return row | {metric: float(scores[metric][0]) for metric in named}


def read(path: Path) -> Rows:
    """Read what was measured before."""
    rows: Rows = {}
    if path.is_file():
        with path.open(encoding="utf-8", newline="") as file:
            for line in csv.DictReader(file):
                rows.setdefault((line["image"], line["recipe"]), {})[line["metric"]] = float(line["value"])
    return rows


def append(path: Path, image: str, recipe: str, row: dict[str, float]) -> None:
    """Write what was measured of one photograph."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = not path.is_file()
    with path.open("a", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        if fresh:
            writer.writerow(COLUMNS)
        writer.writerows((image, recipe, metric, repr(value)) for metric, value in row.items())


def mean(values: list[float]) -> str:
    """Write a mean with its standard error."""
    middle = sum(values) / len(values)
    if len(values) == 1:
        return f"{middle:.4g}"
    spread = math.sqrt(sum((v - middle) ** 2 for v in values) / (len(values) - 1) / len(values))
    return f"{middle:.4g} ± {spread:.2g}"


def table(rows: Rows, recipes: list[str], images: list[str]) -> Table:
    """Lay out what was measured: the means, and the paired differences from the first recipe."""
    drawn = Table(
        "recipe", "photographs", "passes", "share", *METRICS, *(f"{metric}, difference" for metric in METRICS)
    )
    for recipe in recipes:
        both = [image for image in images if (image, recipe) in rows and (image, recipes[0]) in rows]
        if not both:
            continue
        own, first = ([rows[image, each] for image in both] for each in (recipe, recipes[0]))
        names = [next(key for key in own[0] if key.startswith(metric.split("(")[0] + "(")) for metric in METRICS]
        share = [row["passes"] / exact["passes"] for row, exact in zip(own, first, strict=True)]
        away = [[row[key] - exact[key] for row, exact in zip(own, first, strict=True)] for key in names]
        means = (mean([row[key] for row in own]) for key in ("passes", *names))
        passes, *scores = means
        drawn.add_row(recipe, str(len(both)), passes, mean(share), *scores, *(mean(each) for each in away))
    return drawn


def arguments() -> Any:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photographs", type=int, default=20)
    parser.add_argument("--skip", type=int, default=0, help="photographs that were measured elsewhere")
    parser.add_argument("--model", default="vit_tiny_patch16_224")
    parser.add_argument("--weights", type=Path, help="safetensors file; downloaded by timm where it is not given")
    parser.add_argument("--folder", type=Path, default=Path("../shared/data/imagenet-samples"))
    parser.add_argument(
        "--recipes", nargs="+", default=list(RECIPES), help="the first is what others are compared with"
    )
    parser.add_argument("--rows", type=Path, default=Path("runs/mda-patches.csv"))
    parser.add_argument("--sure", type=float, default=0.6)
    parser.add_argument("--step", type=int, default=2048, help="pixels per step of the metrics")
    parser.add_argument("--batch", type=int, default=14, help="images at once")
    parser.add_argument("--show", action="store_true", help="print the table of what was measured, and measure nothing")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    console = Console(width=200)
    rows = read(options.rows)
    if not options.show:
        model = load(options.model, options.weights)
        model.batch = options.batch
        for name, image, label in photographs(model, options.folder, options.skip, options.photographs, options.sure):
            for recipe in options.recipes:
                if (name, recipe) in rows:
                    continue
                row = rows[name, recipe] = one(model, image, label, recipe, options.step)
                append(options.rows, name, recipe, row)
                console.print(f"{name} {recipe}: {row['passes']:.0f} passes, {list(row.values())[-len(METRICS)]:.4f}")
    console.print(table(rows, options.recipes, list(dict.fromkeys(image for image, _ in rows))))


if __name__ == "__main__":
    main()
