"""Attention of models that are no plain vision transformers: which modules attend to what, and whose row is read.

CaiT, LeViT and XCiT end in a class token or a mean that reads a map; detectors of the DETR family have an encoder, and
a decoder whose queries read it; YOLOS has detection tokens among the patches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor, nn

from sightline.models.capture import Site

if TYPE_CHECKING:
    from sightline.models.adapter import Adapter

Size = tuple[int, int]
Role = Literal["tokens", "patches", "coarser", "class", "queries", "cross"]
PRODUCTS = frozenset({"raw_attention", "rollout", "gae"})  # methods that take the layers one after the other
LAST = frozenset({"raw_attention"})  # methods that look at the last layer alone
MAP = "map"  # the name under which the map that tells the grid is captured


@dataclass(frozen=True, eq=False)
class AttentionLayer:
    """An attention module: which of the model's tokens attend in it, and to which.

    Attributes:
        name: its name in the model.
        module: itself.
        role: tokens (all to all), patches (to each other), coarser (a coarser map to the one before it, without a
            residual connection), class (the class token to itself and the patches), queries (of a decoder, to each
            other) or cross (queries to patches).
        grid: height and width of the map that is attended to; None where only the run tells.
    """

    name: str
    module: nn.Module
    role: Role
    grid: Callable[[Size], Size] | None = None


@dataclass(frozen=True, eq=False)
class AttentionLayers:
    """The attention of a model, from the image to the output.

    Attributes:
        layers: in the order of the forward pass.
        reader: whose row of the last attention the output reads: class token, mean over the patches, the query that
            found the object that is explained, or the patches at the place of the region or box that is explained.
        before: tokens in front of the patches where all tokens attend to all.
        map: the module whose output is the map of the patches, where no layer knows its grid.
        methods: which methods are defined on it.
        prepare: makes the attention of some modules one that can be captured.
    """

    layers: tuple[AttentionLayer, ...]
    reader: Literal["class", "mean", "query", "place"]
    before: int = 0
    map: nn.Module | None = None
    methods: frozenset[str] = PRODUCTS
    prepare: Callable[[Any], AbstractContextManager[None]] = field(default=lambda _modules: nullcontext())

    @contextmanager
    def capture(self, model: Adapter, *, gradient: bool = False) -> Iterator[Mapping[str, Tensor]]:
        """Record the probabilities of every layer, and the map, while the model runs once."""
        sites = {layer.name: Site(layer.module, "probabilities") for layer in self.layers}
        if self.map is not None:
            sites[MAP] = Site(self.map)
        with self.prepare(model.modules), model.capture_sites(sites, gradient=gradient) as seen:
            yield seen
