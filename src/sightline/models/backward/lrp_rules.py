r"""The rules of layer-wise relevance propagation: how a layer propagates relevance from its output to its input.

Every rule of an affine layer :math:`z = f(a; w, b)` is a list of *groups*. A group runs the layer on changed copies of
its input and weights, divides the relevance by what they sum to, and propagates it in proportion:

.. math:: R_{\text{in}} = \sum_g c_g \sum_{p \in g} a_p \odot J_p^\top
    \frac{[\operatorname{sign} z = \sigma_g]\, R}{s\bigl(\sum_{p \in g} f(a_p; w_p, b_p)\bigr)},
    \qquad s(z) = z \pm \epsilon

with :math:`J_p` the layer's Jacobian under the weights :math:`w_p`. The epsilon rule changes nothing: its denominator
is the layer's own output and its Jacobian that of the forward pass, so that the layer is not run again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import torch
from torch import Tensor

Run = Callable[[Tensor, Tensor, Tensor | None], Tensor]
Box = tuple[Tensor, Tensor]  # the lowest and the highest value that the input can take
Copy = tuple[Tensor, Tensor, Tensor | None]  # of the input, the weight and the bias
Transposed = Callable[[Tensor], Tensor]  # the product of a function's transposed Jacobian with a tensor like its output


def with_transposed(run: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, Transposed]:
    """Run a function; return its value, without a graph, and its transposed Jacobian, to be applied at will."""
    with torch.enable_grad():
        leaf = x.detach().requires_grad_()
        output = run(leaf)
    return output.detach(), lambda share: torch.autograd.grad(output, leaf, share, retain_graph=True)[0]


@dataclass(frozen=True, eq=False, slots=True)
class Affine:
    """One call of a convolution or a linear layer.

    Attributes:
        run: computes it from an input, a weight and a bias.
        weight: output channels first.
        bias: None for none.
        rule: how it propagates relevance.
        box: bounds of the input, for the rule that needs them.
        channels_last: whether the output's channels are its last axis, as a linear layer's are, or its second.
        transposed: its transposed Jacobian, where a group without copies needs it.
    """

    run: Run
    weight: Tensor
    bias: Tensor | None
    rule: Rule
    box: Box
    channels_last: bool = False
    transposed: Transposed | None = None

    def rerun(self, x: Tensor) -> Tensor:
        """Compute the call from an input."""
        return self.run(x, self.weight, self.bias)

    def merged(self, scale: Tensor, shift: Tensor) -> Affine:
        """Return this call and a scaling and shift of its output channels, as one affine call."""
        weight = self.weight * scale.reshape(-1, *[1] * (self.weight.ndim - 1))
        bias = shift if self.bias is None else self.bias * scale + shift
        transposed = self.transposed
        if transposed is not None:
            inner = transposed
            transposed = lambda share: inner(share * self._along_channels(scale, share))  # noqa: E731
        return Affine(self.run, weight, bias, self.rule, self.box, self.channels_last, transposed)

    @property
    def needs_output(self) -> bool:
        """Whether its rule asks for the output of the forward pass."""
        return self.rule in (epsilon, gamma)

    def propagate(
        self, relevance: Tensor, x: Tensor, output: Callable[[], Tensor], stabiliser: float, tally: Tally
    ) -> Tensor:
        """Return the relevance of the input from that of the output, whose value `output` returns."""
        parts = []
        for group in self.rule(x, self):
            share = relevance if group.sign == 0 else output().sign().eq_(group.sign).mul_(relevance)
            run = self._group(group) if group.copies else self._own(x, output())
            parts.append(run.propagate(share, stabiliser, tally, group.factor))
        return _sum(parts)

    def _own(self, x: Tensor, output: Tensor) -> _Run:
        if self.transposed is None:
            raise ValueError("a group without copies needs the transposed Jacobian of its layer")
        return _Run(output, self._along_channels(self.bias, output), [x], [self.transposed])

    def _group(self, group: Group) -> _Run:
        used = [copy for index, copy in enumerate(group.copies) if index == 0 or _any(copy[0])]  # zeros add nothing
        ran = [with_transposed(replace(self, weight=weight, bias=bias).rerun, x) for x, weight, bias in used]
        z = _sum([output for output, _ in ran])
        bias = self._along_channels(used[0][2], z)  # of a group's copies only the first has one
        return _Run(z, bias, [x for x, _, _ in used], [transposed for _, transposed in ran])

    def _along_channels(self, values: Any, output: Tensor) -> Any:
        """Shape one value for each output channel to fit the output."""
        return values if values is None or self.channels_last else values.reshape(-1, *[1] * (output.ndim - 2))


def _sum(tensors: Sequence[Tensor]) -> Tensor:
    return reduce(torch.add, tensors)


def _any(values: Tensor) -> bool:
    """Tell whether any value is not zero; several times as fast as torch's own on a processor."""
    return any(map(bool, values.aminmax()))


