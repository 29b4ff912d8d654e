"""Relative stability: change of the map in proportion to that of the image, of the output or of the representation."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from sightline.errors import UnsupportedModel
from sightline.metrics.case import Case, Measurement, flags_where, join_flags
from sightline.metrics.robustness.neighbourhood import Neighbourhood, zero_flags
from sightline.metrics.scaling import power_of_two
from sightline.models.adapter import Adapter
from sightline.models.capture import Site, capture
from sightline.models.passes import in_batches
from sightline.models.signature import WITHOUT_PROBABILITIES
from sightline.registry import METRICS
from sightline.types import Logit, LogProbability, Passes, Probability

LEAST = 1e-6  # what is divided by at least
COST = "11 forward and 10 attributions, of perturbed images"


@dataclass(frozen=True, slots=True)
class _Relative(Neighbourhood, ABC):
    """Base of the metrics of relative stability."""

    range: ClassVar[tuple[float, float]] = (0.0, float("inf"))

    def __call__(self, case: Case, /) -> Measurement:
        images = self.perturbed(case.images)
        key = ("logits of perturbed images", self.samples, self.radius, self.seed)
        logits = case.once(key, lambda: torch.stack([case.model.predict(each) for each in images]))
        same = torch.stack([same_answer(case, each) for each in logits])
        ratio = map_changes(case.maps, self.moved(case)) / self.changes(case, images, logits).clamp(min=LEAST)
        values = ratio.masked_fill(~same, -1).amax(dim=0)
        lost = ~same.any(dim=0)
        flags = join_flags(case.flags, zero_flags(case.maps), flags_where(lost, "no perturbation keeps the prediction"))
        zero = (case.maps == 0).flatten(1).all(dim=1)
        return Measurement(values.masked_fill(lost | zero, float("nan")).cpu(), None, flags)

    @abstractmethod
    def changes(self, case: Case, images: list[Tensor], logits: Tensor) -> Tensor:
        """Return what the change of the map is divided by, (sample, batch)."""

    def cost(self, model: Adapter, /) -> Passes:
        return Passes(forward=1.0 + self.samples)


@METRICS.register(
    "relative_input_stability",
    family="robustness",
    cite="agarwal2022",
    cost=COST,
    direction="lower",
    needs=("method",),
    parity="Quantus 0.6 RelativeInputStability on the same perturbations, live, 1e-4",
)
@dataclass(frozen=True, slots=True)
class RelativeInputStability(_Relative):
    r"""Largest relative change of the map divided by the relative change of the image.

    .. math:: \max_{k} \frac{\bigl\lVert \frac{a(x) - a(x_k)}{a(x)} \bigr\rVert_2}
        {\max\bigl( \bigl\lVert \frac{x - x_k}{x} \bigr\rVert_2, \varepsilon \bigr)}

    over perturbed images :math:`x_k` in which the model's answer is the same, divisions being pixel by pixel
    :cite:p:`agarwal2022`. Pixels where the map is nearly zero dominate: methods whose maps have many of them look
    unstable. Read it beside `average_sensitivity`, which divides by the whole map.

    It runs the method `samples` times and costs a pass per sample and one for the image, shared with
    `relative_output_stability`.

    Edge cases: where every perturbation changes the answer it is NaN, "no perturbation keeps the prediction"; a map of
    zeros is NaN, "zero map"; a zero in map or image is replaced by 1e-6; a constant map is flagged.
    """

    def changes(self, case: Case, images: list[Tensor], logits: Tensor) -> Tensor:
        exact = case.images.double()
        steps = [(exact - each.double()) / _nonzero(exact) for each in images]
        norms: Tensor = torch.stack(steps).flatten(2).norm(dim=2)
        return norms


@METRICS.register(
    "relative_output_stability",
    family="robustness",
    cite="agarwal2022",
    cost=COST,
    direction="lower",
    needs=("method",),
    parity="Quantus 0.6 RelativeOutputStability on the same perturbations, live, 1e-4",
)
@dataclass(frozen=True, slots=True)
class RelativeOutputStability(_Relative):
    r"""Largest relative change of the map divided by the change of the model's output.

    .. math:: \max_{k} \frac{\bigl\lVert \frac{a(x) - a(x_k)}{a(x)} \bigr\rVert_2}
        {\max\bigl( \lVert h(x) - h(x_k) \rVert_2, \varepsilon \bigr)}

    where :math:`h` are the logits, over perturbed images :math:`x_k` in which the model's answer is the same
    :cite:p:`agarwal2022`. A map may change as much as the model does. Of a model of several labels :math:`h` is the
    probability of the label that is explained, of an embedding or a value the output itself.

    It costs what `relative_input_stability` does, and shares everything with it.

    Edge cases: where every perturbation changes the answer it is NaN, "no perturbation keeps the prediction"; a map of
    zeros is NaN, "zero map"; a zero in the map is replaced by 1e-6; a constant map is flagged.
    """

    def changes(self, case: Case, images: list[Tensor], logits: Tensor) -> Tensor:
        clean, moved = case.clean, logits
        if _several_labels(case):
            followed = case.followed("probability")
            clean = case.read(followed, clean)[:, None]
            moved = torch.stack([case.read(followed, each)[:, None] for each in logits])
        norms: Tensor = (moved.double() - clean.double()).norm(dim=2)
        return norms


@METRICS.register(
    "relative_representation_stability",
    family="robustness",
    cite="agarwal2022",
    cost="22 forward and 10 attributions, of perturbed images",
    direction="lower",
    needs=("method",),
    parity="closed form",
)
@dataclass(frozen=True, slots=True)
class RelativeRepresentationStability(_Relative):
    r"""Largest relative change of the map divided by the relative change of the model's representation.

    .. math:: \max_{k} \frac{\bigl\lVert \frac{a(x) - a(x_k)}{a(x)} \bigr\rVert_2}
        {\max\bigl( \bigl\lVert \frac{L(x) - L(x_k)}{L(x)} \bigr\rVert_2, \varepsilon \bigr)}

    where :math:`L` is what enters the last layer with weights, the classifier as a rule, over perturbed images
    :math:`x_k` in which the model's answer is the same :cite:p:`agarwal2022`. It allows a map to change as the model's
    inner workings do, even where its output does not.

    It costs what `relative_input_stability` does, shares that with it, and takes a further pass per sample and one for
    the image to see the representation.

    Edge cases: those of `relative_input_stability`; a function has no layers: refused.
    """

    def changes(self, case: Case, images: list[Tensor], logits: Tensor) -> Tensor:
        clean = representation(case.model, case.images)
        steps = [(clean - representation(case.model, each)) / _nonzero(clean) for each in images]
        norms: Tensor = torch.stack(steps).norm(dim=2)
        return norms

    def cost(self, model: Adapter, /) -> Passes:
        return Passes(forward=2.0 + 2 * self.samples)


def representation(model: Adapter, images: Tensor) -> Tensor:
    """Return what enters the last layer with weights, (batch, value)."""
    weighted = [m for m in model.modules if any(True for _ in m.parameters(recurse=False)) and not list(m.children())]
    if not weighted:
        raise UnsupportedModel(f"{model.name} has no layer with weights to see a representation at; leave it out")
    site = {"representation": Site(weighted[-1], "input")}

    def work(rows: slice) -> Tensor:
        with torch.no_grad(), capture(site) as seen:
            model(images[rows])
        return seen["representation"].double().flatten(1)

    return torch.cat(in_batches(work, len(images), model.batch))


def map_changes(maps: Tensor, moved: Tensor) -> Tensor:
    """Return the norm of the change of maps divided pixel by pixel by the map, (sample, batch).

    >>> map_changes(torch.tensor([[[2.0, 4.0]]]), torch.tensor([[[[5.0, 2.0]]]]))
    tensor([[1.5811]], dtype=torch.float64)
    """
    factor = power_of_two(maps)
    exact = maps.double() * factor
    most = exact.abs().amax(dim=(1, 2), keepdim=True)
    change = (moved.double() * factor - exact) / torch.where(exact == 0, LEAST * most.where(most > 0, 1), exact)
    norms: Tensor = change.flatten(2).norm(dim=2)
    return norms


def same_answer(case: Case, logits: Tensor) -> Tensor:
    """Tell in which images the model's answer is that of the clean image; where there are no classes, in all."""
    if not _has_class(case):
        return torch.ones(len(logits), dtype=torch.bool, device=logits.device)
    if _several_labels(case):
        right = case.followed("accuracy")
        return case.read(right, logits) == case.read(right, case.clean)
    return logits.argmax(dim=1) == case.clean.argmax(dim=1)


def _has_class(case: Case) -> bool:
    return isinstance(case.target, Logit | Probability | LogProbability) and (
        case.model.output not in WITHOUT_PROBABILITIES and case.clean.shape[1] > 1
    )


def _several_labels(case: Case) -> bool:
    return _has_class(case) and case.model.output == "sigmoid"


def _nonzero(values: Tensor) -> Tensor:
    return torch.where(values == 0, LEAST, values)
