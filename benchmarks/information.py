"""How much faster are SIC and AIC together than in the reference, at the same values?

The reference is PAIR's protocol as it is published: each metric by itself, each colour channel interpolated by its own
call of griddata, one picture at a time through the model. Both run in one process, in turn and repeated; what counts is
the ratio of the medians. The claim: at least five times faster with two threads, and the same areas to 1e-6; the
reference has no use for a second thread but in the model. Run with
``python benchmarks/information.py [--model MODEL --photograph PATH] [--size 224] [--repeats 3]``; without them a drawn
scene is shown to a function that likes sharp edges, so that only the pictures are timed.

``python benchmarks/information.py --model MODEL --folder PHOTOGRAPHS [--count 20] [--method gae]`` compares the fast
forms with the exact one instead, on the photographs that it finds: areas, and processor time. The claim: the same areas
to 1e-3 with ``variant='fast'``.
"""

from __future__ import annotations

import argparse
import io
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from scipy.interpolate import griddata, interp1d
from torch import Tensor

import sightline
from sightline.api import as_batch
from sightline.metrics.case import Case
from sightline.metrics.information.sic_aic import THRESHOLDS
from sightline.metrics.judge import judge
from sightline.models.adapter import Adapter
from sightline.perturb.interpolate import from_uint8, random_pixels, to_uint8
from sightline.types import Logit

CLAIM = 5.0
VARIANTS = ("exact", "fast", "border")
RECIPES = ("sic(minimum=0.0)", "aic(minimum=0.0)")
Array = np.ndarray[Any, Any]


def scene(size: int) -> Array:
    """Draw a picture that is smooth here and rough there, as photographs are."""
    random = np.random.default_rng(0)
    down, right = np.mgrid[:size, :size] / size
    waves = np.stack([np.sin(9 * down + k) * np.cos(7 * right - k) for k in range(3)], axis=-1)
    rough = 25 * (np.sin(4 * right) > 0.5)[..., None] * random.normal(size=(size, size, 3))
    found: Array = np.clip(128 + 90 * waves + rough, 0, 255).astype(np.uint8)
    return found


def sharpness(images: Tensor) -> Tensor:
    """Answer by how much neighbouring pixels differ: little in a guessed picture, more in the scene itself."""
    edges = images.diff(dim=-1).abs().mean(dim=(1, 2, 3))
    return torch.stack([200 * edges - 20, torch.zeros_like(edges)], dim=1)


def reference(model: Adapter, picture: Array, start: Array, values: Array, target: int, accuracy: bool) -> float:
    """Follow the published protocol for one image and one metric."""

    def answer(shown: Array) -> float:
        with torch.no_grad():
            logits = model(from_uint8(model, [shown], torch.zeros(1)))[0]
        return float(logits.argmax() == target) if accuracy else float(logits.softmax(0)[target])

    def size(shown: Array) -> int:
        stream = io.BytesIO()
        Image.fromarray(shown).save(stream, format="webp", lossless=True, quality=100)
        return stream.tell()

    blurred = channel_by_channel(picture, start)
    whole, empty, full, blank = size(picture), size(blurred), answer(picture), answer(blurred)
    points, highest = [(0.0, 0.0), (1.0, 1.0)], 0.0
    for threshold in THRESHOLDS:
        shown = channel_by_channel(picture, start | (values >= np.quantile(values, 1 - threshold)))
        amount = np.clip((size(shown) - empty) / (whole - empty), 0, 1)
        highest = max(highest, float(np.clip((answer(shown) - blank) / (full - blank), 0, 1)))
        points.append((float(amount), highest))
    curve = interp1d(*zip(*points, strict=True))(np.linspace(0, 1, 1000, endpoint=False))
    return float(np.trapezoid(np.append(curve, 1.0), dx=1 / 1000))


def channel_by_channel(picture: Array, known: Array) -> Array:
    known = known.copy()
    known[[0, 0, -1, -1], [0, -1, 0, -1]] = True
    guess = picture * known[..., None].astype(np.float32)
    for channel in range(3):
        places, wanted = np.argwhere(known), np.argwhere(~known)
        values, mean = picture[..., channel][known], picture[..., channel].mean()
        guess[..., channel][~known] = griddata(places, values, wanted, method="linear", fill_value=mean)
    return np.round(guess).astype(np.uint8)


