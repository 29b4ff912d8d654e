"""InFlow: how much information each patch sends through attention, residual connections and MLPs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sightline.methods.attention.attention import rolled, transformer
from sightline.methods.attention.feedback import head_weights
from sightline.methods.multi_target import MultiTarget
from sightline.models.adapter import Adapter
from sightline.models.passes import spend
from sightline.models.vit.adapter import VisionTransformer
from sightline.registry import METHODS
from sightline.types import Attribution, Passes, Target

_PLACES = ("probabilities", "attention", "mlp", "output")


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
    r"""InFlow: attention and skip connections as one transition matrix per block, shared out by the tokens' lengths.

    .. math:: A = r^\top \prod_{\ell=L-1}^{\text{start}} \operatorname{rows}\Bigl(
        \bigl(M_\ell \operatorname{diag}(1-p_\ell) + \operatorname{diag}(p_\ell)\bigr)
        \operatorname{diag}\bigl(\rho_\ell\,(1-u_\ell) + u_\ell\bigr)\Bigr)

    where :math:`p = \lVert x \rVert / (\lVert x \rVert + \lVert a \rVert)` is the share of the stream :math:`x` beside
    what attention :math:`a` adds, :math:`u` the same of :math:`x + a` beside the MLP, :math:`\rho \propto (1-u)/u`
    sums to one over the tokens, and rows(·) divides each row by its sum. Attention itself enters as

    .. math:: M_\ell = \Bigl(\max_h I_h P_{\ell,h} \odot \frac1H \sum_h \frac{\partial s_\ell}{\partial P_{\ell,h}}
        \Bigr)^+, \qquad I_h \propto \operatorname{mean} \bigl\lvert P_h^\top G_h \bigr\rvert

    with :math:`s_\ell` the target read from the mean of all tokens that leave block :math:`\ell`, through the model's
    own last norm and classifier.

    Attributes:
        start: the first block that takes part.
        gate: whether attention is multiplied by the probe's gradient; without it, M is :math:`\max_h I_h P_h`.
        mlp: whether the connection around the MLP takes part; without it, :math:`\rho\,(1-u) + u` is one.
    """

    start: int = 0
    gate: bool = True
    mlp: bool = True

    def multi_target(
        self, model: Adapter, images: Tensor, targets: Sequence[Target], *, every_layer: bool = False
    ) -> list[Attribution]:
        model = transformer(model, self.start)
        blocks = range(self.start, model.depth)
        sites = [site for place in _PLACES for site in model.every(place, self.start)]
        with model.capture(*sites, gradient=True) as seen:
            logits = model(images)
            scores = [target(logits) for target in targets]
            probes = [_probe(model, seen[f"block.{index}.output"]) if self.gate else None for index in blocks]
        answers = []
        for target, score in zip(targets, scores, strict=True):
            attention = {name: seen[name] for name in model.every("probabilities", self.start)}
            gradients = model.gradients(score, attention, retain=True)
            matrices = []
            for index, probe in zip(blocks, probes, strict=True):
                name = f"block.{index}.probabilities"
                heads = head_weights(seen[name].detach(), gradients[name])[..., None, None]
                flow = (heads * seen[name].detach()).amax(dim=1)
                if probe is not None:
                    flow = (flow * _gate(model, target, probe, seen[name])).clamp(min=0)
                matrices.append(_transition(model, seen, index, flow, mlp=self.mlp))
            answers.append(rolled(model, images, matrices))
        return answers

    def multi_target_cost(self, model: Adapter, count: int, *, every_layer: bool = False) -> Passes:
        return Passes(1, (1 + self.gate) * count * (1 - self.start / transformer(model).depth))


def _probe(model: VisionTransformer, tokens: Tensor) -> Tensor:
    """Return the logits that the model's own last norm and classifier give to the mean of these tokens."""

    def everywhere(normed: Tensor) -> Tensor:
        return normed.mean(dim=1, keepdim=True).expand_as(normed)

    if model.final_norm is None:
        return model.finish(everywhere(tokens))
    with model.edit({"norm": everywhere}):
        return model.finish(tokens)


def _gate(model: VisionTransformer, target: Target, probe: Tensor, attention: Tensor) -> Tensor:
    """Return the gradient of a probe's target at the attention of its own block, averaged over heads."""
    spend(backward=len(probe) / model.depth)
    with torch.inference_mode(False), torch.enable_grad():
        gradient: Tensor = torch.autograd.grad(target(probe).sum(), attention, retain_graph=True)[0]
    return gradient.mean(dim=1)


def _transition(model: VisionTransformer, seen: Mapping[str, Tensor], index: int, flow: Tensor, *, mlp: bool) -> Tensor:
    """Join attention (batch, to, from) with the residual connections; rows sum to one."""
    attended, fed, output = (seen[f"block.{index}.{place}"].detach() for place in _PLACES[1:])
    block = model.blocks[index]
    attended = attended if block.scale1 is None else attended * block.scale1
    fed = fed if block.scale2 is None else fed * block.scale2
    middle = output - fed
    kept1, kept2 = _share(middle - attended, attended), _share(middle, fed)
    matrix = flow * (1 - kept1)[:, None, :] + torch.diag_embed(kept1)
    if mlp:
        # a token that is nothing but what the MLP adds counts as nearly that: its density would be infinite
        density = _to_one((1 - kept2) / kept2.clamp(min=torch.finfo(kept2.dtype).eps))
        matrix = matrix * (density * (1 - kept2) + kept2)[:, None, :]
    return _to_one(matrix)


def _to_one(rows: Tensor) -> Tensor:
    """Divide each row by its sum; a row of zeros stays one."""
    total = rows.sum(dim=-1, keepdim=True)
    return rows / total.where(total > 0, 1.0)


def _share(stream: Tensor, added: Tensor) -> Tensor:
    """Return how much of each token is the stream itself, by lengths, all where both are nothing: (batch, token)."""
    kept, new = (torch.linalg.vector_norm(x, dim=-1) for x in (stream, added))
    total = kept + new
    return torch.where(total > 0, kept / total.where(total > 0, 1.0), 1.0)
