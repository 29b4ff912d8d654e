"""Convolutional networks, and other models that end in a feature map: their cut points and CAM layers.

A *cut* is a point that every path through the model passes: `trunk` runs a model up to it, `tail` from there on, and a
tail takes any number of edited activations. Cuts have the names of the modules that end there; activations are always
(batch, channel, height, width), also where a model keeps its channels last.

A family whose forward is known step by step is a `Stepwise`, built from a `Plan` (steps.py, families.py,
hierarchical.py); any other network with convolutions is a `GenericConvolutional` (generic.py).
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from sightline.errors import InputError, SiteError
from sightline.models.adapter import Adapter
from sightline.models.capture import Site
from sightline.models.cnn.layout import in_its_layout, takes_channels_last
from sightline.models.cnn.steps import Plan, Step
from sightline.models.memory import IMAGES
from sightline.models.passes import spend
from sightline.models.survey import (
    Size,
    StepMeasurement,
    Survey,
    keeps_channels_last,
    measure_steps,
    meta_copy,
    module_sites,
    survey_modules,
)
from sightline.registry import unknown
from sightline.types import Target, TokenGrid

T = TypeVar("T")


class Convolutional(Adapter):
    """A network of feature maps."""

    kind = "convolutional"
    offers = frozenset({"gradient", "layers", "cuts"})
    _size: Size  # of the images last seen

    @property
    def unread(self) -> frozenset[str]:  # type: ignore[override]
        """Attention, where the network has some: no family of feature maps reads it."""
        attends = any(re.search("attention|attn", type(module).__name__, re.IGNORECASE) for module in self.modules)
        return frozenset({"attention"}) if attends else frozenset()

    def __init__(self, model: Any, *, default_size: Size | None = None, **facts: Any) -> None:
        super().__init__(model, **facts)
        self.default_size = self.input_size or default_size or self.default_size
        self._size = self.default_size

    # ---- what each kind defines --------------------------------------------------------------------------------------

    @property
    def tail_batch(self) -> int:
        """How many activations of a layer go through the rest of the network at once: as said, else at least 16.

        They take less than images do, whose activations limit `batch` on a processor.
        """
        return self.batch if self._batch is not None else max(self.batch, IMAGES)

    @property
    @abstractmethod
    def cuts(self) -> tuple[str, ...]:
        """The names of the cuts, in order; a stage's name follows that of its last block and means the same tensor."""

    @property
    @abstractmethod
    def units(self) -> tuple[str, ...]:
        """The cuts after each unit: residual block, convolution with its ReLU and pool, or dense layer."""

    @property
    @abstractmethod
    def layers(self) -> tuple[str, ...]:
        """The CAM layers that an index chooses from: the default last, that of the stage before it second to last."""

    @abstractmethod
    def trunk(self, images: Tensor, site: str) -> Tensor:
        """Run the model up to a cut; return the activation there, (batch, channel, height, width)."""

    @abstractmethod
    def tail(self, activation: Tensor, site: str) -> Tensor:
        """Run the model from a cut on; return the logits. The activation is left as it is."""

    @abstractmethod
    def between(self, activation: Tensor, first: str, last: str) -> Tensor:
        """Run the model from one cut to a later one; return the activation there. The one given is left as it is."""

    @abstractmethod
    def share(self, site: str) -> float:
        """Return the part of the model's work, by floating-point operations, that is done when a site is reached."""

    @abstractmethod
    def shape_at(self, site: str, size: Size) -> tuple[int, ...]:
        """Return the shape of a cut's activation for one image of this size: (1, channel, height, width)."""

    @abstractmethod
    def channels_last(self, site: str) -> bool:
        """Tell whether the model itself keeps this site as (batch, height, width, channel)."""

    # ---- what follows ----------------------------------------------------------------------------------

    @property
    def cam_layer(self) -> str:
        """The default CAM layer: the last feature map before it is pooled."""
        return self.layers[-1]

    @property
    def cut_layer(self) -> str:
        """The last CAM layer that the model can be cut at."""
        return self.cam_layer

    def layer(self, layer: str | int | None = None) -> str:
        """Resolve the `layer` option: the name of a cut or of any module, an index into `layers`, None for the default.

        -1 is the default CAM layer, -2 the last map of the stage before it: ``layer3`` of a ResNet,
        ``features.denseblock3`` of a DenseNet, ``features.5`` of a ConvNeXt, ``features.22`` of a VGG16.
        """
        if layer is None:
            return self.cam_layer
        if isinstance(layer, int):
            if -len(self.layers) <= layer < len(self.layers):
                return self.layers[layer]
            raise SiteError(f"got layer={layer}; {self.name} has {len(self.layers)}: {', '.join(self.layers)}")
        if layer in self.sites or layer in self.cuts:
            return layer
        raise SiteError(self._unknown(layer, "layer", [*self.cuts, *self.sites]))

    @property
    def known_size(self) -> Size:
        """The size of the images last seen; before there were any, one that the model takes."""
        return self._size

    def channels(self, site: str) -> int:
        """Return how many channels the feature map at a cut or at any module's end has."""
        if site in self.cuts:
            return self.shape_at(site, self.known_size)[1]
        shapes = [end.shape for end in self._survey(self.known_size).outputs if end.name == site]
        if not shapes:
            raise SiteError(f"{self.name} runs without {site!r}; choose another layer, for instance {self.cam_layer!r}")
        if len(shapes[0]) != 4:
            raise self._no_map(site, shapes[0])
        return shapes[0][3 if self.channels_last(site) else 1]

    def blank_images(self, site: str, count: int) -> int:
        """Return how many blank images run up to a cut so that `count` activations can go on from there."""
        return 0

    def forward(self, images: Tensor) -> Any:
        self._note_size(images)
        return self._laid(super().forward, images)

    def grid_of(self, images: Tensor) -> TokenGrid:
        return self.grid_at(images, self.cam_layer)

    def grid_at(self, images: Tensor, site: str) -> TokenGrid:
        """Return the grid of a cut's activation for images of this size."""
        size = (images.shape[-2], images.shape[-1])
        height, width = self.shape_at(site, size)[-2:]
        return TokenGrid(height, width, image=size)

    def remaining(self, site: str) -> float:
        return 1.0 if site == "image" else 1 - self.share(site)

    def to_map(self, site: str, values: Tensor, images: Tensor) -> Tensor:
        if values.ndim != 4:
            raise self._no_map(site, values.shape)
        return values.permute(0, 3, 1, 2) if self.channels_last(site) else values

    def from_map(self, site: str, activation: Tensor) -> Tensor:
        """Lay an activation, channels second, as the model keeps it at a site."""
        return activation.permute(0, 2, 3, 1) if self.channels_last(site) else activation

    def activation_and_gradients(
        self, images: Tensor, site: str, targets: Sequence[Target]
    ) -> tuple[Tensor, list[Tensor]]:
        """Return a site's activation and each target's gradient there, all (batch, channel, height, width)."""
        with self.capture(site, gradient=True) as captured:
            logits = self(images)
            scores = [target(logits) for target in targets]
        gradients = [self.to_map(site, g[site], images) for g in self.gradients_each(scores, captured)]
        return self.to_map(site, captured[site].detach(), images), gradients

    @cached_property
    def sites(self) -> Mapping[str, Site]:
        """The output of every module. Running concatenations of dense layers are cuts, but no sites."""
        return module_sites(self.model)

    def _unknown(self, name: str, kind: str, known: Sequence[str]) -> str:
        return unknown(name, kind, known, otherwise=f"take {self.cam_layer!r}")

    def _no_map(self, site: str, shape: Sequence[int]) -> SiteError:
        return SiteError(
            f"the site {site!r} of {self.name} has the shape {tuple(shape)}, which is no feature map; "
            f"choose another, for instance {self.cam_layer!r}"
        )

    def _note_size(self, images: Tensor) -> None:
        self._size = (images.shape[-2], images.shape[-1])

    def takes_channels_last(self, images: Tensor) -> bool:
        """Tell whether the model runs on images of this shape in the memory format channels last."""
        return takes_channels_last(self.model, images.shape[1:])

    def _laid(self, run: Callable[[Tensor], T], x: Tensor) -> T:
        """Run the model, or a part of it, on images or an activation in the memory format that suits it."""
        return in_its_layout(self.model, run, x, (self.image_channels, *self._size))

    def _survey(self, size: Size) -> Survey:
        """Survey the modules on a weightless copy or, where that fails, on the model; cached per model."""
        known = self._measurements()
        key = (self.image_channels, *size)
        if key not in known:
            known[key] = self._measure(size, lambda model, image: survey_modules(model, image, self.logits))
        survey: Survey = known[key]
        return survey

    def _measurements(self) -> dict[Any, Any]:
        return _surveys.setdefault(self.model, {})

    def _measure(self, size: Size, survey: Callable[[nn.Module, Tensor], Any]) -> Any:
        shape = (1, self.image_channels, *size)
        try:
            with torch.inference_mode(False):
                return survey(meta_copy(self.model), torch.zeros(shape, dtype=self.dtype, device="meta"))
        except Exception:  # a model may copy badly, or do what only tensors with contents can: then it runs itself
            pass
        try:
            with torch.inference_mode(False), self.evaluating():
                return survey(self.model, torch.zeros(shape, dtype=self.dtype, device=self.device))
        except (RuntimeError, ValueError, AssertionError, IndexError) as error:
            reason = str(error).strip().split("\n", 1)[0]
            raise InputError(f"{self.name} cannot run on images of {size[0]}×{size[1]} pixels: {reason}") from error


