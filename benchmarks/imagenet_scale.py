"""What ImageNet x 60 methods costs: passes as declared and shared, seconds of a pass here, hours on GPUs by assumption.

::

    python benchmarks/imagenet_scale.py                          # the numbers of docs/guide/imagenet_scale.md
    python benchmarks/imagenet_scale.py --gpu-forward 2500       # with the throughput that you measured on your GPU

Passes of methods and metrics are those that they declare for the model, which conformance tests compare with those that
are run. What methods of a chunk share is measured: all of them run on two images inside one `SharedPasses`, on
`--shared-model`, an untrained model of the same depth. Processor seconds of a forward pass, and of one with a backward
pass, are medians over batches of 8. Days on GPUs are an extrapolation: a forward pass of one image takes 1 /
`--gpu-forward` seconds, a backward pass twice that, and workers are busy as in `benchmarks/shared_work.py`. No GPU was
at hand to measure either.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from typing import Any

import torch

import sightline
from sightline.bench.panels import read_plan_file
from sightline.models.passes import SharedPasses, sharing
from sightline.recipe import parse, parse_metric
from sightline.types import Passes

IMAGES, CURVES = 50_000, 1_000
WITHOUT_MAP = {"single_deletion"}  # metrics whose passes do not depend on the map


def method_passes(model: Any, recipes: tuple[str, ...]) -> Passes:
    """Return what all methods declare together, per image."""
    return sum((parse(recipe).cost(model) for recipe in recipes), Passes())


def shared_share(model: Any, recipes: tuple[str, ...]) -> tuple[float, float]:
    """Return the share of forward and of backward passes that methods of the same images do not run again."""
    images = torch.randn(2, 3, *model.default_size, generator=torch.Generator().manual_seed(0))
    passes, spent = SharedPasses(), Passes()
    for recipe in recipes:
        with sharing(images, passes):
            spent += sightline.explain(model, images, recipe, target=torch.tensor([1, 2])).passes
    return passes.saved.forward / spent.forward, passes.saved.backward / spent.backward


def metric_passes(model: Any, metrics: tuple[str, ...], methods: int) -> tuple[float, float]:
    """Return the forward passes of the metrics per image and method as declared, and per image of all as they are run.

    The whole image is run once for all, and so is what does not depend on the map.
    """
    costs = {metric: parse_metric(metric).cost(model).forward for metric in metrics}
    alone = sum(costs.values()) - (len(costs) - 1)
    once = {metric: cost for metric, cost in costs.items() if metric.partition("(")[0] in WITHOUT_MAP}
    each = sum(cost - 1 for metric, cost in costs.items() if metric not in once)
    return alone, 1 + sum(cost - 1 for cost in once.values()) + methods * each


def seconds_of_passes(model: Any, repeats: int) -> tuple[float, float]:
    """Return the processor seconds of a forward pass and of one with a backward pass, per image."""
    images = torch.randn(8, 3, *model.default_size, generator=torch.Generator().manual_seed(0))
    forward, both = [], []
    for _ in range(repeats):
        begun = time.process_time()
        model.predict(images)
        forward.append(time.process_time() - begun)
        begun = time.process_time()
        pixels = images.clone().requires_grad_()
        torch.autograd.grad(model(pixels)[:, 0].sum(), pixels)
        both.append(time.process_time() - begun)
    return statistics.median(forward) / len(images), statistics.median(both) / len(images)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gpu-forward", type=float, default=1000.0, help="images a second on one GPU, an assumption")
    parser.add_argument("--utilisation", type=float, default=0.97, help="as shared_work.py finds it")
    parser.add_argument("--shared-model", default="timm/vit_tiny_patch16_224")
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    panels = {panel.name: panel.plan for panel in read_plan_file("imagenet-60").panels}
    model = sightline.load(
        panels["all"].models[0], pretrained=False
    )  # what a pass costs does not depend on its weights
    recipes = panels["all"].expanded().recipes
    declared = method_passes(model, recipes)
    saved = shared_share(sightline.load(given.shared_model, pretrained=False), recipes)
    run = Passes(declared.forward * (1 - saved[0]), declared.backward * (1 - saved[1]))
    forward, both = seconds_of_passes(model, given.repeats)
    print(f"{len(recipes)} methods: {declared.forward:.0f} forward, {declared.backward:.0f} backward declared;")
    print(f"{run.forward:.0f} and {run.backward:.0f} are run: {saved[0]:.0%} and {saved[1]:.0%} are shared")
    print(f"a forward pass takes {forward:.2f} s of a processor here, {both:.2f} s with a backward pass")
    total = 0.0
    for name, images in (("all", IMAGES), ("curves", CURVES)):
        alone, once = metric_passes(model, panels[name].expanded().metrics, len(recipes))
        weight = run.forward + 2 * run.backward + once  # in forward passes
        before = declared.forward + 2 * declared.backward + len(recipes) * alone
        total += images * weight
        print(f"{name}: {images:,} images, metrics {alone:.0f} forward a map; {weight:,.0f} forward passes an image")
        print(f"    in all, a backward pass counted twice, {weight / before:.2f} of those without sharing")
        print(f"    {images * (run.forward + once) * forward / 86400:,.0f} + ", end="")
        print(f"{images * run.backward * (both - forward) / 86400:,.0f} days of one processor here")
    for gpus in (1, 8, 64):
        hours = total / given.gpu_forward / given.utilisation / gpus / 3600
        print(f"{gpus:3} GPUs of {given.gpu_forward:,.0f} images a second each: {hours:,.1f} hours for both panels")


if __name__ == "__main__":
    main()
