"""How many bare passes do the transformers' methods take, for one image and for a batch, against their goals?

Methods, the model's own forward pass and its forward and backward pass to the pixels run in one process in turn, in
processor time of one thread; each round gives a ratio, and the table shows the median of the ratios and quartiles.
Methods run as ``sightline.explain`` runs them. The model's parameters ask for gradients, as they do when a model is
loaded. ``iia2`` is measured with few steps and compared with the authors' count of passes for as many,
(n + 1)² + (n + 1) forward and backward passes.

Run with ``python benchmarks/vit_passes.py [MODEL] [--repeats 7] [--batch 4] [--only caap gae] [--memory]``; MODEL is a
model id, by default timm's vit_tiny_patch16_224 with random weights. With ``--memory`` the peak that each method adds
is printed instead, each in a process of its own.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

import sightline
from sightline.models.passes import ready
from sightline.models.vit.adapter import VisionTransformer

STEPS = 2  # of iia2: its passes grow with their square
AUTHORS = (STEPS + 1) ** 2 + (STEPS + 1)


@dataclass(frozen=True, slots=True)
class Goal:
    """The most that a method may take.

    Attributes:
        recipe: the method.
        unit: forward, or forward+backward.
        one: for one image, in units.
        batch: for each image of a batch.
    """

    recipe: str
    unit: str
    one: float
    batch: float


GOALS = (
    Goal("caap", "forward", 4.0, 4.5),
    Goal("caap(frozen=True)", "forward", 2.0, 2.0),
    Goal("e_caap", "forward", 2.0, 2.0),
    Goal("decompx", "forward+backward", 1.0, 1.0),
    Goal("gae", "forward+backward", 1.0, 1.0),
    Goal("t_attr", "forward+backward", 2.3, 2.3),
    Goal(f"iia2(steps={STEPS}, variant='released')", "forward+backward", AUTHORS, AUTHORS),
)


def bare(model: VisionTransformer, images: Tensor, unit: str) -> Callable[[], object]:
    """Return the passes that a method is compared with."""

    def forward() -> object:
        with torch.no_grad():
            return model.model(images)

    def both() -> object:
        with torch.enable_grad():
            pixels = images.clone().requires_grad_()
            return torch.autograd.grad(model.model(pixels)[:, 3].sum(), pixels)

    return forward if unit == "forward" else both


def processor_seconds(work: Callable[[], object]) -> float:
    begun = time.process_time()
    work()
    return time.process_time() - begun


def measure(model: VisionTransformer, images: Tensor, goals: list[Goal], repeats: int) -> dict[str, list[float]]:
    """Return the ratios of every round, by recipe; the first round warms up and fills the blank."""
    target = sightline.Logit(3)
    methods = {goal.recipe: sightline.parse(goal.recipe) for goal in goals}
    passes = {unit: bare(model, images, unit) for unit in ("forward", "forward+backward")}
    ratios: dict[str, list[float]] = {goal.recipe: [] for goal in goals}
    with ready(model):
        images = model.accept(images)
        for round_ in range(repeats + 1):
            for goal in goals:
                before = processor_seconds(passes[goal.unit])
                taken = processor_seconds(lambda: methods[goal.recipe](model, images, target))  # noqa: B023
                after = processor_seconds(passes[goal.unit])
                if round_:
                    ratios[goal.recipe].append(2 * taken / (before + after))
    return ratios


def show_ratios(model: VisionTransformer, batch: Tensor, goals: list[Goal], repeats: int) -> None:
    print(f"{model.name}, {torch.get_num_threads()} thread(s), {repeats} rounds, processor time")
    for heading, images in (("one image", batch[:1]), (f"batch of {len(batch)}", batch)):
        ratios = measure(model, images, goals, repeats)
        for goal in goals:
            low, middle, high = statistics.quantiles(ratios[goal.recipe], n=4)
            limit = goal.one if len(images) == 1 else goal.batch
            verdict = "reached" if middle <= limit else "missed"
            print(
                f"{heading:12} {goal.recipe:34} {middle:6.2f} [{low:.2f}, {high:.2f}] × {goal.unit:16} "
                f"goal {limit:5.2f} {verdict}   declared {sightline.parse(goal.recipe).cost(model)}",
                flush=True,
            )


def show_memory(name: str, goals: list[Goal]) -> None:
    """Print what one explanation of one image adds to the peak of a process that ran the model once."""
    for goal in goals:
        command = [sys.executable, __file__, name, "--peak", goal.recipe]
        print(subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip(), flush=True)


def show_peak(model: VisionTransformer, image: Tensor, recipe: str) -> None:
    bare(model, image, "forward")()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with ready(model):
        sightline.parse(recipe)(model, image, sightline.Logit(3))
    added = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    print(f"{recipe:34} {added / 1024:7.0f} MiB above one forward pass")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="timm/vit_tiny_patch16_224")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--only", nargs="*", help="recipes that start with one of these words")
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--peak", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    goals = [goal for goal in GOALS if not asked.only or goal.recipe.startswith(tuple(asked.only))]
    if asked.memory:
        show_memory(asked.model, goals)
        return
    model = sightline.load(asked.model, pretrained=asked.model.startswith("file:"))
    assert isinstance(model, VisionTransformer)
    images = torch.randn(asked.batch, 3, *model.default_size, generator=torch.Generator().manual_seed(0))
    if asked.peak:
        show_peak(model, images[:1], asked.peak)
    else:
        show_ratios(model, images, goals, asked.repeats)


if __name__ == "__main__":
    main()
