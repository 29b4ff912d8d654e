"""A run that never happened: rows as a store gives them, with methods of known order, maps, failures and flags."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas
from PIL import Image

from sightline.bench.table import Table, make_table
from sightline.report.benchmark.gallery import Exhibit
from sightline.report.benchmark.page import BenchmarkPage
from sightline.report.benchmark.sanity import Soundness

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
    trouble: bool = True,
) -> Any:
    """Draw the rows of a run."""
    draw = np.random.default_rng(7)
    found = []
    for model in models:
        hardness = draw.normal(0, 0.12, images)
        for recipe, (good, forward, backward) in {**methods, **CONTROLS}.items():
            own = draw.normal(0, 0.05, (images, len(metrics)))
            for place, metric in enumerate(metrics):
                for index in range(images):
                    value = float(np.clip(good + hardness[index] + own[index, place], 0, 1))
                    curve = _curve(metric, value, points)
                    if metric == "deletion":
                        value = 1 - value
                    found.append(_row(model, recipe, metric, index, value, curve, forward, backward))
    frame = pandas.DataFrame(found).astype({"label": "Int64", "target": "Int64"})
    if trouble:
        gone = (frame["recipe"] == "cam") & (frame["image"] == "photo-0003")
        frame.loc[gone, "value"] = math.nan
        frame.loc[gone, "flag"] = "failed: the model returned NaN; check its weights"
        frame.loc[gone, "curve"] = None
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
    """Draw something with soft shapes."""
    draw = np.random.default_rng(index)
    coarse = draw.integers(30, 225, (5, 5, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((size, size), Image.Resampling.BICUBIC)


def exhibits(
    frame: Any, count: int = 6, recipes: Sequence[str] | None = None, *, photographs: bool = True
) -> list[Exhibit]:
    """Draw maps for some images."""
    draw = np.random.default_rng(3)
    named = list(recipes or dict.fromkeys(frame["recipe"]))
    values = frame[frame["metric"] == frame["metric"].iloc[0]].set_index(["image", "recipe"])["value"]
    return [
        Exhibit(
            model=frame["model"].iloc[0],
            image=image,
            maps={recipe: draw.normal(0.2, 1, (14, 14)) for recipe in named},
            picture=photograph(place) if photographs else None,
            caption="tabby, shown and explained",
            scores=values.loc[image].groupby(level=0).first().to_dict(),
        )
        for place, image in enumerate(dict.fromkeys(frame["image"]))
        if place < count
    ]


def page(frame: Any = None, table: Table | None = None, **changes: Any) -> BenchmarkPage:
    """Put a whole page together."""
    frame = rows() if frame is None else frame
    settings: dict[str, Any] = {
        "title": "A first look",
        "rows": frame,
        "table": make_table(frame, resamples=200) if table is None else table,
        "plan": {"name": "first-look", "methods": list(METHODS)},
        "lede": ["Table 1 of nobody."],
        "facts": [("Plan", "first-look"), ("Data", "shapes"), ("", "24 images")],
        "exhibits": exhibits(frame),
        "gallery_metric": "insertion",
        "soundness": [
            Soundness("bundled/shapes-vit", "gae", "passes", "Changes.", similarities={"random_logit": 0.1}),
            Soundness("bundled/shapes-vit", "sobel", "fails", "Does not depend on the model.", control=True),
        ],
        "left_out": {"bundled/shapes-vit": [("layer_cam", "it needs a convolutional network")]},
        "skipped": [("broken.jpg", "cut short")],
        "versions": [("sightline", "0.1.0"), ("torch", "2.13.0")],
        "command": "sightline bench run plan.toml --store out\nsightline report out",
        "bibtex": "@misc{nobody,\n  title = {Nothing},\n}",
    }
    return BenchmarkPage(**(settings | changes))
