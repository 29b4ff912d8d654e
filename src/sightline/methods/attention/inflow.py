"""InFlow: information flow through attention, residual connections and MLPs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sightline.methods.attention.attention import rollout, transformer
from sightline.methods.attention.bi_attention import head_weights
from sightline.methods.attention.token_matrices import rows_to_one
from sightline.methods.multi_target import MultiTarget
from sightline.models.adapter import Adapter
from sightline.models.passes import spend
from sightline.models.vit.adapter import VisionTransformer
from sightline.registry import METHODS
from sightline.types import Attribution, Passes, Target

_SITES = ("probabilities", "attention", "mlp", "output")  # of a block


@METHODS.register(
    "inflow",
    family="attention",
    cite="walker2025inflow",
    cost="1 forward, 2 backward",
    needs=("attention", "gradient", "tokens"),
    parity="authors' code, random and real ViT, 1e-4; float64 1e-8",
)
@dataclass(frozen=True, slots=True)
class InFlow(MultiTarget):
    r"""InFlow: information flow through attention, residual connections and MLPs, one transition matrix per block.

    .. math:: A = r^\top \prod_{\ell=L-1}^{\text{start}} \operatorname{rows}\Bigl(
        \bigl(M_\ell \operatorname{diag}(1-p_\ell) + \operatorname{diag}(p_\ell)\bigr)
        \operatorname{diag}\bigl(\rho_\ell\,(1-u_\ell) + u_\ell\bigr)\Bigr)

    where :math:`p = \lVert x \rVert / (\lVert x \rVert + \lVert a \rVert)` is the share of the residual stream
    :math:`x` beside the attention's output :math:`a`, :math:`u` the same of :math:`x + a` beside the MLP's output,
    :math:`\rho \propto (1-u)/u` sums to one over the tokens, and rows(·) divides each row by its sum. Attention enters
    as

    .. math:: M_\ell = \Bigl(\max_h I_h P_{\ell,h} \odot \frac1H \sum_h \frac{\partial s_\ell}{\partial P_{\ell,h}}
        \Bigr)^+, \qquad I_h \propto \operatorname{mean} \bigl\lvert P_h^\top G_h \bigr\rvert

    with :math:`s_\ell` the target read from the mean of all tokens that leave block :math:`\ell`, through the model's
    own last norm and classifier.

    Attributes:
        start: the first block of the product.
        gate: whether attention is multiplied by the gradient of :math:`s_\ell`; without it, M is
            :math:`\max_h I_h P_h`.
        mlp: whether the residual connection around the MLP is included; without it, :math:`\rho\,(1-u) + u` is one.
    """

    start: int = 0
    gate: bool = True
    mlp: bool = True

    def multi_target(
        self, model: Adapter, images: Tensor, targets: Sequence[Target], *, every_layer: bool = False
    ) -> list[Attribution]:
        model = transformer(model, self.start)
        blocks = range(self.start, model.depth)
        sites = [site for name in _SITES for site in model.every(name, self.start)]
        with model.capture(*sites, gradient=True) as seen:
            logits = model(images)
            scores = [target(logits) for target in targets]
            early = [_early_logits(model, seen[f"block.{index}.output"]) if self.gate else None for index in blocks]
        attributions = []
        for target, score in zip(targets, scores, strict=True):
            attention = {name: seen[name] for name in model.every("probabilities", self.start)}
            gradients = model.gradients(score, attention, retain=True)
            matrices = []
            for index, logits_here in zip(blocks, early, strict=True):
                name = f"block.{index}.probabilities"
                heads = head_weights(seen[name].detach(), gradients[name])[..., None, None]
                flow = (heads * seen[name].detach()).amax(dim=1)
                if logits_here is not None:
                    flow = (flow * _mean_gradient(model, target, logits_here, seen[name])).clamp(min=0)
                matrices.append(_transition(model, seen, index, flow, mlp=self.mlp))
            attributions.append(rollout(model, images, matrices))
        return attributions

    def multi_target_cost(self, model: Adapter, count: int, *, every_layer: bool = False) -> Passes:
        return Passes(1, (1 + self.gate) * count * (1 - self.start / transformer(model).depth))


def _early_logits(model: VisionTransformer, tokens: Tensor) -> Tensor:
    """Return the logits of the mean of these tokens under the model's own last norm and classifier."""

    def mean_token(normed: Tensor) -> Tensor:
        return normed.mean(dim=1, keepdim=True).expand_as(normed)

    if model.final_norm is None:
        return model.finish(mean_token(tokens))
    with model.edit({"norm": mean_token}):
        return model.finish(tokens)


def _mean_gradient(model: VisionTransformer, target: Target, logits: Tensor, attention: Tensor) -> Tensor:
    """Return the gradient of the target, read from early logits, at their block's attention; mean over heads."""
    spend(backward=len(logits) / model.depth)
    with torch.inference_mode(False), torch.enable_grad():
        gradient: Tensor = torch.autograd.grad(target(logits).sum(), attention, retain_graph=True)[0]
    return gradient.mean(dim=1)


def _transition(model: VisionTransformer, seen: Mapping[str, Tensor], index: int, flow: Tensor, *, mlp: bool) -> Tensor:
    """Combine attention (batch, to, from) with the residual connections; rows sum to one."""
    attended, mlp_output, output = (seen[f"block.{index}.{name}"].detach() for name in _SITES[1:])
    block = model.blocks[index]
    attended = attended if block.scale1 is None else attended * block.scale1
    mlp_output = mlp_output if block.scale2 is None else mlp_output * block.scale2
    middle = output - mlp_output
    kept1, kept2 = _residual_share(middle - attended, attended), _residual_share(middle, mlp_output)
    matrix = flow * (1 - kept1)[:, None, :] + torch.diag_embed(kept1)
    if mlp:
        # where a token is nothing but the MLP's output the density would be infinite: bounded by the precision
        density = rows_to_one((1 - kept2) / kept2.clamp(min=torch.finfo(kept2.dtype).eps))
        matrix = matrix * (density * (1 - kept2) + kept2)[:, None, :]
    return rows_to_one(matrix)


def _residual_share(stream: Tensor, added: Tensor) -> Tensor:
    """Return the share of the stream's norm in each token, one where both norms are zero: (batch, token)."""
    kept, new = (torch.linalg.vector_norm(x, dim=-1) for x in (stream, added))
    total = kept + new
    return torch.where(total > 0, kept / total.where(total > 0, 1.0), 1.0)
