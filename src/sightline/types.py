"""The nouns: what a method is given, and what it says.

Every room may import this module; it imports torch and numpy alone. An attribution shows and saves itself through
`sightline.report.views` and `sightline.attribution_file`, fetched when they are first needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self, get_args, runtime_checkable
from weakref import WeakKeyDictionary

import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from sightline.errors import ShapeError
from sightline.targets.classes import (
    Classes,
    Contrast,
    Custom,
    FinerContrast,
    Indices,
    Link,
    Logit,
    LogProbability,
    Neuron,
    Output,
    PerImage,
    Probability,
    ResidualSoftmax,
    Target,
    TextSimilarity,
    Value,
    log_probabilities,
    probabilities,
)

__all__ = [
    "Attribution",
    "Contrast",
    "Custom",
    "Details",
    "Enlarge",
    "FinerContrast",
    "Indices",
    "Link",
    "LogProbability",
    "Logit",
    "Method",
    "Neuron",
    "Output",
    "Passes",
    "PerImage",
    "Probability",
    "ResidualSoftmax",
    "Target",
    "TextSimilarity",
    "TokenGrid",
    "Value",
    "check_enlarge",
    "log_probabilities",
    "map_grid",
    "pixel_grid",
    "probabilities",
]

if TYPE_CHECKING:
    from PIL.Image import Image

    from sightline.models.adapter import Adapter

Enlarge = Literal["nearest", "bilinear", "bicubic"]


@dataclass(frozen=True, slots=True)
class Passes:
    """Model passes spent, counted in images through the whole model; a third of a model counts a third.

    Attributes:
        forward, backward: the passes.
        peak: where a method declares its cost, about how many bytes it holds at once beside the weights while it
            explains one image; 0 where nobody counted. What runs one after the other holds the larger of the two.
    """

    forward: float = 0.0
    backward: float = 0.0
    peak: int = field(default=0, compare=False, repr=False)

    def __add__(self, other: Passes) -> Passes:
        peak = max(self.peak, other.peak)
        return Passes(self.forward + other.forward, self.backward + other.backward, peak)

    def __mul__(self, factor: float) -> Passes:
        return Passes(self.forward * factor, self.backward * factor, self.peak)

    def __str__(self) -> str:
        return f"{self.forward:.4g} forward, {self.backward:.4g} backward"


@dataclass(frozen=True, slots=True)
class TokenGrid:
    """Where the cells of a map lie in the image.

    Attributes:
        height: cells from top to bottom.
        width: cells from left to right.
        prefix: tokens before the cells that have no place in the image: class, distillation and register tokens.
        image: height and width of the image in pixels.
    """

    height: int
    width: int
    prefix: int = 0
    image: tuple[int, int] = (0, 0)

    @property
    def cells(self) -> int:
        return self.height * self.width

    @property
    def tokens(self) -> int:
        return self.prefix + self.cells

    def to_map(self, scores: Tensor) -> Tensor:
        """Lay one score per token, shape (..., prefix + cells), on the grid: (..., height, width)."""
        if scores.shape[-1] != self.tokens:
            raise ShapeError(
                f"got {scores.shape[-1]} token scores for a grid of {self.prefix} prefix tokens "
                f"and {self.height}×{self.width} cells; give one score per token"
            )
        return scores[..., self.prefix :].reshape(*scores.shape[:-1], self.height, self.width)


def pixel_grid(images: Tensor) -> TokenGrid:
    """Return the grid whose cells are the pixels of `images`."""
    height, width = images.shape[-2:]
    return TokenGrid(height, width, image=(height, width))


def map_grid(values: Tensor, images: Tensor) -> TokenGrid:
    """Return the grid of a feature map, shape (..., height, width), over `images`."""
    return TokenGrid(values.shape[-2], values.shape[-1], image=(images.shape[-2], images.shape[-1]))


@runtime_checkable
class Details(Protocol):
    """What a method returns beside its map, image by image, so that batches can be joined and images taken out."""

    @classmethod
    def join(cls, parts: Sequence[Self]) -> Self:
        """Return the details of several batches as those of one."""
        ...

    def take(self, rows: Sequence[int]) -> Self:
        """Return the details of these images of the batch."""
        ...


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False, repr=False)
class Attribution:
    """What a method says: one signed, unscaled score per cell of the grid, and what it was asked.

    It is plain data: no model inside. ``len(attribution)`` is the number of images, ``attribution[0]`` the attribution
    of the first, and a notebook shows the overlay by itself.

    Attributes:
        values: shape (layer, batch, height, width); where there are several, each is the method on the part of the
            network that starts at the block which `layers` names.
        grid: where the cells lie in the image.
        recipe: the text that rebuilds the method; empty until `explain` fills it.
        passes: model passes spent.
        flags: per image, what a reader should know, for instance "constant map"; empty where there is nothing.
        details: what a method returns on request beside the map.
        target: what was explained, for these images; None where `explain` was not involved.
        labels: per image, what was explained in words: the name of the class, or the target's own text.
        seen: the pixels the model saw, shape (batch, 3, H, W), 0 to 255 as uint8; None where they are unknown.
        layers: the block, by number, or the layer, by name, of each entry of `values`, in the order of the network;
            empty where the map belongs to none.
        own: which entry of `values` is the method as its authors define it, `map`: the first, except for class
            activation maps of every block, where it is the last.
        enlarge: how cells become pixels: nearest for what is constant on patches or segments, else bilinear, or
            bicubic.
    """

    values: Tensor
    grid: TokenGrid
    recipe: str = ""
    passes: Passes = Passes()
    flags: tuple[str, ...] = ()
    details: Any = None
    target: Target | None = None
    labels: tuple[str, ...] = ()
    seen: Tensor | None = None
    layers: tuple[int | str, ...] = ()
    own: int = 0
    enlarge: Enlarge = "bilinear"

    def __post_init__(self) -> None:
        if self.values.ndim != 4 or tuple(self.values.shape[-2:]) != (self.grid.height, self.grid.width):
            raise ShapeError(
                f"got values of shape {tuple(self.values.shape)} for a grid of {self.grid.height}×{self.grid.width}; "
                "an attribution has the shape (layer, batch, height, width)"
            )
        count = len(self.values)
        if not self.layers and count > 1:
            object.__setattr__(self, "layers", tuple(range(count)))
        if self.layers and (len(self.layers) != count or len(set(self.layers)) != count):
            raise ShapeError(f"got layers {self.layers} for {count} maps; name each layer once")
        if not 0 <= self.own < max(count, 1):
            raise ShapeError(f"got own={self.own}; the attribution has {count} layers, the first being 0")
        check_enlarge(self.enlarge)

    # ---- reading -----------------------------------------------------------------------------------------------

    @property
    def source(self) -> Any:
        """The object from outside the registries that made the map, such as one of Captum's; None for a recipe.

        It is kept beside the attribution, not in it: copies in another process and files do not have it.
        """
        return _SOURCES.get(self)

    def made_by(self, source: Any) -> Attribution:
        """Note the object from outside the registries that made the map, and return the attribution itself."""
        if source is not None:
            _SOURCES[self] = source
        return self

    @property
    def map(self) -> Tensor:
        """The method's own map, shape (batch, height, width)."""
        return self.values[self.own]

    def at(self, layer: int | str) -> Tensor:
        """Return the map of one layer, a block's number or a layer's name, shape (batch, height, width)."""
        if layer not in self.layers:
            known = ", ".join(map(str, self.layers)) or "none"
            raise ShapeError(f"got layer={layer!r}; {self.recipe or 'the attribution'} has layers {known}")
        return self.values[self.layers.index(layer)]

    def pixels(self, mode: Enlarge | None = None, layer: int | str | None = None) -> Tensor:
        """Return the map at image size, shape (batch, H, W).

        Args:
            mode: how cells become pixels: nearest, bilinear or bicubic; by default as the attribution says, `enlarge`.
            layer: a block's number or a layer's name, one of `layers`; by default the method's own map.
        """
        mode = self.enlarge if mode is None else check_enlarge(mode, "mode")
        values = self.map if layer is None else self.at(layer)
        if (self.grid.height, self.grid.width) == self.grid.image:
            return values
        options: dict[str, Any] = {} if mode == "nearest" else {"align_corners": False}
        return F.interpolate(values[:, None], size=self.grid.image, mode=mode, **options)[:, 0]

    def numpy(self) -> NDArray[Any]:
        """Return the method's own map as an array, shape (batch, height, width)."""
        return self.map.detach().cpu().numpy()

    def to(self, *args: Any, **options: Any) -> Attribution:
        """Return the attribution with its tensors on another device or in another precision, as `Tensor.to`."""
        values = self.values.to(*args, **options)
        seen = None if self.seen is None else self.seen.to(values.device)
        return replace(self, values=values, seen=seen).made_by(self.source)

    def __len__(self) -> int:
        return self.values.shape[1]

    def __getitem__(self, index: int | slice) -> Attribution:
        """Return the attribution of one image, or of some; the batch axis stays."""
        rows = list(range(len(self)))[index]
        return self.take([rows] if isinstance(rows, int) else rows)

    def __iter__(self) -> Iterator[Attribution]:
        return (self.take([row]) for row in range(len(self)))

    def take(self, rows: Sequence[int]) -> Attribution:
        """Return the attribution of these images of the batch, in this order."""
        taken = replace(
            self,
            values=self.values[:, list(rows)],
            passes=self.passes * (len(rows) / max(len(self), 1)),
            flags=tuple(self.flags[row] for row in rows) if self.flags else (),
            details=self.details.take(rows) if isinstance(self.details, Details) else self.details,
            target=None if self.target is None else self.target.take(rows),
            labels=tuple(self.labels[row] for row in rows) if self.labels else (),
            seen=None if self.seen is None else self.seen[list(rows)],
        )
        return taken.made_by(self.source)

    @classmethod
    def join(cls, parts: Sequence[Attribution]) -> Attribution:
        """Return the attributions of several batches as one; they must come from one recipe and one size of image."""
        first = parts[0]
        if len(parts) == 1:
            return first
        for part in parts:
            if part.grid != first.grid or part.recipe != first.recipe or part.layers != first.layers:
                raise ShapeError(
                    f"got attributions of {first.recipe} at {first.grid.image} and of {part.recipe} at "
                    f"{part.grid.image}; only batches of one recipe and one image size can be joined"
                )
        seen = [part.seen for part in parts if part.seen is not None]
        targets = [part.target for part in parts if part.target is not None]
        joined = replace(
            first,
            values=torch.cat([part.values for part in parts], dim=1),
            passes=sum((part.passes for part in parts), Passes()),
            flags=tuple(flag for part in parts for flag in part.flags),
            details=_joined([part.details for part in parts]),
            target=_one_target(targets, [len(part) for part in parts]) if len(targets) == len(parts) else None,
            labels=tuple(label for part in parts for label in part.labels),
            seen=torch.cat(seen) if len(seen) == len(parts) else None,
        )
        return joined.made_by(first.source)

    # ---- showing and keeping -----------------------------------------------------------------------------------

    def overlay(self, index: int = 0, **options: Any) -> Image:
        """Draw the map of an image over the pixels the model saw, a colour scale beside it; returns a PIL image."""
        from sightline.report.views import attribution_overlay

        return attribution_overlay(self, index, **options)

    def plot(self, ax: Any = None, index: int = 0) -> Any:
        """Draw the overlay of an image with matplotlib, and return the axes."""
        from sightline.report.views import plot_attribution

        return plot_attribution(self, ax, index)

    def save(self, path: str | PathLike[str]) -> Path:
        """Write everything but `details` into a safetensors file; `load` reads it back."""
        from sightline.attribution_file import save_attribution

        return save_attribution(self, path)

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Attribution:
        """Read what `save` wrote."""
        from sightline.attribution_file import load_attribution

        return load_attribution(path)

    def __repr__(self) -> str:
        layers, count, height, width = self.values.shape
        images = f"{count} image{'s' * (count != 1)}"
        several = f", {layers} layers" if layers > 1 else ""
        return f"Attribution({self.recipe or 'no recipe'}: {images}, {height}×{width}{several}; {self.passes})"

    def _repr_html_(self) -> str:
        from sightline.report.views import attribution_html

        return attribution_html(self)


