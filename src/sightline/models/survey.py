"""Measure a model without running it: shapes, floating-point operations and bottlenecks, on a weightless copy.

The copy's tensors have shapes and no contents (torch's ``meta`` device). It has no hooks and needs no memory, and the
model itself is not touched, so it can be surveyed at any time, also while the model is captured or edited.
"""

from __future__ import annotations

import copy
import math
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from sightline.models.capture import Change, Site, watch

Size = tuple[int, int]
CONVOLUTIONS = (nn.Conv2d, nn.ConvTranspose2d)
IMAGENET_SIZE = 224  # pixels a side that models are usually built for
IMAGE_SIZES = (IMAGENET_SIZE, 32, 64, 28, 96, 128, 256, 299, 384, 512)  # tried in turn where none is known
POOLS = (nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d, nn.AvgPool2d, nn.MaxPool2d, nn.Flatten)


def meta_copy(model: nn.Module) -> nn.Module:
    """Return a copy in eval mode, without hooks, whose parameters and buffers have no contents."""
    memo: dict[int, Any] = {}
    for tensor in [*model.parameters(), *model.buffers()]:
        empty = torch.empty_like(tensor, device="meta")
        memo[id(tensor)] = nn.Parameter(empty, requires_grad=False) if isinstance(tensor, nn.Parameter) else empty
    for module in model.modules():
        for name, value in vars(module).items():
            if "_hooks" in name and isinstance(value, dict):
                memo[id(value)] = OrderedDict()
    copied = copy.deepcopy(model, memo).eval()
    for module in copied.modules():
        for flag in ("grad_checkpointing", "gradient_checkpointing"):
            if getattr(module, flag, False) is True:
                setattr(module, flag, False)  # hooks miss what is checkpointed
    return copied


@dataclass(frozen=True, slots=True)
class StepMeasurement:
    """The activation's shape for one image after a step, and the floating-point operations done so far."""

    shape: tuple[int, ...]
    work: int


def measure_steps(steps: Sequence[Callable[[Tensor], Tensor]], image: Tensor) -> tuple[StepMeasurement, ...]:
    """Run one image through the steps of a model, and measure after each."""
    measured: list[StepMeasurement] = []
    with _counting() as counter, torch.no_grad():
        for run in steps:
            image = run(image)
            measured.append(StepMeasurement(tuple(image.shape), counter.get_total_flops()))
    return tuple(measured)


@dataclass(frozen=True, slots=True)
class ModuleOutput:
    """The output of a module, or the input of a convolution or a pool, as it was measured.

    Attributes:
        name: the module's, or that and ``.input`` for what enters a convolution or a pool.
        module: its class; plain `nn.Module` for an input.
        shape: of its output for one image.
        tensor: a number, the same for modules that return the same tensor.
        work: floating-point operations that the whole model has done by then.
        bottleneck: whether every path from the image to the logits passes here, and the module runs once.
    """

    name: str
    module: type[nn.Module]
    shape: tuple[int, ...]
    tensor: int
    work: int
    bottleneck: bool


@dataclass(frozen=True, slots=True)
class Survey:
    """The outputs measured, in order; the operations of the whole model, and how many classes it has."""

    outputs: tuple[ModuleOutput, ...]
    work: int
    classes: int


def module_sites(model: nn.Module) -> dict[str, Site]:
    """Return the output of every module that can run, by name."""
    idle = nn.Module.forward  # of modules that only hold others
    return {name: Site(part) for name, part in model.named_modules() if name and type(part).forward is not idle}


def map_sites(model: nn.Module) -> dict[str, Site]:
    """Return the output of every module as a site, and what enters each convolution and each pool.

    A ReLU that is a function, or a module used several times, has no output of its own to capture; the map it leaves is
    the input of the next convolution or pool.
    """
    sites: dict[str, Site] = {}
    for name, site in module_sites(model).items():
        if isinstance(site.module, CONVOLUTIONS + POOLS):
            sites[f"{name}.input"] = Site(site.module, "input")
        sites[name] = site
    return sites


