"""AtMan: attention manipulation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from sightline.methods.attention.attention import transformer
from sightline.methods.multi_target import MultiTarget
from sightline.methods.patching.caap import usual_grid
from sightline.methods.scored import Score, scored
from sightline.models.adapter import Adapter
from sightline.models.memory import held
from sightline.models.passes import in_batches, take_rows
from sightline.models.vit.adapter import VisionTransformer
from sightline.perturb.curve import read_scores
from sightline.registry import METHODS
from sightline.types import Attribution, Passes, Target

Rows = Literal["patches", "all"]
SCORES = 4  # copies of the attention scores of a block while they are changed


@METHODS.register(
    "at_man",
    family="sampling",
    cite="deiseroth2023",
    cost="1 forward and 1 for each patch",
    needs=("attention", "tokens"),
    parity="the formula written out on a random ViT, 1e-12; the authors' code has no classifier",
)
@dataclass(frozen=True, slots=True)
class AttentionManipulation(MultiTarget):
    r"""AtMan, attention manipulation: the increase in loss when attention to a patch is suppressed in all blocks.

    .. math:: A_j = \log p(x) - \log p(x \mid S \leftarrow \tilde S^{(j)}), \qquad
        \tilde S^{(j)}_{tk} = \bigl(S_{tk} - \min_{k'} S_{tk'}\bigr)\, F_{jk}

    :math:`S` are the attention scores before the softmax, of every block and head. :math:`F_{jk}` is `factor` at
    the patch itself and one elsewhere; similar patches, by the cosine :math:`c_{jk}` of the tokens that enter the first
    block, are suppressed with it when :math:`c_{jk} \geq \kappa`: :math:`F_{jk} = f + (1 - f)(1 - c_{jk})`. Prefix
    tokens are never suppressed, and the rows of those that the classifier reads (class and distillation token) stay
    unchanged: attention between patches is suppressed, that of the class token is not. Gradient-free.

    Attributes:
        factor: the factor on the attention scores of a suppressed patch.
        kappa: the cosine similarity from which on other patches are suppressed too; None suppresses each patch alone.
        variant: whose attention to the patch is suppressed: "patches", or "all" for the class token's too, as in the
            authors' code for language models. Of a vision-language model the patches are the image tokens, and the
            class token stands for those of the text at which the answer is said.
        score: the score of the class: log_probability (the paper's cross-entropy), probability or logit.
    """

    factor: float = 0.1
    kappa: float | None = 0.6
    variant: Rows = "patches"
    score: Score = "log_probability"

    def multi_target(
        self, model: Adapter, images: Tensor, targets: Sequence[Target], *, every_layer: bool = False
    ) -> list[Attribution]:
        model = transformer(model)
        score_targets = [scored(target, self.score, model) for target in targets]
        batches = in_batches(lambda rows: _tokens_and_logits(model, images[rows]), len(images), model.batch)
        tokens, clean = (torch.cat(part) for part in zip(*batches, strict=True))
        factors = suppression(tokens, model.prefix, self.factor, self.kappa)
        unchanged = model.pooled_tokens if self.variant == "patches" else ()
        suppressed = suppressed_scores(model, tokens, factors, score_targets, unchanged)
        scores = torch.stack([read_scores(model, target, clean) for target in score_targets])
        grid = model.grid_of(images)
        drops = (scores[..., None] - suppressed).unflatten(2, (grid.height, grid.width))
        return [Attribution(values[None], grid) for values in drops]

    def multi_target_cost(self, model: Adapter, count: int, *, every_layer: bool = False) -> Passes:
        return Passes(1 + usual_grid(transformer(model)).cells)

    def peak(self, model: Adapter) -> int:
        """Return the bytes held for one image: a batch of passes, or their attention scores in one block."""
        passes = self.multi_target_cost(model, 1)
        return max(model.peak(passes), held(model, attention=SCORES * model.batch / transformer(model).depth))


def _tokens_and_logits(model: VisionTransformer, images: Tensor) -> tuple[Tensor, Tensor]:
    tokens = model.start(images)
    return tokens, model.finish(model.run(tokens))  # every block whole, as those with suppressed scores run


def suppression(tokens: Tensor, prefix: int, factor: float, kappa: float | None) -> Tensor:
    """Return the factor on the attention scores of every token when a patch is suppressed: (batch, patch, token)."""
    patches = tokens.shape[1] - prefix
    itself = torch.eye(patches, dtype=tokens.dtype, device=tokens.device).expand(len(tokens), -1, -1)
    similarity = itself
    if kappa is not None:
        directions = F.normalize(tokens[:, prefix:], dim=-1)
        cosines = (directions @ directions.transpose(1, 2)).clamp(max=1)
        # exactly one for the patch itself, whatever rounding says; zero below kappa
        similarity = torch.where(itself > 0, itself, cosines.masked_fill(cosines < kappa, 0.0))
    return F.pad(factor + (1 - factor) * (1 - similarity), (prefix, 0), value=1.0)


def suppressed_scores(
    model: VisionTransformer, tokens: Tensor, factors: Tensor, targets: Sequence[Target], unchanged: Sequence[int]
) -> Tensor:
    """Return the targets' values with each patch's factors applied to every attention: (target, batch, patch).

    The rows of the tokens in `unchanged` keep their attention scores.
    """
    patches = factors.shape[1]

    def work(part: slice) -> Tensor:
        rows = [index // patches for index in range(part.start, part.stop)]
        columns = factors.flatten(0, 1)[part, None, None, :]

        def suppress(scores: Tensor) -> Tensor:
            hidden = scores < torch.finfo(scores.dtype).min / 2  # behind a causal mask
            lowest = scores.masked_fill(hidden, torch.inf).amin(dim=-1, keepdim=True)
            changed = torch.where(hidden, scores, (scores - lowest) * columns)
            for token in unchanged:
                changed[:, :, token] = scores[:, :, token]
            return changed

        with model.edit(dict.fromkeys(model.every("scores"), suppress)):
            logits = model.finish(model.run(take_rows(tokens, rows)))
        return torch.stack([read_scores(model, target.take(rows), logits) for target in targets])

    values = torch.cat(in_batches(work, factors.shape[0] * patches, model.batch), dim=1)
    return values.view(len(targets), *factors.shape[:2])
