r"""Attention weighed by what it carries: how much each token's vector makes up of another's, block by block.

Notation: :math:`P_{\ell,h}` (to, from) are the attention probabilities of head h in block :math:`\ell`;
:math:`u_{\ell,h,j}` is what the head writes for token j when it attends to nothing else, value and output projection
applied, layer scale included; :math:`x_{\ell,i}` are the tokens that enter the block; :math:`r` is the row the
classifier reads (`VisionTransformer.readout`). Attention adds :math:`\sum_h P_{\ell,h}[i,j]\, u_{\ell,h,j}` of token j
to token i. Each method makes one non-negative number of that vector, a matrix :math:`N_\ell` (to, from) per block.

All of them ignore the class and what the blocks' MLPs do.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from sightline.errors import RecipeError
from sightline.methods.attention.attention import identity, read_rows, rolled, transformer
from sightline.methods.multi_target import MultiTarget
from sightline.models.adapter import Adapter
from sightline.models.vit.adapter import VisionTransformer
from sightline.models.vit.parts import Parts, read_parts
from sightline.registry import METHODS
from sightline.types import Attribution, Passes, Target

_CHUNK = 2**23  # numbers held at once where vectors are written out


class _BlockMatrices(MultiTarget):
    """A method with one (to, from) matrix per block, from one forward pass."""

    __slots__ = ()

    @abstractmethod
    def matrix(self, parts: Parts) -> Tensor:
        """Return the matrix of one block, shape (batch, to, from)."""

    def multi_target_cost(self, model: Adapter, count: int, *, every_layer: bool = False) -> Passes:
        return Passes(1, 0)


class _Rolled(_BlockMatrices):
    """Block matrices, multiplied; every block's own row where every layer is asked for."""

    __slots__ = ()
    start: int

    def multi_target(
        self, model: Adapter, images: Tensor, targets: Sequence[Target], *, every_layer: bool = False
    ) -> list[Attribution]:
        model = transformer(model, self.start)
        matrices = [self.matrix(parts) for parts in read_parts(model, images, self.start)]
        found = own_rows(model, images, matrices) if every_layer else self.multiplied(model, images, matrices)
        return [found] * len(targets)

    def multiplied(self, model: VisionTransformer, images: Tensor, matrices: Sequence[Tensor]) -> Attribution:
        """Multiply the matrices from the last block down, and read the classifier's row."""
        return rolled(model, images, matrices)


