r"""Norm-based token attribution: the norm of the vector that each token contributes to another, block by block.

Notation: :math:`P_{\ell,h}` (to, from) are the attention probabilities of head h in block :math:`\ell`;
:math:`u_{\ell,h,j}` is the value of token j after the head's output projection, layer scale included;
:math:`x_{\ell,i}` are the tokens that enter the block; :math:`r` is the row the classifier reads
(`VisionTransformer.readout`). Attention adds :math:`\sum_h P_{\ell,h}[i,j]\, u_{\ell,h,j}` of token j to token i. Each
method turns that vector into one non-negative number, a matrix :math:`N_\ell` (to, from) per block.

None of them depends on the class or includes the blocks' MLPs.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from sightline.errors import RecipeError
from sightline.methods.attention.attention import own_rows, rollout, transformer
from sightline.methods.attention.token_matrices import identity, rows_to_one
from sightline.methods.multi_target import MultiTarget
from sightline.models.adapter import Adapter
from sightline.models.memory import held
from sightline.models.vit.adapter import VisionTransformer
from sightline.models.vit.parts import Parts, read_parts
from sightline.registry import METHODS
from sightline.types import Attribution, Passes, Target

_CHUNK = 2**19  # numbers in memory at once where all vectors are computed: few enough to stay near the processor
_COPIES = 3  # of those vectors
PARTS = 0.7  # of a block's graph: the seven token tensors that are read of it
WORKING = 2  # copies of a block's attention while its matrix is made


class _BlockMatrices(MultiTarget):
    """A method with one (to, from) matrix per block, from one forward pass."""

    __slots__ = ()

    @abstractmethod
    def matrix(self, parts: Parts) -> Tensor:
        """Return the matrix of one block, shape (batch, to, from)."""

    def token_matrices(self, model: VisionTransformer, images: Tensor, start: int = 0) -> list[Tensor]:
        """Return the matrix of every block from `start` on; one forward pass."""
        return [self.matrix(parts) for parts in read_parts(model, images, start)]

    def multi_target_cost(self, model: Adapter, count: int, *, every_layer: bool = False) -> Passes:
        return Passes(1, 0)

    def peak(self, model: Adapter) -> int:
        """Return the bytes held for one image: the parts of the blocks, and attention while a matrix is made."""
        depth = transformer(model).depth
        share = 1 - self.first_block(depth) / depth
        return held(model, forwards=1, graphs=PARTS * share, attention=share + WORKING / depth)

    @abstractmethod
    def first_block(self, depth: int) -> int:
        """Return the first block that is read."""


class _RolledOut(_BlockMatrices):
    """Block matrices, multiplied as in rollout; each block's own row where every layer is asked for."""

    __slots__ = ()
    start: int

    def multi_target(
        self, model: Adapter, images: Tensor, targets: Sequence[Target], *, every_layer: bool = False
    ) -> list[Attribution]:
        model = transformer(model, self.start)
        matrices = self.token_matrices(model, images, self.start)
        combine = own_rows if every_layer else self.multiplied
        return [combine(model, images, matrices)] * len(targets)

    def first_block(self, depth: int) -> int:
        return self.start

    def multiplied(self, model: VisionTransformer, images: Tensor, matrices: Sequence[Tensor]) -> Attribution:
        """Multiply the matrices from the last block down, and keep the classifier's row."""
        return rollout(model, images, matrices)


