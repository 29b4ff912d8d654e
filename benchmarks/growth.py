"""How cost grows: time and memory of each family of methods against tokens, channels, classes, images and pixels.

::

    python benchmarks/growth.py                       # one method per family, every axis; a few minutes
    python benchmarks/growth.py --quick --methods gae,caap --axes tokens
    python benchmarks/growth.py --out docs/measured/growth    # with one plot per family, SVG: those of the guide

Small random models: a vision transformer, and for the size of the image a convolutional network. The processor time is
the least of a few runs; the memory is the largest sum of the tensors held at once. To the four largest points a
power law is fitted, time ∝ value^exponent, by least squares of the logarithms, with its 95 % interval. The row "model"
is a forward pass: attention alone makes it grow faster than the tokens, so a method is held against that.
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import Tensor, nn

import sightline
from sightline.extras import require
from sightline.models.memory import LiveTensors
from sightline.registry import METHODS

TABLE = Path(__file__).parents[1] / "docs" / "measured" / "growth.csv"
PATCH = 8
POINTS = 4  # of the fit
AXES: dict[str, tuple[int, ...]] = {
    "tokens": (7, 10, 14, 20, 28, 37),  # patches along a side
    "channels": (64, 128, 256, 512),
    "classes": (10, 100, 1000, 10000),
    "images": (1, 2, 4, 8),
    "pixels": (64, 128, 192, 256, 384),  # along a side, of the convolutional network
}
FAMILIES = {
    "gradient": "ixg",
    "path": "ig(steps=4)",
    "cam": "grad_cam",
    "attention": "gae",
    "relevance": "lrp",
    "decomposition": "globenc",
    "patching": "caap",
    "sampling": "rise(samples=32)",
    "shapley": "kernel_shap(samples=32, segments=('grid', 5))",
    "information": "iba(steps=2, samples=2)",
    "layer": "conductance(steps=4)",
    "concepts": "dff",
    "chance": "sobel",
}
SHORT = {  # recipes that hold as much memory as the method itself: few steps or samples, one batch of them at least
    "ig": "ig(steps=8)",
    "guided_ig": "guided_ig(steps=1)",
    "blur_ig": "blur_ig(steps=9)",
    "xrai": "xrai(steps=8)",
    "idgi": "idgi(steps=8)",
    "gradient_shap": "gradient_shap(samples=8)",
    "deep_lift_shap": "deep_lift_shap(samples=8)",
    "smooth_grad": "smooth_grad(samples=8)",
    "dave": "dave(samples=8)",
    "iia": "iia(steps=2)",
    "iia2": "iia2(steps=2)",
    "iia3": "iia3(steps=1)",
    "img": "img(steps=8)",
    "act": "act(steps=8)",
    "tis": "tis(samples=8)",
    "rise": "rise(samples=8)",
    "d_rise": "d_rise(samples=8)",
    "hsic": "hsic(samples=8, cells=2)",
    "sobol": "sobol(samples=2, cells=2)",
    "craft": "craft(components=2, samples=8)",
    "conductance": "conductance(steps=8)",
    "internal_influence": "internal_influence(steps=8)",
    "iba": "iba(steps=1, samples=10)",
    "m2ib": "m2ib(steps=1)",
    "pami": "pami(segments=(('grid', 3),), samples=1)",
    "extremal_perturbation": "extremal_perturbation(steps=1)",
    "lime": "lime(samples=8, segments=('grid', 3))",
    "kernel_shap": "kernel_shap(samples=10, segments=('grid', 3))",
    "partition_shap": "partition_shap(samples=8)",
    "shapley_sampling": "shapley_sampling(samples=2, segments=('grid', 2))",
    "feature_ablation": "feature_ablation(segments=('grid', 3))",
    "occlusion": "occlusion(window=0.5, stride=0.25)",
    "ss_cam": "ss_cam(samples=1)",
    "is_cam": "is_cam(samples=1)",
    "gscore_cam": "gscore_cam(channels=8)",
    "smooth_grad_cam_pp": "smooth_grad_cam_pp(samples=8)",
    "bi_attn": "bi_attn(steps=8)",
    "tam": "tam(steps=8)",
    "t_attn": "t_attn(steps=8)",
    "att_ig": "att_ig(steps=8)",
}


@dataclass(frozen=True)
class Fit:
    """The exponent of a power law, and its 95 % interval."""

    exponent: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.exponent:5.2f} [{self.low:5.2f}, {self.high:5.2f}]"


@dataclass(frozen=True)
class Growth:
    """What one recipe costs along one axis."""

    family: str
    recipe: str
    axis: str
    values: tuple[int, ...]
    seconds: tuple[float, ...]
    bytes: tuple[int, ...]

    @property
    def time(self) -> Fit:
        return fitted(self.values, self.seconds)

    @property
    def memory(self) -> Fit:
        return fitted(self.values, self.bytes)


def fitted(values: Sequence[float], costs: Sequence[float]) -> Fit:
    """Fit a power law to the four largest points."""
    fit: Any = stats.linregress(np.log(values[-POINTS:]), np.log(np.maximum(costs[-POINTS:], 1e-9)))
    reach = np.nan_to_num(stats.t.ppf(0.975, len(values[-POINTS:]) - 2) * fit.stderr)  # 0 where nothing grows
    return Fit(float(fit.slope), float(fit.slope - reach), float(fit.slope + reach))


# ---- models ---------------------------------------------------------------------------------------------------------


def vit(side: int = 14, channels: int = 64, classes: int = 10) -> nn.Module:
    """A random vision transformer of four blocks."""
    torch.manual_seed(0)
    module = require("timm.models.vision_transformer")
    model: nn.Module = module.VisionTransformer(
        img_size=side * PATCH, patch_size=PATCH, embed_dim=channels, depth=4, num_heads=4, num_classes=classes
    )
    return model.eval()


def cnn(width: int = 32, classes: int = 10) -> nn.Module:
    """A random convolutional network of four layers."""
    torch.manual_seed(0)
    sizes = (3, width, width, 2 * width, 2 * width)
    layers: list[nn.Module] = []
    for index, (before, after) in enumerate(pairwise(sizes)):
        layers += [nn.Conv2d(before, after, 3, stride=2 - index % 2, padding=1), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(sizes[-1], classes)).eval()


def model_and_images(axis: str, value: int) -> tuple[nn.Module, Tensor]:
    """Return the model and the images of one point of an axis."""
    if axis == "pixels":
        return cnn(), pictures(1, value)
    side = value if axis == "tokens" else 14
    model = vit(side, value if axis == "channels" else 64, value if axis == "classes" else 10)
    return model, pictures(value if axis == "images" else 1, side * PATCH)


def pictures(count: int, size: int) -> Tensor:
    return torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(1))


# ---- measuring ------------------------------------------------------------------------------------------------------


def measure(work: Callable[[], object], repeats: int) -> tuple[float, int]:
    """Return the least processor time of some runs, and the largest memory of another."""
    with LiveTensors() as tensors:
        work()
    best = float("inf")
    for _ in range(repeats):
        start = time.process_time()
        work()
        best = min(best, time.process_time() - start)
    return best, tensors.peak


def grow(family: str, recipe: str, axis: str, values: Sequence[int], repeats: int) -> Growth | None:
    """Measure a recipe along an axis; None where it needs another model."""
    measured = []
    for value in values:
        model, images = model_and_images(axis, value)
        adapter = sightline.adapt(model)

        def work(model: nn.Module = model, adapter: sightline.Adapter = adapter, images: Tensor = images) -> None:
            if recipe:
                sightline.explain(adapter, images, recipe, target=1)
            else:
                with torch.no_grad():
                    model(images)

        try:
            measured.append(measure(work, repeats))
        except sightline.errors.SightlineError:
            return None
    seconds, held = zip(*measured, strict=True)
    points = tuple(value**2 if axis in ("tokens", "pixels") else value for value in values)
    return Growth(family, recipe or "forward pass", axis, points, seconds, held)


def chosen(asked: argparse.Namespace) -> Iterable[tuple[str, str]]:
    yield "model", ""
    if asked.methods == "all":
        yield from ((METHODS[name].family, SHORT.get(name, name)) for name in METHODS)
    elif asked.methods:
        yield from ((METHODS[name].family, SHORT.get(name, name)) for name in asked.methods.split(","))
    else:
        yield from FAMILIES.items()


# ---- showing --------------------------------------------------------------------------------------------------------


def write(table: Path, rows: Sequence[Growth]) -> None:
    names = ("family", "recipe", "axis", "values", "seconds", "mebibytes")
    fits = [f"{what}_{part}" for what in ("time", "memory") for part in ("exponent", "low", "high")]
    with table.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([*names, *fits])
        for row in rows:
            numbers = [
                " ".join(str(value) for value in row.values),
                " ".join(f"{value:.4g}" for value in row.seconds),
                " ".join(f"{value / 2**20:.4g}" for value in row.bytes),
            ]
            fitted = [f"{x:.2f}" for fit in (row.time, row.memory) for x in (fit.exponent, fit.low, fit.high)]
            writer.writerow([row.family, row.recipe, row.axis, *numbers, *fitted])


def plot(folder: Path, family: str, rows: Sequence[Growth]) -> None:
    """Draw one panel per axis: time and memory against the value, both logarithmic."""
    pyplot = require("matplotlib.pyplot")
    figure, panels = pyplot.subplots(1, len(rows), figsize=(3.2 * len(rows), 3), squeeze=False, layout="constrained")
    for panel, row in zip(panels[0], rows, strict=True):
        panel.loglog(row.values, row.seconds, "o-", label=f"seconds, exponent {row.time.exponent:.2f}")
        panel.loglog(row.values, [x / 2**20 for x in row.bytes], "s--", label=f"MiB, {row.memory.exponent:.2f}")
        panel.set_xlabel(row.axis)
        panel.set_xticks(row.values, [f"{value:,}" for value in row.values], fontsize=7, rotation=30)
        panel.minorticks_off()
        panel.legend(fontsize=7)
    figure.suptitle(f"{family}: {rows[0].recipe}")
    with pyplot.rc_context({"svg.fonttype": "none", "svg.hashsalt": family}):  # text as text, the same file each time
        figure.savefig(folder / f"{family}.svg", metadata={"Date": None})
    pyplot.close(figure)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", default="", help="names with commas between, or all; by default one per family")
    parser.add_argument("--axes", default=",".join(AXES))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="once, the four smallest values of each axis")
    parser.add_argument("--out", type=Path, help="a folder for one plot per family")
    parser.add_argument("--table", type=Path, default=TABLE)
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    rows: list[Growth] = []
    for family, recipe in chosen(asked):
        for axis in asked.axes.split(","):
            values = AXES[axis][:POINTS] if asked.quick else AXES[axis]
            row = grow(family, recipe, axis, values, 1 if asked.quick else asked.repeats)
            if row is not None:
                rows.append(row)
                print(f"{family:14} {row.recipe[:32]:32} {axis:9} time {row.time}  memory {row.memory}", flush=True)
    if not asked.methods:
        write(asked.table, rows)
    if asked.out:
        asked.out.mkdir(parents=True, exist_ok=True)
        for family in dict.fromkeys(row.family for row in rows):
            plot(asked.out, family, [row for row in rows if row.family == family])
    return 0


if __name__ == "__main__":
    sys.exit(main())
