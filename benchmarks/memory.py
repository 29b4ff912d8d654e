"""How much memory does every method hold on a ViT-B/16 at 384 pixels?

::

    python benchmarks/memory.py                       # methods that are not in the table yet; written row by row
    python benchmarks/memory.py --again --methods ig,lrp
    python benchmarks/memory.py --exact --methods ixg # whole products, to check the others

What counts is the largest sum of the tensors held at once beside weights and images, for one image, in the batches that
a machine with many threads takes (`models/memory`). A recipe has few steps or samples, but at least one full batch of
them. What grows with their number, such as masks of the image's size, is measured in a second run: the method with its
default options on a ViT of the same image and patches with three narrow blocks, which holds little itself. The sum of
the two is an upper bound of what the method holds with its default options.

A large matrix product is computed for one row in 64, whose result stands for the 63 others. The tensors have the same
sizes as with the whole product, and those are all that is measured. Methods of hundreds of passes without a graph run
on two of the twelve blocks: such a pass frees one block before the next.
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from growth import SHORT, pictures
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import sightline
from sightline.extras import require
from sightline.methods import blank
from sightline.models import memory
from sightline.models.memory import GIB, LiveTensors
from sightline.registry import METHODS

TABLE = Path(__file__).parents[1] / "docs" / "measured" / "memory_384.csv"
HEADS = ("method", "recipe", "gib", "options_gib", "declared_gib", "note")
SIZE = 384
EVERY = 64  # rows of a product, of which one is computed
SMALL = 2**26  # multiplications of a product that is computed whole
MANY = ("at_man", "is_cam", "score_cam", "simple_deletion", "simple_insertion", "ss_cam", "vit_cx")  # passes
OPTIONS = {"extremal_perturbation": "extremal_perturbation(steps=2)"}  # steps of an optimisation leave nothing behind
PRODUCTS = {torch.ops.aten.mm.default: 0, torch.ops.aten.addmm.default: 1, torch.ops.aten.bmm.default: 0}


class ShortProducts(TorchDispatchMode):
    """Compute one row in 64 of large matrix products, and repeat it for the others."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        place = PRODUCTS.get(func)
        if place is None or args[place].shape.numel() * args[place + 1].shape[-1] < SMALL:
            return func(*args, **(kwargs or {}))
        left = args[place]
        count = left.shape[-2]
        added = [x if x.ndim < 2 or x.shape[0] == 1 else x[::EVERY] for x in args[:place]]
        few = func(*added, left[..., ::EVERY, :], *args[place + 1 :], **(kwargs or {}))
        output = few.new_empty(*few.shape[:-2], count, few.shape[-1])
        for first in range(min(EVERY, count)):
            rows = output[..., first::EVERY, :]
            rows.copy_(few[..., : rows.shape[-2], :])
        return output


def large(depth: int = 12) -> nn.Module:
    """A random ViT-B/16 at 384 pixels."""
    torch.manual_seed(0)
    model: nn.Module = require("timm").create_model("vit_base_patch16_384", depth=depth)
    return model.eval()


def narrow() -> nn.Module:
    """A random ViT with the same image and patches, of three blocks with 16 channels."""
    torch.manual_seed(0)
    module = require("timm.models.vision_transformer")
    model: nn.Module = module.VisionTransformer(
        img_size=SIZE, patch_size=16, embed_dim=16, depth=3, num_heads=1, num_classes=10
    )
    return model.eval()


def held(adapter: sightline.Adapter, recipe: str, *, exact: bool = False) -> float:
    """Return the GiB that a recipe holds at most for one image."""
    images: Tensor = pictures(1, SIZE)
    blank._cache.clear()  # the blank image's activations, which methods share, count for each of them
    try:
        with nullcontext() if exact else ShortProducts(), LiveTensors() as tensors:
            sightline.explain(adapter, images, recipe, target=1)
    except sightline.errors.SightlineError:
        if exact:
            raise
        return held(adapter, recipe, exact=True)  # a method may check its own sums, which need whole products
    return tensors.peak / GIB


def row(name: str, models: dict[str, sightline.Adapter], *, exact: bool, options: bool) -> dict[str, str]:
    """Measure a method; what it says instead where it does not run on such a model."""
    recipe, network = SHORT.get(name, name), models["cut" if name in MANY else "large"]
    found = dict.fromkeys(HEADS, "") | {"method": name, "recipe": recipe}
    try:
        found["gib"] = f"{held(network, recipe, exact=exact):.3f}"
        found["declared_gib"] = f"{sightline.parse(recipe).cost(network).peak / GIB:.3f}"
        if options and recipe != name:
            found["options_gib"] = f"{held(models['narrow'], OPTIONS.get(name, name)):.3f}"
    except sightline.errors.SightlineError as error:
        found["note"] = str(error).partition(". ")[0]
    return found


def read(table: Path) -> dict[str, dict[str, str]]:
    if not table.exists():
        return {}
    with table.open(encoding="utf-8", newline="") as file:
        return {row["method"]: row for row in csv.DictReader(file)}


def write(table: Path, rows: dict[str, dict[str, str]]) -> None:
    with table.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, HEADS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows[name] for name in sorted(rows))


def asked_for(asked: argparse.Namespace) -> Iterator[str]:
    known = {} if asked.again else read(asked.table)
    every = sorted(METHODS, key=lambda name: (name in MANY, name))
    names: Sequence[str] = asked.methods.split(",") if asked.methods else every
    yield from (name for name in names if name not in known)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", default="", help="names with commas between; by default all")
    parser.add_argument("--again", action="store_true", help="also those that are in the table")
    parser.add_argument("--exact", action="store_true", help="compute every product in full, and write no table")
    parser.add_argument("--short", action="store_true", help="leave out the second run, with default options")
    parser.add_argument("--limit", type=float, default=4.0, help="GiB that a method may hold")
    parser.add_argument("--table", type=Path, default=TABLE)
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    memory.KEPT_BY_ALLOCATOR = sys.maxsize  # batches as on a machine with many threads
    models = {"large": large(), "cut": large(2), "narrow": narrow()}
    adapters = {name: sightline.adapt(model) for name, model in models.items()}
    adapters["cut"].batch = adapters["large"].batch
    for name in asked_for(asked):
        start = time.process_time()
        found = row(name, adapters, exact=asked.exact, options=not asked.short)
        if not asked.exact:
            write(asked.table, read(asked.table) | {name: found})
        print(*found.values(), f"{time.process_time() - start:.0f} s", sep=" | ", flush=True)
    above = [name for name, row in read(asked.table).items() if float(row["gib"] or 0) > asked.limit]
    print(f"above {asked.limit:g} GiB: {', '.join(above) or 'none'}")
    return int(bool(above))


if __name__ == "__main__":
    sys.exit(main())
