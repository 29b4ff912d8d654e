"""What the numbers of a model are, and how they become probabilities.

An output is what the user says it is, else what the library's configuration says (facts.py), else what the end of the
network says: a last sigmoid or softmax is read off autograd's graph, never guessed from values.
"""

from __future__ import annotations

import re
import warnings
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from torch import Tensor, nn

from sightline.errors import InputError, TargetError, UnsupportedModel
from sightline.models.facts import IMAGE_SIZES
from sightline.models.passes import spend
from sightline.models.survey import meta_copy
from sightline.registry import unknown
from sightline.types import Link, Output

if TYPE_CHECKING:
    from sightline.models.adapter import Adapter

Activation = Literal["softmax", "sigmoid"]
WITHOUT_PROBABILITIES: dict[Output, str] = {
    "value": "a value",
    "embedding": "an embedding",
    "dense": "a class per pixel",
    "boxes": "boxes",
}
# Nodes of autograd's graph that only reshape, convert or pick values: a probability stays one.
_RESHAPING = frozenset({
    "Alias", "Clone", "Index", "IndexSelect", "Permute", "ReshapeAlias", "Select", "Slice", "Squeeze", "T", "ToCopy",
    "Transpose", "UnsafeView", "Unsqueeze", "View",
})  # fmt: skip


def check_output(output: str | None, link: str | None) -> Output | None:
    """Refuse words for an output or a link that do not exist or contradict each other; return the output."""
    if output is not None and output not in get_args(Output):
        raise InputError(
            unknown(output, "output", get_args(Output), otherwise=f"there are {', '.join(get_args(Output))}")
        )
    if link is not None and link not in get_args(Link):
        raise InputError(unknown(link, "link", get_args(Link), otherwise=f"there are {', '.join(get_args(Link))}"))
    if output is None and link == "sigmoid":
        return "sigmoid"
    said = output or "softmax"
    if link is not None and (said in WITHOUT_PROBABILITIES or link not in (said, "identity")):
        raise InputError(
            f"got output={said!r} with link={link!r}; a link says how logits become probabilities: "
            "softmax with output='softmax', sigmoid with output='sigmoid', identity with either"
        )
    return output  # type: ignore[return-value]  # one of the words


@dataclass(frozen=True, slots=True)
class Ending:
    """How a network ends.

    Attributes:
        activation: softmax or sigmoid where its last operation is one, else None.
        size: how many numbers it returns for an image; None where it could not be run.
    """

    activation: Activation | None = None
    size: int | None = None

    @property
    def output(self) -> Output:
        """The output that this ending means where nothing else says what it is."""
        several = self.size is not None and self.size > 1  # a single sigmoid may be a bounded regression as well
        return "sigmoid" if self.activation == "sigmoid" and several else "softmax"


def read_ending(model: Adapter, size: tuple[int, int] | None) -> Ending:
    """Read how a network ends off one image without contents on its weightless copy, or off a blank one on itself.

    Only the latter counts as a pass. Nothing can be read of a function. `size` is that of the images the model takes,
    where it is known.
    """
    if not isinstance(model.model, nn.Module):
        return Ending()
    squares = [(side, side) for side in IMAGE_SIZES]
    sizes = squares if size is None else [size, *squares]
    try:
        weightless = copy(model)
        with torch.inference_mode(False):
            weightless.model = meta_copy(model.model)
    except Exception:  # a model may copy badly: then it runs itself
        return _read_by_running(model, sizes[0])
    for tried in sizes:
        try:
            logits = _blank_logits(weightless, tried, "meta")
        except UnsupportedModel:  # it returns no logits
            return Ending()
        except Exception:  # another size, or what only tensors with contents can do
            continue
        return Ending(final_activation(logits), logits.shape[-1])
    return _read_by_running(model, sizes[0])


def _read_by_running(model: Adapter, size: tuple[int, int]) -> Ending:
    try:
        with model.evaluating():
            logits = _blank_logits(model, size, model.device)
    except Exception:  # it takes another size, or needs more than an image: its first real pass will say so
        return Ending()
    spend(forward=1)
    return Ending(final_activation(logits), logits.shape[-1])


def _blank_logits(model: Adapter, size: tuple[int, int], device: str | torch.device) -> Tensor:
    with (
        torch.inference_mode(False),
        torch.enable_grad(),
        torch.random.fork_rng(devices=[]),
        warnings.catch_warnings(action="ignore"),
    ):
        image = torch.zeros(1, 3, *size, dtype=model.dtype, device=device, requires_grad=True)
        return model.logits(model.forward(image))


def final_activation(logits: Tensor) -> Activation | None:
    """Return the softmax or sigmoid that made a tensor, read off its graph; None for anything else."""
    node: Any = logits.grad_fn
    while node is not None:
        name = re.sub(r"Backward\d*$", "", node.name())
        before = [earlier for earlier, _ in node.next_functions if earlier is not None]
        if name in ("Softmax", "Sigmoid"):
            return "softmax" if name == "Softmax" else "sigmoid"
        if name == "Exp" and before and before[0].name().startswith("LogSoftmax"):
            return "softmax"
        node = before[0] if name in _RESHAPING and len(before) == 1 else None
    return None


def find_link(model: Adapter, given: Link | None, size: int | None = None) -> Link:
    """Return how a model's logits become probabilities, `given` or read; `size` is how many of them there are."""
    if model.output in WITHOUT_PROBABILITIES:
        raise TargetError(
            f"{model.name} returns {WITHOUT_PROBABILITIES[model.output]} (output {model.output!r}), which has no "
            "probabilities; explain or score the output itself, or say adapt(model, output='softmax') or 'sigmoid'"
        )
    if given is not None:
        return given
    if model.output == "softmax" and (size or model.output_size) == 1:
        raise TargetError(
            f"{model.name} returns one number per image, whose softmax is always 1; "
            "say adapt(model, output='value') or 'sigmoid'"
        )
    return "identity" if model.ending.activation else model.output  # type: ignore[return-value]  # softmax or sigmoid
