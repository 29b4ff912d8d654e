"""How much time do token-masking curves spend, against curves of the same shares that fill what they remove?

Both run in one process, in turn and repeated; what counts is the ratio of the medians. The claim: at most 0.65 of the
time of filling, clean pass and ordering included. Run with ``python benchmarks/token_masking.py [MODEL]
[--images 8] [--repeats 5]``; MODEL is a model id, by default timm's vit_tiny_patch16_224 with random weights.
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
from sightline.metrics.judge import judge
from sightline.models.adapter import Adapter
from sightline.perturb.curve import ranks, responses
from sightline.perturb.fill import Zero
from sightline.types import Logit

MASKING = ["deletion_accuracy", "insertion_accuracy", "deletion_aopc", "insertion_aopc"]
CLAIM = 0.65


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", nargs="?", default="timm/vit_tiny_patch16_224")
    parser.add_argument("--images", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    model = sightline.load(arguments.model, pretrained=arguments.model.startswith("file:"))
    height, width = model.input_size or (224, 224)
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(arguments.images, 3, height, width, generator=generator)
    maps = torch.rand(arguments.images, height, width, generator=generator)
    tasks: dict[str, Callable[[], object]] = {
        "dropped": lambda: judge(Case(model, images, Logit(0), maps), MASKING),
        "filled": lambda: filled(model, images, maps),
    }
    taken: dict[str, list[float]] = {name: [] for name in tasks}
    for round_ in range(arguments.repeats + 1):
        for name, task in tasks.items():
            spent = seconds(task)
            if round_:  # the first round warms up
                taken[name].append(spent)
    print_ratio(model, taken, arguments.images)


def filled(model: Adapter, images: Tensor, maps: Tensor) -> Tensor:
    """Run both curves of nine shares by filling pixels, and the image itself."""
    case = Case(model, images, Logit(0), maps)
    blank, places = Zero()(model, images), ranks(case.order())
    counts = [places.shape[1] * step // 10 for step in range(1, 10)]
    with torch.no_grad(), model.evaluating():
        curves = [responses(model, *pair, Logit(0), places, counts) for pair in ((images, blank), (blank, images))]
        return torch.cat([*curves, case.clean[:, :1]], dim=1)


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def print_ratio(model: Adapter, taken: dict[str, list[float]], images: int) -> None:
    median = {name: statistics.median(times) for name, times in taken.items()}
    ratio = median["dropped"] / median["filled"]
    print(f"{model.name}, {torch.get_num_threads()} threads, {images} images")
    for name, value in median.items():
        print(f"{name:8} {value / images * 1e3:8.1f} ms per image")
    print(f"ratio {ratio:.2f}, claimed at most {CLAIM}: {'holds' if ratio <= CLAIM else 'FAILS'}")


if __name__ == "__main__":
    main()