def survey_modules(model: nn.Module, image: Tensor, logits: Callable[[Any], Tensor]) -> Survey:
    """Run a model on one image, and measure where each module ends, each convolution and each pool begins."""
    sites = map_sites(model)
    image = image.requires_grad_()
    tensors: dict[Any, int] = {}
    outputs: list[tuple[str, tuple[int, ...], int, Any, int]] = []

    def reader(name: str) -> Change:
        def read(value: Tensor) -> Tensor:
            if not isinstance(value, Tensor) or not value.requires_grad:  # a module may return anything
                return value
            number = tensors.setdefault((value.grad_fn, value.output_nr), len(tensors))
            # what reads the copy is what would read the tensor that an edit puts here
            copied = value.clone()
            tensors[copied.grad_fn, 0] = number
            outputs.append((name, tuple(value.shape), number, copied.grad_fn, counter.get_total_flops()))
            return copied

        return read

    with _counting() as counter, torch.enable_grad(), watch(sites, {name: reader(name) for name in sites}):
        output = logits(model(image))
    narrow = _bottlenecks(image, output)
    runs = Counter(name for name, *_ in outputs)
    measured = [
        ModuleOutput(name, _module_type(sites[name]), shape, number, work, runs[name] == 1 and node in narrow)
        for name, shape, number, node, work in outputs
    ]
    return Survey(tuple(measured), counter.get_total_flops(), output.shape[-1])


def _module_type(site: Site) -> type[nn.Module]:
    return nn.Module if site.place == "input" else type(site.module)


@contextmanager
def _counting() -> Iterator[FlopCounterMode]:
    """Count floating-point operations, outside inference mode, and leave the random numbers where they were."""
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.random.fork_rng(devices=[]))
        counter = FlopCounterMode(display=False)
        counter.mod_tracker = _NoModules()  # type: ignore[assignment]
        yield stack.enter_context(counter)


class _NoModules:
    """In place of torch's tracker of modules, whose hooks are global: they would run in the models of other threads."""

    parents = frozenset({"Global"})

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_error: Any) -> None:
        return None


def _bottlenecks(image: Tensor, output: Tensor) -> set[Any]:
    """Return the nodes of autograd's graph that every path from the image to the output goes through.

    With the graph laid out so that every edge points forward, a node is on every path when no edge jumps over it.
    """
    order, edges = _paths(image, output)
    position = {node: index for index, node in enumerate(order)}
    jumps = [0] * (len(order) + 1)
    for earlier, later in edges:
        jumps[position[earlier] + 1] += 1
        jumps[position[later]] -= 1
    return {node for node, over in zip(order, accumulate(jumps), strict=False) if over == 0}


def _paths(image: Tensor, output: Tensor) -> tuple[list[Any], list[tuple[Any, Any]]]:
    """Return the graph's nodes on paths from the image to the output, earliest first, and the edges among them."""
    blank_images: dict[Any, bool] = {}  # does it lead back to the image?
    order: list[Any] = []
    stack: list[tuple[Any, bool]] = [(output.grad_fn, False)]
    while stack:
        node, done = stack.pop()
        if node is None or (node in blank_images and not done):
            continue
        if done:
            blank_images[node] |= any(blank_images.get(before, False) for before, _ in node.next_functions)
            order.extend([node] if blank_images[node] else [])
        else:
            blank_images[node] = getattr(node, "variable", None) is image
            stack.append((node, True))
            stack.extend((before, False) for before, _ in node.next_functions)
    edges = [(before, node) for node in order for before, _ in node.next_functions if blank_images.get(before, False)]
    return order, edges


def keeps_channels_last(shape: Sequence[int], image: Size) -> bool:
    """Tell from the shape of an activation whether its channels come last: cells lie side by side as the pixels do."""
    if len(shape) != 4:
        return False

    def skew(height: int, width: int) -> float:
        return abs(math.log(height / width) - math.log(image[0] / image[1]))

    _, a, b, c = shape
    return skew(a, b) < skew(b, c)
