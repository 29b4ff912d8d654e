r"""Relevance propagation to the attention of transformers: T-Attr, LRP rollout and partial LRP.

:math:`R_\ell` (head, to, from) is the relevance of block :math:`\ell`'s attention probabilities, by the rules of
`vit_rules`; the relevance of the target is one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from sightline.errors import RecipeError, UnsupportedModel
from sightline.methods.attention.attention import last_blocks, read_rows, rollout, transformer
from sightline.methods.attention.token_matrices import identity, square
from sightline.methods.multi_target import MultiTarget
from sightline.methods.relevance.vit_rules import Layer, Rules, Trace
from sightline.models.adapter import Adapter
from sightline.models.capture import Site, capture
from sightline.models.passes import HALF, full_precision
from sightline.models.vit.adapter import Block, VisionTransformer
from sightline.models.vit.last_block import LastBlock, PrefixAttention
from sightline.registry import METHODS
from sightline.types import Attribution, Passes, Target

WIDE = 64  # channels, from which on a sum of products is never much smaller than the sum of their sizes
_INSIDE = ("q", "k", "v", "probabilities", "context")
_SITES = ("norm1", "q", "k", "v", "probabilities", "context", "attention", "norm2", "mlp", "output")


@dataclass(frozen=True, slots=True, eq=False)
class _Run:
    """One forward pass and the gradients of each target.

    A half-precision model's tensors are in single precision: in half the stabiliser of the rules would be zero.

    Attributes:
        traces: of every block from the start on.
        tokens: the input of the head, (batch, token, channel).
        head: their site.
        gradients: per target, by site.
        prefix: how many tokens come before the patches.
    """

    traces: list[Trace]
    tokens: Tensor
    head: str
    gradients: list[dict[str, Tensor]]
    prefix: int

    def relevance(self, index: int, rules: Rules, depth: int) -> list[Tensor]:
        """Return one target's relevance of attention, (batch, head, to, from) per block, first block first."""
        return list(rules.attention_relevance(self.traces, self.head_relevance(index, rules), depth))[::-1]

    def head_relevance(self, index: int, rules: Rules) -> Tensor:
        """Return one target's relevance of the tokens that leave the last block, (batch, token, channel).

        Where the head reads the prefix alone, so that no patch has any, it is that of the prefix.
        """
        gradient = full_precision(self.gradients[index][self.head])
        read = self.prefix if self.prefix and not gradient[:, self.prefix :].any() else None
        return rules.head(self.tokens[:, :read], gradient[:, :read])


def run_for_relevance(
    model: VisionTransformer, images: Tensor, targets: Sequence[Target], start: int, *, gradient: bool
) -> _Run:
    """Run forward once and keep what the rules need; with `gradient`, also take the gradient at every attention."""
    head = f"block.{model.depth - 1}.output" if model.final_norm is None else "norm"
    blocks = range(start, model.depth)
    layers = [_layers(model, model.blocks[index]) for index in blocks]
    last = model.unwatched_last_block() if gradient and model.final_norm is not None else None
    with torch.inference_mode(False):
        held, seen, logits = _captured(model, images, head, start, last, gradient=gradient)
        with torch.enable_grad():
            scores = [target(logits) for target in targets]
    gradients = model.gradients_each(scores, seen)
    traces = [_trace(model, held, index, each) for index, each in zip(blocks, layers, strict=True)]
    return _Run(traces, full_precision(seen[head].detach()), head, gradients, model.prefix)


