"""A model's signature: of which library's class it is, the channels of its images, and what its numbers are.

The numbers are softmax or sigmoid logits, values, an embedding, a class per pixel, boxes or tokens: what the user says,
else what the library that made the model says. What neither says is read off the end of the network: a last sigmoid or
softmax shows in autograd's graph, and is never guessed from values.
"""

from __future__ import annotations

import re
import threading
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

import torch
from torch import Tensor, nn

from sightline.errors import InputError, TargetError, UnsupportedModel
from sightline.models.passes import spend
from sightline.models.survey import IMAGE_SIZES, meta_copy
from sightline.registry import unknown
from sightline.types import Link, Output, probabilities

if TYPE_CHECKING:
    from sightline.models.adapter import Adapter

# ---- classes and channels -------------------------------------------------------------------------------------------

COLOURS = 3
UNKNOWN = 0.5  # mean and standard deviation of a channel of which nothing is said
LIBRARIES = ("timm", "torchvision", "transformers", "open_clip")
SPACE_TO_DEPTH = 16  # cells of an image that timm's TResNet stacks into one before its first convolution


def ancestor(model: object, package: str, name: str) -> type | None:
    """Return the class of this name that a model is of, itself or by inheritance, without importing its package."""
    return next(
        (cls for cls in type(model).__mro__ if cls.__name__ == name and f"{cls.__module__}.".startswith(f"{package}.")),
        None,
    )


def is_a(model: object, package: str, name: str) -> bool:
    """Tell whether a model is of this class or a subclass, without importing the package it comes from."""
    return ancestor(model, package, name) is not None


def input_channels(model: Any) -> int:
    """Return how many channels a model's images have, read off its first convolution; 3 where that does not tell.

    The modules of a user's own model may be listed in any order: one with a convolution for colours takes colours.
    """
    if not isinstance(model, nn.Module):
        return COLOURS
    said = getattr(getattr(model, "config", None), "num_channels", None)
    if isinstance(said, int):
        return said
    convolutions = [module for module in model.modules() if isinstance(module, nn.Conv2d) and module.in_channels]
    if not convolutions:
        return int(getattr(getattr(model, "embeds", None), "in_chans", COLOURS))  # timm's NaFlexViT
    own = type(model).__module__.partition(".")[0] not in LIBRARIES
    if own and any(module.in_channels == COLOURS for module in convolutions):
        return COLOURS
    first = convolutions[0].in_channels
    stacked = any(type(module).__name__ == "SpaceToDepth" for module in model.modules())
    return first // SPACE_TO_DEPTH if stacked else first


def check_normalisation(
    mean: Sequence[float] | None, std: Sequence[float] | None
) -> tuple[tuple[float, ...] | None, tuple[float, ...] | None]:
    """Refuse a mean and a standard deviation of different lengths; one that is not given is 0.5 everywhere."""
    if mean is None and std is None:
        return None, None
    centre = tuple(mean) if mean is not None else (UNKNOWN,) * len(std or ())
    spread = tuple(std) if std is not None else (UNKNOWN,) * len(centre)
    if len(centre) != len(spread) or not centre:
        raise InputError(
            f"got a mean of {len(centre)} numbers and a std of {len(spread)}; give one of each for every channel"
        )
    if not all(value > 0 for value in spread):
        raise InputError(f"got std={spread}; numbers above 0 are needed")
    return centre, spread


# ---- what a library says ---------------------------------------------------------------------------------------

PROBLEM_TYPES: dict[str, Output] = {
    "single_label_classification": "softmax",
    "multi_label_classification": "sigmoid",
    "regression": "value",
}


def library_output(model: Any) -> Output | None:
    """Return what the numbers of a model are, where its library's class or configuration says so."""
    library = type(model).__module__.partition(".")[0]
    said = _OUTPUTS[library](model) if library in _OUTPUTS else None
    problem = getattr(getattr(model, "config", None), "problem_type", None)  # of any configuration of transformers
    return said or (PROBLEM_TYPES.get(problem) if isinstance(problem, str) else None)


def _timm_output(model: Any) -> Output | None:
    classifier = model.get_classifier() if hasattr(model, "get_classifier") else None
    heads = classifier if isinstance(classifier, tuple) else (classifier,)
    return "embedding" if all(map(_is_removed, heads)) else None


