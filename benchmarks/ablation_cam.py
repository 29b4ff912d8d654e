"""Is Ablation-CAM faster when only the part of the model after the layer runs again?

The package grad-cam sends the image through the whole network once for every channel of the layer; sightline keeps the
layer's activation and runs what lies behind it. Both make the same map, which is checked first. Both run in one
process, in turn and repeated; what counts is the ratio of the medians. Run with ``python benchmarks/ablation_cam.py
[MODEL] [--layer NAME] [--size 224] [--repeats 3] [--batch 32] [--wanted 3]``; MODEL is a model id, by default
torchvision's resnet50 with random weights. Exit code 1 if the maps differ or the ratio is below what is wanted.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import sightline
from sightline.extras import repair_torchvision

TOLERANCE = 1e-4  # of maps scaled to [0, 1], in single precision


def timed(work: Callable[[], Tensor]) -> tuple[float, Tensor]:
    begun = time.perf_counter()
    found = work()
    return time.perf_counter() - begun, found


def to_unit(maps: Tensor) -> Tensor:
    """Scale to [0, 1] as grad-cam does."""
    maps = maps - maps.amin(dim=(1, 2), keepdim=True)
    return maps / (1e-7 + maps.amax(dim=(1, 2), keepdim=True))


def ours(model: sightline.Adapter, images: Tensor, layer: str | None, batch: int) -> Tensor:
    recipe = "ablation_cam" if layer is None else f"ablation_cam(layer={layer!r})"
    found = sightline.explain(model, images, recipe, target=0, batch_size=batch)
    low = to_unit(found.map.clamp(min=0))
    return to_unit(F.interpolate(low[:, None], found.grid.image, mode="bilinear")[:, 0])


def theirs(model: nn.Module, images: Tensor, layer: nn.Module, batch: int) -> Tensor:
    repair_torchvision()
    from pytorch_grad_cam import AblationCAM
    from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget

    with AblationCAM(model, [layer]) as cam:
        cam.batch_size = batch
        return torch.from_numpy(cam(images, [ClassifierOutputTarget(0)] * len(images)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="torchvision/resnet50")
    parser.add_argument("--layer", default=None, help="a module's name; by default the last feature map")
    parser.add_argument("--size", type=int, default=224, help="of the image, in pixels")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--wanted", type=float, default=3.0, help="the least ratio that is good enough")
    asked = parser.parse_args()

    torch.manual_seed(0)
    adapter = sightline.load(asked.model, pretrained=False)
    network, images = adapter.model.eval(), torch.randn(1, 3, asked.size, asked.size)
    module = dict(network.named_modules())[asked.layer or adapter.layer()]
    times: dict[str, list[float]] = {"sightline": [], "grad-cam": []}
    difference = 0.0
    ours(adapter, images, asked.layer, asked.batch)  # warm up
    with torch.no_grad():
        network(images)
    for _ in range(asked.repeats):
        mine, a = timed(lambda: ours(adapter, images, asked.layer, asked.batch))
        peer, b = timed(lambda: theirs(network, images, module, asked.batch))
        times["sightline"].append(mine)
        times["grad-cam"].append(peer)
        difference = max(difference, float((a - b).abs().max()))

    median = {name: statistics.median(taken) for name, taken in times.items()}
    ratio = median["grad-cam"] / median["sightline"]
    print(f"{adapter.name}, {asked.layer or adapter.layer()}, {asked.size} pixels, median of {asked.repeats}")
    print(f"sightline {median['sightline']:8.2f} s   {sightline.parse('ablation_cam').cost(adapter)}")
    print(f"grad-cam  {median['grad-cam']:8.2f} s   maps differ by {difference:.1e} at most")
    print(f"grad-cam takes {ratio:.1f} times as long; wanted is {asked.wanted:g}")
    sys.exit(0 if ratio >= asked.wanted and difference < TOLERANCE else 1)


if __name__ == "__main__":
    main()
