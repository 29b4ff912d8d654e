"""DeepLIFT's way back through norms: a vector times a function of its mean square, both taken apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from sightline.models.backward.custom import named, run, split
from sightline.models.backward.deeplift_rules import Both, Call, swapped, through, together


def scaled(x: Both, axes: tuple[int, ...], invert: Callable[[Tensor], Tensor]) -> Tensor:
    """Multiply vectors by what `invert` makes of their mean square; the way back, its value left to the call."""
    size = through(x, torch.square).each(lambda s: s.mean(dim=axes, keepdim=True))
    return together(torch.mul, x, through(size, invert)).image


def centred(x: Both, axes: tuple[int, ...]) -> Both:
    """Subtract the mean."""
    return x.each(lambda t: t - t.mean(dim=axes, keepdim=True))


def layer_norm(func: Callable[..., Any], call: Call, reference: Call) -> Tensor:
    """A layer norm: the centred values times the inverse of their deviation."""
    given = named(("input", "normalized_shape", "weight", "bias", "eps"), *call)
    axes, eps = tuple(range(-len(given["normalized_shape"]), 0)), given.get("eps", 1e-5)
    way = scaled(centred(_both(call, reference), axes), axes, lambda v: (v + eps).rsqrt())
    return swapped(run(func, *call), _weighted(way, given.get("weight")))


def rms_norm(func: Callable[..., Any], call: Call, reference: Call) -> Tensor:
    """A norm by the root of the mean square."""
    given = named(("input", "normalized_shape", "weight", "eps"), *call)
    axes = tuple(range(-len(given["normalized_shape"]), 0))
    eps = torch.finfo(given["input"].dtype).eps if given.get("eps") is None else given["eps"]
    way = scaled(_both(call, reference), axes, lambda v: (v + eps).rsqrt())
    return swapped(run(func, *call), _weighted(way, given.get("weight")))


def group_norm(func: Callable[..., Any], call: Call, reference: Call) -> Tensor:
    """A group norm: a layer norm of every group of channels."""
    given = named(("input", "num_groups", "weight", "bias", "eps"), *call)
    return _grouped(func, call, reference, given["num_groups"], given)


def instance_norm(func: Callable[..., Any], call: Call, reference: Call) -> Tensor:
    """An instance norm: a layer norm of every channel."""
    names = ("input", "running_mean", "running_var", "weight", "bias", "use_input_stats", "momentum", "eps")
    given = named(names, *call)
    if not given.get("use_input_stats", True):  # by its running statistics it is linear
        return func(*call[0], **call[1])  # type: ignore[no-any-return]
    return _grouped(func, call, reference, given["input"].shape[1], given)


def _grouped(func: Callable[..., Any], call: Call, reference: Call, groups: int, given: dict[str, Any]) -> Tensor:
    x, eps, weight = given["input"], given.get("eps", 1e-5), given.get("weight")
    grouped = _both(call, reference).each(lambda t: t.reshape(len(t), groups, -1))
    way = scaled(centred(grouped, (-1,)), (-1,), lambda v: (v + eps).rsqrt()).reshape(x.shape)
    return swapped(
        run(func, *call), _weighted(way, None if weight is None else weight.reshape(-1, *[1] * (x.ndim - 2)))
    )


def length(func: Callable[..., Any], call: Call, reference: Call) -> Tensor:
    """The Euclidean length of vectors."""
    given = named(("input", "p", "dim", "keepdim"), *call)
    if given.get("ord", given.get("p", 2)) not in (2, "fro", None) or given.get("dim") is None:
        return func(*call[0], **call[1])  # type: ignore[no-any-return]
    squares = through(_both(call, reference), torch.square)
    sums = squares.each(lambda s: s.sum(dim=given["dim"], keepdim=given.get("keepdim", False)))
    return swapped(run(func, *call), through(sums, torch.sqrt).image)


def unit(func: Callable[..., Any], call: Call, reference: Call) -> Tensor:
    """Vectors divided by their length."""
    given = named(("input", "p", "dim", "eps"), *call)
    if given.get("p", 2) != 2:
        return func(*call[0], **call[1])  # type: ignore[no-any-return]
    way = _unit(_both(call, reference), given.get("dim", 1), given.get("eps", 1e-12))
    return swapped(run(func, *call), way)


def cosine(func: Callable[..., Any], call: Call, reference: Call) -> Tensor:
    """The cosine between vectors and a constant."""
    given = named(("x1", "x2", "dim", "eps"), *call)
    dim, eps = given.get("dim", 1), given.get("eps", 1e-8)
    fixed = given["x2"] / given["x2"].norm(dim=dim, keepdim=True).clamp(min=eps)
    way = _unit(Both(given["x1"], reference[0][0]), dim, eps) * fixed
    return swapped(run(func, *call), way.sum(dim=dim))


def _unit(x: Both, dim: int, eps: float) -> Tensor:
    sums = through(x, torch.square).each(lambda s: s.sum(dim=dim, keepdim=True))
    return together(torch.mul, x, through(sums, lambda s: 1 / s.sqrt().clamp(min=eps))).image


def _both(call: Call, reference: Call) -> Both:
    return Both(split(*call)[0], split(*reference)[0])


def _weighted(way: Tensor, weight: Tensor | None) -> Tensor:
    return way if weight is None else way * weight.detach()