def _torchvision_output(model: Any) -> Output | None:
    tasks: dict[str, Output] = {"segmentation": "dense", "detection": "boxes"}
    for task, output in tasks.items():
        if type(model).__module__.startswith(f"torchvision.models.{task}."):
            return output
    heads = (getattr(model, name, None) for name in ("fc", "classifier", "heads", "head"))
    return "embedding" if any(map(_is_removed, heads)) else None


def _transformers_output(model: Any) -> Output | None:
    name = type(model).__name__
    if re.search(r"For\w*Segmentation$", name):
        return "dense"
    if re.search(r"For\w*Detection$", name):
        return "boxes"
    has_head = re.search(r"For[A-Z]", name)  # ViTForImageClassification has one, ViTModel has none
    return None if has_head and not _is_removed(getattr(model, "classifier", None)) else "embedding"


def _open_clip_output(model: Any) -> Output:
    return "embedding"


_OUTPUTS: dict[str, Callable[[Any], Output | None]] = {
    "timm": _timm_output,
    "torchvision": _torchvision_output,
    "transformers": _transformers_output,
    "open_clip": _open_clip_output,
}


def classifier_size(model: Any) -> int | None:
    """Return how many logits a library's own model returns, where its last layer is linear and nothing follows it.

    None for any other model: then only running it tells how it ends.
    """
    if type(model).__module__.partition(".")[0] not in ("timm", "torchvision", "transformers"):
        return None
    leaves = [module for module in model.modules() if next(module.children(), None) is None]
    last = next(
        (leaf for leaf in reversed(leaves) if not isinstance(leaf, nn.Identity | nn.Dropout | nn.Flatten)), None
    )
    return last.out_features if isinstance(last, nn.Linear) else None


def _is_removed(head: Any) -> bool:
    """Tell whether the identity stands where a classifier was: the features come out instead."""
    if not isinstance(head, nn.Sequential):
        return isinstance(head, nn.Identity)
    layers = [layer for layer in head if not isinstance(layer, nn.Identity | nn.Dropout)]
    cut = not len(head) or isinstance(head[-1], nn.Identity)
    return cut and not (layers and isinstance(layers[-1], nn.Linear | nn.Conv2d))


# ---- the end of the network -----------------------------------------------------------------------------------------


