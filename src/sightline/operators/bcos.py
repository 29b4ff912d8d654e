"""B-cos explanations: a gradient method on a B-cos network with its weights for the image held fixed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from sightline.errors import UnsupportedModel
from sightline.models.adapter import Adapter
from sightline.models.bcos import Bcos
from sightline.operators.wrapper import MultiTargetCall, Wrapper
from sightline.registry import OPERATORS
from sightline.types import Attribution, Method, Target


@OPERATORS.register(
    "bcos",
    family="balance",
    cite="bohle2024",
    cost="the method's",
    needs=("gradient",),
    parity="closed form: the gradient in a network's explanation mode, written out; the sum is the logit less its bias",
)
@dataclass(frozen=True, slots=True)
class BcosExplanation(Wrapper):
    r"""B-cos explanation: the method on a B-cos network whose weights for the image are constants.

    .. math:: y(x) = W(x)\,x, \qquad M_i = \sum_d x_{i,d}\, [W(x)]_{c,i,d} \quad\text{for } \texttt{bcos(ixg)}

    A B-cos network computes a linear function of the image with weights :math:`W(x)` that depend on it. Where these are
    held fixed, :math:`[\cdot]`, in the backward pass, the gradient is the weight itself, and ``bcos(ixg)`` the
    contribution of every pixel: summed over the six channels the network is fed, colours and one minus colours, it adds
    up to the logit but for its bias. For networks of the package ``bcos``; any other is refused.
    """

    method: Method

    def combine(
        self, multi_target: MultiTargetCall, model: Adapter, images: Tensor, targets: Sequence[Target]
    ) -> list[Attribution]:
        if not isinstance(model, Bcos):
            raise UnsupportedModel(
                f"bcos holds the weights of B-cos networks fixed, and {model.name} is none; use libra"
            )
        with model.explanation_mode():
            return multi_target(model, images, targets)