@dataclass(frozen=True, eq=False, slots=True)
class _Run:
    """A layer's copies after they ran.

    Attributes:
        z: the sum of their outputs.
        bias: what the layer adds to it, shaped to fit; None for nothing.
        inputs: of the copies.
        transposed: the copies' transposed Jacobians.
    """

    z: Tensor
    bias: Tensor | None
    inputs: Sequence[Tensor]
    transposed: Sequence[Transposed]

    def propagate(self, relevance: Tensor, stabiliser: float, tally: Tally, factor: float = 1.0) -> Tensor:
        """Return the relevance of the inputs, summed, times a factor."""
        relevance = relevance if factor == 1 else factor * relevance
        share = tally.divided(relevance, self.z, stabiliser, self.bias)
        return _sum([apply(share).mul_(x) for x, apply in zip(self.inputs, self.transposed, strict=True)])


@dataclass(frozen=True, eq=False, slots=True)
class Group:
    """Copies of a layer that share one denominator.

    Attributes:
        copies: what the layer is run on; none for the layer as it ran in the forward pass.
        factor: of what the group propagates.
        sign: of the outputs whose relevance it propagates; 0 for all.
    """

    copies: Sequence[Copy] = ()
    factor: float = 1.0
    sign: int = 0


Rule = Callable[[Tensor, Affine], list[Group]]


class Tally:
    """The relevance absorbed during a backward pass, per image.

    Attributes:
        biases: relevance absorbed by biases, shape (batch,).
        stabiliser: relevance absorbed by the stabiliser of denominators, shape (batch,).
    """

    def __init__(self, like: Tensor) -> None:
        self.biases = torch.zeros(len(like), dtype=like.dtype, device=like.device)
        self.stabiliser = torch.zeros_like(self.biases)

    def divided(self, relevance: Tensor, z: Tensor, stabiliser: float, biases: Tensor | None = None) -> Tensor:
        """Return relevance over its stabilised denominator; add what the stabiliser and the biases within it absorb."""
        denominator = stabilised(z, stabiliser)
        share = relevance / denominator
        self.add(share, denominator.sub_(z), biases)
        return share

    def add(self, share: Tensor, moved: Tensor, biases: Tensor | None = None) -> None:
        """Add what a layer absorbs: `share` is its relevance over its denominator, `moved` is overwritten.

        Args:
            share: relevance over the denominator.
            moved: by how much the stabiliser moved the denominator.
            biases: those within it, shaped to fit.
        """
        self.stabiliser += self._each(moved.mul_(share))
        if biases is not None:
            shape = [1] * (share.ndim - biases.ndim) + list(biases.shape)
            self.biases += self._each(share.sum_to_size(len(share), *shape[1:]) * biases)

    def _each(self, values: Tensor) -> Tensor:
        return values.reshape(len(self.biases), -1).sum(dim=1)


def stabilised(z: Tensor, stabiliser: float) -> Tensor:
    """Move a denominator away from zero, up where it is zero."""
    dtype = torch.promote_types(z.dtype, torch.float32)
    half = torch.ge(z, 0, out=torch.empty_like(z, dtype=dtype)).sub_(0.5)  # numbers: boolean masks are slow
    return torch.add(z, half, alpha=2 * stabiliser)


def propagate_linear(
    run: Callable[[Tensor], Tensor],
    relevance: Tensor,
    x: Tensor,
    stabiliser: float,
    tally: Tally,
    biases: Tensor | None,
) -> Tensor:
    """Propagate relevance through any function that is linear in its input, constants included.

    Args:
        run: the function.
        relevance: of its output.
        x: its input.
        stabiliser: of denominators.
        tally: adds up what is absorbed.
        biases: what the function adds, shaped to fit its output; None for nothing.
    """
    z, transposed = with_transposed(run, x)
    return transposed(tally.divided(relevance, z, stabiliser, biases)) * x


# ---- the rules -----------------------------------------------------------------------------------------------------


def epsilon(x: Tensor, layer: Affine) -> list[Group]:
    """The epsilon rule: in proportion to each contribution, whatever its sign."""
    return [Group()]