Activation = Literal["softmax", "sigmoid"]
WITHOUT_PROBABILITIES: dict[Output, str] = {
    "value": "a value",
    "embedding": "an embedding",
    "dense": "a class per pixel",
    "boxes": "boxes",
    "text": "the tokens of an answer",
}
_silencing = threading.Lock()  # warnings are silenced for all threads: two that undo it in another order would not
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
    if said == "dense":
        return "dense"  # its labels may have a softmax or a sigmoid each
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

    Only the latter counts as a pass; a library's own classifier need not be run. Nothing can be read of a function.
    `size` is that of the images the model takes, where it is known.
    """
    if not isinstance(model.model, nn.Module):
        return Ending()
    if (classes := classifier_size(model.model)) is not None:
        return Ending(None, classes)
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
            logits = blank_logits(weightless, tried, "meta")
        except UnsupportedModel:  # it returns no logits
            return Ending()
        except Exception:  # another size, or what only tensors with contents can do
            continue
        return Ending(final_activation(logits), logits.shape[-1])
    return _read_by_running(model, sizes[0])


def _read_by_running(model: Adapter, size: tuple[int, int]) -> Ending:
    try:
        with model.evaluating():
            logits = blank_logits(model, size, model.device)
    except Exception:  # it takes another size, or needs more than an image: its first real pass will say so
        return Ending()
    spend(forward=1)
    return Ending(final_activation(logits), logits.shape[-1])


def runs_with(model: Adapter, channels: int, size: tuple[int, int]) -> bool:
    """Tell whether a model takes images of so many channels: false where its weightless copy refuses them."""
    if not isinstance(model.model, nn.Module):
        return True  # a function says so itself
    weightless = copy(model)
    try:
        with torch.inference_mode(False):
            weightless.model = meta_copy(model.model)
        blank_logits(weightless, size, "meta", channels)
    except Exception as error:  # convolutions, linear layers and libraries say what is wrong; else it is another matter
        return not re.search(r"channel|reduction dim|shapes cannot be multiplied|size mismatch", str(error))
    return True


def blank_logits(
    model: Adapter,
    size: tuple[int, int],
    device: str | torch.device,
    channels: int | None = None,
    *,
    graph: bool = True,
    backward: bool = False,
) -> Tensor:
    """Run a model on one blank image, with or without a graph, and leave the random numbers where they were.

    With `backward` the gradient at the image is computed as well, where that is possible.
    """
    with (
        torch.inference_mode(False),
        torch.set_grad_enabled(graph),
        torch.random.fork_rng(devices=[]),
        _silencing,
        warnings.catch_warnings(action="ignore"),
    ):
        image = torch.zeros(
            1, channels or model.image_channels, *size, dtype=model.dtype, device=device, requires_grad=True
        )
        logits = model.logits(model.forward(image))
        if backward:
            with suppress(RuntimeError):  # not every call has a gradient, or one without contents
                torch.autograd.grad(logits.sum(), image)
        return logits


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


# ---- an adapter's answers about its output --------------------------------------------------------------------------


class HasOutput:
    """What an adapter says of its model's numbers: what they are, how many, and how they become probabilities."""

    model: Any
    name: str
    _output: Output | None  # what the user says it is
    _link: Link | None
    _size: tuple[int, int] | None  # of the images last seen
    _ending: tuple[Ending, tuple[int, int] | None] | None  # as it was read, and at which size
    _width: int | None  # how many numbers the model returned when it last ran
    _shape: tuple[int, ...]  # of one image's output, where it is more than a row of numbers

    @property
    def declared_output(self) -> Output | None:
        """What the user or the library's configuration says of the output; None where neither does."""
        return self._output or library_output(self.model)

    @property
    def output(self) -> Output:
        """What the model's numbers are: declared, else read from the end of the network, else softmax logits."""
        return self.declared_output or self.ending.output

    @property
    def ending(self) -> Ending:
        """How the network ends: a softmax, a sigmoid or neither, and how many numbers it returns.

        What could not be read is read again once images of another size have been seen.
        """
        if self._ending is None or (self._ending[0].size is None and self._ending[1] != self._size):
            self._ending = read_ending(cast("Adapter", self), self._size), self._size
        return self._ending[0]

    @property
    def output_size(self) -> int | None:
        """How many numbers the model returns for an image; None for a function that has not run yet."""
        return self._width or self.ending.size or cast("Adapter", self).num_classes

    @property
    def output_shape(self) -> tuple[int, ...]:
        """The shape of one image's output when the model last ran: (label, height, width) of a segmentation."""
        return self._shape or ((self.output_size,) if self.output_size else ())

    @property
    def stated_link(self) -> Link | None:
        """How logits become probabilities, where the user says it."""
        return self._link

    @property
    def link(self) -> Link:
        """How the logits become probabilities; a TargetError where they have none."""
        return self._link_for()

    def _link_for(self, size: int | None = None) -> Link:
        """Return how logits become probabilities; `size` is how many of them there are, where that is at hand."""
        output = self.output
        if output in WITHOUT_PROBABILITIES:
            raise TargetError(
                f"{self.name} returns {WITHOUT_PROBABILITIES[output]} (output {output!r}), which has no "
                "probabilities; explain or score the output itself, or say adapt(model, output='softmax') or 'sigmoid'"
            )
        if self._link is not None:
            return self._link
        if output == "softmax" and (size or self.output_size) == 1:
            raise TargetError(
                f"{self.name} returns one number per image, whose softmax is always 1; "
                "say adapt(model, output='value') or 'sigmoid'"
            )
        return "identity" if self.ending.activation else output  # type: ignore[return-value]  # softmax or sigmoid

    @property
    def has_probabilities(self) -> bool:
        """Whether the logits can be turned into probabilities."""
        try:
            return bool(self.link)
        except TargetError:
            return False

    def probabilities(self, logits: Tensor) -> Tensor:
        """Turn logits into probabilities, one per class or label, as the model's output says."""
        return probabilities(logits, self._link_for(logits.shape[-1]))
