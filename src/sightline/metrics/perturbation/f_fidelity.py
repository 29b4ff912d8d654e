"""F-Fidelity: accuracy without a few random pixels of the explanation, on a model fine-tuned for missing pixels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from sightline.errors import RecipeError
from sightline.metrics.case import Case, Measurement
from sightline.metrics.faithfulness.options import PerturbationOptions
from sightline.metrics.removal import logits_without
from sightline.models.adapter import Adapter
from sightline.models.inputs import adapt
from sightline.perturb.curve import Score, Tie
from sightline.perturb.fill import FillOption, removing_fill
from sightline.registry import METRICS
from sightline.seeds import generators
from sightline.types import Passes

SIZES = (0.1, 0.3, 0.5, 0.7, 0.9)


@dataclass(frozen=True, slots=True)
class _FFidelity(PerturbationOptions):
    """Base of the two sides of F-Fidelity.

    Attributes:
        sizes: of the explanation, as shares of the pixels; the curve has a point for each.
        drop: the share α of the explanation that is removed at random.
        most: the share β of the image that is removed at most: what the model was fine-tuned with.
        samples: draws per size.
        tuned: the fine-tuned model, from Python alone; None takes the model that was explained.
        fill: what removed pixels become: zero (after normalisation), black, white, mean, blur.
        seed: of the draws, which depend on the image and not on its batch, and of random ties.
    """

    sizes: tuple[float, ...] = SIZES
    drop: float = 0.5
    most: float = 0.1
    samples: int = 10
    tuned: Any = None
    fill: FillOption = "zero"
    score: Score = "accuracy"
    tie: Tie = "index"
    seed: int = 0
    inside: ClassVar[bool] = True

    def __post_init__(self) -> None:
        removing_fill(self.fill)
        if not self.sizes or not all(0 < each < 1 for each in (*self.sizes, self.drop, self.most)) or self.samples < 1:
            raise RecipeError(
                f"got sizes={self.sizes}, drop={self.drop}, most={self.most}, samples={self.samples}; "
                "give shares between 0 and 1, and one sample at least"
            )
        if isinstance(self.tuned, str):
            raise RecipeError(f"got tuned={self.tuned!r}; a model can be given from Python alone, as an object")

    def __call__(self, case: Case, /) -> Measurement:
        judged = case if self.tuned is None else replace(case, model=_adapter(self.tuned, case))
        target = judged.followed(self.score)
        logits = logits_without(judged, self._removed(case), removing_fill(self.fill))
        left = judged.read(target, logits).double().unflatten(1, (len(self.sizes), self.samples)).mean(dim=2)
        curve = judged.read(target, judged.clean).double()[:, None] - left
        return Measurement(curve.mean(dim=1), curve, case.flags)

    def _removed(self, case: Case) -> Iterator[Tensor]:
        """Yield, image by image, the pixels each draw removes, (size · sample, height, width)."""
        order = case.order(self.tie, self.seed).cpu()
        pixels = order.shape[1]
        for each, generator in zip(order, generators(self.seed, case.images), strict=True):
            masks = torch.zeros(len(self.sizes) * self.samples, pixels, dtype=torch.bool)
            for row, mask in enumerate(masks):
                cut = max(1, round(self.sizes[row // self.samples] * pixels))
                part = each[:cut] if self.inside else each[cut:]
                count = min(round(self.drop * len(part)), round(self.most * pixels))
                mask[part[torch.randperm(len(part), generator=generator)[:count]]] = True
            yield masks.reshape(-1, *case.maps.shape[1:]).to(case.maps.device)

    def cost(self, model: Adapter, /) -> Passes:
        return Passes(forward=1.0 + len(self.sizes) * self.samples)


@METRICS.register(
    "f_fidelity_plus",
    family="perturbation",
    cite="zheng2025",
    cost="51 forward",
    direction="higher",
    parity="closed form",
)
@dataclass(frozen=True, slots=True)
class FFidelityPlus(_FFidelity):
    r"""Loss of accuracy when random pixels of the explanation are removed, few enough for the fine-tuned model.

    .. math:: \mathrm{FFid}^+ = \mathbb{1}[f(x) = y] - \mathbb{E}_{S}\, \mathbb{1}[f(x_{\setminus S}) = y], \qquad
        S \subset \mathrm{top}_s(a),\; |S| = \min(\alpha s n, \beta n)

    averaged over several sizes :math:`s` of the explanation; n is the number of pixels :cite:p:`zheng2025`. A model
    fine-tuned on images that lack a random share :math:`\beta` of their pixels has seen such images, so that the loss
    is that of information, not of strangeness: give it as ``tuned``. Without it the metric is the fidelity of the model
    itself, under removals that are kept small.

    It costs `samples` passes per size and one for the image.

    Edge cases: a constant map is judged by the order of its ties and flagged; an image the model gets wrong can only
    score 0 or less.
    """

    range: ClassVar[tuple[float, float]] = (-1.0, 1.0)


@METRICS.register(
    "f_fidelity_minus",
    family="perturbation",
    cite="zheng2025",
    cost="51 forward",
    direction="lower",
    parity="closed form",
)
@dataclass(frozen=True, slots=True)
class FFidelityMinus(_FFidelity):
    r"""Loss of accuracy when random pixels outside the explanation are removed, few enough for the fine-tuned model.

    .. math:: \mathrm{FFid}^- = \mathbb{1}[f(x) = y] - \mathbb{E}_{S}\, \mathbb{1}[f(x_{\setminus S}) = y], \qquad
        S \cap \mathrm{top}_s(a) = \emptyset,\; |S| = \min(\alpha (1 - s) n, \beta n)

    averaged over several sizes :math:`s` of the explanation :cite:p:`zheng2025`: what is not in the explanation should
    not matter. It is the other side of `f_fidelity_plus`, with the same options and costs.

    Edge cases: a constant map is judged by the order of its ties and flagged; an image the model gets wrong can only
    score 0 or less.
    """

    inside: ClassVar[bool] = False
    range: ClassVar[tuple[float, float]] = (-1.0, 1.0)


def _adapter(tuned: Any, case: Case) -> Adapter:
    """Return an adapter of the fine-tuned model, with the facts of the model that was explained."""
    if isinstance(tuned, Adapter):
        return tuned
    facts = {name: fact for name, fact in case.model.facts.items() if name != "name"}
    return adapt(tuned, **facts)