def own_rows(model: VisionTransformer, images: Tensor, matrices: Sequence[Tensor]) -> Attribution:
    """Read the classifier's row of every (batch, to, from) matrix for itself."""
    grid = model.grid_of(images)
    return Attribution(grid.to_map(torch.stack([read_rows(model, matrix) for matrix in matrices])), grid)


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
    r"""Attention times input norm: the length of the vector that attention carries from token to token.

    .. math:: A = r^\top N_\ell, \qquad N_\ell[i,j] = \Bigl\lVert \sum_h P_{\ell,h}[i,j]\, u_{\ell,h,j}
        + [i = j \text{ and residual}]\, x_{\ell,i} \Bigr\rVert_2

    Attention to a token whose value is short counts for little, which raw attention misses. Values come with their
    bias; the projection's own bias belongs to no token and is left out. As for raw attention, a map is that of one
    block; ``plus(att_in)`` adds the blocks up.

    Attributes:
        layer: the block, counted from the end when negative.
        residual: whether a token's own residual vector joins what it attends to of itself. Where the classifier reads
            the class token alone, that changes the entry of this token only, and so not the map.
        variant: "summed" over heads before the length is taken, or "per_head": the lengths of the heads are added.
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
        parts = read_parts(model, images)
        kept = parts if every_layer else [parts[self.layer]]
        return [own_rows(model, images, [self.matrix(part) for part in kept])] * len(targets)

    def matrix(self, parts: Parts) -> Tensor:
        written = parts.written()
        if self.variant == "per_head":
            lengths: Tensor = torch.linalg.vector_norm(written, dim=-1)
            return (parts.probabilities * lengths[:, :, None, :]).sum(dim=1)
        squares = quadratic(parts.probabilities, written, written)
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
class GlobEnc(_Rolled):
    r"""GlobEnc: the lengths of the vectors that a whole block carries from token to token, followed through all blocks.

    .. math:: A \propto r^\top \prod_{\ell=L-1}^{\text{start}} N_\ell, \qquad N_\ell[i,j] = \lVert a_{ij}
        + s_2 \odot \text{norm}_2(a_{ij}) \rVert_2, \qquad
        a_{ij} = [i=j]\, x_{\ell,i} + \sum_h P_{\ell,h}[i,j]\, u_{\ell,h,j}

    for pre-norm blocks: residual stream and attention, then the second norm, its deviation held at the true value, in
    place of the MLP (:math:`s_2` is the layer scale). Norms and values enter without their biases. The matrices are
    multiplied as they are, neither normalised nor mixed with the identity; only the result is divided by its sum over
    all tokens, because the product grows like a power of the depth and overflows. ``plus(globenc)`` adds the blocks'
    own matrices up, undivided, instead.

    Attributes:
        start: the first block that takes part.
        identity: divide each row by its sum and mix it by halves with the identity, as rollout does.
    """

    start: int = 0
    identity: bool = False

    def matrix(self, parts: Parts) -> Tensor:
        parts.check_sum()
        written = parts.written(parts.homogeneous_values)
        normed = _norm_weighted(parts, written)
        deviation = parts.norm2.deviation
        squares = quadratic(parts.probabilities, written, written)
        squares = squares + quadratic(parts.probabilities, written, normed) * (2 / deviation)
        squares = squares + quadratic(parts.probabilities, normed, normed) / deviation.square()
        put_diagonal(squares, _through_norm(parts, own_vectors(parts, written), deviation).square().sum(dim=-1))
        lengths = squares.clamp(min=0).sqrt()
        return (rows_to_one(lengths) + identity(lengths)) / 2 if self.identity else lengths

    def multiplied(self, model: VisionTransformer, images: Tensor, matrices: Sequence[Tensor]) -> Attribution:
        row, rows = model.readout(matrices[-1].shape[-1]).to(matrices[-1]).expand(len(images), 1, -1), []
        for matrix in reversed(matrices):
            row = rows_to_one(row @ matrix)  # a factor now or a factor at the end: the same, and it stays finite
            rows.append(row[:, 0])
        grid = model.grid_of(images)
        return Attribution(grid.to_map(torch.stack(rows[::-1])), grid)


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
class Alti(_Rolled):
    r"""ALTI: how much closer each token's vector brings the attention's output, followed through all blocks.

    .. math:: A = r^\top \prod_{\ell=L-1}^{\text{start}} N_\ell, \qquad
        N_\ell[i,j] \propto \bigl(\lVert o_i \rVert_1 - \lVert o_i - t_{ij} \rVert_1\bigr)^+,
        \qquad \sum_j N_\ell[i,j] = 1

    with :math:`t_{ij} = [i=j]\, x_{\ell,i} + \sum_h P_{\ell,h}[i,j]\, u_{\ell,h,j}` and :math:`o_i` the residual stream
    after attention, which is :math:`\sum_j t_{ij}` and the projection's bias. A row in which no token helps is zero.
    ``plus(alti)`` adds the blocks' own matrices up instead of multiplying them.

    Attributes:
        start: the first block that takes part.
        variant: "pre_ln" as above, the authors' form for pre-norm blocks; or "skipplus", the form of the paper that
            brought it to vision transformers: o the output of the whole block, t the vectors of ``globenc``. There o
            holds what the MLP wrote and t does not, so that rows may be all zero.
    """

    start: int = 0
    variant: Literal["pre_ln", "skipplus"] = "pre_ln"

    def matrix(self, parts: Parts) -> Tensor:
        parts.check_sum()
        if self.variant == "pre_ln":
            return rows_to_one(_nearer(parts, parts.written(), parts.middle, through_norm=False))
        return rows_to_one(_nearer(parts, parts.written(parts.homogeneous_values), parts.output, through_norm=True))


# ---- vectors made numbers --------------------------------------------------------------------------------------------


def quadratic(probabilities: Tensor, left: Tensor, right: Tensor) -> Tensor:
    r"""Return :math:`\langle \sum_h P_h[i,j]\, u_{h,j}, \sum_k P_k[i,j]\, w_{k,j} \rangle`, shape (batch, to, from).

    The products of heads, (head, head) per token, say all that is needed of the channels, so that no (to, from,
    channel) tensor is ever built.
    """
    products = torch.einsum("bhjd,bkjd->bjhk", left, right)
    weights = probabilities.permute(0, 3, 2, 1)  # (batch, from, to, head)
    return ((weights @ products) * weights).sum(dim=-1).transpose(1, 2)


def own_vectors(parts: Parts, written: Tensor) -> Tensor:
    """Return what a token makes up of itself, residual and attention, shape (batch, token, channel)."""
    return parts.tokens + torch.einsum("bhii,bhid->bid", parts.probabilities, written)


def put_diagonal(matrix: Tensor, values: Tensor) -> None:
    """Replace the diagonal of a (batch, to, from) matrix."""
    matrix.diagonal(dim1=1, dim2=2).copy_(values)


def rows_to_one(matrix: Tensor) -> Tensor:
    """Divide each row by its sum; a row of zeros stays one."""
    total = matrix.sum(dim=-1, keepdim=True)
    return torch.where(total > 0, matrix / total.where(total > 0, 1.0), 0.0)


def _norm_weighted(parts: Parts, vectors: Tensor) -> Tensor:
    """Apply the second norm and the layer scale behind it to (..., channel), leaving the deviation out."""
    centred = (vectors - vectors.mean(dim=-1, keepdim=True)) * parts.norm2.weight
    return centred if parts.block.scale2 is None else centred * parts.block.scale2.detach().to(centred)


def _through_norm(parts: Parts, vectors: Tensor, deviation: Tensor) -> Tensor:
    return vectors + _norm_weighted(parts, vectors) / deviation


def _nearer(parts: Parts, written: Tensor, result: Tensor, *, through_norm: bool) -> Tensor:
    """Return how much nearer each token's vector comes to the result, in L1, never below zero."""
    batch, tokens, channels = result.shape
    found = result.new_zeros(batch, tokens, tokens)
    step = max(1, _CHUNK // (tokens * channels))
    for image in range(batch):
        for first in range(0, tokens, step):
            rows = torch.arange(first, min(first + step, tokens), device=result.device)
            vectors = torch.einsum("hij,hjd->ijd", parts.probabilities[image][:, rows], written[image])
            vectors[rows - first, rows] += parts.tokens[image, rows]
            if through_norm:
                vectors = _through_norm(parts, vectors, parts.norm2.deviation[image, rows, None])
            goal = result[image, rows]
            left = (goal[:, None] - vectors).abs().sum(dim=-1)
            found[image, rows] = (goal.abs().sum(dim=-1, keepdim=True) - left).clamp(min=0)
    return found
