"""Describe a model's forward as a sequence of steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from sightline.models.attention_layers import AttentionLayers

Run = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Step:
    """A part of a model's forward, run on what the step before it left.

    Attributes:
        name: of the cut after it, which is the name of the module that ends there.
        run: activation in, activation out.
        cut: whether it leaves a feature map.
        unit: whether a unit ends here: a residual block, a convolution with its ReLU and pool, a dense layer.
        channels_last: whether its activation is (batch, height, width, channel).
        tokens: whether its module itself leaves the cells as tokens, (batch, cell, channel).
        order: which token lies in each cell, row by row, where that is not the order of the tokens.
        writes: whether it may write into the activation it is given.
        module: the module it runs, where the cut has another name.
    """

    name: str
    run: Run
    cut: bool = True
    unit: bool = False
    channels_last: bool = False
    tokens: bool = False
    order: Tensor | None = None
    writes: bool = False
    module: str = ""


@dataclass(frozen=True, eq=False)
class Plan:
    """A model as steps whose composition is its forward.

    Attributes:
        steps: from the images to the logits.
        layers: its CAM layers, the default last.
        attention: its attention, where that can be followed from the output to the patches.
        no_attention: why not, as `Adapter.no_attention`.
    """

    steps: tuple[Step, ...]
    layers: tuple[str, ...]
    attention: AttentionLayers | None = None
    no_attention: str = ""


def step(name: str, module: nn.Module, **marks: Any) -> Step:
    """Run one module."""
    return Step(name, module, writes=writes(module), **marks)


def same(name: str, **marks: Any) -> Step:
    """Do nothing: name the activation after the stage that ends here."""
    return Step(name, lambda x: x, **marks)


def each(name: str, module: nn.Module, **marks: Any) -> Iterator[Step]:
    """Run the children of a sequence one by one; then, if it is a module that runs, the activation has its name too."""
    if not isinstance(module, nn.ModuleList) and type(module).forward is not nn.Sequential.forward:
        yield step(name, module, **marks)  # another module where a sequence was expected
        return
    for child, part in module.named_children():
        yield step(f"{name}.{child}", part, **marks)
    if not isinstance(module, nn.ModuleList):
        yield same(name, channels_last=marks.get("channels_last", False))


def on_tokens(module: nn.Module) -> Run:
    """Run a module that takes and leaves tokens on a map, (batch, height, width, channel)."""
    return lambda x: module(x.flatten(1, 2)).unflatten(1, x.shape[1:3])


def head(run: Run, *parts: nn.Module) -> Step:
    """Finish: from the last feature map to the logits."""
    return Step("head", run, cut=False, writes=any(map(writes, parts)))


def writes(module: nn.Module) -> bool:
    """Tell whether a module may write into what it is given."""
    return any(getattr(part, "inplace", False) is True for part in module.modules())


def strided(module: nn.Module) -> bool:
    """Tell whether a module has a convolution that makes its map smaller."""
    return any(isinstance(part, nn.Conv2d) and max(part.stride) > 1 for part in module.modules())


def before_strides(name: str, stages: nn.Module) -> list[str]:
    """Return the names of the stages after which the map gets smaller."""
    named = list(stages.named_children())
    return [f"{name}.{named[i][0]}" for i in range(len(named) - 1) if strided(named[i + 1][1])]
