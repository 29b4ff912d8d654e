r"""The rules of layer-wise relevance propagation: how a layer propagates relevance from its output to its input.

Every rule of an affine layer :math:`z = f(a; w, b)` is a list of *groups*. A group runs the layer on changed copies of
its input and weights, divides the relevance by what they sum to, and propagates it in proportion:

.. math:: R_{\text{in}} = \sum_g c_g \sum_{p \in g} a_p \odot J_p^\top
    \frac{[\operatorname{sign} z = \sigma_g]\, R}{s\bigl(\sum_{p \in g} f(a_p; w_p, b_p)\bigr)},
    \qquad s(z) = z \pm \epsilon

with :math:`J_p` the layer's Jacobian under the weights :math:`w_p`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Run = Callable[[Tensor, Tensor, Tensor | None], Tensor]
Box = tuple[Tensor, Tensor]  # the lowest and the highest value that the input can take
Copy = tuple[Tensor, Tensor, Tensor | None]  # of the input, the weight and the bias


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
    """

    run: Run
    weight: Tensor
    bias: Tensor | None
    rule: Rule
    box: Box
    channels_last: bool = False

    def merged(self, scale: Tensor, shift: Tensor) -> Affine:
        """Return this call and a scaling and shift of its output channels, as one affine call."""
        weight = self.weight * scale.reshape(-1, *[1] * (self.weight.ndim - 1))
        bias = shift if self.bias is None else self.bias * scale + shift
        return Affine(self.run, weight, bias, self.rule, self.box, self.channels_last)

    def propagate(self, relevance: Tensor, x: Tensor, stabiliser: float, tally: Tally) -> Tensor:
        """Return the relevance of the input from that of the output."""
        total = torch.zeros_like(x)
        for group in self.rule(x, self):
            share = relevance if group.sign == 0 else relevance * (self._output(x).sign() == group.sign)
            total += group.factor * self._propagate(group, share, stabiliser, tally)
        return total

    def _output(self, x: Tensor) -> Tensor:
        return self.run(x, self.weight, self.bias)

    def _propagate(self, group: Group, relevance: Tensor, stabiliser: float, tally: Tally) -> Tensor:
        used = [copy for index, copy in enumerate(group.copies) if index == 0 or copy[0].any()]  # zeros add nothing
        with torch.enable_grad():
            leaves = [x.detach().requires_grad_() for x, _, _ in used]
            outputs = [self.run(leaf, weight, bias) for leaf, (_, weight, bias) in zip(leaves, used, strict=True)]
        z = torch.stack([output.detach() for output in outputs]).sum(dim=0)
        share = relevance / stabilised(z, stabiliser)
        bias = used[0][2]  # of a group's copies only the first has one
        if bias is not None and not self.channels_last:
            bias = bias.reshape(-1, *[1] * (z.ndim - 2))
        tally.add(group.factor * share, z, stabiliser, bias)
        gradients = torch.autograd.grad(outputs, leaves, [share] * len(outputs))
        return torch.stack([x.detach() * g for x, g in zip(leaves, gradients, strict=True)]).sum(dim=0)


@dataclass(frozen=True, eq=False, slots=True)
class Group:
    """Copies of a layer that share one denominator.

    Attributes:
        copies: what the layer is run on.
        factor: of what the group propagates.
        sign: of the outputs whose relevance it propagates; 0 for all.
    """

    copies: Sequence[Copy]
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

    def add(self, share: Tensor, z: Tensor, stabiliser: float, biases: Tensor | None = None) -> None:
        """Add what a layer absorbs: its relevance over its denominator, that denominator, and the bias within it."""
        self.stabiliser += self._each(share * (stabilised(z, stabiliser) - z))
        if biases is not None:
            self.biases += self._each(share * biases)

    def _each(self, values: Tensor) -> Tensor:
        return values.reshape(len(self.biases), -1).sum(dim=1)


def stabilised(z: Tensor, stabiliser: float) -> Tensor:
    """Move a denominator away from zero, up where it is zero."""
    return z + torch.where(z < 0, -stabiliser, stabiliser).float()  # whatever torch's default type is


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
    with torch.enable_grad():
        leaf = x.detach().requires_grad_()
        z = run(leaf)
    share = relevance / stabilised(z.detach(), stabiliser)
    tally.add(share, z.detach(), stabiliser, biases)
    return leaf.detach() * torch.autograd.grad(z, leaf, share)[0]


# ---- the rules -----------------------------------------------------------------------------------------------------


def epsilon(x: Tensor, layer: Affine) -> list[Group]:
    """The epsilon rule: in proportion to each contribution, whatever its sign."""
    return [Group([(x, layer.weight, layer.bias)])]


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
        copies: how often a rule runs a layer in the backward pass, where inputs are not negative.
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
