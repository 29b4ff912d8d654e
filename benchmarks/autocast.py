"""How far does mixed precision move the map of every method?

::

    python benchmarks/autocast.py WEIGHTS PHOTOGRAPHS             # rows that are not in the table yet, one by one
    python benchmarks/autocast.py WEIGHTS PHOTOGRAPHS --methods ixg,gae --again

`explain` switches `torch.autocast` off. Here it is switched on inside every module of the model, and nowhere else: what
a method computes from activations, gradients and logits stays in single precision. What counts is the largest
difference to the map in single precision, as a share of its largest absolute value, on the image where it is largest;
methods with few steps and samples. WEIGHTS are those of a ViT-Tiny/16 at 224 pixels; the other model is
EfficientNet-Lite0. Everything runs on a processor, whose half precision stands for that of a GPU.
"""

from __future__ import annotations

import argparse
import csv
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from growth import SHORT
from memory import MANY
from PIL import Image
from torch import Tensor, nn

import sightline
from sightline.registry import METHODS

TABLE = Path(__file__).parents[1] / "docs" / "measured" / "autocast.csv"
HEADS = ("model", "method", "recipe", "bfloat16", "float16", "note")
KINDS = {"bfloat16": torch.bfloat16, "float16": torch.float16}
LAST = (*MANY, "ablation_cam", "recipro_cam", "mutex", "pami")  # many passes
SLOW = (*SHORT, *LAST)  # on one photograph


@contextmanager
def autocast_in_modules(kind: torch.dtype) -> Iterator[None]:
    """Switch autocast on inside the modules of every model."""
    called = nn.Module.__call__

    def call(self: nn.Module, *args: Any, **options: Any) -> Any:
        with torch.autocast("cpu", dtype=kind):
            return called(self, *args, **options)

    nn.Module.__call__ = call  # type: ignore[method-assign]
    try:
        yield
    finally:
        nn.Module.__call__ = called  # type: ignore[method-assign]


def pixels(adapter: sightline.Adapter, path: Path) -> Tensor:
    assert adapter.preprocess is not None
    return adapter.preprocess(Image.open(path).convert("RGB")).reshape(1, 3, *adapter.default_size)


def maps(adapter: sightline.Adapter, images: Tensor, recipe: str, target: Tensor) -> Tensor:
    return sightline.explain(adapter, images, recipe, target=target).map.flatten(1).double()


def row(name: str, adapter: sightline.Adapter, images: Tensor, target: Tensor) -> dict[str, str]:
    """Measure a method; what it says instead where it does not run."""
    recipe = SHORT.get(name, name)
    found = dict.fromkeys(HEADS, "") | {"method": name, "recipe": recipe}
    try:
        exact = maps(adapter, images, recipe, target)
        for word, kind in KINDS.items():
            try:
                with autocast_in_modules(kind):
                    moved = maps(adapter, images, recipe, target)
            except (RuntimeError, sightline.errors.SightlineError) as error:
                found[word], found["note"] = "fails", str(error).partition(". ")[0].splitlines()[0][:120]
                continue
            share = (moved - exact).abs().amax(dim=1) / exact.abs().amax(dim=1)
            found[word] = f"{share.max().item():.2g}"
    except sightline.errors.SightlineError as error:
        found["note"] = str(error).partition(". ")[0]
    return found


def read(table: Path) -> dict[tuple[str, str], dict[str, str]]:
    if not table.exists():
        return {}
    with table.open(encoding="utf-8", newline="") as file:
        return {(row["model"], row["method"]): row for row in csv.DictReader(file)}


def write(table: Path, rows: dict[tuple[str, str], dict[str, str]]) -> None:
    with table.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, HEADS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows[key] for key in sorted(rows))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("weights", type=Path, nargs="?", help="safetensors of a ViT-Tiny/16")
    parser.add_argument("photographs", type=Path, nargs="?", help="a folder of images")
    parser.add_argument("--images", type=int, default=2)
    parser.add_argument("--methods", default="", help="names with commas between; by default all")
    parser.add_argument("--again", action="store_true", help="also those that are in the table")
    parser.add_argument("--table", type=Path, default=TABLE)
    asked = parser.parse_args()
    if asked.photographs is None:
        print("needs weights and photographs; see --help")
        return 0
    warnings.simplefilter("ignore")
    tiny = f"file:{asked.weights}@timm/vit_tiny_patch16_224"
    ids = {"vit_tiny": tiny, "efficientnet_lite0": "package/efficientnet_lite0"}
    paths = sorted(path for path in asked.photographs.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg", ".png"))
    names = (
        asked.methods.split(",")
        if asked.methods
        else sorted(METHODS, key=lambda name: (name in LAST, name in SHORT, name))
    )
    adapters = {model: sightline.load(identifier, pretrained=True) for model, identifier in ids.items()}
    for name in names:
        for model, adapter in adapters.items():
            if (model, name) in read(asked.table) and not asked.again:
                continue
            images = torch.cat([pixels(adapter, path) for path in paths[: 1 if name in SLOW else asked.images]])
            with torch.no_grad():
                target = adapter(images).argmax(dim=1)
            found = row(name, adapter, images, target) | {"model": model}
            write(asked.table, read(asked.table) | {(model, name): found})
            print(*found.values(), sep=" | ", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
