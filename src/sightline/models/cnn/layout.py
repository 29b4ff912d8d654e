"""How images lie in memory while a network runs: channel by channel, or the channels of a pixel side by side.

torch's kernels take both and give the same numbers to rounding. On a processor, networks with depthwise convolutions
take less time on images that lie channels last (``torch.channels_last``), others more; the format of the images goes on
from layer to layer, so that no weight has to be touched. A network that was written for the ordinary format alone, with
a ``.view`` where a ``.reshape`` would do, is run in that.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes

from sightline.models.passes import is_changed, is_guarded, modules_of

T = TypeVar("T")
REFUSAL = "view size is not compatible"  # what torch says of a view of memory in another order

# By model, as nothing is written onto it: whether channels last suits it, and whether it runs on such images at all.
_suited: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()
_takes: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()


def runs_channels_last(model: nn.Module, x: Tensor, shape: Sequence[int]) -> bool:
    """Tell whether a model runs on images or activations with their channels last: where it is faster, and it can.

    That was measured on processors in single precision alone: on a GPU, and in any other precision, nothing changes.
    Whoever calls the adapter directly, and not through `explain` or `evaluate`, gets what the model gives to the last
    digit. `shape` is that of an image, (channel, height, width).
    """
    if not is_guarded() or x.device.type != "cpu" or x.dtype != torch.float32 or x.ndim != 4:
        return False
    suited = _suited.get(model)
    if suited is None:
        suited = _suited[model] = has_depthwise(model)
    return suited and takes_channels_last(model, shape)


def has_depthwise(model: nn.Module) -> bool:
    """Tell whether a network has a depthwise convolution: one whose channels are convolved each by itself."""
    return any(
        isinstance(module, nn.Conv2d) and module.groups == module.in_channels > 1 for module in modules_of(model)
    )


def takes_channels_last(model: nn.Module, shape: Sequence[int]) -> bool:
    """Tell whether a model runs on images that lie channels last; tried once, on one blank image.

    `shape` is that of an image, (channel, height, width).
    """
    known = _takes.get(model)
    if known is None:
        known = _takes[model] = _tried(model, shape)
    return known


def _tried(model: nn.Module, shape: Sequence[int]) -> bool:
    """Run a copy without hooks that shares the weights; a weightless one would not say how its memory lies."""
    try:
        with (
            torch.inference_mode(False),
            torch.no_grad(),
            torch.random.fork_rng(devices=[]),
            _disable_current_modes(),
            torch._C.DisableTorchFunction(),
        ):
            _sharing_weights(model)(torch.zeros((1, *shape)).to(memory_format=torch.channels_last))
    except Exception:  # it refuses the format, or copies badly: then nothing is tried on the model itself
        return False
    return True


def _sharing_weights(model: nn.Module) -> nn.Module:
    """Return a copy in eval mode, without hooks, that has the same parameters, and buffers of its own."""
    memo: dict[int, Any] = {id(parameter): parameter for parameter in model.parameters()}
    for module in model.modules():
        for name, value in vars(module).items():
            if "_hooks" in name and isinstance(value, dict):
                memo[id(value)] = OrderedDict()
    return copy.deepcopy(model, memo).eval()


def in_its_layout(model: nn.Module, run: Callable[[Tensor], T], x: Tensor, shape: Sequence[int]) -> T:
    """Run a model, or a part of it, on images or activations in the memory format that suits it.

    One that refuses the format after all is remembered, and run again in the ordinary one; where its calls are watched,
    so that they must not be seen twice, the error is raised, and `in_either_layout` begins anew.
    """
    if not runs_channels_last(model, x, shape):
        return run(x)
    try:
        return run(laid_channels_last(x))
    except RuntimeError as error:
        if REFUSAL not in str(error):
            raise
        _takes[model] = False
        if is_changed():
            raise
    return run(x)


def in_either_layout(model: Any, work: Callable[[], T]) -> T:
    """Do something with a model; once more where it turned out meanwhile that it needs the ordinary format."""
    if not isinstance(model, nn.Module):
        return work()
    before = _takes.get(model)
    try:
        return work()
    except RuntimeError as error:
        if before is False or REFUSAL not in str(error) or _takes.get(model) is not False:
            raise
    return work()


def laid_channels_last(images: Tensor) -> Tensor:
    """Return images in the memory format channels last; a gradient comes back in the format they had."""
    if images.is_contiguous(memory_format=torch.channels_last):
        return images
    if not (images.requires_grad and torch.is_grad_enabled()):
        return images.contiguous(memory_format=torch.channels_last)
    laid: Tensor = _ChannelsLast.apply(images)  # type: ignore[no-untyped-call]
    return laid


class _ChannelsLast(torch.autograd.Function):
    """Change the memory format, and that of the gradient back."""

    @staticmethod
    def forward(ctx: Any, images: Tensor) -> Tensor:
        return images.clone(memory_format=torch.channels_last)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0].contiguous()
