"""`nn.MultiheadAttention` computed step by step, so that its projections and heads can be captured."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from sightline.errors import SiteError

_SIGNATURE = inspect.signature(F.multi_head_attention_forward)
Attend = Callable[[Tensor, Tensor, Tensor, Tensor | None, bool], tuple[Tensor, Tensor | None]]


def multi_head(attend: Attend, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Tensor, Tensor | None]:
    """Compute a call of `F.multi_head_attention_forward`, (token, batch, channel) in and out.

    `attend` gets queries, keys and values, (batch, head, token, channel), the mask, and whether the weights are wanted;
    it returns the heads' outputs and, if they are, the probabilities.
    """
    call = _SIGNATURE.bind(*args, **kwargs)
    call.apply_defaults()
    given = call.arguments
    if given["bias_k"] is not None or given["add_zero_attn"] or given["static_k"] is not None:
        raise SiteError(
            "this nn.MultiheadAttention adds keys of its own, so its heads cannot be captured; "
            "use a method that needs no attention"
        )
    q, k, v = (x.unflatten(-1, (given["num_heads"], -1)).permute(1, 2, 0, 3) for x in _projected(given))
    context, probabilities = attend(q, k, v, given["attn_mask"], given["need_weights"])
    output = F.linear(context.permute(2, 0, 1, 3).flatten(-2), given["out_proj_weight"], given["out_proj_bias"])
    if probabilities is None or not given["average_attn_weights"]:
        return output, probabilities
    return output, probabilities.mean(dim=1)


def _projected(given: Mapping[str, Any]) -> tuple[Tensor, ...]:
    tokens = given["query"], given["key"], given["value"]
    weight, bias = given["in_proj_weight"], given["in_proj_bias"]
    if not given["use_separate_proj_weight"] and tokens[0] is tokens[1] is tokens[2]:
        return F.linear(tokens[0], weight, bias).chunk(3, dim=-1)  # one product, as the original has it
    separate = given["q_proj_weight"], given["k_proj_weight"], given["v_proj_weight"]
    weights = separate if given["use_separate_proj_weight"] else weight.chunk(3)
    biases = (None,) * 3 if bias is None else bias.chunk(3)
    return tuple(F.linear(x, w, b) for x, w, b in zip(tokens, weights, biases, strict=True))


def fused(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, wanted: bool) -> tuple[Tensor, Tensor | None]:
    """Attend by torch's own kernel, or step by step where the weights are wanted."""
    if not wanted:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask), None
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    if mask is not None:
        scores = scores.masked_fill(mask, -math.inf) if mask.dtype == torch.bool else scores + mask
    probabilities = scores.softmax(dim=-1)
    return probabilities @ v, probabilities