def _captured(
    model: VisionTransformer, images: Tensor, head: str, start: int, last: LastBlock | None, *, gradient: bool
) -> tuple[dict[str, Tensor], dict[str, Tensor], Tensor]:
    """Return what the rules need, what has a gradient, both by site, and the logits; see `run_for_relevance`.

    With a `last` block that runs for the prefix alone, its tensors behind keys and values are those of the prefix.
    """
    blocks, end = range(start, model.depth), model.depth - 1
    inside = {f"{i}.stream": Site(model.blocks[i].module, "input") for i in blocks}
    inside |= {f"{i}.hidden": Site(_second_linear(model, i), "input") for i in blocks}
    inside |= {f"{i}.{name}": Site(m) for i in blocks for name, m in _with_output(model.blocks[i]).items()}
    attention = model.every("probabilities", start) if gradient else []
    sites = [site for name in _SITES for site in model.every(name, start) if site not in attention]
    if last is not None:
        projection = model.blocks[end].projection
        assert projection is not None
        inside[f"block.{end}.attention"] = Site(projection)
        sites = [site for site in sites if site not in _not_run(end)]
        attention.pop()
    whole = gradient or "tokens" not in model.offers
    with torch.no_grad():
        entering = images if whole else model.start(images)  # before the first block's input is captured
    with model.capture(*sites) as held, capture(inside) as inner:
        if not whole:
            seen, logits = _head_alone(model, entering, head)
            return {**held, **inner}, dict(seen), logits
        with model.capture(*attention, head, gradient=True) as seen:
            attend = PrefixAttention()
            logits = model(images) if last is None else model.logits_by(last, images, attend)
    of_prefix = {} if last is None else {f"block.{end}.{name}": getattr(attend, name) for name in _INSIDE}
    known = {site: x.detach() for site, x in {**seen, **of_prefix}.items()}
    probabilities = {site: x for site, x in of_prefix.items() if site.endswith("probabilities")}
    return {**held, **inner, **known}, {**seen, **probabilities}, logits


def _not_run(block: int) -> set[str]:
    """Return the sites that a block does not reach when it runs for the prefix alone."""
    return {f"block.{block}.{name}" for name in (*_INSIDE, "attention", "output")}


def _head_alone(model: VisionTransformer, entering: Tensor, head: str) -> tuple[Mapping[str, Tensor], Tensor]:
    """Run the blocks without a graph and the head with one."""
    with torch.no_grad():
        tokens = model.run(entering)
    if model.final_norm is None:
        with torch.enable_grad():
            tokens = tokens.clone().requires_grad_()
            return {head: tokens}, model.finish(tokens)
    with model.capture(head, gradient=True) as seen:
        return seen, model.finish(tokens)


def _layers(model: VisionTransformer, block: Block) -> tuple[Layer, Layer, Layer, Layer]:
    """Return a block's linear layers; refuse a block that is not a plain one."""
    joint, feed = block.queries_keys_values, block.mlp_layers
    if joint is not None and block.projection is not None and feed is not None:
        others = [Layer(_values(m.weight), bias=_values(m.bias)) for m in (block.projection, feed[0], feed[2])]
        projection, first, second = others
        if first.weight.shape[0] == second.weight.shape[1]:  # a gated MLP has more hidden channels than it takes back
            return Layer(_values(joint)), projection, first, second
    raise UnsupportedModel(
        f"the blocks of {model.name} are not plain ones, and relevance has no rule for what is in them; "
        "use gae, which needs attention and its gradient alone"
    )


def _values(weight: Any) -> Any:
    """Return a weight in full precision, and None as it is."""
    return None if weight is None else full_precision(weight.detach())


def _with_output(block: Block) -> dict[str, nn.Linear]:
    """Return a block's linear layers whose outputs serve the rules, by name.

    The sums of `Rules.linear` are differences of those of sizes: too small, in a layer of few channels, to be exact to
    rounding, and in half precision outputs are not exact themselves.
    """
    feed = block.mlp_layers
    assert feed is not None  # checked by _layers
    named = {"projected": block.projection, "first": feed[0], "second": feed[2]}
    return {
        name: module
        for name, module in named.items()
        if type(module) is nn.Linear and module.in_features >= WIDE and module.weight.dtype not in HALF
    }


def _second_linear(model: VisionTransformer, index: int) -> nn.Module:
    feed = model.blocks[index].mlp_layers
    assert feed is not None  # checked by _layers
    return feed[2]


