"""Input invariance: whether the map stays the same when a constant is added to the image and taken off by the model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from sightline.errors import RecipeError, UnsupportedModel
from sightline.metrics.case import Case, Measurement, WithoutPasses, join_flags
from sightline.metrics.re_explain import re_explained_maps
from sightline.metrics.robustness.neighbourhood import relative_changes, zero_flags
from sightline.models.adapter import Adapter
from sightline.models.capture import Site
from sightline.models.edit import edit
from sightline.registry import METRICS


@METRICS.register(
    "input_invariance",
    family="axioms",
    cite="kindermans2017",
    cost="1 attribution, of the shifted image on the shifted model",
    direction="lower",
    needs=("method",),
    parity="closed form",
)
@dataclass(frozen=True, slots=True)
class InputInvariance(WithoutPasses):
    r"""Relative change of the map when a constant is added to the image and the model's first layer takes it off again.

    .. math:: \frac{\lVert a(f', x + s) - a(f, x) \rVert_2}{\lVert a(f, x) \rVert_2}, \qquad f'(x) = f(x - s)

    The two models see the same and answer the same, so an explanation should be the same :cite:p:`kindermans2017`. It
    is 0 for gradients; what multiplies by the image, such as gradient times input, changes with the choice of zero, and
    so do methods with a fixed baseline. That is a property to know of a method, not a proof that it is wrong.

    It runs the method once and costs nothing else. The constant is taken off before the first layer with weights.

    Edge cases: a map of zeros has no relative change: NaN, "zero map"; a constant map is flagged; a model whose first
    layer cannot be found is refused.

    Attributes:
        shift: s, added to every channel of the normalised image.
    """

    shift: float = 1.0
    range: ClassVar[tuple[float, float]] = (0.0, float("inf"))

    def __post_init__(self) -> None:
        if not 0 < abs(self.shift) < float("inf"):
            raise RecipeError(f"got shift={self.shift}; give a finite number other than 0")

    def __call__(self, case: Case, /) -> Measurement:
        with shifted_model(case.model, self.shift) as model:
            moved = re_explained_maps(case, model=model, images=case.images + self.shift)
        flags = join_flags(case.flags, zero_flags(case.maps))
        return Measurement(relative_changes(case.maps, moved[None])[0], None, flags)


@contextmanager
def shifted_model(model: Adapter, shift: float) -> Iterator[Adapter]:
    """Let a model take a constant off its images while the context is open."""
    if not isinstance(model.model, nn.Module):
        function, shifted = model.model, copy(model)
        shifted.model = lambda images: function(images - shift)
        yield shifted
        return
    weighted = [m for m in model.modules if any(True for _ in m.parameters(recurse=False)) and not list(m.children())]
    if not weighted:
        raise UnsupportedModel(f"{model.name} has no layer with weights, so no first layer that could be shifted")
    with edit({"first layer": Site(weighted[0], "input")}, {"first layer": lambda images: images - shift}):
        yield model


def shifted_back(model: Adapter, images: Tensor, shift: float) -> Tensor:
    """Return the logits of the shifted images on the shifted model, which are those of the images."""
    with shifted_model(model, shift) as shifted:
        return shifted.predict(images + shift)
