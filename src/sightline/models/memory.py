"""Memory: what a model holds while it runs, and how many images at once fit into what is free.

`activation_memory` counts on the weightless copy of a model, once for each size of image, so that nothing has to run.
`images_that_fit` turns that into a batch size, and `LiveTensors` measures what really is held.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from sightline.models.passes import modules_of, weights_to_freeze
from sightline.models.signature import blank_logits
from sightline.models.survey import meta_copy
from sightline.types import Passes

if TYPE_CHECKING:
    from sightline.models.adapter import Adapter

Size = tuple[int, int]
GIB = 2**30
IMAGES = 16  # at once on a processor, where more gain nothing
# Bytes of activations, for each thread, of the images at once on a processor. Beyond it the C library returns what a
# layer frees to the system and asks for it anew, which costs up to half the time of a pass.
KEPT_BY_ALLOCATOR = 48 * 2**20
IMAGES_ON_DEVICE = 128  # at once on a GPU
SHARE = 0.5  # of the free memory that one batch may take: maps, gradients and the rest of the program need some too
PROCESSOR_LIMIT = 3 * GIB  # that one batch may take on a processor, however much is free
SMALL = 64 * 64  # pixels: a batch of images this small fits into any memory, and is not counted
ONE_PASS = 1.5  # passes up to which a method runs the image once
COPIES = 2  # of an image, and of the attention: the values and their gradients
CGROUP = Path("/sys/fs/cgroup")


class LiveTensors(TorchDispatchMode):
    """Measure the bytes of the tensors that are made inside and still held, and their largest sum, `peak`.

    Every storage counts once, whatever views there are of it. What was there before, such as weights and the images,
    does not count, nor do the scratch spaces of kernels. Tensors without contents count when `weightless`, and no
    others do.
    """

    def __init__(self, *, weightless: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.weightless = weightless
        self.held: int = 0
        self.peak: int = 0
        self._known: dict[int, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for tensor in _tensors((args, kwargs)):
            self._note(tensor, made_here=False)
        output = func(*args, **(kwargs or {}))
        for tensor in _tensors(output):
            self._note(tensor, made_here=True)
        return output

    def _note(self, tensor: Tensor, *, made_here: bool) -> None:
        if tensor.is_meta != self.weightless:
            return
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._known:
            return
        self._known[key] = size = storage.nbytes() if made_here else 0
        self.held += size
        self.peak = max(self.peak, self.held)
        weakref.finalize(storage, self._freed, key)

    def _freed(self, key: int) -> None:
        self.held -= self._known.pop(key)


def _tensors(values: Any) -> Iterator[Tensor]:
    return (leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor) and leaf.layout == torch.strided)


# ---- counted on the weightless copy ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ActivationMemory:
    """Bytes that one image takes in a model, beside its weights.

    Attributes:
        image: the image itself.
        forward: the most that is held at once when no graph is built.
        graph: the same when autograd's graph is kept for a backward pass, and while that runs.
        attention: the attention probabilities of all blocks, which fused attention does not store; 0 without any.
    """

    image: int
    forward: int
    graph: int
    attention: int = 0


def activation_memory(model: Adapter, size: Size | None = None) -> ActivationMemory | None:
    """Count what one image takes in a model; None where that cannot be told without running it.

    `size` is the image's height and width, by default those of the images last seen or the model's own. The count is
    made once for each size.
    """
    network = model.model
    if not isinstance(network, nn.Module):
        return None
    size = size or model.seen_size
    known = _counted.setdefault(network, {})
    key = (model.image_channels, *size, model.dtype)
    if key not in known:
        known[key] = _count(model, size)
    return known[key]


# What was counted, by model: an adapter lives for one call, a model for many.
_counted: weakref.WeakKeyDictionary[nn.Module, dict[Any, ActivationMemory | None]] = weakref.WeakKeyDictionary()


def _count(model: Adapter, size: Size) -> ActivationMemory | None:
    weightless = copy(model)
    try:
        with torch.inference_mode(False):
            weightless.model = meta_copy(model.model)
        unfrozen = set(model.model.parameters()) - set(weights_to_freeze(modules_of(model.model)))
        for own, copied in zip(model.model.parameters(), weightless.model.parameters(), strict=True):
            copied.requires_grad_(own.requires_grad and own in unfrozen)  # a layer whose weights want one keeps inputs
        with _FusedAttention() as fused:
            forward, graph = (_peak(weightless, size, graph=graph) for graph in (False, True))
    except Exception:  # a model may copy badly, or do what only tensors with contents can
        return None
    image = model.image_channels * size[0] * size[1] * model.dtype.itemsize
    return ActivationMemory(image, forward, graph, fused.probabilities // 2)  # seen in both runs


def _peak(weightless: Adapter, size: Size, *, graph: bool) -> int:
    tensors = LiveTensors(weightless=True)
    with tensors:
        blank_logits(weightless, size, "meta", graph=graph, backward=graph)
    return tensors.peak


class _FusedAttention(TorchFunctionMode):
    """Let a weightless model hold what fused attention holds, and add up the probabilities it does not store."""

    def __init__(self) -> None:
        super().__init__()
        self.probabilities = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not F.scaled_dot_product_attention or not args[0].is_meta:
            return func(*args, **(kwargs or {}))
        query, key, value = args[:3]
        self.probabilities += query.shape[:-1].numel() * key.shape[-2] * query.element_size()
        return _Attention.apply(query, key, value)  # type: ignore[no-untyped-call]


class _Attention(torch.autograd.Function):
    """Attention without contents: it keeps queries, keys, values and its output for the backward pass."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        output = query.new_empty(*query.shape[:-1], value.shape[-1])
        ctx.save_for_backward(query, key, value, output)
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        query, key, value, _ = ctx.saved_tensors
        return tuple(torch.empty_like(each) for each in (query, key, value))


