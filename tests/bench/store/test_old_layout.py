"""Stores of the first version, which did not record the source of methods: they open, report and resume."""

import hashlib
import json
import math

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.bench.test_run import Listening

from sightline.bench.run import resume
from sightline.bench.store.compact import compact
from sightline.bench.store.status import status_of
from sightline.bench.store.store import Store, read_rows
from sightline.bench.tables.table import make_table

KEY = "35de873201afb4a96fb7827917f688e8"  # what the first version computed for the unit below
IMAGES = ("shape-000000", "shape-000001")
MANIFEST = {
    "name": "old",
    "models": ["bundled/shapes-cnn"],
    "methods": ["ixg"],
    "metrics": ["insertion(step=512)"],
    "protocol": None,
    "dataset": "shapes(count=20)",
    "limit": 2,
    "seed": None,
    "target": "predicted",
    "batch": 2,
    "threads": 1,
    "device": "cpu",
    "resize": "model",
    "classes": [],
    "controls": False,
    "maps": 16,
    "title": "",
    "source": "",
    "cite": [],
    "notes": [],
    "resolved": {
        "setting": {
            "dataset": "shapes(count=20, limit=2)",
            "base": "",
            "target": "predicted",
            "seed": 0,
            "threads": 1,
            "device": "cpu",
            "resize": "model",
            "classes": [],
        },
        "dataset": "shapes",
        "blocks": [{"images": list(IMAGES), "data": "17dc4f2150a29603b9d142f98a44511b"}],
        "models": [
            {
                "model": "bundled/shapes-cnn",
                "weights": "e93875f355c57486c7c5cecac2d3a9af",
                "recipes": ["ixg"],
                "metrics": ["insertion(step=512)"],
                "left_out": [],
            }
        ],
        "skipped": [],
        "version": "0.1.0",
        "command": "sightline bench run plan.toml",
    },
}
TEXTS = ("run", "unit", "model", "weights", "recipe", "metric", "image", "flag", "dataset", "versions")
WHOLE = ("label", "target", "seed")
COLUMNS = [
    "run",
    "unit",
    "model",
    "weights",
    "recipe",
    "metric",
    "image",
    "label",
    "target",
    "value",
    "flag",
    "seed",
    "forward",
    "backward",
    "metric_forward",
    "seconds",
    "curve",
    "dataset",
    "versions",
]


def old_row(image, value):
    return {
        "run": "old",
        "unit": KEY,
        "model": "bundled/shapes-cnn",
        "weights": "e93875f355c57486c7c5cecac2d3a9af",
        "recipe": "ixg",
        "metric": "insertion(step=512)",
        "image": image,
        "label": 6,
        "target": 6,
        "value": value,
        "flag": "",
        "seed": 0,
        "forward": 1.0,
        "backward": 1.0,
        "metric_forward": 9.0,
        "seconds": 0.05,
        "curve": [0.9, 0.95, 1.0],
        "dataset": "shapes",
        "versions": '{"python": "3.11.7", "sightline": "0.1.0", "torch": "2.13.0+cpu"}',
    }


def write_old_rows(path, rows):
    """Write rows as the first version did: nineteen columns, and a digest of them in the metadata."""
    types = {
        name: pa.string() if name in TEXTS else pa.int64() if name in WHOLE else pa.list_(pa.float64())
        if name == "curve" else pa.float64()
        for name in COLUMNS
    }  # fmt: skip
    table = pa.Table.from_pylist(rows, schema=pa.schema(list(types.items())))
    digest = hashlib.blake2b(json.dumps(table.drop_columns(["curve"]).to_pydict()).encode(), digest_size=16)
    curve = table["curve"].combine_chunks()
    digest.update(json.dumps(curve.value_lengths().to_pylist()).encode())
    digest.update(curve.flatten().fill_null(math.nan).to_numpy(zero_copy_only=False).tobytes())
    path.parent.mkdir(parents=True)
    pq.write_table(table.replace_schema_metadata({b"sightline.digest": digest.hexdigest().encode()}), path)


@pytest.fixture
def store(tmp_path):
    folder = tmp_path / "store"
    write_old_rows(folder / "units" / KEY[:2] / f"{KEY}.parquet", [old_row(IMAGES[0], 0.25), old_row(IMAGES[1], 0.75)])
    (folder / "plan.json").write_text(json.dumps(MANIFEST, indent=1))
    return folder


def test_an_old_store_opens_with_the_keys_it_was_written_with(store):
    manifest = Store(str(store)).manifest()
    assert [unit.key for unit in manifest.units()] == [KEY]
    assert manifest.config.dataset == "shapes(count=20, limit=2)"
    assert manifest.packages == ()
    assert status_of(str(store)).complete
    rows = read_rows(store)
    assert list(rows["value"]) == [0.25, 0.75]
    assert set(rows["recipe_source"]) | set(rows["metric_source"]) == {""}


@pytest.mark.parametrize("bucket", [False, True])
def test_an_old_store_makes_a_table(store, bucket, monkeypatch):
    if bucket:  # units are read one by one there
        monkeypatch.setattr(Store, "folder", None)
    (row,) = make_table(read_rows(store)).rows
    assert (row.recipe, row.mean, row.count) == ("ixg", 0.5, 2)


def test_an_old_store_is_reported(store, tmp_path):
    from typer.testing import CliRunner

    from sightline.cli.main import app

    words = ["report", str(store), "--json", "--resamples", "50"]
    told = json.loads(CliRunner().invoke(app, words, catch_exceptions=False).stdout)
    assert (told["table"][0]["mean"], told["missing_units"], told["packages"]) == (0.5, 0, [])


def test_what_unknown_code_computed_is_not_mixed_with_what_is_computed_now(store):
    listening = Listening()
    outcome = resume(str(store), workers=0, callback=listening)
    assert (outcome.before, outcome.computed, outcome.complete) == (0, 1, True)
    assert any("does not say which code its units were computed by" in note for note in listening.notes)
    rows = read_rows(store)
    assert len(rows) == 2
    assert rows["recipe_source"].ne("").all()
    assert rows["value"].gt(0.9).all()  # none of those written by hand
    assert Store(str(store)).has(KEY)  # nothing is deleted
    assert resume(str(store), workers=0).computed == 0


def test_old_and_new_units_are_read_together(store):
    resume(str(store), workers=0)
    (store / "plan.json").unlink()  # then every unit is read
    rows = read_rows(store)
    assert sorted(rows["recipe_source"].eq("")) == [False, False, True, True]


def test_an_old_store_is_the_same_after_compaction(store):
    before = read_rows(store)
    assert (compact(str(store)).units, list(store.glob("units/*/*.parquet"))) == (1, [])
    assert read_rows(store).equals(before)
    assert status_of(str(store)).complete
    (row,) = make_table(read_rows(store)).rows
    assert (row.recipe, row.mean, row.count) == ("ixg", 0.5, 2)
