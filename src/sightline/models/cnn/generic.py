"""Any other network with convolutions: a user's own, or of a family without a plan.

Its structure is measured on a weightless copy (survey.py): which modules end in a feature map that every path passes,
in which order, at which cost. The trunk is the model itself, stopped at the cut; the tail is the model run on one blank
image whose activation at the cut is replaced, so a tail costs one trunk more than it would in a `Stepwise`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from sightline.errors import InputError, SightlineError, SiteError, UnsupportedModel
from sightline.models.capture import Change, Site, watch
from sightline.models.cnn.adapter import Convolutional
from sightline.models.cnn.hierarchical import sizes
from sightline.models.facts import torchvision_facts, transformers_facts
from sightline.models.passes import spend
from sightline.models.signature import COLOURS
from sightline.models.survey import (
    CONVOLUTIONS,
    IMAGE_SIZES,
    ModuleOutput,
    Size,
    Survey,
    keeps_channels_last,
    map_sites,
)
from sightline.models.tasks.reading import NEEDED
from sightline.models.vit.timm import timm_facts

WEIGHTS = (*CONVOLUTIONS, nn.Linear)
ENCODES = 8  # a part that shrinks images at least this much is the encoder of a segmentation


class GenericConvolutional(Convolutional):
    """A network of unknown structure with feature maps inside."""

    @property
    def cuts(self) -> tuple[str, ...]:
        return tuple(output.name for output in self._maps)

    @property
    def units(self) -> tuple[str, ...]:
        return tuple(group[-1].name for group in self._groups)

    @cached_property
    def layers(self) -> tuple[str, ...]:
        if self.declared_output == "dense":
            return self._encoder_layers
        last: dict[Size, str] = {}
        groups = self._encoder if self.declared_output in NEEDED else self._groups
        for group in groups:
            size = self._spatial(group[0])
            # where the map has another size than its convolution left, it has been pooled
            settled = [output for output in group if self._spatial(output) == size]
            last.pop(size, None)
            last[size] = settled[-1].name
        if self.declared_output in NEEDED:  # the coarsest map is the default, also where a decoder follows it
            return tuple(last[size] for size in sorted(last, reverse=True))
        self._refuse_tokens(settled[-1])
        return tuple(last.values())

    @property
    def cut_layer(self) -> str:
        return self.cam_layer if self.cam_layer in self.cuts else self._encoder[-1][-1].name

    @property
    def _encoder_layers(self) -> tuple[str, ...]:
        """The last map of each size in the encoder of a segmentation, the coarsest last; connections may bypass it.

        The encoder is the part of the model that the image enters, if that shrinks it enough for one; else everything
        up to where maps grow again.
        """
        logits = self._groups[-1][0].work
        ends = [end for end in self._structure.outputs if self._ends_map(end) and end.work < logits]
        part = [end for end in ends if end.name.partition(".")[0] == ends[0].name.partition(".")[0]] or list(self._maps)
        if min(max(self._spatial(end)) for end in part) > max(self._base) / ENCODES:
            part = _until_growing(ends or list(self._maps), self._spatial)
        last: dict[Size, ModuleOutput] = {}
        for end in part:  # what is deeper inside a block than its end is no layer of its own
            before = last.get(self._spatial(end))
            if before is None or end.name.count(".") <= before.name.count("."):
                last[self._spatial(end)] = end
        self._refuse_tokens(last[min(last)])
        return tuple(self._outermost(last[size]).name for size in sorted(last, reverse=True))

    def _ends_map(self, end: ModuleOutput) -> bool:
        return (
            end.module is not nn.Module and len(end.shape) == 4 and end.work > 0 and self._is_map(*self._spatial(end))
        )

    def _outermost(self, inner: ModuleOutput) -> ModuleOutput:
        """Return the outermost module that ends with the same tensor and is no mere sequence nor a whole part."""
        around = [
            end
            for end in self._structure.outputs
            if end.tensor == inner.tensor and "." in end.name and end.module not in (nn.Sequential, nn.Module)
        ]
        return min(around, key=lambda end: end.name.count("."), default=inner)

    @property
    def _encoder(self) -> tuple[tuple[ModuleOutput, ...], ...]:
        """The maps of a segmentation or a detector before its head: of the part of the model that the first is in.

        Its last weights leave the logits themselves, of which a class activation map would say nothing.
        """
        groups = self._groups[:-1] or self._groups
        part = groups[0][0].name.partition(".")[0]
        mine = tuple(group for group in groups if group[0].name.partition(".")[0] == part)
        shrinks = bool(mine) and min(max(self._spatial(group[0])) for group in mine) <= max(self._base) / ENCODES
        return mine if shrinks else groups

    def _refuse_tokens(self, last: ModuleOutput) -> None:
        """Refuse a transformer: what follows its last map is tokens, and that map is no more than its embedding."""
        after = [output for output in self._structure.outputs if output.work > last.work and len(output.shape) == 3]
        if len(after) > len(self._maps):
            raise UnsupportedModel(
                f"{self.name} turns its feature map into tokens at {last.name}, which sightline cannot read yet; name "
                "a layer, use a method that needs none, such as ixg, rise or occlusion, or add a family with "
                "sightline.register_family"
            )

    @cached_property
    def sites(self) -> Mapping[str, Site]:
        """The output of every module, and the input of every convolution and pool."""
        return map_sites(self.model)

    @cached_property
    def num_classes(self) -> int | None:
        return len(self.labels) or None if self.declared_output in NEEDED else self._structure.classes

    def check_size(self, size: Size) -> None:
        super().check_size(size)
        self._survey(size)  # says in one sentence why a size will not do
        self._size = size

    def trunk(self, images: Tensor, site: str) -> Tensor:
        self._note_size(images)
        self._check(site)
        spend(forward=len(images) * self.share(site))
        return self._until(images, site, {})

    def between(self, activation: Tensor, first: str, last: str) -> Tensor:
        self._check(first)
        self._check(last)
        before, after = self.share(first), self.share(last)
        blanks = self.blank_images(first, len(activation))
        spend(forward=blanks * before + len(activation) * (after - before))
        if first == last:
            return activation.clone()
        return self._until(self._blank(blanks), last, self._replacement(activation, first))

    def tail(self, activation: Tensor, site: str) -> Tensor:
        self._check(site)
        blanks = self.blank_images(site, len(activation))
        share = self.share(site)
        spend(forward=blanks * share + len(activation) * (1 - share))
        return self._replay(activation, site, blanks)

    def blank_images(self, site: str, count: int) -> int:
        few = count < 4  # too few for the check to pay
        return count if few or not self._follows(site) else 1

    def _until(self, images: Tensor, site: str, changes: dict[str, Change]) -> Tensor:
        """Run the model up to a cut and stop there."""
        activations: list[Tensor] = []

        def stop(value: Tensor) -> Tensor:
            activations.append(value)
            raise _Reached

        try:
            with watch(self.sites, {**changes, site: stop}):
                self._laid(self.model, images)
        except _Reached:
            return self.to_map(site, activations[0], images)
        raise SiteError(f"{self.name} ran without reaching {site!r}; its structure changes from one image to the next")

    def _replay(self, activation: Tensor, site: str, blanks: int) -> Tensor:
        """Run the model on blank images, their activation at a cut replaced."""
        with watch(self.sites, self._replacement(activation, site)):
            return self.logits(self._laid(self.model, self._blank(blanks)))

    def _replacement(self, activation: Tensor, site: str) -> dict[str, Change]:
        native = self.from_map(site, self._laid(lambda laid: laid, activation))
        return {site: lambda _blank: native.clone()}

    def _blank(self, count: int) -> Tensor:
        return torch.zeros(count, self.image_channels, *self._size, dtype=self.dtype, device=self.device)

    def _follows(self, site: str) -> bool:
        """Try once whether the rest of the model takes a larger batch than the one blank image that went in."""
        known = self._measurements()
        if ("follows", site) not in known:
            shape = self.shape_at(site, self._size)[1:]
            two = torch.randn(2, *shape, generator=torch.Generator().manual_seed(0), dtype=torch.float32)
            two = two.to(self.device, self.dtype)
            with torch.no_grad():
                both = self._replay(two, site, 2)
                try:
                    replayed = self._replay(two, site, 1)
                except (RuntimeError, ValueError, AssertionError, IndexError, SightlineError):
                    replayed = both[:0]  # the model had noted how many images came in
                known["follows", site] = replayed.shape == both.shape and torch.allclose(
                    replayed, both, rtol=1e-4, atol=1e-5
                )
        return bool(known["follows", site])

    @property
    def known_size(self) -> Size:
        base = self._base  # asked first: it settles on a size where no image has been seen
        return self._size or base

    def share(self, site: str) -> float:
        survey = self._survey(self.known_size)
        works = [output.work for output in survey.outputs if output.name == site]
        return works[0] / (survey.work or 1) if works else 0.0

    def shape_at(self, site: str, size: Size) -> tuple[int, ...]:
        shapes = [output.shape for output in self._survey(size).outputs if output.name == site]
        if not shapes:
            raise SiteError(self._unknown(site, "layer", self.cuts))
        if len(shapes[0]) != 4:
            raise self._no_map(site, shapes[0])
        shape = shapes[0]
        return (shape[0], shape[3], shape[1], shape[2]) if self.channels_last(site) else shape

    def channels_last(self, site: str) -> bool:
        return any(
            output.name == site and keeps_channels_last(output.shape, self._base) for output in self._structure.outputs
        )

    @property
    def _structure(self) -> Survey:
        return self._survey(self._base)

    @cached_property
    def _base(self) -> Size:
        """The first image size that the model takes: the structure is read off at that size."""
        sizes: tuple[Size, ...] = (self._size, *((side, side) for side in IMAGE_SIZES))
        numbers = (self.image_channels,) if self.knows_normalisation else (self.image_channels, COLOURS)
        for channels in dict.fromkeys(numbers):
            self._channels = channels
            if (size := self._first_taken(sizes)) is not None:
                self._size = size
                return size
        raise InputError(
            f"cannot tell which image size {self.name} needs; say it with adapt(model, input_size=(height, width))"
        )

    def _first_taken(self, sizes: Sequence[Size]) -> Size | None:
        for size in sizes:
            try:
                self._survey(size)
            except InputError:
                continue
            return size
        return None

    @cached_property
    def _maps(self) -> tuple[ModuleOutput, ...]:
        """The feature maps of more than one cell that every path passes, after the image."""
        narrow = [
            output for output in self._structure.outputs if output.bottleneck and len(output.shape) == 4 and output.work
        ]
        left = {output.tensor for output in narrow if output.module is not nn.Module}
        # what enters a module needs a name only where no module left it
        named = [output for output in narrow if output.module is not nn.Module or output.tensor not in left]
        maps = tuple(output for output in named if self._is_map(*self._spatial(output)))
        if not maps:
            raise UnsupportedModel(
                f"{self.name} has no feature map that everything passes through, so it has no layer to cut at; "
                "use a method that needs none, such as ixg or rise"
            )
        return maps

    @cached_property
    def _groups(self) -> tuple[tuple[ModuleOutput, ...], ...]:
        """The maps, each tensor under one name; a group begins where new weights have been applied."""
        maps, tensors = set(self._maps), set[int]()
        groups: list[list[ModuleOutput]] = []
        begin = True
        for output in self._structure.outputs:
            begin = begin or issubclass(output.module, WEIGHTS)
            if output in maps and output.tensor not in tensors:
                tensors.add(output.tensor)
                groups.extend([[]] if begin else [])
                groups[-1].append(self._best_named(output))
                begin = False
        return tuple(map(tuple, groups))

    def _best_named(self, inner: ModuleOutput) -> ModuleOutput:
        """Return the outermost module around this one that ends with the same tensor and is no mere sequence."""
        around = [
            output
            for output in self._maps
            if output.tensor == inner.tensor
            and inner.name.startswith(f"{output.name}.")
            and output.module is not nn.Sequential
        ]
        return around[-1] if around else inner

    def _is_map(self, height: int, width: int) -> bool:
        """Tell a feature map from other tensors of four axes: it has several cells, and lies as the image does."""
        return max(height, width) > 1 and abs(height * self._base[1] / self._base[0] - width) < 1.5

    def _spatial(self, output: ModuleOutput) -> Size:
        shape = output.shape
        return (shape[1], shape[2]) if keeps_channels_last(shape, self._base) else (shape[2], shape[3])

    def _check(self, site: str) -> None:
        if site in self.layers and site not in self.cuts:
            raise SiteError(f"a connection bypasses {site!r} of {self.name}; choose a cut, such as {self.cut_layer!r}")
        if site not in self.cuts:
            raise SiteError(self._unknown(site, "cut", self.cuts))


def _until_growing(ends: Sequence[ModuleOutput], spatial: Callable[[ModuleOutput], Size]) -> list[ModuleOutput]:
    """Return the maps from the first to the last before one is larger than the smallest so far."""
    taken: list[ModuleOutput] = []
    for end in ends:
        if taken and max(spatial(end)) > min(max(spatial(before)) for before in taken):
            break
        taken.append(end)
    return taken


class _Reached(Exception):
    """Raised by `trunk` to leave the model once the activation is there."""


def recognise_generic(model: nn.Module, facts: dict[str, Any]) -> GenericConvolutional | None:
    """Adapt any model that is made of convolutions; tried after every family.

    A patch embedding is a convolution too, so a model with many more linear layers than convolutions is declined.
    """
    modules = list(model.modules())
    convolutions = sum(isinstance(module, nn.Conv2d) for module in modules)
    linear = sum(isinstance(module, nn.Linear | nn.MultiheadAttention) for module in modules)
    if not convolutions or linear > 3 * convolutions + 2:
        return None
    return GenericConvolutional(model, **_facts(model) | facts)


def _facts(model: nn.Module) -> dict[str, Any]:
    library = type(model).__module__.partition(".")[0]
    if library == "timm":
        return sizes(model) | timm_facts(model)
    if library == "torchvision":
        return torchvision_facts(model)
    return transformers_facts(model) if library == "transformers" else {}