def held(model: Adapter, *, forwards: float = 0.0, graphs: float = 0.0, attention: float = 0.0) -> int:
    """Return the bytes of so many forward passes and graphs of one image, and of the attention of all blocks.

    A transformer's graph is about ten times the tokens of every block. 0 where the model cannot be counted.
    """
    each = activation_memory(model)
    return 0 if each is None else int(forwards * each.forward + graphs * each.graph + attention * each.attention)


def estimated_peak(model: Adapter, passes: Passes, needs: frozenset[str] = frozenset()) -> int:
    """Estimate the bytes a method holds at once, beside the weights, while it explains one image.

    It is derived from what the method declares: a method of several forward passes runs as many images at once as the
    model's batch has; one with backward passes keeps the graph of the part of the model that these go through; one that
    needs attention keeps the probabilities, with a graph also their gradients. 0 where the model cannot be counted. A
    test holds it to the measured peak within a factor of two, for every method.
    """
    each = activation_memory(model)
    if each is None:
        return 0
    share = min(1.0, passes.backward / max(passes.forward, 1.0))  # of the model that a backward pass goes through
    copies = COPIES * share if share else 1.0
    attention = int(copies * each.attention) if "attention" in needs else 0
    running = max(each.forward, int(share * each.graph)) if passes.forward else 0
    one = max(COPIES * each.image, running + attention)
    if passes.forward <= ONE_PASS:
        return one
    rows = min(model.batch, math.ceil(passes.forward))
    return max(one, rows * (each.image + running + (attention if share else 0)) + (0 if share else attention))


# ---- what is free ---------------------------------------------------------------------------------------------------


def images_that_fit(model: Adapter, each: Callable[[], int] | None = None) -> int:
    """Return how many images at once a model can take: a power of two, so that it rarely changes.

    `each` says how many bytes one of them takes, by default as many as with a graph.

    On a processor at most 16, at most 3 GiB with a graph and 48 MiB for each thread without one, on a GPU at most 128;
    in both at most half of the memory that is free. Results do not depend on it.
    """
    device = model.device
    size = held(model, graphs=1) if each is None else each()
    if not size:
        return IMAGES
    if device.type != "cpu":
        return _power_of_two(free_memory(device) * SHARE / size, IMAGES_ON_DEVICE)
    counted = activation_memory(model)
    allowed = min(free_memory(device) * SHARE, PROCESSOR_LIMIT) / size
    if counted is not None and counted.forward:
        allowed = min(allowed, KEPT_BY_ALLOCATOR * torch.get_num_threads() / counted.forward)
    return _power_of_two(allowed, IMAGES)


def _power_of_two(allowed: float, most: int) -> int:
    """Return the largest power of two that is allowed, one at least."""
    return min(most, 1 << (max(1, int(allowed)).bit_length() - 1))


def free_memory(device: torch.device) -> float:
    """Return the bytes that can still be allocated on a device; infinite where nothing says it."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return float(free + cached)
    if device.type != "cpu":
        return float("inf")
    return min(_system_memory(), _container_memory(), _process_memory())


def _system_memory() -> float:
    """Return what the system has available."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return float("inf")
    numbers = dict(line.split(":", 1) for line in lines)
    return int(numbers["MemAvailable"].split()[0]) * 1024.0 if "MemAvailable" in numbers else float("inf")


def _container_memory() -> float:
    """Return what a container leaves, by its control group; files that were read and can be dropped are not in use."""
    names = ("memory.max", "memory.current", "memory.stat")
    try:
        limit, used, parts = ((CGROUP / name).read_text(encoding="ascii").strip() for name in names)
    except OSError:
        return float("inf")
    files = dict(line.split() for line in parts.splitlines()).get("inactive_file", "0")
    return float("inf") if limit == "max" else max(0.0, float(limit) - float(used) + float(files))


def _process_memory() -> float:
    """Return what the process may still allocate under its own limit, as ``ulimit -v`` sets it."""
    try:
        import resource
    except ImportError:  # Windows has none
        return float("inf")
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return float("inf")
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    return max(0.0, float(limit - pages * resource.getpagesize()))
