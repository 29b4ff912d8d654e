"""Does an insertion or deletion curve cost more than the forward passes it consists of?

A curve of 224 steps is 225 forward passes, and painting the pictures should be next to nothing: at most 1.10 times the
same number of bare forward passes. The bare passes run on one ready batch, at whichever batch size is fastest for
them; the curve runs at the same size. All run in one process, in turn and repeated; what counts is the ratio of the
medians. Run with ``python benchmarks/curves.py [MODEL] [--images 1] [--repeats 5] [--points 225] [--sizes 4 8 16
32]``; MODEL is a model id, by default timm's ViT-Tiny/16 with random weights.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

import sightline
from sightline.metrics.case import Case
from sightline.metrics.faithfulness.insertion_deletion import Deletion, Insertion
from sightline.types import Logit

POINTS = 225
CLAIM = 1.10


def bare(model: sightline.Adapter, images: Tensor, size: int, count: int) -> None:
    """Run this many images through the model, `size` at a time, without looking at the answers."""
    batch = images[:1].expand(size, -1, -1, -1).contiguous()
    with torch.no_grad():
        for first in range(0, count, size):
            model(batch[: min(size, count - first)])


def seconds(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def best_size(model: sightline.Adapter, images: Tensor, sizes: list[int]) -> int:
    """Return the batch size at which an image costs the least."""
    count = 2 * max(sizes)
    for size in sizes:
        bare(model, images, size, size)  # warm up
    rounds = [{size: seconds(lambda size=size: bare(model, images, size, count)) for size in sizes} for _ in range(3)]
    return min(sizes, key=lambda size: min(one[size] for one in rounds))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="timm/vit_tiny_patch16_224")
    parser.add_argument("--images", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--points", type=int, default=POINTS)
    parser.add_argument("--sizes", type=int, nargs="+", default=[4, 8, 16, 32])
    asked = parser.parse_args()

    model = sightline.load(asked.model, pretrained=False)
    size = model.input_size or (224, 224)
    images = torch.randn(asked.images, 3, *size)
    maps = torch.rand(asked.images, *size)
    step = size[0] * size[1] // (asked.points - 1)
    model.batch = best_size(model, images, asked.sizes)

    def curve(metric: Insertion | Deletion) -> Callable[[], object]:
        return lambda: metric(Case(model, images, Logit(0), maps))

    count = asked.images * len(Insertion(step).curve.counts(size[0] * size[1]))
    works = {
        "bare forwards": lambda: bare(model, images, model.batch, count),
        "insertion": curve(Insertion(step)),
        "deletion": curve(Deletion(step)),
    }
    times: dict[str, list[float]] = {name: [] for name in works}
    with model.evaluating():
        for _ in range(asked.repeats):
            for name, work in works.items():
                times[name].append(seconds(work))

    median = {name: statistics.median(taken) for name, taken in times.items()}
    print(f"{model.name}, {asked.images} image(s), {count} passes, {model.batch} at a time, median of {asked.repeats}")
    for name, taken in median.items():
        ratio = taken / median["bare forwards"]
        print(f"{name:14} {ratio:6.3f} ×   {'as claimed' if ratio <= CLAIM else f'more than the {CLAIM} claimed'}")


if __name__ == "__main__":
    main()
