"""Judge maps by several metrics at once, without running the model twice for what they share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from sightline.errors import InputError, RecipeError, UnsupportedModel
from sightline.metrics.case import Case, Measurement, Metric
from sightline.models.passes import counting
from sightline.recipe import parse_metric, text
from sightline.registry import spec_of
from sightline.types import Passes


@dataclass(frozen=True, eq=False, slots=True)
class Scores(Mapping[str, Tensor]):
    """One number per image and metric: ``scores["insertion"]`` has the shape (batch,).

    A metric is looked up by its recipe, however its options are written out or ordered.

    Attributes:
        measurements: by the metric's canonical recipe.
        passes: model passes spent on all of them together.
    """

    measurements: Mapping[str, Measurement]
    passes: Passes

    def __getitem__(self, metric: str) -> Tensor:
        found = self.measurements.get(metric) or self.measurements.get(_canonical(metric))
        if found is None:
            raise KeyError(f"{metric} was not scored; there is {', '.join(self.measurements)}")
        return found.values

    def __iter__(self) -> Iterator[str]:
        return iter(self.measurements)

    def __len__(self) -> int:
        return len(self.measurements)

    @property
    def curves(self) -> dict[str, Tensor]:
        """The response curves of the metrics that have one, each (batch, points)."""
        return {name: found.curve for name, found in self.measurements.items() if found.curve is not None}

    @property
    def flags(self) -> dict[str, tuple[str, ...]]:
        """Per metric, one text per image: what is wrong with its number, empty where nothing is."""
        return {name: found.flags for name, found in self.measurements.items()}


def judge(case: Case, metrics: str | Metric | Sequence[str | Metric]) -> Scores:
    """Score the maps of a case by each metric; a metric is text such as ``insertion(step=448)``, or built."""
    listed = [metrics] if isinstance(metrics, str | Metric) else metrics
    built = {text(metric): metric for metric in map(_build, listed)}
    if not built:
        raise InputError("got no metric; name one at least, for instance 'insertion'")
    for name, metric in built.items():
        _check(name, metric, case)
    with case.model.evaluating(), counting() as meter:
        measurements = {name: metric(case) for name, metric in built.items()}
    return Scores(measurements, meter.passes)


def _build(metric: str | Metric) -> Metric:
    built: Metric = parse_metric(metric) if isinstance(metric, str) else metric
    return built


def _check(name: str, metric: Metric, case: Case) -> None:
    """Refuse a metric whose needs are not met, before any pass is spent."""
    needs = spec_of(metric).needs
    if "masks" in needs and case.masks is None:
        raise InputError(
            f"{name} needs masks; give masks=… of shape {tuple(case.maps.shape)} with 1 where the evidence is"
        )
    if "method" in needs:
        case.explained_by()
    if lacking := sorted(needs - case.model.offers - {"masks", "method"}):
        raise UnsupportedModel(f"{name} needs {lacking[0]}, which {case.model.name} does not offer; leave it out")


def _canonical(metric: str) -> str:
    try:
        return text(parse_metric(metric))
    except RecipeError:
        return metric
