"""The adapter: one interface to the models of every library.

An adapter answers questions and holds no policy. `VisionTransformer` (vit/adapter.py), `Convolutional` (cnn/adapter.py)
and `BlackBox` (blackbox.py) are its three kinds; `adapt` (families.py) finds the right one for a model.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import copy
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any, Self

import torch
from torch import Tensor, nn

from sightline.errors import InputError, NumericalError, SiteError, TargetError, UnsupportedModel
from sightline.models.attention_layers import AttentionLayers
from sightline.models.capture import Change, Site, capture
from sightline.models.edit import edit
from sightline.models.memory import IMAGES, SMALL, estimated_peak, images_that_fit
from sightline.models.passes import (
    all_finite,
    evaluating,
    exclusive,
    in_batches,
    modules_of,
    require_true,
    setting,
    spend,
)
from sightline.models.signature import (
    COLOURS,
    UNKNOWN,
    HasOutput,
    check_normalisation,
    check_output,
    input_channels,
    runs_with,
)
from sightline.models.survey import IMAGENET_SIZE
from sightline.models.tasks.dense import read_dense
from sightline.models.tasks.reading import NEEDED, read_task
from sightline.registry import unknown
from sightline.types import Link, Output, Passes, TokenGrid

Preprocess = Callable[[Any], Tensor]
# Pixels with the normalisation undone: 0 is black, 1 is white. No usual normalisation leaves an image without negative
# values and brighter than the first; none leaves one that is nowhere darker than black and brighter than the second,
# which is what normalising 0 to 255 without dividing does.
BRIGHTEST_WITHOUT_NEGATIVES = 5.0
BRIGHTEST = 100.0
ROUNDING = 0.01


class Adapter(HasOutput, ABC):
    """A model with a common interface: running it, its sites, its preprocessing, its classes and output.

    Attributes:
        model: the model as it was given.
        name: what to call it in messages and tables.
        labels: the class names, empty when unknown.
        preprocess: turns a PIL image into a normalised (channel, H, W) tensor; None when unknown.
        input_size: height and width the model needs, None when any will do.
        default_size: the size it was made for, by which costs are counted; others may do as well.
        batch: how many images go through the model at once; where nobody says it, as many as fit into free memory.
        output: what its numbers are: softmax, sigmoid, value, embedding, dense, boxes or text.
    """

    kind: str = ""
    offers: frozenset[str] = frozenset()
    unread: frozenset[str] = frozenset()  # what a method may need, the model may have, and no family reads yet
    attention_layers: AttentionLayers | None = None  # of a model that attends without being a plain vision transformer
    _multiple: tuple[int, int] = (1, 1)  # what the height and the width of an image have to be multiples of
    _has_shorter_pass: bool = False  # for images of the size last accepted
    no_attention: str = ""  # why attention over tokens is not defined for the model, where it attends otherwise

    def __init__(
        self,
        model: Any,
        *,
        name: str = "",
        labels: Sequence[str] = (),
        preprocess: Preprocess | None = None,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        input_size: tuple[int, int] | None = None,
        batch: int | None = None,
        output: Output | None = None,
        link: Link | None = None,
    ) -> None:
        """Adapt a model; what is not given here is read from the model or unknown.

        `link` says how logits become probabilities where the model's end does not show it: ``"identity"`` for a
        function that returns probabilities. `mean` and `std` have a number for each channel.
        """
        self.model = model
        self.name = name or type(model).__name__
        self.labels = tuple(labels)
        self.preprocess = preprocess
        self._mean, self._std = check_normalisation(mean, std)
        self._channels: int | None = None  # of the images last seen
        self.input_size = input_size
        self.default_size = input_size or (IMAGENET_SIZE, IMAGENET_SIZE)
        self._batch, self._fitting = batch, dict[tuple[int, int], int]()
        nothing_said = output is None and link is None
        self._output, self._link = None if nothing_said else check_output(output, link), link
        self._size, self._ending, self._width, self._shape = input_size, None, None, ()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name})"

    @property
    def facts(self) -> dict[str, Any]:
        """What is known of the model beside itself, as `adapt` takes it."""
        names = ("name", "labels", "preprocess", "input_size")
        said = {"mean": self._mean, "std": self._std, "output": self._output, "link": self._link, "batch": self._batch}
        return {name: getattr(self, name) for name in names} | {name: word for name, word in said.items() if word}

    def with_facts(self, **facts: Any) -> Self:
        """Return the same adapter with some facts replaced."""
        changed = copy(self)
        changed.__dict__.pop("num_classes", None)  # read again from the new facts
        Adapter.__init__(changed, self.model, **self.facts | facts)
        changed.default_size = changed.input_size or self.default_size
        changed._size = changed.input_size or self._size
        return changed

    @property
    def batch(self) -> int:
        """How many images go through the model at once: as said, or as many as fit into free memory with a graph."""
        if self._batch is not None:
            return self._batch
        size = self.seen_size
        if size not in self._fitting:
            self._fitting[size] = images_that_fit(self) if math.prod(size) > SMALL else IMAGES
        return self._fitting[size]

    @batch.setter
    def batch(self, count: int) -> None:
        self._batch = count

    def images_at_once(self, each: Callable[[], int]) -> int:
        """Return how many images go through the model at once where each takes so many bytes: the batch at most."""
        counted = self._batch is None and math.prod(self.seen_size) > SMALL
        return min(self.batch, images_that_fit(self, each)) if counted else self.batch

    @property
    def seen_size(self) -> tuple[int, int]:
        """Height and width of the images last seen; before there were any, those the model was made for."""
        return self._size or self.default_size

    def peak(self, passes: Passes, needs: frozenset[str] = frozenset()) -> int:
        """Return about how many bytes a method with this cost and these needs holds at once; see `estimated_peak`."""
        return estimated_peak(self, passes, needs)

    # ---- running -----------------------------------------------------------------------------------------------

    def __call__(self, images: Tensor) -> Tensor:
        """Return the logits of a batch of images, in whatever gradient mode the caller is in."""
        if self._has_shorter_pass and (logits := self._shorter_pass(images)) is not None:
            return logits
        spend(forward=len(images))
        self._size = (images.shape[-2], images.shape[-1])
        return self.logits(self.forward(images))

    def _find_shorter_pass(self) -> bool:
        """Tell whether the model can leave out what its logits do not depend on; a family overrides this."""
        return False

    def _shorter_pass(self, images: Tensor) -> Tensor | None:
        """Return the logits by a pass without that; None where somebody would miss it."""
        return None

    def forward(self, images: Tensor) -> Any:
        """Run the model, whatever it returns; a family overrides this where the model is not called on images alone."""
        return self.model(images)

    def encoded(self, images: Tensor) -> Tensor:
        """Return what the network itself is fed, channels second; a family overrides this where it is not the images.

        Calling the adapter with it is calling it with the images.
        """
        return images

    def logits(self, output: Any) -> Tensor:
        """Read the logits out of whatever the model returns: a tensor, a tuple, a dict, an output object.

        They are always (batch, number): what a task's model returns is laid flat, and `output_shape` is its shape.
        """
        if self.declared_output in NEEDED:
            return self._task_logits(output)
        logits = getattr(output, "logits", output)
        if isinstance(logits, Mapping):
            tensors = [value for value in logits.values() if isinstance(value, Tensor) and value.ndim == 2]
            logits = logits["logits"] if "logits" in logits else tensors[0] if len(tensors) == 1 else logits
        elif isinstance(logits, list | tuple) and logits and isinstance(logits[0], Tensor) and logits[0].ndim == 2:
            logits = logits[0]
        if isinstance(logits, Tensor) and logits.ndim == 2:
            self._width = logits.shape[-1]
            return logits
        hint = " or say adapt(model, output='dense') of a segmentation" if read_dense(output) is not None else ""
        raise UnsupportedModel(
            f"{self.name} returned {_described(output, logits)}; logits of shape (batch, class) are needed: "
            f"wrap the model in a function that returns them{hint}"
        )

    def _task_logits(self, output: Any) -> Tensor:
        task = self.declared_output
        assert task is not None
        read = read_task(output, task, self, self._size)
        if read is None:
            raise UnsupportedModel(
                f"{self.name} returned {_described(output, output)}; {NEEDED[task]} (output {task!r}): "
                "wrap the model in a function that returns them"
            )
        self._shape = tuple(read.shape[1:])
        flat = read.flatten(1)
        self._width = flat.shape[-1]
        return flat

    def predict(self, images: Tensor) -> Tensor:
        """Return the logits of any number of images, in batches, without a graph."""
        with torch.no_grad():
            if len(images) == 1:
                return self(images)
            return torch.cat(in_batches(lambda rows: self(images[rows]), len(images), self.batch))

    def gradients(
        self, score: Tensor, seen: Mapping[str, Tensor], *, retain: bool = False, unused: bool = False
    ) -> dict[str, Tensor]:
        """Return the gradient of each image's score at every captured tensor, by name.

        The tensor named ``image`` is the model's input. What is spent is the part of the model that lies between the
        earliest of the tensors and the output. With `unused` a tensor that the score does not depend on gets zeros
        instead of an error.
        """
        if not score.requires_grad and self.declared_output == "boxes":
            return {name: torch.zeros_like(value) for name, value in seen.items()}  # nothing found, so nothing counts
        spend(backward=len(score) * (1.0 if "image" in seen else max(map(self.remaining, seen))))
        with torch.inference_mode(False), torch.enable_grad():
            gradients = torch.autograd.grad(score.sum(), list(seen.values()), retain_graph=retain, allow_unused=True)
        for name, gradient in zip(seen, gradients, strict=True):
            if gradient is None and not unused:
                raise SiteError(
                    f"the target does not depend on the site {name!r} of {self.name}; choose an earlier one"
                )
        filled = [torch.zeros_like(x) if g is None else g for x, g in zip(seen.values(), gradients, strict=True)]
        return dict(zip(seen, filled, strict=True))

    def gradients_each(
        self, scores: Sequence[Tensor], seen: Mapping[str, Tensor], *, unused: bool = False
    ) -> list[dict[str, Tensor]]:
        """Return the gradients of several scores of the same forward pass, one dictionary for each."""
        last = len(scores) - 1
        return [self.gradients(score, seen, retain=i < last, unused=unused) for i, score in enumerate(scores)]

    def remaining(self, site: str) -> float:
        """Return the share of the model that lies after a site, 1 for the image."""
        return 1.0

    # ---- sites -------------------------------------------------------------------------------------------------

    @cached_property
    def sites(self) -> Mapping[str, Site]:
        """Every named site of the model."""
        return {}

    def find(self, *patterns: str) -> dict[str, Site]:
        """Return the sites that match, in the model's order; ``*`` stands for anything."""
        sites: dict[str, Site] = {}
        for pattern in patterns:
            names = [pattern] if pattern in self.sites else [n for n in self.sites if fnmatchcase(n, pattern)]
            if not names:
                sentence = unknown(pattern, "site", self.sites, otherwise="see adapter.sites")
                raise SiteError(f"{sentence} (model {self.name})")
            sites.update({name: self.sites[name] for name in names})
        return sites

    @contextmanager
    def capture(self, *patterns: str, gradient: bool = False) -> Iterator[Mapping[str, Tensor]]:
        """Record the matching sites while the model runs once; see `capture`."""
        with self._watchable(), capture(self.find(*patterns), gradient=gradient) as seen:
            yield seen

    @contextmanager
    def capture_sites(self, sites: Mapping[str, Site], *, gradient: bool = False) -> Iterator[Mapping[str, Tensor]]:
        """Record sites that need not be among the model's named ones while it runs once; see `capture`."""
        with self._watchable(), capture(sites, gradient=gradient) as seen:
            yield seen

    @contextmanager
    def edit(self, changes: Mapping[str, Change | Tensor]) -> Iterator[None]:
        """Change what passes through the named sites while the model runs; see `edit`."""
        with self._watchable(), edit(self.find(*changes), changes):
            yield

    def interceptable(self) -> AbstractContextManager[None]:
        """Make attention call scaled_dot_product_attention, where it can be intercepted; restored afterwards."""
        return nullcontext()

    @contextmanager
    def _watchable(self) -> Iterator[None]:
        """Make every site run exactly once: attention interceptable, nothing run again by gradient checkpointing."""
        with exclusive(self.model):
            checkpointed = [module for module in self.modules if getattr(module, "grad_checkpointing", False) is True]
            with setting("grad_checkpointing", False, checkpointed), self.interceptable():
                yield

    # ---- facts -------------------------------------------------------------------------------------------------

    def lacks(self, method: str, needs: frozenset[str]) -> list[str]:
        """Return which of its needs a method would not find in this model."""
        if self.attention_layers is not None and method in self.attention_layers.methods:
            needs -= {"attention"}
        return sorted(needs - self.offers)

    @property
    def modules(self) -> list[nn.Module]:
        return modules_of(self.model)

    def _parameter(self) -> Tensor | None:
        parameters = self.model.parameters() if isinstance(self.model, nn.Module) else iter(())
        return next((p for p in parameters if p.is_floating_point()), None)

    @property
    def dtype(self) -> torch.dtype:
        parameter = self._parameter()
        return torch.float32 if parameter is None else parameter.dtype

    @property
    def device(self) -> torch.device:
        parameter = self._parameter()
        return torch.device("cpu") if parameter is None else parameter.device

    @cached_property
    def num_classes(self) -> int | None:
        """How many classes the model has; None when only running it would tell."""
        return len(self.labels) or None

    def label(self, index: int) -> str:
        """Name a class."""
        return self.labels[index] if index < len(self.labels) else f"class {index}"

    def normalise(self, raw: Tensor) -> Tensor:
        """Turn pixel values in 0..1 into what the model is fed."""
        return (raw - _per_channel(self.mean, raw)) / _per_channel(self.std, raw)

    def denormalise(self, images: Tensor) -> Tensor:
        """Turn what the model is fed into pixel values in 0..1."""
        return (images * _per_channel(self.std, images)).add_(_per_channel(self.mean, images))

    @property
    def image_channels(self) -> int:
        """How many channels its images have: 3 colours, 1 grey, or as many bands as a satellite image has."""
        return len(self._mean) if self._mean else self._channels or self._own_channels

    @cached_property
    def _own_channels(self) -> int:
        return input_channels(self.model)

    @property
    def knows_normalisation(self) -> bool:
        """Whether the user or the model's library says how its images are normalised."""
        return bool(self._mean)

    @property
    def mean(self) -> tuple[float, ...]:
        """The mean of the normalisation, per channel; 0.5 where nothing says it."""
        return self._mean or (UNKNOWN,) * self.image_channels

    @property
    def std(self) -> tuple[float, ...]:
        """The standard deviation of the normalisation, per channel; 0.5 where nothing says it."""
        return self._std or (UNKNOWN,) * self.image_channels

    # ---- checking ----------------------------------------------------------------------------------------------

    def accept(self, images: Tensor) -> Tensor:
        """Return a batch that the model can be fed: checked, on its device, in its precision."""
        _check_batch(images, self.image_channels)
        size = (images.shape[-2], images.shape[-1])
        self.check_channels(images.shape)
        if self.image_channels == COLOURS or self.knows_normalisation:
            extremes = torch.cat([images.amin((2, 3), keepdim=True), images.amax((2, 3), keepdim=True)], dim=-1)
            _check_range(extremes, self.denormalise(extremes), self.name)  # no other pixel lies outside these
        self.check_size(size)
        self._size = size
        # small images take less time than asking; now nothing is captured yet
        self._has_shorter_pass = math.prod(size) > SMALL and self._find_shorter_pass()
        images = images.detach()
        if images.is_inference():  # autograd refuses what was made in inference mode; a copy made outside it will do
            with torch.inference_mode(False):
                images = images.clone()
        return images if self._parameter() is None else images.to(device=self.device, dtype=self.dtype)

    def check_channels(self, shape: Sequence[int]) -> None:
        """Refuse images of another number of channels than the model takes.

        Where the user does not say how many there are, the model is tried on its weightless copy.
        """
        count, height, width = shape[1:]
        if count == self.image_channels:
            return
        if self._mean or not runs_with(self, count, (height, width)):
            raise InputError(
                f"got images of shape {tuple(shape)}; {self.name} takes {self.image_channels} channels: give images "
                "with as many, or say adapt(model, mean=…, std=…) with a number for each"
            )
        self._channels = count

    def check_size(self, size: tuple[int, int]) -> None:
        """Refuse an image size the model cannot take."""
        if self.input_size is not None and size != self.input_size:
            raise InputError(
                f"got images of {size[0]}×{size[1]} pixels; {self.name} needs "
                f"{self.input_size[0]}×{self.input_size[1]}: "
                "resize them, or give PIL images and let the model's own preprocessing do it"
            )
        if any(side % step for side, step in zip(size, self._multiple, strict=True)):
            raise InputError(
                f"got images of {size[0]}×{size[1]} pixels; {self.name} needs multiples of its patch, "
                f"{self._multiple[0]}×{self._multiple[1]}"
            )

    def check_logits(self, logits: Tensor) -> Tensor:
        """Refuse logits that are no numbers."""
        message = f"{self.name} returned NaN or infinite logits; check its weights and its precision"
        require_true(torch.isfinite(logits).all(), NumericalError(message))
        return logits

    def evaluating(self) -> AbstractContextManager[list[nn.Module]]:
        """Hold every module in eval mode while other threads wait, then give each its own; yields those in training."""
        return evaluating(self.model)

    def encode_text(self, texts: Sequence[str]) -> Tensor:
        """Return the embeddings of texts, shape (text, channel), where the model has a text encoder."""
        raise TargetError(
            f"{self.name} has no text encoder; give TextSimilarity(embedding=…), or load a CLIP model with "
            "its text tower"
        )

    @abstractmethod
    def grid_of(self, images: Tensor) -> TokenGrid:
        """Return the grid on which this model's own maps lie for images of this size."""

    def layer(self, layer: str | int | None = None) -> str:
        """Return the name of the site that the `layer` option means; None is the best one for class activation maps."""
        raise UnsupportedModel(
            f"sightline cannot read the layers of {self.name} yet; ixg, rise and occlusion work now, and "
            "sightline.register_family adds a family"
        )

    def to_map(self, site: str, values: Tensor, images: Tensor) -> Tensor:
        """Lay what a site holds on its grid: (batch, channel, height, width), prefix tokens left out."""
        return values