# What was measured, by model; an adapter lives for one call, a model for many.
_surveys: WeakKeyDictionary[nn.Module, dict[Any, Any]] = WeakKeyDictionary()


class Stepwise(Convolutional):
    """A network whose forward is known step by step."""

    def __init__(self, model: Any, plan: Callable[[Any], Plan], **facts: Any) -> None:
        super().__init__(model, **facts)
        self._plan = plan
        built = plan(model)
        self.steps = built.steps
        self._layers = built.layers
        self.attention_layers, self.no_attention = built.attention, built.no_attention
        self._position = {step.name: index for index, step in enumerate(self.steps) if step.cut}
        if missing := set(self._layers) - set(self._position):
            raise SiteError(f"the plan of {self.name} has no step for {', '.join(sorted(missing))}; correct the plan")

    @property
    def cuts(self) -> tuple[str, ...]:
        return tuple(self._position)

    @property
    def units(self) -> tuple[str, ...]:
        return tuple(step.name for step in self.steps if step.unit)

    @property
    def layers(self) -> tuple[str, ...]:
        return self._layers

    def check_size(self, size: Size) -> None:
        super().check_size(size)
        if size != self.default_size:
            self._step_measurements(size)  # says in one sentence why a size will not do
        self._size = size

    def trunk(self, images: Tensor, site: str) -> Tensor:
        position = self._at(site)
        self._note_size(images)
        spend(forward=len(images) * self.share(site))
        x = self._laid(partial(self._run, self.steps[: position + 1]), images)
        return x.permute(0, 3, 1, 2) if self.steps[position].channels_last else x

    def between(self, activation: Tensor, first: str, last: str) -> Tensor:
        begin, end = self._at(first), self._at(last)
        if begin > end:
            raise SiteError(f"{self.name} reaches {last!r} before {first!r}; give the earlier cut first")
        spend(forward=len(activation) * (self.share(last) - self.share(first)))
        x = self._onward(activation, begin, end + 1)
        return x.permute(0, 3, 1, 2) if self.steps[end].channels_last else x

    def tail(self, activation: Tensor, site: str) -> Tensor:
        spend(forward=len(activation) * (1 - self.share(site)))
        return self.logits(self._onward(activation, self._at(site), len(self.steps)))

    def _onward(self, activation: Tensor, position: int, end: int) -> Tensor:
        """Run the steps after a position on an activation, channels second, that they must not write into."""
        rest = self.steps[position + 1 : end]

        def run(x: Tensor) -> Tensor:
            kept = any(step.writes for step in rest) and _is_view(x, activation)
            x = x.clone() if kept else x
            return self._run(rest, x.permute(0, 2, 3, 1) if self.steps[position].channels_last else x)

        return self._laid(run, activation)

    @staticmethod
    def _run(steps: Sequence[Step], x: Tensor) -> Tensor:
        for step in steps:
            x = step.run(x)
        return x

    def to_map(self, site: str, values: Tensor, images: Tensor) -> Tensor:
        step = self._token_step(site)
        if step is None or values.ndim != 3:
            return super().to_map(site, values, images)
        cells = values if step.order is None else values[:, step.order]
        size = self.shape_at(site, (images.shape[-2], images.shape[-1]))[-2:]
        laid: Tensor = cells.transpose(1, 2).unflatten(2, size)
        return laid

    def from_map(self, site: str, activation: Tensor) -> Tensor:
        step = self._token_step(site)
        if step is None:
            return super().from_map(site, activation)
        cells = activation.flatten(2).transpose(1, 2)
        return cells if step.order is None else cells[:, step.order.argsort()]

    def _token_step(self, site: str) -> Step | None:
        """Return the step of a cut whose module leaves tokens, None for any other site."""
        step = self.steps[self._position[site]] if site in self._position else None
        return step if step is not None and step.tokens else None

    def activation_and_gradients(
        self, images: Tensor, site: str, targets: Sequence[Target]
    ) -> tuple[Tensor, list[Tensor]]:
        if site not in self._position:
            return super().activation_and_gradients(images, site, targets)
        with torch.no_grad():
            activation = self.trunk(images, site)
        with torch.inference_mode(False), torch.enable_grad():  # a graph is built for the tail alone
            activation = activation.clone().requires_grad_()
            logits = self.tail(activation, site)
            scores = [target(logits) for target in targets]
        return activation.detach(), [g[site] for g in self.gradients_each(scores, {site: activation})]

    def share(self, site: str) -> float:
        position = self._before(site)
        measured = self._step_measurements(self._size)
        return measured[position].work / (measured[-1].work or 1) if position >= 0 else 0.0

    def shape_at(self, site: str, size: Size) -> tuple[int, ...]:
        position = self._at(site)
        shape = self._step_measurements(size)[position].shape
        return (shape[0], shape[3], shape[1], shape[2]) if self.steps[position].channels_last else shape

    def channels_last(self, site: str) -> bool:
        if site in self._position:
            return self.steps[self._position[site]].channels_last
        size = self.default_size
        return any(end.name == site and keeps_channels_last(end.shape, size) for end in self._survey(size).outputs)

    @cached_property
    def num_classes(self) -> int | None:
        count = getattr(self.model, "num_classes", None)
        if isinstance(count, int):
            return count
        linear = [module for module in self.modules if isinstance(module, nn.Linear)]
        return linear[-1].out_features if linear else len(self.labels) or None

    def _at(self, site: str) -> int:
        if site not in self._position:
            raise SiteError(self._unknown(site, "cut", self.cuts))
        return self._position[site]

    def _before(self, site: str) -> int:
        """Return the last step that is done when a module ends: the cut itself, or the nearest before; -1 for none."""
        if site in self._position:
            return self._position[site]
        last = len(self.steps) - 1
        while not self.steps[last].cut:
            last -= 1  # the classifier's modules lie after the last cut
        for index, step in enumerate(self.steps):
            module = step.module or step.name
            if site == module or site.startswith(f"{module}."):
                return min(index - 1, last)
        within = [i for i, step in enumerate(self.steps) if (step.module or step.name).startswith(f"{site}.")]
        return min(within[-1], last) if within else last

    def _step_measurements(self, size: Size) -> tuple[StepMeasurement, ...]:
        known = self._measurements()
        key = (self._plan, len(self.steps), self.image_channels, size)
        if key not in known:
            known[key] = self._measure(size, self._measure_steps)
        measurements: tuple[StepMeasurement, ...] = known[key]
        return measurements

    def _measure_steps(self, model: nn.Module, image: Tensor) -> tuple[StepMeasurement, ...]:
        return measure_steps([step.run for step in self._plan(model).steps], image)


def _is_view(x: Tensor, of: Tensor) -> bool:
    """Tell whether a tensor lies in the memory of another."""
    return x.untyped_storage().data_ptr() == of.untyped_storage().data_ptr()
