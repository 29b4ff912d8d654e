r"""Rollout and GAE through an encoder of patches and a decoder whose queries read them, as in DETR.

Notation: :math:`R^{ii}` (patch, patch), :math:`R^{qq}` (query, query) and :math:`R^{qi}` (query, patch) hold how much
each token owes to each; they begin as identities, and as zeros. The row of the query that found an object is its map
:cite:p:`chefer2021generic`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from sightline.methods.attention.token_matrices import identity, rows_to_one, with_identity
from sightline.models.attention_layers import AttentionLayer


def rollout(layers: Sequence[AttentionLayer], means: Mapping[str, Tensor]) -> Tensor:
    r"""Return the rollout from patches to queries, (batch, query, patch).

    .. math:: (R^{qq})^\top \, P^{qi}_{L-1} \, R^{ii}

    with :math:`R^{ii}`, :math:`R^{qq}` the rollouts of the encoder and of the decoder's self-attention, and
    :math:`P^{qi}_{L-1}` the last cross-attention, each the mean over heads.
    """
    last = next(layer for layer in reversed(layers) if layer.role == "cross")
    within = {role: [means[each.name] for each in layers if each.role == role] for role in _SELF}
    patches, queries = (_product([with_identity(matrix) for matrix in within[role]]) for role in _SELF)
    return queries.mT @ means[last.name] @ patches


def generic_attention(layers: Sequence[AttentionLayer], weighted: Mapping[str, Tensor]) -> Tensor:
    r"""Return the relevance of patches to queries, (batch, query, patch), by the rules of GAE.

    Self-attention adds :math:`E R` to what its tokens owe; cross-attention adds

    .. math:: R^{qi} \leftarrow R^{qi} + (\bar R^{qq})^\top \, E^{qi} \, \bar R^{ii}

    where the bar divides the rows of :math:`R - I` by their sums and adds the identity again.
    """
    patches, queries = (_unmixed(next(weighted[e.name] for e in layers if e.role == role)) for role in _SELF)
    across = torch.zeros_like(next(weighted[each.name] for each in layers if each.role == "cross"))
    for layer in layers:
        matrix = weighted[layer.name]
        if layer.role == "patches":
            patches = patches + matrix @ patches
        elif layer.role == "queries":
            across, queries = across + matrix @ across, queries + matrix @ queries
        else:
            across = across + _normalised(queries).mT @ matrix @ _normalised(patches)
    return across


_SELF = ("patches", "queries")  # the roles of self-attention, in the encoder and in the decoder


def _unmixed(like: Tensor) -> Tensor:
    """Return the identity for every image, (batch, to, from)."""
    return identity(like).expand_as(like)


def _normalised(relevance: Tensor) -> Tensor:
    """Divide the rows of what exceeds the identity by their sums, and add the identity again."""
    return rows_to_one(relevance - identity(relevance)) + identity(relevance)


def _product(matrices: Sequence[Tensor]) -> Tensor:
    """Multiply the matrices of layers that follow each other."""
    product = matrices[0]
    for matrix in matrices[1:]:
        product = matrix @ product
    return product