def plus(x: Tensor, layer: Affine) -> list[Group]:
    """The z-plus rule: in proportion to the positive contributions."""
    return [_supporting(x, layer)]


def alpha2_beta1(x: Tensor, layer: Affine) -> list[Group]:
    """The alpha-beta rule: twice in proportion to the positive contributions, less once to the negative ones."""
    return [_supporting(x, layer, 2.0), _opposing(x, layer, -1.0)]


def gamma(x: Tensor, layer: Affine, more: float = 0.25) -> list[Group]:
    """The gamma rule: in proportion to each contribution, those with the output's sign counting a quarter more."""
    weight, bias = layer.weight, layer.bias
    up, down = (weight + more * weight.clamp(min=0), weight + more * weight.clamp(max=0))
    up_bias, down_bias = (
        None if bias is None else bias + more * bias.clamp(min=0),
        None if bias is None else bias + more * bias.clamp(max=0),
    )
    positive, negative = x.clamp(min=0), x.clamp(max=0)
    return [
        Group([(positive, up, up_bias), (negative, down, None)], sign=1),
        Group([(positive, down, down_bias), (negative, up, None)], sign=-1),
    ]


def box(x: Tensor, layer: Affine) -> list[Group]:
    """The z-box rule, for pixels: in proportion to the distance from the bound that supports the output least."""
    low, high = (bound.to(x).expand_as(x) for bound in layer.box)
    weight = layer.weight
    return [Group([(x, weight, None), (-low, weight.clamp(min=0), None), (-high, weight.clamp(max=0), None)])]


def flat(x: Tensor, layer: Affine) -> list[Group]:
    """The flat rule: evenly over the receptive field."""
    return [Group([(torch.ones_like(x), torch.ones_like(layer.weight), None)])]


def _supporting(x: Tensor, layer: Affine, factor: float = 1.0) -> Group:
    bias = None if layer.bias is None else layer.bias.clamp(min=0)
    up, down = layer.weight.clamp(min=0), layer.weight.clamp(max=0)
    return Group([(x.clamp(min=0), up, bias), (x.clamp(max=0), down, None)], factor)


def _opposing(x: Tensor, layer: Affine, factor: float) -> Group:
    bias = None if layer.bias is None else layer.bias.clamp(max=0)
    up, down = layer.weight.clamp(min=0), layer.weight.clamp(max=0)
    return Group([(x.clamp(min=0), down, bias), (x.clamp(max=0), up, None)], factor)


@dataclass(frozen=True, slots=True)
class Composite:
    """Which rule each kind of layer has.

    Attributes:
        convolution: the rule of convolutions.
        linear: the rule of linear layers.
        first: the rule of the first of either, None for no exception.
        copies: how often relevance is propagated through a layer in a backward pass, where inputs are not negative.
        stabiliser: added to denominators.
        norms: whether a batch norm that follows no layer, as in a DenseNet, has the epsilon rule; else it propagates
            relevance unchanged.
        captum: batch norms and max pools have the epsilon rule too, and a sum gives its relevance to every summand;
            otherwise a batch norm is merged with the layer it follows or propagates relevance unchanged, a max pool
            gives all to the maximum, and a sum gives to each summand in proportion.
    """

    convolution: Rule
    linear: Rule
    first: Rule | None = None
    copies: int = 1
    stabiliser: float = 1e-6
    norms: bool = False
    captum: bool = False

    @property
    def reruns(self) -> int:
        """How often a layer runs again in a backward pass, where inputs are not negative."""
        return 0 if self.convolution is self.linear is epsilon else self.copies


COMPOSITES = {
    "epsilon": Composite(epsilon, epsilon, norms=True),
    "epsilon_plus": Composite(plus, epsilon),
    "epsilon_plus_flat": Composite(plus, epsilon, flat),
    "epsilon_gamma_box": Composite(gamma, epsilon, box, copies=2),
    "epsilon_alpha2_beta1": Composite(alpha2_beta1, epsilon, copies=2),
    "epsilon_alpha2_beta1_flat": Composite(alpha2_beta1, epsilon, flat, copies=2),
    "excitation_backprop": Composite(plus, plus),
}
ALIASES = {"alpha2_beta1": "epsilon_alpha2_beta1", "alpha2_beta1_flat": "epsilon_alpha2_beta1_flat"}
CAPTUM = Composite(epsilon, epsilon, stabiliser=1e-9, captum=True)
