"""Invented results of a run: rows as a store gives them, with methods of known order, maps, failures and flags."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas
from PIL import Image
from safetensors.numpy import save

from sightline.bench.store.rows import encode
from sightline.bench.store.store import Store
from sightline.bench.tables.table import Table, make_table
from sightline.bench.unit import Chunk, Manifest, ModelInfo, RunConfig
from sightline.report.benchmark.gallery import GalleryImage
from sightline.report.benchmark.page import BenchmarkPage
from sightline.report.benchmark.sanity import SanityResult

# recipe -> (how good it is, forward passes, backward passes)
METHODS = {
    "gae": (0.62, 1, 1),
    "grad_cam": (0.55, 1, 1),
    "rollout": (0.47, 1, 0),
    "plus(libra(ixg))": (0.61, 12, 11),
    "skip_plus(ixg)": (0.57, 1, 1),
    "ixg": (0.41, 1, 1),
    "ig(steps=20)": (0.5, 20, 20),
    "smooth(ixg, samples=25)": (0.49, 25, 25),
    "attention_cam": (0.52, 1, 0),
    "relevance": (0.6, 1.4, 1.2),
    "transition": (0.56, 4, 3),
    "cam": (0.45, 1, 0),
}
CONTROLS = {"random": (0.3, 0, 0), "centre": (0.4, 0, 0), "sobel": (0.36, 0, 0), "input_norm": (0.33, 0, 0)}
METRICS = ("insertion", "deletion", "average_precision", "randomisation_spearman")


def rows(
    images: int = 24,
    models: Sequence[str] = ("bundled/shapes-vit",),
    methods: dict[str, tuple[float, float, float]] = METHODS,
    metrics: Sequence[str] = METRICS,
    points: int = 29,
    failures: bool = True,
) -> Any:
    """Return the rows of a run."""
    draw = np.random.default_rng(7)
    records = []
    for model in models:
        hardness = draw.normal(0, 0.12, images)
        for recipe, (good, forward, backward) in {**methods, **CONTROLS}.items():
            own = draw.normal(0, 0.05, (images, len(metrics)))
            for column, metric in enumerate(metrics):
                for index in range(images):
                    value = float(np.clip(good + hardness[index] + own[index, column], 0, 1))
                    curve = _curve(metric, value, points)
                    if metric == "deletion":
                        value = 1 - value
                    records.append(_row(model, recipe, metric, index, value, curve, forward, backward))
    frame = pandas.DataFrame(records).astype({"label": "Int64", "target": "Int64"})
    if failures:
        failed = (frame["recipe"] == "cam") & (frame["image"] == "photo-0003")
        frame.loc[failed, "value"] = math.nan
        frame.loc[failed, "flag"] = "failed: the model returned NaN; check its weights"
        frame.loc[failed, "curve"] = None
        frame.loc[(frame["recipe"] == "rollout") & (frame["image"] == "photo-0005"), "flag"] = "constant map"
    return frame


def _curve(metric: str, value: float, points: int) -> list[float] | None:
    x = np.linspace(0, 1, points)
    rising = x ** (1 / max(value, 0.05) - 1)
    shapes = {
        "insertion": rising,
        "deletion": 1 - rising,
        "randomisation_spearman": np.linspace(1, 0.9 - value, 6),
    }
    return shapes[metric].tolist() if metric in shapes else None


def _row(
    model: str,
    recipe: str,
    metric: str,
    index: int,
    value: float,
    curve: list[float] | None,
    forward: float,
    backward: float,
) -> dict[str, Any]:
    return {
        "run": "first-look",
        "unit": f"{recipe}-{index // 8}",
        "model": model,
        "weights": "0" * 8,
        "recipe": recipe,
        "metric": metric,
        "image": f"photo-{index:04}",
        "label": index % 3,
        "target": index % 3,
        "value": value,
        "flag": "",
        "seed": 0,
        "forward": float(forward),
        "backward": float(backward),
        "metric_forward": 57.0,
        "seconds": 0.011 * (forward + 2 * backward) + 0.001,
        "curve": curve,
        "dataset": "shapes",
        "versions": json.dumps({"sightline": "0.1.0", "torch": "2.13.0"}),
    }


def photograph(index: int, size: int = 224) -> Image.Image:
    """Return a random picture of soft colours."""
    draw = np.random.default_rng(index)
    coarse = draw.integers(30, 225, (5, 5, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((size, size), Image.Resampling.BICUBIC)


def gallery(
    frame: Any, count: int = 6, recipes: Sequence[str] | None = None, *, photographs: bool = True
) -> list[GalleryImage]:
    """Return random maps for some images."""
    draw = np.random.default_rng(3)
    names = list(recipes or dict.fromkeys(frame["recipe"]))
    values = frame[frame["metric"] == frame["metric"].iloc[0]].set_index(["image", "recipe"])["value"]
    return [
        GalleryImage(
            model=frame["model"].iloc[0],
            image=image,
            maps={recipe: draw.normal(0.2, 1, (14, 14)) for recipe in names},
            picture=photograph(index) if photographs else None,
            caption="tabby, shown and explained",
            scores=values.loc[image].groupby(level=0).first().to_dict(),
        )
        for index, image in enumerate(dict.fromkeys(frame["image"]))
        if index < count
    ]


def page(frame: Any = None, table: Table | None = None, **changes: Any) -> BenchmarkPage:
    """Return a page with every section."""
    frame = rows() if frame is None else frame
    settings: dict[str, Any] = {
        "title": "A first look",
        "rows": frame,
        "table": make_table(frame, resamples=200) if table is None else table,
        "plan": {"name": "first-look", "methods": list(METHODS)},
        "intro": ["Table 1 of nobody."],
        "facts": [("Plan", "first-look"), ("Data", "shapes"), ("", "24 images")],
        "gallery": gallery(frame),
        "gallery_metric": "insertion",
        "sanity": [
            SanityResult("bundled/shapes-vit", "gae", "passes", "Changes.", similarities={"random_logit": 0.1}),
            SanityResult("bundled/shapes-vit", "sobel", "fails", "Does not depend on the model.", control=True),
        ],
        "left_out": {"bundled/shapes-vit": [("layer_cam", "it needs a convolutional network")]},
        "skipped": [("broken.jpg", "cut short")],
        "versions": [("sightline", "0.1.0"), ("torch", "2.13.0")],
        "packages": [
            {"name": "my-methods", "version": "1.4", "digest": "5f0e1d2c3b4a5f0e1d2c3b4a"},
            {"name": "sightline", "version": "0.1.0", "digest": "00112233445566778899aabb"},
        ],
        "command": "sightline bench run plan.toml --store out\nsightline report out",
        "bibtex": "@misc{nobody,\n  title = {Nothing},\n}",
    }
    return BenchmarkPage(**(settings | changes))


MODEL = "bundled/shapes-vit"
STORED_METHODS = {name: METHODS[name] for name in ("gae", "rollout", "cam")}  # of which cam fails on an image
STORED = (*STORED_METHODS, *CONTROLS)


def store(
    folder: Path | str, *, model: str = MODEL, dataset: str = "shapes(count=8)", less: int = 0, maps: int = 8
) -> Any:
    """Write a store as a run on eight images would have left it; `less` units are missing."""
    frame = rows(images=8, models=(model,), methods=STORED_METHODS, points=9)
    frame["image"] = frame["image"].str.replace("photo-", "shape-00")
    ids = tuple(f"shape-{index:06}" for index in range(8))
    plan = {
        "name": "first-look",
        "batch": 4,
        "maps": maps,
        "title": "A first look",
        "cite": ["petsiuk2018"],
        "notes": ["Drawn by code."],
    }
    manifest = Manifest(
        plan=plan,
        config=RunConfig(dataset),
        dataset="shapes",
        chunks=(Chunk(ids[:4], "d1"), Chunk(ids[4:], "d2")),
        models=(ModelInfo(model, "00000000", STORED, METRICS, (("grad_cam", "it needs luck"),)),),
        skipped=(("broken.png", "it is cut short"),),
        version="0.1.0",
        command="sightline bench run plan.toml",
    )
    written = Store(str(folder))
    written.write_manifest(manifest)
    draw = np.random.default_rng(0)
    for unit in list(manifest.units())[less:]:
        of_unit = frame[(frame["recipe"] == unit.recipe) & frame["image"].isin(unit.images)].assign(unit=unit.key)
        kept = {image: draw.normal(size=(7, 7)).astype(np.float16) for image in unit.images[: unit.maps]}
        written.write(unit.key, encode(_plain(of_unit)), save(kept) if kept else None)
    return folder


def _plain(frame: Any) -> list[dict[str, Any]]:
    """Return rows as the store takes them: labels and targets as ints."""
    whole = frame.astype({"label": "int64", "target": "int64"}).to_dict("records")
    return [{**row, "label": int(row["label"]), "target": int(row["target"])} for row in whole]