def check_enlarge(mode: str, name: str = "enlarge") -> Enlarge:
    """Return a way to enlarge maps, or refuse it."""
    for known in get_args(Enlarge):
        if mode == known:
            return known  # type: ignore[no-any-return]
    raise ShapeError(f"got {name}={mode!r}; pixels() knows bilinear, nearest and bicubic")


# What made an attribution where no recipe says it; an entry goes when the attribution does.
_SOURCES: WeakKeyDictionary[Attribution, Any] = WeakKeyDictionary()


def _joined(details: Sequence[Any]) -> Any:
    """Join the details of several batches, where there are some and they say how."""
    kinds = {type(part) for part in details}
    kind = kinds.pop()
    return kind.join(details) if not kinds and issubclass(kind, Details) else None


def _one_target(targets: Sequence[Target], counts: Sequence[int]) -> Target:
    """Return one target for images that came in several batches."""
    if all(target == targets[0] and target == target.take([0, 0]) for target in targets):  # the same for every image
        return targets[0]
    if all(isinstance(target, Logit) for target in targets):
        pairs = zip(targets, counts, strict=True)
        each = [[t.index] * n if isinstance(t.index, int) else list(t.index) for t, n in pairs if isinstance(t, Logit)]
        return Logit(tuple(index for indices in each for index in indices), classes=_joined_classes(targets, counts))
    rows = [target.take([row]) for target, count in zip(targets, counts, strict=True) for row in range(count)]
    return PerImage(tuple(rows))


def _joined_classes(targets: Sequence[Target], counts: Sequence[int]) -> Classes | None:
    """Return the classes in the pictures of several batches, None where they are not known of all."""
    joined: list[tuple[int, ...]] = []
    for target, count in zip(targets, counts, strict=True):
        classes: Classes | None = getattr(target, "classes", None)
        if classes is None:
            return None
        joined += classes * count if len(classes) == 1 else classes
    return tuple(joined)


@runtime_checkable
class Method(Protocol):
    """Anything that turns a model, images and a target into an attribution."""

    def __call__(self, model: Adapter, images: Tensor, target: Target, /) -> Attribution: ...

    def cost(self, model: Adapter, /) -> Passes:
        """Return the passes one image costs on this model, the target being given."""
        ...
