"""Scores of a run for its table: a matrix for each model and metric, filled from a query without a frame of rows.

At any time one matrix is held: images by recipes, however many rows the store has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sightline.bench.stats.paired import refuse_mixtures
from sightline.bench.stats.reduce import Numbers, reduction_of
from sightline.bench.stats.score_matrix import COSTS, NOT_SCORED, Curves, ScoreMatrix
from sightline.bench.store.row_query import VIEW
from sightline.bench.unit import Manifest
from sightline.extras import require

__all__ = ["Irregular", "read_matrices"]

BATCH = 100_000  # rows that are taken over at a time
ORIGIN = ("dataset", "weights", "recipe_source", "metric_source")
OF_PART = "where model = $model and metric = $metric"


class Irregular(Exception):
    """The rows of a model and metric do not make a matrix: an image has several, or curves have several lengths."""


def read_matrices(base: Any, manifest: Manifest) -> Iterator[tuple[tuple[str, str], ScoreMatrix | None]]:
    """Yield the model, the metric and the matrix of each part of a run that has rows, in their order.

    The matrix is None where the rows make none, so that they are to be read as a frame.

    Args:
        base: a connection to DuckDB with the rows of the run.
        manifest: of the run.

    Raises:
        InputError: the rows come from several data sets, weights or versions of a method's code.
        duckdb.Error: a file is damaged or goes while it is read.
    """
    images = tuple(sorted(set(manifest.images)))
    _number(base, "image", images)
    for model in sorted(manifest.models, key=lambda model: model.model):
        for metric in sorted(model.metrics):
            groups = _groups(base, model.model, metric)
            if not groups:
                continue
            refuse_mixtures([{"model": model.model, "metric": metric, **group} for group in groups])
            try:
                matrix = _matrix(base, model.model, metric, groups, images)
            except Irregular:
                yield (model.model, metric), None
            else:
                yield (model.model, metric), matrix
                del matrix  # before the next one is made


def _number(base: Any, name: str, texts: Sequence[str]) -> None:
    """Make a table of the places of some texts."""
    arrow = require("pyarrow")
    columns = [arrow.array(texts, "string"), arrow.array(np.arange(len(texts), dtype=np.int32))]
    base.register("places", arrow.table(columns, [name, "place"]))
    base.execute(f"create or replace table {name}_places as select * from places")
    base.unregister("places")


def _groups(base: Any, model: str, metric: str) -> list[dict[str, Any]]:
    """Count and average the rows of each recipe, apart for each origin and version."""
    texts = ", ".join(f"coalesce({name}, '') as {name}" for name in (*ORIGIN, "versions"))
    known = {name: f"case when isnan({name}) then null else {name} end" for name in COSTS}
    means = ", ".join(f"favg({value}) as {name}, count({value}) as {name}_count" for name, value in known.items())
    query = (
        f"select recipe, {texts}, count(*) as rows, {means}, var_pop({known['seconds']}) as seconds_variance "
        f"from {VIEW} {OF_PART} group by all order by all"
    )
    found = base.sql(query, params={"model": model, "metric": metric}).to_arrow_table()
    return list(found.to_pylist())


def _matrix(
    base: Any, model: str, metric: str, groups: Sequence[Mapping[str, Any]], images: tuple[str, ...]
) -> ScoreMatrix:
    recipes = tuple(sorted({group["recipe"] for group in groups}))
    _number(base, "recipe", recipes)
    curves = reduction_of(metric).needs_curves
    filling = _Filling(len(images), len(recipes))
    query = (
        "select image_places.place as image, recipe_places.place as recipe, value, label, "
        f"nullif(flag, '') as flag{', curve' if curves else ''} from {VIEW} as rows "
        "join recipe_places on rows.recipe = recipe_places.recipe "
        f"join image_places on rows.image = image_places.image {OF_PART}"
    )
    for batch in base.sql(query, params={"model": model, "metric": metric}).to_arrow_reader(BATCH):
        filling.add(batch)
    return ScoreMatrix(
        model,
        metric,
        recipes,
        **filling.found(images),
        costs=np.array([_costs([group for group in groups if group["recipe"] == name]) for name in recipes]).T,
        rows=sum(group["rows"] for group in groups),
        weights=frozenset(group["weights"] for group in groups),
        versions=frozenset(group["versions"] for group in groups),
    )


def _costs(groups: Sequence[Mapping[str, Any]]) -> list[float]:
    """Return the means of the costs of a recipe, and the sample standard deviation of its seconds."""
    means = []
    for name in COSTS:
        count = sum(group[f"{name}_count"] for group in groups)
        known = [(group[name], group[f"{name}_count"]) for group in groups if group[f"{name}_count"]]
        means.append(sum(mean * own for mean, own in known) / count if count else np.nan)
    timed = [group for group in groups if group["seconds_count"]]
    count = sum(group["seconds_count"] for group in timed)
    spread = sum(
        group["seconds_count"] * (group["seconds_variance"] + (group["seconds"] - means[2]) ** 2) for group in timed
    )
    return [*means, float(np.sqrt(spread / (count - 1))) if count > 1 else np.nan]


class _Filling:
    """A matrix that is being filled."""

    def __init__(self, images: int, recipes: int) -> None:
        self.values = np.full((images, recipes), np.nan)
        self.flags = np.zeros((images, recipes), dtype=np.int32)
        self.rows = 0
        self.texts: dict[str, int] = {NOT_SCORED: 0, "": 1}
        self.labels = np.zeros(images, dtype=np.int64)
        self.labelled = np.zeros(images, dtype=bool)
        self.points: Numbers | None = None
        self.known = np.zeros((0, 0), dtype=bool)

    def add(self, batch: Any) -> None:
        """Put rows in, a record batch of Arrow."""
        image, recipe = (batch.column(name).to_numpy() for name in ("image", "recipe"))
        places = image.astype(np.int64) * self.values.shape[1] + recipe
        self.rows += len(places)
        self.values.ravel()[places] = batch.column("value").fill_null(np.nan).to_numpy(zero_copy_only=False)
        self.flags.ravel()[places] = self._codes(batch.column("flag"))
        label = batch.column("label")
        known = label.is_valid().to_numpy(zero_copy_only=False)
        self.labels[image[known]] = label.fill_null(0).to_numpy(zero_copy_only=False)[known]
        self.labelled[image[known]] = True
        if "curve" in batch.schema.names:
            self._add_curves(places, batch.column("curve"))

    def _codes(self, flags: Any) -> NDArray[np.int32]:
        """Return the places of flags among the texts; a missing one is an empty text."""
        codes = np.ones(len(flags), dtype=np.int32)
        if flags.null_count < len(flags):
            encoded = flags.dictionary_encode()
            own = [self.texts.setdefault(text, len(self.texts)) for text in encoded.dictionary.to_pylist()]
            known = flags.is_valid().to_numpy(zero_copy_only=False)
            codes[known] = np.array(own, dtype=np.int32)[encoded.indices.drop_null().to_numpy()]
        return codes

    def _add_curves(self, places: NDArray[np.int64], curves: Any) -> None:
        lengths = curves.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
        known = lengths > 0
        if not known.any():
            return
        length = int(lengths[known][0])
        if self.points is None:
            self.points = np.full((*self.values.shape, length), np.nan)
            self.known = np.zeros(self.values.shape, dtype=bool)
        if (lengths[known] != self.points.shape[2]).any():
            raise Irregular
        points = curves.flatten().fill_null(np.nan).to_numpy(zero_copy_only=False).reshape(-1, length)
        self.points.reshape(-1, length)[places[known]] = points
        self.known.ravel()[places[known]] = True

    def found(self, images: tuple[str, ...]) -> dict[str, Any]:
        """Return the fields of the matrix; images without a row are left out.

        Raises:
            Irregular: a cell was filled by several rows.
        """
        if np.count_nonzero(self.flags) < self.rows:
            raise Irregular
        there = self.flags.any(axis=1)
        kept = slice(None) if there.all() else there
        known = zip(self.labels[kept].tolist(), self.labelled[kept].tolist(), strict=True)
        return {
            "images": images if there.all() else tuple(np.array(images, dtype=object)[there].tolist()),
            "labels": tuple(label if is_known else None for label, is_known in known),
            "values": self.values[kept],
            "flags": self.flags[kept],
            "flag_texts": tuple(self.texts),
            "curves": None if self.points is None else Curves(self.points[kept], self.known[kept]),
        }
