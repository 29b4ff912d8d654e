"""Score maps by several metrics at once, without running the model twice for what they share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from torch import Tensor

from sightline.errors import InputError, RecipeError, UnsupportedModel
from sightline.extras import require
from sightline.metrics.case import Case, Measurement, Metric
from sightline.models.passes import counting
from sightline.recipe import parse_metric, text
from sightline.registry import spec_of
from sightline.types import Passes

SHOWN = 50  # images in the table that a notebook shows


@dataclass(frozen=True, eq=False, repr=False, slots=True)
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
        measurement = self.measurements.get(metric) or self.measurements.get(_canonical(metric))
        if measurement is None:
            raise KeyError(f"{metric} was not scored; there is {', '.join(self.measurements)}")
        return measurement.values

    def __iter__(self) -> Iterator[str]:
        return iter(self.measurements)

    def __len__(self) -> int:
        return len(self.measurements)

    @property
    def curves(self) -> dict[str, Tensor]:
        """The response curves of the metrics that have one, each (batch, points)."""
        measured = self.measurements.items()
        return {name: measurement.curve for name, measurement in measured if measurement.curve is not None}

    @property
    def flags(self) -> dict[str, tuple[str, ...]]:
        """Per metric, one text per image: what is wrong with its number, empty where nothing is."""
        return {name: measurement.flags for name, measurement in self.measurements.items()}

    @property
    def images(self) -> int:
        """How many images were scored."""
        return next((len(measurement.values) for measurement in self.measurements.values()), 0)

    def to_pandas(self) -> Any:
        """Return a data frame with a row per image and metric: image (its index), metric, value, flag."""
        rows = [
            {"image": image, "metric": metric, "value": value, "flag": flag}
            for metric, measurement in self.measurements.items()
            for image, (value, flag) in enumerate(zip(measurement.values.tolist(), measurement.flags, strict=True))
        ]
        frame = require("pandas").DataFrame(rows, columns=["image", "metric", "value", "flag"])
        return frame.sort_values("image", kind="stable", ignore_index=True)

    def __repr__(self) -> str:
        return f"Scores({', '.join(self.measurements)}; {self.images} image{'' if self.images == 1 else 's'})"

    def _repr_html_(self) -> str:
        """Return a table for notebooks: a row per image, a column per metric, flags as tool tips."""
        columns = [(measurement.values.tolist(), measurement.flags) for measurement in self.measurements.values()]
        head = "".join(f"<th>{escape(metric)}</th>" for metric in self.measurements)
        rows = [
            f"<tr><th>{image}</th>{''.join(_cell(values[image], flags[image]) for values, flags in columns)}</tr>"
            for image in range(min(self.images, SHOWN))
        ]
        if self.images > SHOWN:
            rows.append(f'<tr><td colspan="{1 + len(columns)}">… {self.images - SHOWN} more</td></tr>')
        return f"<table><thead><tr><th>image</th>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


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


def _cell(value: float, flag: str) -> str:
    return f'<td title="{escape(flag)}">{value:.4g} *</td>' if flag else f"<td>{value:.4g}</td>"


def _canonical(metric: str) -> str:
    try:
        return text(parse_metric(metric))
    except RecipeError:
        return metric
