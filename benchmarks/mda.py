r"""Compare MDA's searches: passes, insertion − deletion, and the time of the exact one against bare forwards.

    python benchmarks/mda.py --photographs 20 --folder ../shared/data/imagenet-samples
    python benchmarks/mda.py --photographs 10 --step 896 --recipes "mda(cells=7, steps=56)" \
        "mda(cells=7, steps=56, per_step=2)"

The folder holds `labels.csv` (file, label, …) and the photographs, beside it or under `images/`. Those to whose class
the model gives at least `--sure` are taken, in the order of the file.
"""

from __future__ import annotations

import argparse
import csv
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from safetensors.torch import load_file
from torch import Tensor

import sightline
from sightline.api import as_batch
from sightline.extras import require
from sightline.perturb.search import greedy

RECIPES = ("mda", "mda(search='fast')", "mda(per_step=2)")
METRICS = ("insertion(step={})", "deletion(step={})", "insertion(step={}, radius=15, sigma=31.0)")
PROTOCOL = ("insertion_mda(step={})", "deletion_mda(step={})", "mas_insertion(step={})", "mas_deletion(step={})")


def load(name: str, weights: Path | None) -> sightline.Adapter:
    """Load a timm model, from a weights file where one is given."""
    model = require("timm").create_model(name, pretrained=weights is None)
    if weights is not None:
        model.load_state_dict(load_file(weights))
    return sightline.adapt(model.eval())


def photographs(model: sightline.Adapter, folder: Path, count: int, sure: float) -> Iterator[tuple[str, Tensor, int]]:
    """Yield name, image and class of the first photographs that the model is sure of."""
    with (folder / "labels.csv").open(encoding="utf-8") as lines:
        for row in csv.DictReader(lines):
            found = [path for path in (folder / row["file"], folder / "images" / row["file"]) if path.is_file()]
            image, label = as_batch(model, found[:1]), int(row["label"])
            if model.predict(image).softmax(dim=-1)[0, label] < sure:
                continue
            yield row["file"], image, label
            count -= 1
            if count == 0:
                return


def one(model: sightline.Adapter, image: Tensor, label: int, recipe: str, step: int) -> dict[str, float]:
    """Run one recipe on one photograph; judge its smooth and its sharp map."""
    start = time.perf_counter()
    found = sightline.explain(model, image, recipe, target=label)
    seconds = time.perf_counter() - start
    row = {"passes": found.passes.forward + found.passes.backward, "seconds": seconds}
    row["inserted"] = found.details.images[0].search.inserted
    maps = {"smooth": found.details.with_density(0.0, "smooth").pixels(), "sharp": found.pixels()}
    for kind, pixels in maps.items():
        named = [metric.format(step) for metric in (*METRICS, *PROTOCOL)]
        scores = sightline.evaluate(model, image, pixels, named, target=label)
        insertion, deletion, strong, *protocol = (float(scores[metric][0]) for metric in named)
        row |= {f"{kind} ins": insertion, f"{kind} del": deletion, f"{kind} ins − del": insertion - deletion}
        row |= {f"{kind} strong blur, ins − del": strong - deletion}
        row |= {
            f"{kind} MDA, ins − del": protocol[0] - protocol[1],
            f"{kind} MAS, ins − del": protocol[2] - protocol[3],
        }
    return row


def bare_seconds(model: sightline.Adapter, image: Tensor, count: int = 128) -> tuple[int, float]:
    """Return the best batch size for bare forwards, and the seconds that one image takes then."""
    found = {}
    for size in (1, 4, 8, 14, 16, 28, 32):
        batch = image.expand(size, -1, -1, -1).contiguous()
        with torch.no_grad():
            model(batch)
            start = time.perf_counter()
            for _ in range(max(1, count // size)):
                model(batch)
            found[size] = (time.perf_counter() - start) / (max(1, count // size) * size)
    best = min(found, key=lambda size: found[size])
    return best, found[best]


def mean(values: list[float]) -> str:
    """Write a mean with its standard error."""
    middle = sum(values) / len(values)
    if len(values) == 1:
        return f"{middle:.4g}"
    spread = math.sqrt(sum((v - middle) ** 2 for v in values) / (len(values) - 1) / len(values))
    return f"{middle:.4g} ± {spread:.2g}"


def table(rows: dict[str, list[dict[str, float]]]) -> Table:
    """Lay out what was measured, and each recipe's distance from the first one."""
    first = next(iter(rows.values()))
    drawn = Table("", *rows)
    for key in first[0]:
        drawn.add_row(key, *(mean([row[key] for row in found]) for found in rows.values()))
    for key in (key for key in first[0] if key.endswith("ins − del")):
        away = (
            mean([row[key] - exact[key] for row, exact in zip(found, first, strict=True)]) for found in rows.values()
        )
        drawn.add_row(f"{key}, minus exact's", *away)
    drawn.add_row("passes, share", *(mean([r["passes"] / e["passes"] for r, e in zip(f, first, strict=True)])
                                     for f in rows.values()))  # fmt: skip
    return drawn


def arguments() -> Any:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photographs", type=int, default=20)
    parser.add_argument("--model", default="vit_tiny_patch16_224")
    parser.add_argument("--weights", type=Path, help="safetensors file; downloaded by timm where it is not given")
    parser.add_argument("--folder", type=Path, default=Path("../shared/data/imagenet-samples"))
    parser.add_argument("--recipes", nargs="+", default=list(RECIPES))
    parser.add_argument("--sure", type=float, default=0.6)
    parser.add_argument("--step", type=int, default=1792, help="pixels per step of the metrics")
    parser.add_argument("--batch", type=int, help="images at once; by default the best for bare forwards")
    parser.add_argument(
        "--nothing", type=float, default=greedy.NOTHING, help="the fast search's level; -1 turns it off"
    )
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    return parser.parse_args()


def main() -> None:
    options = arguments()
    torch.set_num_threads(options.threads)
    greedy.NOTHING = options.nothing
    console = Console()
    model = load(options.model, options.weights)
    chosen = list(photographs(model, options.folder, options.photographs, options.sure))
    best, bare = bare_seconds(model, chosen[0][1])
    model.batch = options.batch or best
    console.print(f"bare forwards: {1000 * bare:.1f} ms an image at the best batch size, {best}")
    rows: dict[str, list[dict[str, float]]] = {recipe: [] for recipe in options.recipes}
    with Progress(console=console) as progress:
        task = progress.add_task("searching", total=len(chosen) * len(rows))
        for name, image, label in chosen:
            for recipe, found in rows.items():
                row = one(model, image, label, recipe, options.step)
                found.append(row | {"time / bare forwards": row["seconds"] / (row["passes"] * bare)})
                console.print(f"{name} {recipe}: {row['passes']:.0f} passes, {row['smooth ins − del']:.4f}")
                progress.advance(task)
    console.print(table(rows))


if __name__ == "__main__":
    main()