@METHODS.register(
    "att_in",
    family="decomposition",
    cite="kobayashi2020",
    cost="1 forward",
    needs=("attention",),
    agnostic=True,
    parity="the formula written out with loops, 1e-9; no reference for vision transformers",
)
@dataclass(frozen=True, slots=True)
class AttentionTimesNorm(_BlockMatrices):
    r"""Norm-based attention (AttIN): the norm of the attention-weighted, transformed value vector of each token.

    .. math:: A = r^\top N_\ell, \qquad N_\ell[i,j] = \Bigl\lVert \sum_h P_{\ell,h}[i,j]\, u_{\ell,h,j}
        + [i = j \text{ and residual}]\, x_{\ell,i} \Bigr\rVert_2

    Corrects raw attention for tokens whose value vector is short. Values include their bias; the projection's own bias
    belongs to no token and is left out. As with raw attention, a map is that of one block; ``plus(att_in)`` sums over
    blocks.

    Attributes:
        layer: the block, counted from the end when negative.
        residual: whether a token's residual vector is added to its contribution to itself. Where the classifier reads
            the class token alone, that changes the entry of this token only, and so not the map.
        variant: "summed" over heads before the norm is taken, or "per_head": the norms of the heads are summed.
    """

    layer: int = -1
    residual: bool = False
    variant: Literal["summed", "per_head"] = "summed"

    def __post_init__(self) -> None:
        if self.residual and self.variant == "per_head":
            raise RecipeError("got residual=True with variant='per_head'; the residual belongs to no head: drop one")

    def multi_target(
        self, model: Adapter, images: Tensor, targets: Sequence[Target], *, every_layer: bool = False
    ) -> list[Attribution]:
        model = transformer(model)
        if not -model.depth <= self.layer < model.depth:
            raise RecipeError(f"got layer={self.layer}; {model.name} has blocks 0 to {model.depth - 1}")
        own = self.layer % model.depth
        parts = read_parts(model, images, 0 if every_layer else own)
        if every_layer:
            found = replace(own_rows(model, images, [self.matrix(part) for part in parts]), own=own)
        else:
            found = replace(own_rows(model, images, [self.matrix(parts[0])]), layers=(own,))
        return [found] * len(targets)

    def first_block(self, depth: int) -> int:
        return self.layer % depth

    def matrix(self, parts: Parts) -> Tensor:
        written = parts.written()
        if self.variant == "per_head":
            norms: Tensor = torch.linalg.vector_norm(written, dim=-1)
            return (parts.probabilities * norms[:, :, None, :]).sum(dim=1)
        (squares,) = quadratic(parts.probabilities, (written, written))
        if self.residual:
            parts.check_sum()
            put_diagonal(squares, own_vectors(parts, written).square().sum(dim=-1))
        return squares.clamp(min=0).sqrt()


@METHODS.register(
    "globenc",
    family="decomposition",
    cite="modarressi2022",
    cost="1 forward",
    needs=("attention",),
    agnostic=True,
    parity="the formula written out with loops, 1e-9; no reference for vision transformers",
)
@dataclass(frozen=True, slots=True)
class GlobEnc(_RolledOut):
    r"""GlobEnc: norm-based attribution of whole encoder blocks (attention, residual, norm), rolled out over blocks.

    .. math:: A \propto r^\top \prod_{\ell=L-1}^{\text{start}} N_\ell, \qquad N_\ell[i,j] = \lVert a_{ij}
        + s_2 \odot \text{norm}_2(a_{ij}) \rVert_2, \qquad
        a_{ij} = [i=j]\, x_{\ell,i} + \sum_h P_{\ell,h}[i,j]\, u_{\ell,h,j}

    for pre-norm blocks: residual stream and attention, then the second norm with its true standard deviation, in place
    of the MLP (:math:`s_2` is the layer scale). Norms and values enter without their biases. The matrices are
    multiplied as they are, neither normalised nor mixed with the identity; only the result is divided by its sum over
    all tokens, because the product grows exponentially with depth and overflows. ``plus(globenc)`` sums the blocks' own
    matrices, undivided, instead.

    Attributes:
        start: the first block of the product.
        identity: divide each row by its sum and average it with the identity, as rollout does.
    """

    start: int = 0
    identity: bool = False

    def matrix(self, parts: Parts) -> Tensor:
        parts.check_sum()
        written = parts.written(parts.homogeneous_values)
        normed = _norm_weighted(parts, written)
        deviation = parts.norm2.deviation
        pairs = ((written, written), (written, normed), (normed, normed))
        own, mixed, outer = quadratic(parts.probabilities, *pairs)
        squares = own + mixed * (2 / deviation) + outer / deviation.square()
        put_diagonal(squares, _through_norm(parts, own_vectors(parts, written), deviation).square().sum(dim=-1))
        norms = squares.clamp(min=0).sqrt()
        return (rows_to_one(norms) + identity(norms)) / 2 if self.identity else norms

    def multiplied(self, model: VisionTransformer, images: Tensor, matrices: Sequence[Tensor]) -> Attribution:
        return rollout(model, images, matrices, normalised=True)


