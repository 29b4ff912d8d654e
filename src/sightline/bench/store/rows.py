"""Rows: one per image and metric, as Parquet and back.

==================  ============================================================================================
``run``             the plan's name
``unit``            key of the unit the row belongs to
``model``           its id
``weights``         digest of its weights
``recipe``          of the method
``metric``          recipe of the metric
``image``           its id in the data set
``label``           its class, missing where unknown
``target``          the class that was explained, missing where the image failed before
``value``           what the metric says; NaN where it is not defined or the image failed
``flag``            empty where all is well; "constant map" and the like; "failed: …" with the reason
``seed``            of the run
``forward``         forward passes of the method, per image
``backward``        backward passes of the method, per image
``metric_forward``  forward passes of all the unit's metrics, per image
``seconds``         of the method, per image
``curve``           what the value was computed from, where the metric has a curve
``dataset``         its name
``versions``        of the libraries that took part, as JSON
``recipe_source``   digest of the source behind the recipe; empty in rows of a version that did not record it
``metric_source``   digest of the source behind the metric, likewise
==================  ============================================================================================
"""

from __future__ import annotations

import hashlib
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any

from sightline.bench.unit import Unit
from sightline.extras import require

__all__ = [
    "COLUMNS",
    "FAILED",
    "UnitResult",
    "complete_columns",
    "decode",
    "encode",
    "failed_rows",
    "make_row",
    "open_parquet",
    "schema",
]

FAILED = "failed: "
DIGEST = b"sightline.digest"
COLUMNS = {
    "run": "string",
    "unit": "string",
    "model": "string",
    "weights": "string",
    "recipe": "string",
    "metric": "string",
    "image": "string",
    "label": "int64",
    "target": "int64",
    "value": "float64",
    "flag": "string",
    "seed": "int64",
    "forward": "float64",
    "backward": "float64",
    "metric_forward": "float64",
    "seconds": "float64",
    "curve": "list",
    "dataset": "string",
    "versions": "string",
    "recipe_source": "string",
    "metric_source": "string",
}
SOURCES = ("recipe_source", "metric_source")  # columns that earlier versions did not write


@dataclass(frozen=True, slots=True)
class UnitResult:
    """A computed unit.

    Attributes:
        key: of the unit.
        rows: as Parquet.
        maps: as safetensors, None where none are kept.
    """

    key: str
    rows: bytes
    maps: bytes | None = None


def schema() -> Any:
    """Return the columns as a pyarrow schema."""
    arrow = require("pyarrow")
    types = {"list": arrow.list_(arrow.float64())}
    return arrow.schema([(name, types.get(word) or getattr(arrow, word)()) for name, word in COLUMNS.items()])


def make_row(unit: Unit, key: str, metric: str, image: str, versions: str, **columns: Any) -> dict[str, Any]:
    """Return one row; `columns` are those that differ from those of a failed image."""
    recipe_source, metric_source = unit.source_of(metric)
    return {
        "run": unit.run,
        "unit": key,
        "model": unit.model,
        "weights": unit.weights,
        "recipe": unit.recipe,
        "metric": metric,
        "image": image,
        "label": None,
        "target": None,
        "value": math.nan,
        "flag": "",
        "seed": unit.seed,
        "forward": 0.0,
        "backward": 0.0,
        "metric_forward": 0.0,
        "seconds": 0.0,
        "curve": None,
        "dataset": unit.dataset,
        "versions": versions,
        "recipe_source": recipe_source,
        "metric_source": metric_source,
    } | columns


def failed_rows(
    unit: Unit, reasons: Mapping[str, str], versions: str = "{}", labels: Mapping[str, int | None] | None = None
) -> list[dict[str, Any]]:
    """Return the rows of images that could not be scored, by id with the reason."""
    key, known = unit.key, labels or {}
    return [
        make_row(unit, key, metric, image, versions, label=known.get(image), flag=FAILED + reason)
        for image, reason in reasons.items()
        for metric in unit.metrics
    ]


def complete_columns(table: Any) -> Any:
    """Return a pyarrow table with all columns in order; the source is empty where an earlier version wrote the rows."""
    arrow = require("pyarrow")
    for name in SOURCES:
        if name not in table.column_names:
            table = table.append_column(name, arrow.nulls(len(table), arrow.string()))
        table = table.set_column(table.column_names.index(name), name, table[name].fill_null(""))
    return table.select(list(COLUMNS)).cast(schema())


def encode(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """Write rows as Parquet, with a digest of what they say."""
    arrow, parquet = require("pyarrow"), require("pyarrow.parquet")
    table = arrow.Table.from_pylist(list(rows), schema=schema())
    table = table.replace_schema_metadata({DIGEST: _digest(table)})
    buffer = io.BytesIO()
    parquet.write_table(table, buffer, compression="zstd")
    return buffer.getvalue()


def open_parquet(file: IO[bytes], **options: Any) -> Any:
    """Open Parquet in a Python file, as pyarrow's `ParquetFile`; read it with ``use_threads=False``.

    A thread of Arrow's that lets go of a Python object while the interpreter ends aborts the process
    (https://github.com/apache/arrow/issues/34314), so that none is started here, nor by such a read.
    """
    return require("pyarrow.parquet").ParquetFile(file, pre_buffer=False, **options)


def decode(data: bytes) -> Any:
    """Read Parquet as a pyarrow table.

    Raises:
        ValueError: it does not say what was written; or one of pyarrow's errors, or OSError, where it is damaged.
    """
    table = open_parquet(io.BytesIO(data)).read(use_threads=False)
    if (table.schema.metadata or {}).get(DIGEST) != _digest(table):
        raise ValueError("the rows are not those that were written")
    return table.replace_schema_metadata(None)


def _digest(table: Any) -> bytes:
    """Return a digest of every value of a table."""
    plain = table.drop_columns(["curve"]).to_pydict()
    curve = table["curve"].combine_chunks()
    digest = hashlib.blake2b(json.dumps(plain).encode(), digest_size=16)
    digest.update(json.dumps(curve.value_lengths().to_pylist()).encode())
    digest.update(curve.flatten().fill_null(math.nan).to_numpy(zero_copy_only=False).tobytes())
    return digest.hexdigest().encode()
