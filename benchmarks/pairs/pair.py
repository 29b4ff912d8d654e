"""What is measured: a method or metric of sightline beside the same one of another package, on one model and picture.

A pair is a name of the registry, a recipe, a peer, and for each side a function from a setting to the job that is
timed. Whatever either side prepares once for all pictures, such as an explainer object, is made outside the job.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import sightline
from sightline.models.passes import in_batches
from sightline.recipe import parse_metric
from sightline.types import Attribution, Passes

Make = Callable[["Setting"], Callable[[], Any]]
EVERY = ("vit", "cnn")


@dataclass(eq=False)
class Setting:
    """A model, one picture or several of them, and how many passes a method that samples may spend.

    Attributes:
        adapter: the model.
        images: normalised.
        target: the class.
        count: steps, samples, windows.
    """

    adapter: Any
    images: Tensor
    target: int
    count: int

    @property
    def network(self) -> nn.Module:
        network: nn.Module = self.adapter.model
        return network

    @property
    def kind(self) -> str:
        return "vit" if self.adapter.kind == "transformer" else "cnn"

    @property
    def layer(self) -> nn.Module:
        """The module that class activation maps look at."""
        module: nn.Module = self.adapter.sites[self.adapter.layer()].module
        return module

    @property
    def leaf(self) -> Tensor:
        """The images as a tensor of their own that a gradient can be taken at."""
        return self.images.clone().requires_grad_()

    @cached_property
    def maps(self) -> Tensor:
        """Maps for metrics to judge, (batch, height, width): every pixel another value."""
        return torch.rand(len(self.images), *self.images.shape[2:], generator=torch.Generator().manual_seed(1))

    @cached_property
    def masks(self) -> Tensor:
        """A square of evidence in the middle."""
        masks = torch.zeros(self.maps.shape, dtype=torch.long)
        height, width = self.maps.shape[1:]
        masks[:, height // 4 : -height // 4, width // 4 : -width // 4] = 1
        return masks

    def segments(self, rows: int, columns: int) -> Tensor:
        """Return the labels of a grid of superpixels."""
        height, width = self.images.shape[2:]
        down = torch.arange(height) * rows // height
        across = torch.arange(width) * columns // width
        return down[:, None] * columns + across

    def reshape(self, tokens: Tensor) -> Tensor:
        """Lay the tokens of a transformer on their grid, as grad-cam wants it."""
        grid = self.adapter.grid_of(self.images)
        return tokens[:, grid.prefix :].transpose(1, 2).unflatten(-1, (grid.height, grid.width))


@dataclass(frozen=True)
class Pair:
    """A method or metric, and a peer's.

    Attributes:
        recipe: in sightline; ``{count}`` stands for the setting's, ``{samples}`` for four times it,
            ``{draws}`` for as many with the empty and the full coalition among them, ``{fewer}`` for the
            step of a curve with three times as many steps, ``{few}`` for one with twelve times as many, ``{side}`` for
            a quarter of the image's side, ``{layer}`` for the layer of class activation maps.
        peer: package and name there.
        theirs: makes the peer's job.
        ours: makes our job; by default `explain` with the recipe.
        kinds: of model that both can do.
        shown: turns what our job returns into what the peer's returns.
        differs: why the two sides cannot be compared number by number; empty where they are.
        bound: how far they may differ, of the largest number.
        batch: how many images at once, where the peer takes another number than the model.
        bare: whether the passes of the model are nearly all there is to do.
        long: whether it takes minutes on a large layer, and is left out unless asked for.
        reason: why a figure is not what one would want.
    """

    recipe: str
    peer: str
    theirs: Make
    ours: Make | None = None
    kinds: tuple[str, ...] = EVERY
    shown: Callable[[Any], Tensor] = lambda found: found.map
    differs: str = ""
    bound: float = 1e-4
    batch: int | None = None
    bare: bool = False
    long: bool = False
    reason: str = ""

    @property
    def name(self) -> str:
        return self.recipe.partition("(")[0]

    def text(self, setting: Setting) -> str:
        """Return the recipe with its numbers."""
        side, area = setting.images.shape[-1], setting.images.shape[-2] * setting.images.shape[-1]
        numbers: dict[str, Any] = {
            "count": setting.count,
            "samples": 4 * setting.count,
            "draws": 4 * setting.count - 2,
            "side": side // 4,
        }
        steps = {"fewer": 3, "few": 12}
        numbers |= {name: -(-area // (times * setting.count)) for name, times in steps.items()}
        numbers |= {"layer": setting.adapter.layer()}
        return reduce(_filled, numbers.items(), self.recipe)

    def job(self, setting: Setting) -> Callable[[], Any]:
        """Return our job."""
        if self.ours is not None:
            return self.ours(setting)
        recipe = self.text(setting)
        model = setting.adapter if self.batch is None else setting.adapter.with_facts(batch=self.batch)
        return lambda: sightline.explain(model, setting.images, recipe, target=setting.target)

    def passes(self, setting: Setting) -> Passes:
        """Return the passes that our side declares, for all images."""
        metric = self.name in sightline.METRICS
        built = parse_metric(self.text(setting)) if metric else sightline.parse(self.text(setting))
        return built.cost(setting.adapter) * len(setting.images)  # type: ignore[no-any-return]


def _filled(recipe: str, number: tuple[str, Any]) -> str:
    return recipe.replace(f"{{{number[0]}}}", str(number[1]))


def bare_passes(setting: Setting, pair: Pair) -> Callable[[], None]:
    """Return a job that spends as many passes as our side, as many images at once, and does nothing else."""
    passes = pair.passes(setting)
    forward, backward = round(passes.forward), round(passes.backward)
    size = min(max(forward, 1), pair.batch or setting.adapter.batch)
    batch = setting.images[:1].expand(size, -1, -1, -1).contiguous()

    def work(rows: slice) -> None:
        with_graph = rows.start >= forward - backward  # where there are fewer backward passes, the last ones have them
        pixels = batch[: rows.stop - rows.start].detach().requires_grad_(with_graph)
        with torch.set_grad_enabled(with_graph):
            score = setting.network(pixels)[:, setting.target].sum()
        if with_graph:
            torch.autograd.grad(score, pixels)

    return lambda: in_batches(work, forward, size if backward in (0, forward) else len(setting.images)) and None


def unit(maps: Tensor) -> Tensor:
    """Scale maps to [0, 1] as grad-cam does."""
    maps = maps - maps.amin(dim=(1, 2), keepdim=True)
    return maps / (1e-7 + maps.amax(dim=(1, 2), keepdim=True))


def as_grad_cam_shows(found: Attribution) -> Tensor:
    """Rectify and scale a map at image size."""
    low = unit(found.map.clamp(min=0))
    return unit(F.interpolate(low[:, None], found.grid.image, mode="bilinear")[:, 0])