@METHODS.register(
    "alti",
    family="decomposition",
    cite="ferrando2022",
    cost="1 forward",
    needs=("attention",),
    agnostic=True,
    parity="the formula written out with loops, 1e-9; no reference for vision transformers",
)
@dataclass(frozen=True, slots=True)
class Alti(_RolledOut):
    r"""ALTI: token contributions measured by L1 distance to the attention's output, rolled out over blocks.

    .. math:: A = r^\top \prod_{\ell=L-1}^{\text{start}} N_\ell, \qquad
        N_\ell[i,j] \propto \bigl(\lVert o_i \rVert_1 - \lVert o_i - t_{ij} \rVert_1\bigr)^+,
        \qquad \sum_j N_\ell[i,j] = 1

    with :math:`t_{ij} = [i=j]\, x_{\ell,i} + \sum_h P_{\ell,h}[i,j]\, u_{\ell,h,j}` and :math:`o_i` the residual stream
    after attention, which is :math:`\sum_j t_{ij}` and the projection's bias. A row to which no token contributes is
    zero. ``plus(alti)`` sums the blocks' own matrices instead of multiplying them.

    Attributes:
        start: the first block of the product.
        variant: "pre_ln" as above, the authors' form for pre-norm blocks; or "skipplus", the form of the paper that
            applied it to vision transformers: o the output of the whole block, t the vectors of ``globenc``. There o
            includes the MLP's output and t does not, so that rows may be all zero.
    """

    start: int = 0
    variant: Literal["pre_ln", "skipplus"] = "pre_ln"

    def matrix(self, parts: Parts) -> Tensor:
        parts.check_sum()
        if self.variant == "pre_ln":
            return rows_to_one(_proximity(parts, parts.written(), parts.middle, through_norm=False))
        return rows_to_one(_proximity(parts, parts.written(parts.homogeneous_values), parts.output, through_norm=True))

    def peak(self, model: Adapter) -> int:
        """Return the bytes held for one image: the parts of the blocks, and the vectors of some tokens at once."""
        vit = transformer(model)
        weight = vit.blocks[0].queries_keys_values
        channels = 0 if weight is None else weight.shape[-1]
        vectors = min(_CHUNK, vit.seen_grid.tokens**2 * channels) * max(4, model.dtype.itemsize)
        return _BlockMatrices.peak(self, model) + _COPIES * vectors


# ---- norms and distances ---------------------------------------------------------------------------------------------


def quadratic(probabilities: Tensor, *pairs: tuple[Tensor, Tensor]) -> list[Tensor]:
    r"""Return :math:`\langle \sum_h P_h[i,j]\, u_{h,j}, \sum_k P_k[i,j]\, w_{k,j} \rangle` of each pair (u, w).

    All are (batch, to, from). They are computed from the inner products of heads, (head, head) per token, without a
    (to, from, channel) tensor.
    """
    weights = probabilities.permute(0, 3, 2, 1).contiguous()  # (batch, from, to, head)
    products = [torch.einsum("bhjd,bkjd->bjhk", left, right) for left, right in pairs]
    return [((weights @ each) * weights).sum(dim=-1).transpose(1, 2) for each in products]


def own_vectors(parts: Parts, written: Tensor) -> Tensor:
    """Return each token's contribution to itself, residual and attention, shape (batch, token, channel)."""
    return parts.tokens + torch.einsum("bhii,bhid->bid", parts.probabilities, written)


def put_diagonal(matrix: Tensor, values: Tensor) -> None:
    """Replace the diagonal of a (batch, to, from) matrix."""
    matrix.diagonal(dim1=1, dim2=2).copy_(values)


def _norm_weighted(parts: Parts, vectors: Tensor) -> Tensor:
    """Apply the second norm, without its division, and the layer scale after it to (..., channel)."""
    centred = (vectors - vectors.mean(dim=-1, keepdim=True)) * parts.norm2.weight
    return centred if parts.block.scale2 is None else centred * parts.block.scale2.detach().to(centred)


def _through_norm(parts: Parts, vectors: Tensor, deviation: Tensor) -> Tensor:
    return vectors + _norm_weighted(parts, vectors) / deviation


def _proximity(parts: Parts, written: Tensor, result: Tensor, *, through_norm: bool) -> Tensor:
    """Return how much each token's vector reduces the L1 distance to the result, never below zero."""
    batch, tokens, channels = result.shape
    proximity = result.new_zeros(batch, tokens, tokens)
    step = max(1, _CHUNK // (tokens * channels))
    for image in range(batch):
        probabilities = parts.probabilities[image].permute(2, 1, 0).contiguous()  # (from, to, head)
        heads, outputs = written[image].transpose(0, 1).contiguous(), result[image]
        sizes = outputs.abs().sum(dim=-1)
        for first in range(0, tokens, step):
            some = slice(first, first + step)
            vectors = probabilities[some] @ heads[some]  # (from, to, channel)
            own = parts.tokens[image, some]
            vectors.diagonal(first, dim1=0, dim2=1).add_(own.T)
            if through_norm:
                vectors = _through_norm(parts, vectors, parts.norm2.deviation[image])
            distances = vectors.sub_(outputs).abs_().sum(dim=-1)
            proximity[image, :, some] = (sizes - distances).clamp_(min=0).T
    return proximity
