r"""The gamma rule of relevance propagation in the convention of gradients, for convolutions and linear layers.

Where attributions are input times gradient, a rule that turns the relevance :math:`R_k = y_k g_k` of a layer's output
into :math:`R_j` is a backward that returns :math:`R_j / x_j`; no division by an input is needed:

.. math:: g_j = \sum_k \tilde w_{jk} \frac{y_k\, g_k}{\sum_{j'} x_{j'} \tilde w_{j'k} + \tilde b_k},
    \qquad \tilde w = w + \gamma\, w^\pm

with the part of w that gives a contribution the sign of the output. It acts on function calls, for that thread and
inside the ``with`` only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from sightline.models.backward.custom import custom_backward, depends_on_image, detached, named
from sightline.models.backward.lrp_rules import Affine, Group, gamma, stabilised

STABILISER = 1e-8
CONVOLUTIONS = {"conv1d", "conv2d", "conv3d"}
NAMES = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")


class GammaRule(TorchFunctionMode):
    """The mode in which convolutions and linear layers have the gamma rule as backward; zero leaves them alone.

    Attributes:
        convolution: γ of convolutions.
        linear: γ of linear layers.
    """

    def __init__(self, convolution: float, linear: float) -> None:
        super().__init__()
        self.convolution, self.linear = convolution, linear

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        more = self.linear if name == "linear" else self.convolution if name in CONVOLUTIONS else 0.0
        given = named(NAMES, args, kwargs)
        if not more or not depends_on_image(given["input"]) or not torch.is_grad_enabled():
            return func(*args, **kwargs)
        x, weight, bias = given.pop("input"), detached(given.pop("weight")), detached(given.pop("bias", None))
        rule = partial(gamma, more=more)
        layer = Affine(lambda x, w, b: func(x, w, b, **given), weight, bias, rule, (x, x), name == "linear")
        with torch.no_grad():
            output = layer.run(x.detach(), weight, bias)
        backward = partial(_propagated, layer)
        return custom_backward(lambda: output, backward, x, saved=(x, output.clone()))


def _propagated(layer: Affine, gradient: Tensor, x: Tensor, output: Tensor) -> tuple[Tensor]:
    """Return the gradient of the input whose product with it is its relevance."""
    total = torch.zeros_like(x)
    for group in layer.rule(x, layer):
        relevance = output * gradient * (output.sign() == group.sign)
        total += _gradient(layer, group, relevance, x)
    return (total,)


def _gradient(layer: Affine, group: Group, relevance: Tensor, x: Tensor) -> Tensor:
    """Return what one sign of outputs gives: through the first copy where the input is positive, else the second."""
    with torch.enable_grad():
        leaves = [copy.detach().requires_grad_() for copy, _, _ in group.copies]
        outputs = [layer.run(leaf, w, b) for leaf, (_, w, b) in zip(leaves, group.copies, strict=True)]
    total = torch.stack([each.detach() for each in outputs]).sum(dim=0)
    share = relevance / stabilised(total, STABILISER)
    positive, negative = torch.autograd.grad(outputs, leaves, [share] * len(outputs))
    return torch.where(x > 0, positive, negative)
