"""Vision transformers: blocks, tokens, attention, and where the patches lie.

A family (timm, torchvision, transformers, open_clip) subclasses `VisionTransformer` and says where things are; the rest
is the same for all.

Sites, for block l: ``block.l.input`` and ``.output`` (the residual stream; ``block.0.input`` lies before any norm that
precedes the blocks), ``.norm1``, ``.norm2``, ``.attention``, ``.mlp`` (module outputs), ``.q``, ``.k``, ``.v``,
``.scores``, ``.probabilities``, ``.context`` (inside the attention), and ``norm``, the final norm.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sightline.errors import InputError, SiteError
from sightline.models.adapter import Adapter
from sightline.models.capture import ATTENTION_PLACES, Attend, Site, attend, watch
from sightline.models.memory import SMALL
from sightline.models.passes import is_guarded, spend
from sightline.models.vit.last_block import Attention, LastBlock, find_last_block, is_watched
from sightline.types import TokenGrid


@dataclass(frozen=True, eq=False)
class Block:
    """The parts of one residual block that have a name.

    Attributes:
        module: the whole block.
        attention: the attention module, tokens in, tokens out; the block itself where it holds the attention.
        norm1: before (or, in post-norm models, after) the attention; None where there is none.
        norm2: before (or after) the MLP.
        mlp: the feed-forward part, None where it is no module of its own.
        projection: the attention's output projection, None where it is no module of its own.
        mlp_layers: the linear layer, the activation and the linear layer of a plain MLP, None where it is not plain.
        scales: the names, inside the block, of the vectors that scale what attention and MLP add to the residual
            stream; a name that is not there stands for no scaling.
    """

    module: nn.Module
    attention: nn.Module
    norm1: nn.Module | None
    norm2: nn.Module | None
    mlp: nn.Module | None
    projection: nn.Module | None = None
    mlp_layers: tuple[nn.Module, nn.Module, nn.Module] | None = None
    scales: tuple[str, str] = ("", "")

    @property
    def scale1(self) -> Tensor | None:
        """What the attention's output is multiplied by before it is added, shape (channel,)."""
        return first_path(self.module, (self.scales[0],))  # type: ignore[no-any-return]

    @property
    def scale2(self) -> Tensor | None:
        """What the MLP's output is multiplied by before it is added, shape (channel,)."""
        return first_path(self.module, (self.scales[1],))  # type: ignore[no-any-return]

    @property
    def value(self) -> tuple[Tensor, Tensor | None] | None:
        """Weight and bias of the linear map that makes the values, None where there is no such map to be found."""
        attention: Any = self.attention
        alone = first_path(attention, ("v_proj", "attention.value"))
        if isinstance(alone, nn.Linear):
            return alone.weight, alone.bias
        joint = first_path(attention, ("in_proj_weight", "qkv.weight"))
        if joint is None or len(joint) % 3:
            return None
        bias = first_path(attention, ("in_proj_bias", "qkv.bias"))
        return joint.chunk(3)[2], getattr(attention, "v_bias", None) if bias is None else bias.chunk(3)[2]

    @property
    def queries_keys_values(self) -> Tensor | None:
        """The weights that make queries, keys and values, one below the other; None where they cannot be found."""
        names = (("q_proj.weight", "attention.query.weight"), ("k_proj.weight", "attention.key.weight"))
        alone = [first_path(self.attention, paths) for paths in (*names, ("v_proj.weight", "attention.value.weight"))]
        if all(weight is not None for weight in alone):
            return torch.cat(alone)
        return first_path(self.attention, ("in_proj_weight", "qkv.weight"))  # type: ignore[no-any-return]

    @property
    def queries_keys_values_bias(self) -> Tensor | None:
        """The biases of the same, None where there are none or they cannot be found."""
        names = (("q_proj.bias", "attention.query.bias"), ("k_proj.bias", "attention.key.bias"))
        alone = [first_path(self.attention, paths) for paths in (*names, ("v_proj.bias", "attention.value.bias"))]
        if all(bias is not None for bias in alone):
            return torch.cat(alone)
        return first_path(self.attention, ("in_proj_bias", "qkv.bias"))  # type: ignore[no-any-return]

    @property
    def attention_weights(self) -> list[Tensor]:
        """The weights and biases that these two are made of."""
        makers = ("q_proj", "k_proj", "v_proj", "attention.query", "attention.key", "attention.value", "qkv")
        paths = [f"{maker}.{kind}" for maker in makers for kind in ("weight", "bias")]
        found = [first_path(self.attention, (path,)) for path in (*paths, "in_proj_weight", "in_proj_bias")]
        return [tensor for tensor in found if tensor is not None]


