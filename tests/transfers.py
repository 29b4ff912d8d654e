"""A pretended device: counts what would make a GPU wait, and what would be sent to it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

READ = {"item", "tolist", "__bool__", "__int__", "__float__", "__index__", "__array__", "numpy", "cpu", "equal",
        "allclose", "nonzero", "argwhere", "masked_select", "unique", "unique_consecutive", "is_nonzero", "bincount",
        "__contains__"}  # fmt: skip
MADE = {"tensor", "as_tensor", "asarray", "from_numpy", "arange", "linspace", "zeros", "ones", "empty", "full", "eye",
        "rand", "randn", "randint", "randperm", "scalar_tensor"}  # fmt: skip
INDEX = {"__getitem__", "__setitem__", "index_put_"}


class PretendedDevice(TorchFunctionMode):
    """Take every tensor for one on a GPU, except those that are made without a device and what comes of them alone.

    Attributes:
        waits: calls in which Python reads a number of the device, or a shape depends on one; the device has to finish.
        sent: tensors of Python numbers, of the processor, or lists as an index, that go to the device. Random numbers
            are drawn on the processor, to be the same on every device, and are sent in one piece: they do not count.
    """

    def __init__(self) -> None:
        super().__init__()
        self.waits: Counter[str] = Counter()
        self.sent: Counter[str] = Counter()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = kwargs or {}
        name = getattr(func, "__name__", "")
        tensors = [leaf for leaf in tree_leaves((args, options)) if isinstance(leaf, Tensor)]
        self._count(name, args, options, tensors)
        output = func(*args, **options)
        if name in ("cpu", "to") and output is args[0]:
            output = output.view_as(output)  # the copy that there would be: where it lies is noted for it alone
        if self._on_processor(name, args, options, tensors):
            drawn = options.get("generator") is not None or any(getattr(x, "_drawn", False) for x in tensors)
            for made in tree_leaves(output):
                if isinstance(made, Tensor):
                    made._processor, made._drawn = True, drawn  # type: ignore[attr-defined]
        return output

    def _count(self, name: str, args: Any, options: dict[str, Any], tensors: list[Tensor]) -> None:
        on_device = [tensor for tensor in tensors if not getattr(tensor, "_processor", False)]
        to_processor = name == "to" and "cpu" in args
        of_a_mask = name == "where" and len(args) == 1
        if on_device and (name in READ or to_processor or of_a_mask):
            self.note(self.waits, name)
        elif name in INDEX and on_device and not getattr(args[0], "_processor", False):
            self._count_index(name, args[1])
        elif name in MADE and options.get("device") not in (None, "cpu") and name in ("tensor", "as_tensor", "asarray"):
            self.sent_from(name, [x for x in args[:1] if not isinstance(x, Tensor) or getattr(x, "_processor", False)])
        elif name == "to" and getattr(args[0], "_processor", False) and _moves(args[1:], options):
            self.sent_from(name, args[:1])

    def _count_index(self, name: str, index: Any) -> None:
        for part in index if isinstance(index, tuple) else (index,):
            if isinstance(part, Tensor) and part.dtype == torch.bool:
                self.note(self.waits, f"{name} by a mask")
            elif isinstance(part, list | tuple | range) or (isinstance(part, Tensor) and hasattr(part, "_processor")):
                self.note(self.sent, f"{name} by a list")

    def sent_from(self, name: str, values: Any) -> None:
        if values and not any(getattr(value, "_drawn", False) for value in values):
            self.note(self.sent, name)

    def note(self, counts: Counter[str], name: str) -> None:
        counts[name] += 1

    def _on_processor(self, name: str, args: Any, options: dict[str, Any], tensors: list[Tensor]) -> bool:
        if name in MADE and options.get("device") in (None, "cpu") and not tensors:
            return True
        if name == "cpu" or (name == "to" and "cpu" in args):
            return True
        if name == "to" and _moves(args[1:], options):
            return False
        return bool(tensors) and all(getattr(tensor, "_processor", False) for tensor in tensors)


def _moves(args: Any, options: dict[str, Any]) -> bool:
    """Tell whether arguments of `Tensor.to` name a device, or a tensor on one."""
    named = [*args, *options.values()]
    return any(
        isinstance(x, torch.device) or (isinstance(x, Tensor) and not getattr(x, "_processor", False)) for x in named
    )
