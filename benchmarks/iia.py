"""Is a double integral cheaper than integrated gradients with the same number of steps?

IIA2 interpolates image and last feature map, ten points each; its trunk runs without a graph and nothing before the
last feature map is differentiated. Both run in one process, in turn and repeated; what counts is the ratio of the
medians. Run with ``python benchmarks/iia.py [MODEL] [--steps 10] [--repeats 7] [--images 1]``; MODEL is a model id, by
default timm's resnet18 with random weights.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch
from torch import Tensor

import sightline


def seconds(model: sightline.Adapter, images: Tensor, recipe: str) -> float:
    begun = time.process_time()
    sightline.explain(model, images, recipe, target=0)
    return time.process_time() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="timm/resnet18")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--images", type=int, default=1)
    asked = parser.parse_args()

    model = sightline.load(asked.model, pretrained=False)
    images = torch.randn(asked.images, 3, *(model.input_size or (224, 224)))
    recipes = [f"{name}(steps={asked.steps})" for name in ("ig", "iia2", "img", "act")]
    for recipe in recipes:
        seconds(model, images, recipe)  # warm up
    times: dict[str, list[float]] = {recipe: [] for recipe in recipes}
    for _ in range(asked.repeats):
        for recipe in recipes:
            times[recipe].append(seconds(model, images, recipe))

    median = {recipe: statistics.median(taken) for recipe, taken in times.items()}
    print(f"{model.name}, {asked.images} image(s), median of {asked.repeats}, against {recipes[0]}")
    for recipe in recipes:
        passes = sightline.parse(recipe).cost(model)
        print(f"{recipe:16} {median[recipe] / median[recipes[0]]:6.3f} ×   {passes} per image")


if __name__ == "__main__":
    main()