def fast_and_exact(model: Adapter, folder: Path, count: int, method: str) -> None:
    """Judge the maps of a method by every variant, in turn, and print the differences of the areas and the times."""
    taken: dict[str, list[float]] = {kind: [] for kind in VARIANTS}
    away: dict[tuple[str, str], list[float]] = {(kind, name): [] for kind in VARIANTS[1:] for name in ("sic", "aic")}
    for path in sorted(folder.rglob("*.jpg"))[:count]:
        images = as_batch(model, path)
        target = Logit(int(model.predict(images)[0].argmax()))
        maps = sightline.explain(model, images, method, target=target).pixels()
        found = {}
        for kind in VARIANTS:
            recipes = [f"{name}(minimum=0.0, variant='{kind}')" for name in ("sic", "aic")]
            begun = time.process_time()
            scores = judge(Case(model, images, target, maps), recipes)
            taken[kind].append(time.process_time() - begun)
            found |= {(kind, recipe[:3]): scores[recipe].item() for recipe in recipes}
        for (kind, name), differences in away.items():
            if not np.isnan(found["exact", name]):
                differences.append(found[kind, name] - found["exact", name])
        print(path.name, *(f"{value:.5f}" for value in found.values()), flush=True)
    for (kind, name), each in away.items():
        error = statistics.stdev(each) / len(each) ** 0.5
        largest, typical = max(map(abs, each)), statistics.median(map(abs, each))
        mean = f"{statistics.fmean(each):+.5f} ± {error:.5f}"
        print(f"{kind} {name}: {len(each)} images, mean difference {mean}, median {typical:.5f}, largest {largest:.5f}")
    exact = statistics.fmean(taken["exact"])
    for kind, seconds in taken.items():
        mean_seconds = statistics.fmean(seconds)
        print(f"{kind}: {mean_seconds:.2f} processor seconds a picture, {exact / mean_seconds:.1f} times faster")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="")
    parser.add_argument("--photograph", default="")
    parser.add_argument("--size", type=int, default=224, help="side of the drawn scene")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="photographs on which the fast form is compared with the exact one")
    parser.add_argument("--count", type=int, default=20, help="of these photographs")
    parser.add_argument("--method", default="gae", help="whose maps are judged")
    arguments = parser.parse_args()
    model = sightline.load(arguments.model) if arguments.model else sightline.adapt(sharpness)
    if arguments.folder:
        return fast_and_exact(model, arguments.folder, arguments.count, arguments.method)
    if arguments.photograph:
        images = as_batch(model, arguments.photograph)
    else:
        images = from_uint8(model, [scene(arguments.size)], torch.zeros(1))
    target, side = int(model.predict(images)[0].argmax()), images.shape[-1]
    maps = torch.randn(1, 1, 14, 14, generator=torch.Generator().manual_seed(0))
    maps = torch.nn.functional.interpolate(maps, size=(side, side), mode="bicubic")[0]
    picture, start = to_uint8(model, images)[0], random_pixels(images, 0, 0.01)[0].numpy()
    ours, theirs = [], []
    for _ in range(arguments.repeats):
        begun = time.perf_counter()
        scores = judge(Case(model, images, Logit(target), maps), RECIPES)
        ours.append(time.perf_counter() - begun)
        begun = time.perf_counter()
        with model.evaluating():
            want = [reference(model, picture, start, maps[0].numpy(), target, accuracy) for accuracy in (False, True)]
        theirs.append(time.perf_counter() - begun)
    found = [scores[recipe].item() for recipe in RECIPES]
    ratio = statistics.median(theirs) / statistics.median(ours)
    print(f"{model.name}, {torch.get_num_threads()} threads, {side} pixels: {ours[-1]:.1f} s and {theirs[-1]:.1f} s")
    print(f"sic {found[0]:.6f} and {want[0]:.6f}, aic {found[1]:.6f} and {want[1]:.6f}")
    print(f"{ratio:.1f} times faster, claimed at least {CLAIM:g}: {'holds' if ratio >= CLAIM else 'FAILS'}")


if __name__ == "__main__":
    main()
