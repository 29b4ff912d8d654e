"""The adapter: one interface to the models of every library.

An adapter answers questions and holds no policy. `VisionTransformer` (vit/adapter.py), `Convolutional` (cnn/adapter.py)
and `BlackBox` (blackbox.py) are its three kinds; `adapt` (families.py) finds the right one for a model.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from copy import copy
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any, Self

import torch
from torch import Tensor, nn

from sightline.errors import InputError, NumericalError, SiteError, TargetError, UnsupportedModel
from sightline.models.batch import in_batches
from sightline.models.capture import Change, Site, capture
from sightline.models.edit import edit
from sightline.models.facts import IMAGENET_SIZE, library_output
from sightline.models.inputs import check_batch, check_range
from sightline.models.output import WITHOUT_PROBABILITIES, Ending, check_output, find_link, read_ending
from sightline.models.passes import spend
from sightline.registry import unknown
from sightline.types import Link, Output, TokenGrid, probabilities

Preprocess = Callable[[Any], Tensor]


class Adapter(ABC):
    """A model with a common interface: running it, its sites, its preprocessing, its classes and output.

    Attributes:
        model: the model as it was given.
        name: what to call it in messages and tables.
        labels: the class names, empty when unknown.
        preprocess: turns a PIL image into a normalised (3, H, W) tensor; None when unknown.
        mean: of the normalisation, per channel.
        std: of the normalisation, per channel.
        input_size: height and width the model needs, None when any will do.
        default_size: the size it was made for, by which costs are counted; others may do as well.
        batch: how many images go through the model at once.
        output: what its numbers are: softmax, sigmoid, value, embedding, dense or boxes.
    """

    kind: str = ""
    offers: frozenset[str] = frozenset()

    def __init__(
        self,
        model: Any,
        *,
        name: str = "",
        labels: Sequence[str] = (),
        preprocess: Preprocess | None = None,
        mean: Sequence[float] = (0.5, 0.5, 0.5),
        std: Sequence[float] = (0.5, 0.5, 0.5),
        input_size: tuple[int, int] | None = None,
        batch: int = 16,
        output: Output | None = None,
        link: Link | None = None,
    ) -> None:
        """Adapt a model; what is not given here is read from the model or unknown.

        `link` says how logits become probabilities where the model's end does not show it: ``"identity"`` for a
        function that returns probabilities.
        """
        self.model = model
        self.name = name or type(model).__name__
        self.labels = tuple(labels)
        self.preprocess = preprocess
        self.mean = tuple(mean)
        self.std = tuple(std)
        self.input_size = input_size
        self.default_size = input_size or (IMAGENET_SIZE, IMAGENET_SIZE)
        self.batch = batch
        self._output, self._link = check_output(output, link), link
        self._size = input_size  # of the images last seen
        self._ending: tuple[Ending, tuple[int, int] | None] | None = None  # as it was read, and at which size
        self._width: int | None = None  # how many numbers the model returned when it last ran

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name})"

    @property
    def facts(self) -> dict[str, Any]:
        """What is known of the model beside itself, as `adapt` takes it."""
        names = ("name", "labels", "preprocess", "mean", "std", "input_size", "batch")
        said = {"output": self._output, "link": self._link}
        return {name: getattr(self, name) for name in names} | {name: word for name, word in said.items() if word}

    def with_facts(self, **facts: Any) -> Self:
        """Return the same adapter with some facts replaced."""
        changed = copy(self)
        changed.__dict__.pop("num_classes", None)  # read again from the new facts
        Adapter.__init__(changed, self.model, **self.facts | facts)
        changed.default_size = changed.input_size or self.default_size
        changed._size = changed.input_size or self._size
        return changed

    # ---- running -----------------------------------------------------------------------------------------------

    def __call__(self, images: Tensor) -> Tensor:
        """Return the logits of a batch of images, in whatever gradient mode the caller is in."""
        spend(forward=len(images))
        return self.logits(self.forward(images))

    def forward(self, images: Tensor) -> Any:
        """Run the model, whatever it returns; a family overrides this where the model is not called on images alone."""
        return self.model(images)

    def logits(self, output: Any) -> Tensor:
        """Read the logits out of whatever the model returns: a tensor, a tuple, a dict, an output object."""
        logits = getattr(output, "logits", output)
        if isinstance(logits, Mapping):
            tensors = [value for value in logits.values() if isinstance(value, Tensor) and value.ndim == 2]
            logits = logits["logits"] if "logits" in logits else tensors[0] if len(tensors) == 1 else logits
        elif isinstance(logits, list | tuple) and logits and isinstance(logits[0], Tensor) and logits[0].ndim == 2:
            logits = logits[0]
        if isinstance(logits, Tensor) and logits.ndim == 2:
            self._width = logits.shape[-1]
            return logits
        self.check_supported()
        is_tensor = isinstance(logits, Tensor)
        returned = f"a tensor of shape {tuple(logits.shape)}" if is_tensor else f"a {type(output).__name__}"
        raise UnsupportedModel(
            f"{self.name} returned {returned}; logits of shape (batch, class) are needed: "
            "wrap the model in a function that returns them"
        )

    def predict(self, images: Tensor) -> Tensor:
        """Return the logits of any number of images, in batches, without a graph."""
        with torch.no_grad():
            return torch.cat(in_batches(lambda rows: self(images[rows]), len(images), self.batch))

    def gradients(
        self, score: Tensor, seen: Mapping[str, Tensor], *, retain: bool = False, unused: bool = False
    ) -> dict[str, Tensor]:
        """Return the gradient of each image's score at every captured tensor, by name.

        The tensor named ``image`` is the model's input. What is spent is the part of the model that lies between the
        earliest of the tensors and the output. With `unused` a tensor that the score does not depend on gets zeros
        instead of an error.
        """
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

    # ---- output ------------------------------------------------------------------------------------------------

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
            self._ending = read_ending(self, self._size), self._size
        return self._ending[0]

    @property
    def output_size(self) -> int | None:
        """How many numbers the model returns for an image; None for a function that has not run yet."""
        return self._width or self.ending.size or self.num_classes

    @property
    def link(self) -> Link:
        """How the logits become probabilities; a TargetError where they have none."""
        return find_link(self, self._link)

    @property
    def has_probabilities(self) -> bool:
        """Whether the logits can be turned into probabilities."""
        try:
            return bool(self.link)
        except TargetError:
            return False

    def probabilities(self, logits: Tensor) -> Tensor:
        """Turn logits into probabilities, one per class or label, as the model's output says."""
        return probabilities(logits, find_link(self, self._link, size=logits.shape[-1]))

    def check_supported(self) -> None:
        """Refuse an output that nothing here can explain yet."""
        if self.declared_output in ("dense", "boxes"):
            raise UnsupportedModel(
                f"{self.name} returns {WITHOUT_PROBABILITIES[self.declared_output]} (output {self.declared_output!r}), "
                "which is not supported yet; logits of shape (batch, class) are needed: "
                "wrap the model in a function that returns them"
            )

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
        checkpointed: list[Any] = [
            module for module in self.modules if getattr(module, "grad_checkpointing", False) is True
        ]
        with ExitStack() as stack:
            for module in checkpointed:
                stack.callback(setattr, module, "grad_checkpointing", True)
                module.grad_checkpointing = False
            stack.enter_context(self.interceptable())
            yield

    # ---- facts -------------------------------------------------------------------------------------------------

    @property
    def modules(self) -> list[nn.Module]:
        return list(self.model.modules()) if isinstance(self.model, nn.Module) else []

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
        return (raw - self._channels(self.mean, raw)) / self._channels(self.std, raw)

    def denormalise(self, images: Tensor) -> Tensor:
        """Turn what the model is fed into pixel values in 0..1."""
        return images * self._channels(self.std, images) + self._channels(self.mean, images)

    @staticmethod
    def _channels(values: Sequence[float], like: Tensor) -> Tensor:
        return torch.tensor(values, dtype=like.dtype, device=like.device)[:, None, None]

    # ---- checking ----------------------------------------------------------------------------------------------

    def accept(self, images: Tensor) -> Tensor:
        """Return a batch that the model can be fed: checked, on its device, in its precision."""
        self.check_supported()
        check_batch(images)
        check_range(images, self.denormalise(images), self.name)
        size = (images.shape[-2], images.shape[-1])
        self.check_size(size)
        self._size = size
        images = images.detach()
        if images.is_inference():  # autograd refuses what was made in inference mode; a copy made outside it will do
            with torch.inference_mode(False):
                images = images.clone()
        return images if self._parameter() is None else images.to(device=self.device, dtype=self.dtype)

    def check_size(self, size: tuple[int, int]) -> None:
        """Refuse an image size the model cannot take."""
        if self.input_size is not None and size != self.input_size:
            raise InputError(
                f"got images of {size[0]}×{size[1]} pixels; {self.name} needs "
                f"{self.input_size[0]}×{self.input_size[1]}: "
                "resize them, or give PIL images and let the model's own preprocessing do it"
            )

    def check_logits(self, logits: Tensor) -> Tensor:
        """Refuse logits that are no numbers."""
        if not torch.isfinite(logits).all():
            raise NumericalError(f"{self.name} returned NaN or infinite logits; check its weights and its precision")
        return logits

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Hold every module in eval mode, and give each its own mode back."""
        training = [module for module in self.modules if module.training]
        with ExitStack() as stack:
            for module in training:
                stack.callback(setattr, module, "training", True)
                module.training = False
            yield

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
        raise UnsupportedModel(f"{self.name} has no layers to choose from; use a method that needs none")

    def to_map(self, site: str, values: Tensor, images: Tensor) -> Tensor:
        """Lay what a site holds on its grid: (batch, channel, height, width), prefix tokens left out."""
        return values
