"""Blank images, the neutral context of activation patching, and a cache of what is computed for them.

A blank image is the same for every image of a size, so what a model computes for it is cached per model: as long as the
model lives and its weights do not change. It is not counted among the passes of an image.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextvars import Context
from typing import Any, Literal, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from sightline.models.adapter import Adapter
from sightline.models.passes import modules_of
from sightline.perturb.fill import make_fill
from sightline.seeds import generators, normal

BlankName = Literal["white", "black", "mean", "noise", "blurred_noise"]
T = TypeVar("T")
CACHED = 4  # results per model; a comparison of blanks needs a few, and each holds all keys and values
_cache: WeakKeyDictionary[nn.Module, dict[Hashable, tuple[Hashable, Any]]] = WeakKeyDictionary()


def blank_image(model: Adapter, images: Tensor, name: BlankName, seed: int = 0) -> Tensor:
    """Return one normalised blank image of the size of `images`, shape (1, 3, height, width).

    ``mean`` is the mean colour of the training set, zero after normalisation; ``noise`` has mean zero and standard
    deviation one after normalisation, and ``blurred_noise`` is that noise after the blur of RISE: the paper names both
    and gives neither deviation nor kernel.
    """
    zero = torch.zeros_like(images[:1])
    if name in ("white", "black"):
        return make_fill(name)(model, zero)
    if name == "mean":
        return zero
    noise = normal(zero, generators(seed, zero)[0])
    return noise if name == "noise" else make_fill("blur")(model, noise)


def of_blank(model: Adapter, images: Tensor, name: BlankName, seed: int, what: str, work: Callable[[Tensor], T]) -> T:
    """Return `work(blank image)`, cached per model, blank, size and `what`; no passes are counted."""

    def run() -> T:
        return Context().run(work, blank_image(model, images, name, seed))  # a fresh context has no meters open

    modules = modules_of(model.model)
    if not modules or _may_change(modules):
        return run()
    where = (tuple(images.shape[-2:]), images.dtype, images.device, model.mean, model.std)
    key, weights = (what, name, seed, *where), _weights(modules)
    cached = _cache.setdefault(model.model, {})
    if key not in cached or cached[key][0] != weights:
        cached.pop(key, None)
        cached[key] = (weights, run())
        while len(cached) > CACHED:
            del cached[next(iter(cached))]
    result: T = cached[key][1]
    return result


def _may_change(modules: Sequence[nn.Module]) -> bool:
    """Tell whether a model may compute something else next time: it is training, or has hooks."""
    return any(m.training or m._forward_hooks or m._forward_pre_hooks for m in modules)


def _weights(modules: Sequence[nn.Module]) -> Hashable:
    """Return what changes when weights do: their addresses, how often they were written to, and a sample of them.

    The sample catches writes through ``.data``, which torch does not count.
    """
    tensors = [t for m in modules for t in (*m._parameters.values(), *m._buffers.values()) if t is not None]
    marks = tuple((t.data_ptr(), 0 if t.is_inference() else t._version) for t in tensors)
    return marks, *(torch.cat(some).cpu().view(torch.uint8).numpy().tobytes() for some in _samples(tensors))


def _samples(tensors: Sequence[Tensor]) -> list[list[Tensor]]:
    """Return some numbers of each tensor, those of one kind and place together."""
    samples: dict[Hashable, list[Tensor]] = {}
    for t in tensors:
        some = t.detach()
        step = max(1, t.numel() // 8)
        some = some.as_strided((-(-t.numel() // step),), (step,)) if t.is_contiguous() else some.reshape(-1)[::step]
        samples.setdefault((t.dtype, t.device), []).append(some)
    return list(samples.values())
