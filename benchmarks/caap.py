"""How many forward passes does CAAP take, and how far is it from running it patch by patch? What does VAR add?

Everything runs in one process, in turn and repeated, in processor time; what counts is the ratio of the medians to one
image's share of a batch of eight forward passes. `vit_passes.py` has the goals. Run with
``python benchmarks/caap.py [MODEL] [--repeats 7]``; MODEL is a model id, by default timm's vit_tiny_patch16_224 with
random weights.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

import sightline
from sightline.methods.patching.caap import Caap
from sightline.methods.patching.e_caap import EfficientCaap
from sightline.methods.patching.neighbourhood import neighbourhoods
from sightline.models.passes import ready
from sightline.models.vit.adapter import VisionTransformer
from sightline.types import Method

BATCH = 8


def patch_by_patch(model: VisionTransformer, image: Tensor, cells: range, last: int) -> None:
    """Algorithm 1 as printed, for some of the patches: a whole sequence each, from the first patched layer on."""
    grid, start = model.grid_of(image), 1
    near = neighbourhoods(grid.height, grid.width, 1, "box")
    runs = []
    for picture in (image, model.normalise(torch.ones_like(image))):
        layers = [model.start(picture)]
        for block in range(model.depth):
            layers.append(model.step(layers[-1], block, None))
        runs.append(layers)
    source, blank = runs
    for cell in cells:
        at = near[cell].nonzero()[:, 0] + grid.prefix
        free, moving = blank[start][:, : grid.prefix], source[last][:, at]
        for layer in range(start, model.depth):
            tokens = blank[layer].clone()
            tokens[:, : grid.prefix] = free
            tokens[:, at] = source[layer][:, at] if layer <= last else moving
            after = model.step(tokens, layer, None)
            free, moving = after[:, : grid.prefix], after[:, at] if layer >= last else moving
        model.finish(free)


def seconds(work: Callable[[], object]) -> float:
    begun = time.process_time()
    work()
    return time.process_time() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="timm/vit_tiny_patch16_224")
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args()
    pretrained = arguments.model.startswith("file:")
    model = sightline.load(arguments.model, pretrained=pretrained)
    assert isinstance(model, VisionTransformer)
    images = torch.randn(BATCH, 3, *(model.input_size or (224, 224)))
    target = sightline.Logit(3)
    some = range(0, model.grid_of(images).cells, 28)
    methods: dict[str, Method] = {"caap": Caap(), "caap(frozen=True)": Caap(frozen=True), "e_caap": EfficientCaap()}
    methods["var(caap)"] = sightline.parse("var(caap)")
    tasks: dict[str, tuple[Callable[[], object], float]] = {
        "forward": (lambda: model(images), BATCH),
        "patch by patch": (
            lambda: patch_by_patch(model, images[:1], some, -(-2 * model.depth // 3)),
            len(some) / model.grid_of(images).cells,
        ),
    }
    for recipe, method in methods.items():
        tasks[f"{recipe}, batch of {BATCH}"] = (lambda m=method: m(model, images, target), BATCH)  # type: ignore[misc]
        tasks[f"{recipe}, one image"] = (lambda m=method: m(model, images[:1], target), 1)  # type: ignore[misc]
    taken: dict[str, list[float]] = {name: [] for name in tasks}
    with ready(model):
        for round_ in range(arguments.repeats + 1):
            for name, (work, count) in tasks.items():
                spent = seconds(work) / count
                if round_:  # the first round warms up and fills the blank
                    taken[name].append(spent)
    forward = statistics.median(taken["forward"])
    slow = statistics.median(taken["patch by patch"])
    print(f"{model.name}, {torch.get_num_threads()} threads; one forward {forward * 1e3:.1f} ms")
    for name, times in taken.items():
        median = statistics.median(times)
        declared = methods[name.split(",")[0]].cost(model).forward if "caap" in name else float("nan")
        print(
            f"{name:32} {median / forward:7.2f} forwards   declared {declared:5.2f}   "
            f"{slow / median:6.1f} times faster than patch by patch"
        )


if __name__ == "__main__":
    main()
