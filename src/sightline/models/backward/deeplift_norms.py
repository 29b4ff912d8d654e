"""DeepLIFT's rules for norms: a vector times a function of its mean square, each with its own rule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from sightline.models.backward.custom import custom_backward, depends_on_image, named, run, split_input
from sightline.models.backward.deeplift_rules import (
    CHANNELS_LAST,
    Call,
    Paired,
    elementwise,
    normalised,
    order_in_memory,
    square,
    with_backward_of,
)

BATCH_NORM = ("input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps")


def scaled(x: Paired, axes: tuple[int, ...], invert: Callable[[Tensor], Tensor]) -> Tensor:
    """Multiply vectors by what `invert` makes of their mean square; for its backward, the call has the value."""
    size = square(x).apply(lambda s: s.mean(dim=axes, keepdim=True))
    return normalised(x, elementwise(size, invert)).image


def centred(x: Paired, axes: tuple[int, ...]) -> Paired:
    """Subtract the mean."""
    return x.apply(lambda t: t - t.mean(dim=axes, keepdim=True))


def batch_norm(func: Callable[..., Any], call: Call) -> Tensor:
    """A batch norm; by its running statistics it is linear, and its backward a product with each channel's scale.

    Autograd's own backward sums over the batch whatever it is asked for, which takes several times as long. Channels
    last, torch's own forward takes longer than a product and a sum.
    """
    given = named(BATCH_NORM, *call)
    values: list[Any] = [given.get(name) for name in BATCH_NORM[:5]]
    x, mean, variance, weight, bias = values
    fixed = mean, variance, weight, bias
    if given.get("training") or mean is None or not depends_on_image(x) or any(map(depends_on_image, fixed)):
        return func(*call[0], **call[1])  # type: ignore[no-any-return]
    along = (-1, *[1] * (x.ndim - 2))
    scale = (variance + given.get("eps", 1e-5)).rsqrt_()
    scale = scale if weight is None else scale.mul_(weight.detach())
    if order_in_memory(x) == CHANNELS_LAST:
        shift = -mean * scale if bias is None else torch.addcmul(bias.detach(), mean, scale, value=-1)
        return torch.addcmul(shift.to(x.dtype).view(along), x, scale.to(x.dtype).view(along))
    return custom_backward(
        lambda: func(**given | {"input": x.detach()}),
        lambda gradient, scale: (gradient * scale,),
        x,
        saved=(scale.to(x.dtype).view(along),),
    )


def layer_norm(func: Callable[..., Any], call: Call, baseline: Call) -> Tensor:
    """A layer norm: the centred values times the inverse of their deviation."""
    given = named(("input", "normalized_shape", "weight", "bias", "eps"), *call)
    axes, eps = tuple(range(-len(given["normalized_shape"]), 0)), given.get("eps", 1e-5)
    surrogate = scaled(centred(_paired(call, baseline), axes), axes, lambda v: (v + eps).rsqrt())
    return with_backward_of(run(func, *call), _weighted(surrogate, given.get("weight")))


def rms_norm(func: Callable[..., Any], call: Call, baseline: Call) -> Tensor:
    """A norm by the root of the mean square."""
    given = named(("input", "normalized_shape", "weight", "eps"), *call)
    axes = tuple(range(-len(given["normalized_shape"]), 0))
    eps = torch.finfo(given["input"].dtype).eps if given.get("eps") is None else given["eps"]
    surrogate = scaled(_paired(call, baseline), axes, lambda v: (v + eps).rsqrt())
    return with_backward_of(run(func, *call), _weighted(surrogate, given.get("weight")))


def group_norm(func: Callable[..., Any], call: Call, baseline: Call) -> Tensor:
    """A group norm: a layer norm of every group of channels."""
    given = named(("input", "num_groups", "weight", "bias", "eps"), *call)
    return _grouped(func, call, baseline, given["num_groups"], given)


def instance_norm(func: Callable[..., Any], call: Call, baseline: Call) -> Tensor:
    """An instance norm: a layer norm of every channel."""
    names = ("input", "running_mean", "running_var", "weight", "bias", "use_input_stats", "momentum", "eps")
    given = named(names, *call)
    if not given.get("use_input_stats", True):  # by its running statistics it is linear
        return func(*call[0], **call[1])  # type: ignore[no-any-return]
    return _grouped(func, call, baseline, given["input"].shape[1], given)


def _grouped(func: Callable[..., Any], call: Call, baseline: Call, groups: int, given: dict[str, Any]) -> Tensor:
    x, eps, weight = given["input"], given.get("eps", 1e-5), given.get("weight")
    grouped = _paired(call, baseline).apply(lambda t: t.reshape(len(t), groups, -1))
    surrogate = scaled(centred(grouped, (-1,)), (-1,), lambda v: (v + eps).rsqrt()).reshape(x.shape)
    return with_backward_of(
        run(func, *call), _weighted(surrogate, None if weight is None else weight.reshape(-1, *[1] * (x.ndim - 2)))
    )


def length(func: Callable[..., Any], call: Call, baseline: Call) -> Tensor:
    """The Euclidean length of vectors."""
    given = named(("input", "p", "dim", "keepdim"), *call)
    if given.get("ord", given.get("p", 2)) not in (2, "fro", None) or given.get("dim") is None:
        return func(*call[0], **call[1])  # type: ignore[no-any-return]
    squares = square(_paired(call, baseline))
    sums = squares.apply(lambda s: s.sum(dim=given["dim"], keepdim=given.get("keepdim", False)))
    return with_backward_of(run(func, *call), elementwise(sums, torch.sqrt).image)


def unit(func: Callable[..., Any], call: Call, baseline: Call) -> Tensor:
    """Vectors divided by their length."""
    given = named(("input", "p", "dim", "eps"), *call)
    if given.get("p", 2) != 2:
        return func(*call[0], **call[1])  # type: ignore[no-any-return]
    surrogate = _unit(_paired(call, baseline), given.get("dim", 1), given.get("eps", 1e-12))
    return with_backward_of(run(func, *call), surrogate)


def cosine(func: Callable[..., Any], call: Call, baseline: Call) -> Tensor:
    """The cosine between vectors and a constant."""
    given = named(("x1", "x2", "dim", "eps"), *call)
    dim, eps = given.get("dim", 1), given.get("eps", 1e-8)
    fixed = given["x2"] / given["x2"].norm(dim=dim, keepdim=True).clamp(min=eps)
    surrogate = _unit(Paired(given["x1"], baseline[0][0]), dim, eps) * fixed
    return with_backward_of(run(func, *call), surrogate.sum(dim=dim))


def _unit(x: Paired, dim: int, eps: float) -> Tensor:
    sums = square(x).apply(lambda s: s.sum(dim=dim, keepdim=True))
    return normalised(x, elementwise(sums, lambda s: 1 / s.sqrt().clamp(min=eps))).image


def _paired(call: Call, baseline: Call) -> Paired:
    return Paired(split_input(*call)[0], split_input(*baseline)[0])


def _weighted(surrogate: Tensor, weight: Tensor | None) -> Tensor:
    return surrogate if weight is None else surrogate * weight.detach()
