r"""The last block of a transformer, run for the prefix tokens alone.

Of what leaves the last block a classifier that reads the class token reads nothing else. So that block needs the keys
and values of all tokens, but queries, projection and MLP of the prefix tokens only: about a twelfth less work in a
network of twelve blocks, and the same logits up to rounding.

It is done where it is safe: the block must be plain (norm, attention, norm, MLP and two skip connections), which is
found out by its numbers, all its weights must be those of these parts, and nobody may watch what would be left out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sightline.models.passes import evaluating, modules_of

if TYPE_CHECKING:
    from sightline.models.vit.adapter import Block, VisionTransformer

PATCHES = 3  # beside the prefix, in the tokens on which a block is tried
READS_PREFIX = ("cls", "cls+distilled")
_Modules = tuple[nn.Module | None, ...]
Attention = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class LastBlock:
    """A plain block that is run for its first tokens.

    Attributes:
        block: its modules.
        heads: of its attention.
        prefix: how many tokens leave it.
    """

    block: Block = field(repr=False)
    heads: int
    prefix: int

    def __call__(self, tokens: Tensor, attend: Attention = F.scaled_dot_product_attention) -> Tensor:
        """Return the prefix tokens that leave the block, (batch, prefix, channel), from all tokens that enter it.

        `attend` gets the queries of the prefix and the keys and values of all tokens, (batch, head, token, channel).
        """
        block = self.block
        assert block.projection is not None
        assert block.mlp is not None
        normed = tokens if block.norm1 is None else block.norm1(tokens)
        context = attend(*self._queries_keys_values(normed))
        left = tokens[:, : self.prefix]
        left = left + _scaled(block.projection(context.transpose(1, 2).flatten(2)), block.scale1)
        return left + _scaled(block.mlp(left if block.norm2 is None else block.norm2(left)), block.scale2)

    def _queries_keys_values(self, normed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        weight, bias = self.block.queries_keys_values, self.block.queries_keys_values_bias
        assert weight is not None
        size = len(weight) // 3
        own = F.linear(normed[:, : self.prefix], weight[:size], None if bias is None else bias[:size])
        others = F.linear(normed, weight[size:], None if bias is None else bias[size:])
        keys, values = others.unflatten(-1, (2, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind()
        return own.unflatten(-1, (self.heads, -1)).transpose(1, 2), keys, values


class PrefixAttention:
    """The attention of the prefix to all tokens, computed step by step so that its tensors can be read afterwards.

    Attributes:
        q: the prefix tokens' queries, (batch, head, prefix, channel).
        k: keys of all tokens.
        v: values of all tokens.
        probabilities: (batch, head, prefix, token); they have a gradient where a graph is built.
        context: the heads' outputs.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    probabilities: Tensor
    context: Tensor

    def __call__(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        self.q, self.k, self.v = queries, keys, values
        probabilities = ((queries * queries.shape[-1] ** -0.5) @ keys.mT).softmax(dim=-1)
        if torch.is_grad_enabled() and not probabilities.requires_grad:
            probabilities = probabilities.detach().requires_grad_()
        self.probabilities = probabilities
        self.context = probabilities @ values
        return self.context


def find_last_block(model: VisionTransformer) -> LastBlock | None:
    """Return the last block of a model if it can be run for the prefix alone, else None; tried once for each model.

    The model is held in eval mode meanwhile. Where hooks are on the block it is not tried, and not remembered.
    """
    runs_apart = "tokens" in model.offers and isinstance(model.model, nn.Module)
    if not runs_apart or model.pool not in READS_PREFIX or model.blocks_see_positions:
        return None
    block = model.blocks[-1]
    parts = _parts(block)
    known = _known.get(block.module)
    if known is not None and known[0] == tuple(map(id, parts)):
        return _of(model, known[1])
    if any(map(_has_hooks, modules_of(block.module))):
        return None
    heads = _heads(model, block)
    _known[block.module] = tuple(map(id, parts)), heads
    return _of(model, heads)


# By block: its modules when it was tried, and how many heads it has, 0 where it is not plain.
_known: WeakKeyDictionary[nn.Module, tuple[tuple[int, ...], int]] = WeakKeyDictionary()


def _of(model: VisionTransformer, heads: int) -> LastBlock | None:
    return LastBlock(model.blocks[-1], heads, model.prefix) if heads else None


def _parts(block: Block) -> _Modules:
    return block.attention, block.norm1, block.norm2, block.mlp, block.projection


def _heads(model: VisionTransformer, block: Block) -> int:
    """Return how many heads a plain block has, 0 for any other."""
    weight = block.queries_keys_values
    heads = next((n for name in ("num_heads", "num_attention_heads") if (n := getattr(block.attention, name, 0))), 0)
    heads = heads or getattr(getattr(block.attention, "attention", None), "num_attention_heads", 0)
    if weight is None or not heads or not isinstance(block.projection, nn.Linear) or block.mlp is None:
        return 0
    if len(weight) % (3 * heads) or _has_other_weights(block):
        return 0
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randn(2, model.prefix + PATCHES, weight.shape[1], generator=generator)
    tokens = tokens.to(device=weight.device, dtype=weight.dtype)
    keep = torch.arange(PATCHES, device=weight.device)
    try:
        with torch.inference_mode(False), torch.no_grad(), evaluating(model.model):
            wanted = model.step(tokens, model.depth - 1, keep)[:, : model.prefix]
            got = LastBlock(block, heads, model.prefix)(tokens)
    except Exception:  # a block of another kind may refuse few tokens, or have parts of other sizes
        return 0
    rounding = torch.finfo(wanted.dtype).eps ** 0.75
    return heads if bool((got - wanted).abs().max() <= rounding * wanted.abs().max()) else 0


def _has_other_weights(block: Block) -> bool:
    """Tell whether a block has weights beside those of its parts, such as a bias for positions or norms of queries.

    They may hold numbers now that make no difference, and others later.
    """
    counted = [part for part in (block.norm1, block.norm2, block.mlp, block.projection) if part is not None]
    known = {id(tensor) for part in counted for tensor in _tensors(part)} | {*map(id, block.attention_weights)}
    known |= {id(scale) for scale in (block.scale1, block.scale2) if scale is not None}
    return any(id(tensor) not in known for tensor in _tensors(block.module))


def _tensors(module: nn.Module) -> list[Tensor]:
    return [*module.parameters(), *module.buffers()]


def _has_hooks(module: nn.Module) -> bool:
    return bool(
        module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    ) or _replaces_call(module)


def _ends_watched(module: nn.Module) -> bool:
    """Tell whether anyone watches what a module returns."""
    return bool(module._forward_hooks or module._backward_hooks or module._backward_pre_hooks) or _replaces_call(module)


def _replaces_call(module: nn.Module) -> bool:
    """Tell whether a module has a forward of its own, and not its class's, or runs parts of itself again."""
    own = module.__dict__
    return "forward" in own or own.get("grad_checkpointing") is True


def is_watched(model: VisionTransformer) -> bool:
    """Tell whether anyone would miss what is left out: hooks behind the last block or inside it.

    Hooks on the blocks before it, on what enters it and on its first norm see what they always see.
    """
    last = model.blocks[-1]
    free = {block.module for block in model.blocks[:-1]} | {model.entry.module, last.norm1}
    path = _path(model.model, last.module, free)
    if not path or torch._C._len_torch_function_stack():
        return True  # without a path the adapter's blocks are not those of the model that runs
    waiting = [child for module in path for child in module._modules.values() if child not in path]
    while waiting:
        module = waiting.pop()
        if module is not None and module not in free:
            if _has_hooks(module):
                return True
            waiting += module._modules.values()
    return any(map(_ends_watched, path))


def _path(root: nn.Module, module: nn.Module, free: set[nn.Module | None]) -> list[nn.Module]:
    """Return the modules from the root down to a module, which it is the last of; only what they return comes after."""
    if root is module:
        return [module]
    for child in root._modules.values():
        if child is not None and child not in free and (inside := _path(child, module, free)):
            return [root, *inside]
    return []


def _scaled(values: Tensor, scale: Tensor | None) -> Tensor:
    return values if scale is None else values * scale