def _trace(
    model: VisionTransformer, held: Mapping[str, Tensor], index: int, layers: tuple[Layer, Layer, Layer, Layer]
) -> Trace:
    """Collect the tensors of one block, and check that it adds attention and MLP to its input and nothing else.

    A block that ran for the prefix alone has no output; it is known to be no more than its parts.
    """
    names = [f"block.{index}.{name}" for name in _SITES]
    normed1, q, k, v, attention, context, attended, normed2, mlp = (held[name] for name in names[:-1])
    block, output, stream = model.blocks[index], held.get(names[-1]), held[f"{index}.stream"]
    attended = attended if block.scale1 is None else attended * block.scale1
    mlp = mlp if block.scale2 is None else mlp * block.scale2
    if output is not None and (stream + attended + mlp - output).abs().max() > 1e-3 * output.abs().max():
        raise UnsupportedModel(
            f"block {index} of {model.name} does more than add an attention and an MLP to its input, and relevance has "
            "no rule for that; use gae, which needs attention and its gradient alone"
        )
    tensors = (stream, normed1, q, k, v, attention, context, attended, normed2, held[f"{index}.hidden"], mlp)
    joint, *others = layers
    outputs = (held.get(f"{index}.{name}") for name in ("projected", "first", "second"))
    projection, first, second = (replace(layer, output=y) for layer, y in zip(others, outputs, strict=True))
    return Trace((joint, projection, first, second), *(full_precision(tensor) for tensor in tensors))


@METHODS.register(
    "t_attr",
    family="relevance",
    cite="chefer2021transformer",
    cost="1 forward, 3 backward",
    needs=("attention", "gradient"),
    parity="authors' code and the copy in mda2025, random ViT 1e-4, real ViT float64 1e-6, float32 correlation .95",
)
@dataclass(frozen=True, slots=True)
class TransformerAttribution(MultiTarget):
    r"""T-Attr (transformer attribution): LRP relevance of attention times its gradient, rolled out over blocks.

    .. math:: A = r^\top \prod_{\ell=L-1}^{\text{start}} (I + E_\ell), \qquad
        E_\ell = \frac1H \sum_h \bigl(G_{\ell,h} \odot R_{\ell,h}\bigr)^+

    where :math:`G_\ell` is the gradient at the attention probabilities and r selects the tokens that the classifier
    reads. Numerically unstable: the rules divide by sums that may be close to zero, and on a real model of twelve
    blocks float32 and float64 maps correlate at about .97 only. Run it in float64 where details matter.

    Attributes:
        start: the first block of the rollout; by default 1, the second, as in its authors' experiments, and 0 for
            variant="mda".
        variant: "chefer" as above, or "mda", which divides each row of :math:`I + E_\ell` by its sum.
    """

    start: int | None = None
    variant: Literal["chefer", "mda"] = "chefer"

    def multi_target(
        self, model: Adapter, images: Tensor, targets: Sequence[Target], *, every_layer: bool = False
    ) -> list[Attribution]:
        model = transformer(model)
        start = 0 if every_layer else self.first_block(model)
        run = run_for_relevance(model, images, targets, start, gradient=True)
        attributions = []
        for index, gradients in enumerate(run.gradients):
            relevance = zip(
                model.every("probabilities", start), run.relevance(index, Rules(), model.depth), strict=True
            )
            weighted = [(square(gradients[name]) * r).clamp_(min=0).mean(dim=1) for name, r in relevance]
            attributions.append(rollout(model, images, [self._with_identity(e) for e in weighted]))
        return [replace(each, own=self.first_block(model) - start) for each in attributions]

    def _with_identity(self, weighted: Tensor) -> Tensor:
        mixed = weighted + identity(weighted)
        return mixed / mixed.sum(dim=-1, keepdim=True) if self.variant == "mda" else mixed

    def first_block(self, model: VisionTransformer) -> int:
        """Return the index of the first block."""
        default = min(1, model.depth - 1) if self.variant == "chefer" else 0
        start = default if self.start is None else self.start
        transformer(model, start)
        return start

    def multi_target_cost(self, model: Adapter, count: int, *, every_layer: bool = False) -> Passes:
        model = transformer(model)
        start = 0 if every_layer else self.first_block(model)
        return Passes(1, 3 * count * (1 - start / model.depth))