class VisionTransformer(Adapter):
    """A plain vision transformer: an embedding, equal blocks, a pooled classifier.

    Each family sets the attributes below when it is built, and defines `pool`, `step` and `finish`.

    Attributes:
        blocks: the blocks, in order.
        entry: where X_0 is: patch embedding, prefix tokens and positions are in, nothing else has happened.
        final_norm: the norm after the last block, None where there is none.
        prefix: how many tokens come before the patches.
        patch: height and width of a patch in pixels.
    """

    kind = "transformer"
    offers = frozenset({"gradient", "layers", "attention", "tokens"})
    blocks: tuple[Block, ...]
    entry: Site
    final_norm: nn.Module | None
    prefix: int
    patch: tuple[int, int]
    blocks_see_positions: bool = False  # whether blocks are handed rotary tables or biases beside the tokens
    _last_block: LastBlock | None = None  # where it can be run for the prefix alone

    # ---- what each family defines ------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def pool(self) -> str:
        """What the classifier reads: cls, mean, cls+mean, cls+distilled or map (attention pooling)."""

    @abstractmethod
    def step(self, tokens: Tensor, index: int, keep: Tensor | None) -> Tensor:
        """Run block `index`; block 0 begins with whatever norm precedes the blocks."""

    @abstractmethod
    def finish(self, tokens: Tensor) -> Tensor:
        """Turn the tokens that leave the last block into logits."""

    # ---- what follows ----------------------------------------------------------------------------------

    def _find_shorter_pass(self) -> bool:
        self._last_block = find_last_block(self)
        return self._last_block is not None

    def _shorter_pass(self, images: Tensor) -> Tensor | None:
        """Return the logits by a pass whose last block runs for the prefix alone, where nobody watches the rest."""
        last = self.unwatched_last_block()
        return None if last is None else self.logits_by(last, images)

    def logits_by(self, last: LastBlock, images: Tensor, attend: Attention = F.scaled_dot_product_attention) -> Tensor:
        """Return the logits by a pass whose last block runs for the prefix alone, with this attention."""
        spend(forward=len(images))
        return self.finish(last(self._entering(Site(self.blocks[-1].module, "input"), images), attend))

    def unwatched_last_block(self) -> LastBlock | None:
        """Return the last block where it can be run for the prefix alone and nobody watches the rest, else None."""
        if not self._has_shorter_pass or not is_guarded() or is_watched(self):
            return None  # whoever calls the adapter directly gets what the model gives, to the last digit
        return self._last_block

    @property
    def shortens_last_block(self) -> bool:
        """Whether the last block runs for the prefix alone, on images of the size last seen."""
        return math.prod(self.seen_size) > SMALL and find_last_block(self) is not None

    @property
    def pooling_attention(self) -> nn.Module | None:
        """The module whose attention pools the tokens of a model with pool ``map``, None where it is not known."""
        return None

    @property
    def depth(self) -> int:
        return len(self.blocks)

    @property
    def pooled_tokens(self) -> tuple[int, ...]:
        """The prefix tokens the classifier reads."""
        return {"cls": (0,), "cls+mean": (0,), "cls+distilled": (0, 1)}.get(self.pool, ())

    def grid_of(self, images: Tensor) -> TokenGrid:
        return self.grid_for((images.shape[-2], images.shape[-1]))

    def grid_for(self, size: tuple[int, int]) -> TokenGrid:
        """Return the patches of an image of this size."""
        return TokenGrid(size[0] // self.patch[0], size[1] // self.patch[1], self.prefix, size)

    @property
    def grid(self) -> TokenGrid:
        """The patches of an image of the model's own size."""
        if self.input_size is None:
            raise InputError(f"{self.name} takes images of any size; ask grid_of(images) or grid_for((height, width))")
        return self.grid_for(self.input_size)

    def start(self, images: Tensor) -> Tensor:
        """Return X_0, the tokens that enter the first block, shape (batch, token, channel)."""
        spend(forward=0.0)  # the embedding is one matrix product: it costs next to nothing and counts as nothing
        return self._entering(self.entry, images)

    def _entering(self, site: Site, images: Tensor) -> Tensor:
        """Run the model until it reaches a site; return the tokens there."""
        entered: list[Tensor] = []
        self._size = (images.shape[-2], images.shape[-1])

        def stop(tokens: Tensor) -> Tensor:
            entered.append(tokens)
            raise _Reached

        try:
            with watch({"site": site}, {"site": stop}):
                self.forward(images)
        except _Reached:
            return entered[0]
        raise SiteError(f"{self.name} ran without reaching its blocks; its structure is not the one it claims")

    def run(self, tokens: Tensor, first: int = 0, last: int | None = None, *, keep: Tensor | None = None) -> Tensor:
        """Run blocks `first` up to, not including, `last`.

        `keep` names the patches that are left when tokens were dropped, shape (kept,) or (batch, kept); only models
        with rotary positions need it.
        """
        last = self.depth if last is None else last
        for index in range(first, last):
            tokens = self.step(tokens, index, keep)
        self._spend_blocks(tokens, last - first)
        return tokens

    def _spend_blocks(self, tokens: Tensor, count: int) -> None:
        share = tokens.shape[1] / self._full if self._full else 1.0
        spend(forward=len(tokens) * count / self.depth * min(share, 1.0))

    def logits_of(self, tokens: Tensor, first: int = 0, *, keep: Tensor | None = None) -> Tensor:
        """Return the logits of tokens that enter block `first`: `finish` of `run`, the last block as in a call."""
        last = self.unwatched_last_block()
        if last is None or first == self.depth:
            return self.finish(self.run(tokens, first, keep=keep))
        self._spend_blocks(tokens, self.depth - first)
        for index in range(first, self.depth - 1):
            tokens = self.step(tokens, index, keep)
        return self.finish(last(tokens))

    @contextmanager
    def attend(self, changes: Mapping[int, Attend]) -> Iterator[None]:
        """Replace the attention of blocks, by index, by functions: (queries, keys, values, scale) -> heads' outputs.

        All are (batch, head, token, channel); projections, norms and MLPs stay the model's own.
        """
        with self._watchable(), attend({self.blocks[index].attention: change for index, change in changes.items()}):
            yield

    @property
    def seen_grid(self) -> TokenGrid:
        """The patches of an image of the size last seen; before there was one, of the size the model was made for."""
        return self.grid_for(self._size or self.default_size)

    def keys_and_values(self, tokens: Tensor, index: int, keep: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the keys and values of tokens that enter a block, (batch, head, token, channel) each."""
        pairs: list[tuple[Tensor, Tensor]] = []

        def stop(_query: Tensor, key: Tensor, value: Tensor, _scale: float) -> Tensor:
            pairs.append((key, value))
            raise _Reached

        try:
            with self.attend({index: stop}):
                self.step(tokens, index, keep)
        except _Reached:
            return pairs[0]
        raise SiteError(f"block {index} of {self.name} ran without attending; its structure is not the one it claims")

    @cached_property
    def _full(self) -> int:
        return self.grid.tokens if self.input_size else 0

    def readout(self, tokens: int) -> Tensor:
        """Return how much the classifier reads of each token directly, shape (token,), summing to one.

        The class token for a CLS model; class and distillation token by halves for a distilled one; all patches evenly
        for a pooled one; class token and patches by halves where the classifier reads both. Attention methods read this
        row of the attention matrix.
        """
        weights = torch.zeros(tokens, dtype=self.dtype, device=self.device)
        heads = self.pooled_tokens
        patches = self.pool in ("mean", "cls+mean", "map")
        share = 1.0 / (len(heads) + patches)
        for head in heads:
            weights[head] = share
        if patches:
            weights[self.prefix :] = share / (tokens - self.prefix)
        return weights

    @cached_property
    def sites(self) -> Mapping[str, Site]:
        sites: dict[str, Site] = {}
        for index, block in enumerate(self.blocks):
            sites[f"block.{index}.input"] = self.entry if index == 0 else Site(block.module, "input")
            for name in ("norm1", "attention", "norm2", "mlp"):
                if (module := getattr(block, name)) is not None and module is not block.module:
                    sites[f"block.{index}.{name}"] = Site(module)
            for place in ATTENTION_PLACES:
                sites[f"block.{index}.{place}"] = Site(block.attention, place)
            sites[f"block.{index}.output"] = Site(block.module)
        if self.final_norm is not None:
            sites["norm"] = Site(self.final_norm)
        return sites

    def every(self, place: str, start: int = 0) -> list[str]:
        """Return the names of one kind of site in every block from `start` on."""
        return [f"block.{index}.{place}" for index in range(start, self.depth)]

    def layer(self, layer: str | int | None = None) -> str:
        """Return a site: None is the last block's first norm, an index that of another block, a name itself.

        The patches of a class-token model no longer feed the output after the last attention, so the last block's
        output has no gradient there; its first norm is the last site that has one.
        """
        if isinstance(layer, str):
            return next(iter(self.find(layer)))
        index = (
            self.depth - 1 if layer is None else range(self.depth)[layer] if -self.depth <= layer < self.depth else -1
        )
        if index < 0:
            raise SiteError(f"got layer={layer}; {self.name} has blocks 0 to {self.depth - 1}")
        return f"block.{index}.norm1" if f"block.{index}.norm1" in self.sites else f"block.{index}.input"

    def to_map(self, site: str, values: Tensor, images: Tensor) -> Tensor:
        return self.grid_of(images).to_map(values.transpose(1, 2))

    def remaining(self, site: str) -> float:
        if site.startswith("block."):
            _, index, place = site.split(".")
            return 1 - (int(index) + (place == "output")) / self.depth
        return 0.0 if site == "norm" else 1.0


class _Reached(Exception):
    """Raised to stop the model once the wanted tensor is computed."""


def gather_rotary(table: Tensor, keep: Tensor | None) -> Tensor:
    """Pick the rows of a rotary table, (patch, channel), that belong to the kept patches."""
    if keep is None:
        return table
    return table[keep] if keep.ndim == 1 else table[keep][:, None]


def gather_bias(bias: Tensor, keep: Tensor, prefix: int) -> Tensor:
    """Pick the rows and columns of a position bias, ([1,] head, token, token), that belong to the tokens left."""
    left = torch.cat([torch.arange(prefix, device=keep.device).expand(*keep.shape[:-1], -1), prefix + keep], dim=-1)
    picked = bias.flatten(0, -3)[:, left[..., :, None], left[..., None, :]]  # (head, [batch,] token, token)
    return picked[None] if keep.ndim == 1 else picked.transpose(0, 1)


@contextmanager
def keeping_bias(model: VisionTransformer, index: int, keep: Tensor | None) -> Iterator[None]:
    """Let a block whose attention adds a bias for every pair of tokens run on the tokens that are left."""
    if keep is None:
        yield
        return
    site = Site(model.blocks[index].attention, "mask")
    with model.interceptable(), watch({"bias": site}, {"bias": lambda bias: gather_bias(bias, keep, model.prefix)}):
        yield


def first_attribute(root: Any, names: Sequence[str]) -> Any:
    """Return the first of these attributes that exists and is not None."""
    return next((value for name in names if (value := getattr(root, name, None)) is not None), None)


def first_path(root: Any, paths: Sequence[str]) -> Any:
    """Follow dotted paths of attributes; return the end of the first that exists and is not None."""
    for path in paths:
        value = root
        for name in path.split("."):
            value = getattr(value, name, None)
        if value is not None:
            return value
    return None


def plain_mlp(first: Any, activation: Any, second: Any) -> tuple[nn.Module, nn.Module, nn.Module] | None:
    """Return the layers of a plain MLP, None where one of them is missing."""
    complete = all(isinstance(layer, nn.Module) for layer in (first, activation, second))
    return (first, activation, second) if complete else None