def _per_channel(values: Sequence[float], like: Tensor) -> Tensor:
    return torch.tensor(values, dtype=like.dtype, device=like.device)[:, None, None]


def _described(output: Any, logits: Any) -> str:
    """Say what a model returned."""
    if isinstance(logits, Tensor):
        return f"a tensor of shape {tuple(logits.shape)}"
    return f"a {type(output).__name__}"


def _check_batch(images: Any, channels: int) -> None:
    """Refuse what is no batch of finite floats of shape (batch, channel, height, width).

    `channels` is how many the model takes, which the sentence names; images of another number may still be right.
    """
    shape = f"(batch, {channels}, height, width)"
    if not isinstance(images, Tensor):
        raise InputError(f"got {type(images).__name__} as images; a {shape} tensor is needed")
    if images.ndim != 4 or 0 in images.shape[1:]:
        hint = "; add a batch axis with images[None]" if images.ndim == 3 else ""
        raise InputError(f"got images of shape {tuple(images.shape)}; {shape} is needed{hint}")
    if len(images) == 0:
        raise InputError("got a batch of no images; give at least one")
    if not images.is_floating_point():
        raise InputError(
            f"got {str(images.dtype).removeprefix('torch.')} images; normalised floats are needed: "
            "divide by 255 and call adapter.normalise, or give a PIL image"
        )
    if not all_finite(images):
        raise InputError("the images hold NaN or infinite values; check how they were read and normalised")


def _check_range(images: Tensor, pixels: Tensor, name: str) -> None:
    """Refuse pixel values of 0 to 255 that were given as normalised images.

    Args:
        images: as they were given, or the lowest and highest value of each channel alone.
        pixels: the same with the model's normalisation undone, so that 0 is black and 1 is white.
        name: of the model.
    """
    lowest, highest = images.flatten(1).amin(dim=1), images.flatten(1).amax(dim=1)
    darkest, brightest = pixels.flatten(1).amin(dim=1), pixels.flatten(1).amax(dim=1)
    raw = (lowest >= 0) & (brightest > BRIGHTEST_WITHOUT_NEGATIVES)
    not_divided = (darkest >= -ROUNDING) & (brightest > BRIGHTEST)
    wrong = raw | not_divided
    if wrong.any():
        zeros, inverse = (", ".join([each] * images.shape[1]) for each in ("0", "1 / 255"))
        raise InputError(
            f"got float images with values from {lowest[wrong].min().item():.4g} to {highest[wrong].max().item():.4g}; "
            f"{name} needs normalised ones: call adapter.normalise(images / 255), or, if the model itself takes 0 to "
            f"255, say adapt(model, mean=({zeros}), std=({inverse}))"
        )