@METHODS.register(
    "lrp_rollout",
    family="relevance",
    cite="chefer2021transformer",
    cost="1 forward, 2 backward",
    needs=("attention", "gradient"),
    parity="authors' code, random ViT 1e-4, real ViT float64 1e-6, float32 correlation .95",
)
@dataclass(frozen=True, slots=True)
class RelevanceRollout(MultiTarget):
    r"""LRP rollout: attention rollout with the positive LRP relevance of attention in place of attention.

    .. math:: A = r^\top \prod_{\ell=L-1}^{\text{start}} \Bigl(I + \frac1H \sum_h R_{\ell,h}^+\Bigr)

    Numerically as unstable as ``t_attr``: run it in float64 where details matter.

    Attributes:
        start: the first block of the rollout.
    """

    start: int = 0

    def multi_target(
        self, model: Adapter, images: Tensor, targets: Sequence[Target], *, every_layer: bool = False
    ) -> list[Attribution]:
        model = transformer(model, self.start)
        run = run_for_relevance(model, images, targets, self.start, gradient=False)
        attributions = []
        for index in range(len(targets)):
            positive = [r.clamp(min=0).mean(dim=1) for r in run.relevance(index, Rules(), model.depth)]
            attributions.append(rollout(model, images, [identity(e) + e for e in positive]))
        return attributions

    def multi_target_cost(self, model: Adapter, count: int, *, every_layer: bool = False) -> Passes:
        return Passes(1, 2 * count * (1 - self.start / transformer(model).depth))


@METHODS.register(
    "partial_lrp",
    family="relevance",
    cite="voita2019",
    cost="1 forward, 2/blocks backward; 3/blocks for variant='gradient'",
    needs=("attention", "gradient"),
    parity="code of chefer2021transformer, random ViT 1e-4, real ViT 5e-3, float64 1e-8",
)
@dataclass(frozen=True, slots=True)
class PartialRelevance(MultiTarget):
    r"""Partial LRP: the positive LRP relevance of the last block's attention, averaged over heads.

    .. math:: A = r^\top \frac1H \sum_h R_{L-1,h}^+

    by the older relevance rules: the positive and the negative part of a linear layer are normalised separately, and
    sums are not rescaled.

    Attributes:
        variant: "relevance" as above, or "gradient", the ablation in the same code: relevance times gradient,
            :math:`(G_{L-1,h} \odot R_{L-1,h})^+`.
    """

    variant: Literal["relevance", "gradient"] = "relevance"

    def __post_init__(self) -> None:
        if self.variant not in ("relevance", "gradient"):
            raise RecipeError(f"got variant={self.variant!r}; choose relevance or gradient")

    def multi_target(
        self, model: Adapter, images: Tensor, targets: Sequence[Target], *, every_layer: bool = False
    ) -> list[Attribution]:
        model = transformer(model)
        grid = model.grid_of(images)
        weighted = self.variant == "gradient"
        run = run_for_relevance(model, images, targets, model.depth - 1, gradient=weighted)
        relevance = [run.relevance(index, Rules(joint=False), model.depth)[-1] for index in range(len(targets))]
        if weighted:
            (site,) = model.every("probabilities", model.depth - 1)
            relevance = [r * square(gradients[site]) for r, gradients in zip(relevance, run.gradients, strict=True)]
        rows = [read_rows(model, of_target.clamp(min=0).mean(dim=1)) for of_target in relevance]
        return [Attribution(grid.to_map(row)[None], grid, layers=last_blocks(model, 1)) for row in rows]

    def multi_target_cost(self, model: Adapter, count: int, *, every_layer: bool = False) -> Passes:
        return Passes(1, (2 + (self.variant == "gradient")) * count / transformer(model).depth)
