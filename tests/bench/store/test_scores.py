"""Scores for the table: matrices from a query give the table of all rows, whatever the store looks like."""

from __future__ import annotations

import json
import uuid
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sightline.bench.stats import agreement, breakdown, resampling
from sightline.bench.stats.score_matrix import ScoreMatrix
from sightline.bench.store import row_query, unit_tables
from sightline.bench.store import store as module
from sightline.bench.store.compact import compact, fold
from sightline.bench.store.packs import PackIndex
from sightline.bench.store.rows import encode, failed_rows, make_row
from sightline.bench.store.store import Store, read_flagged, read_rows, read_scores
from sightline.bench.store.unit_query import count_units
from sightline.bench.tables import table_rows
from sightline.bench.tables.table import make_table
from sightline.bench.unit import Chunk, Manifest, ModelInfo, RunConfig
from sightline.errors import InputError, SightlineWarning
from sightline.report.benchmark import benchmark_report

IMAGES = [f"image-{place:02}" for place in range(20)]
METRICS = ("insertion", "deletion", "sic", "pixel_accuracy")
RECIPES = ("ixg", "gae", "rollout", "random")
POINTS = {"insertion": 5, "sic": 9, "pixel_accuracy": 2}


def manifest(models: int = 2, version: str = "1") -> Manifest:
    chunks = tuple(Chunk(tuple(IMAGES[start : start + 4]), f"d{start}") for start in range(0, len(IMAGES), 4))
    infos = tuple(ModelInfo(f"m{place}", "w", RECIPES, METRICS) for place in range(models))
    return Manifest({"name": "look", "maps": 0}, RunConfig("shapes"), "shapes", chunks, infos, version=version)


def rows_of(unit, random, *, curves=POINTS) -> list[dict]:
    """Return rows of a unit: most with a value, some undefined, some with a remark."""
    rows = []
    for metric in unit.metrics:
        for image in unit.images:
            place = IMAGES.index(image)
            value, flag = float(random.normal(len(unit.recipe), 3)), ""
            if (unit.recipe, place) == ("gae", 6):
                value, flag = float("nan"), "the mask is empty"
            if (unit.recipe, place) == ("rollout", 7):
                flag = "constant map"
            curve = np.sort(random.random(curves[metric])).tolist() if metric in curves else None
            label = None if place == 3 else place % 3
            seconds = float(random.random())
            more = {"forward": float(len(unit.recipe)), "backward": 1.0, "seconds": seconds, "curve": curve}
            rows.append(
                make_row(unit, unit.key, metric, image, "{}", value=value, flag=flag, label=label, target=1, **more)
            )
    return rows


def fill(url, *, less: int = 0, failed: bool = True) -> tuple[Store, list]:
    """Write the store of a run; `less` units are missing, and one failed on all its images."""
    store, plan, random = Store(str(url)), manifest(), np.random.default_rng(1)
    store.prepare()
    store.write_manifest(plan)
    units = list(plan.units())
    for place, unit in enumerate(units[less:]):
        is_failed = failed and place == 9
        reasons = dict.fromkeys(unit.images, "out of luck")
        store.write(unit.key, encode(failed_rows(unit, reasons) if is_failed else rows_of(unit, random)))
    return store, units


def table_of(parts):
    return make_table(parts, resamples=50)


def check_same(url) -> list:
    """Compare the table of matrices with that of all rows, and return what it was made from."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SightlineWarning)
        parts, wanted = list(read_scores(url)), table_of(read_rows(url))
    found = table_of(iter(parts))
    texts = [json.dumps(table.to_json() | {"timing": None}) for table in (found, wanted)]
    assert texts[0] == texts[1]
    for one, other in zip(found.rows, wanted.rows, strict=True):
        assert (one.seconds, one.seconds_deviation) == pytest.approx((other.seconds, other.seconds_deviation))
    return parts


@pytest.fixture(params=["folder", "bucket"])
def url(request, tmp_path: Path) -> str:
    return {"folder": str(tmp_path / "store"), "bucket": f"memory://{uuid.uuid4().hex}"}[request.param]


@pytest.mark.parametrize("layout", ["loose", "packed", "mixed", "many files", "missing units"])
def test_matrices_give_the_table_of_all_rows(url, monkeypatch, layout):
    fill(url, less=3 if layout == "missing units" else 0)
    if layout in ("packed", "mixed"):
        compact(url)
    if layout == "mixed":
        store, units = fill(url)
        store.remove(f"units/{units[2].key[:2]}/{units[2].key}.parquet")
    if layout == "many files":
        monkeypatch.setattr(row_query, "FEW", 3)
        monkeypatch.setattr(row_query, "TOGETHER", 10)
    parts = check_same(url)
    assert len(parts) == 2 * len(METRICS)
    assert all(isinstance(part, ScoreMatrix) for part in parts)


def test_a_pack_that_holds_units_of_another_run_too_is_read_in_part(tmp_path):
    fill(tmp_path, failed=False)
    compact(str(tmp_path))
    store = Store(str(tmp_path))
    plan = manifest()
    store.write_manifest(replace(plan, chunks=plan.chunks[:3]))
    parts = check_same(tmp_path)
    assert all(isinstance(part, ScoreMatrix) for part in parts)
    assert {image for part in parts for image in part.images} == set(IMAGES[:12])


def test_a_unit_in_two_packs_is_read_from_the_first_of_them(url, monkeypatch):
    store, units = fill(url, failed=False)
    compact(url)
    for unit in units[:7]:  # a second compactor that saw none of it
        store.write(unit.key, encode(rows_of(unit, np.random.default_rng(5))))
    with monkeypatch.context() as patch:
        patch.setattr(PackIndex, "refresh", lambda self: self)
        fold(Store(url))
    assert len(Store(url).packs.refresh().packs) == 2
    parts = check_same(url)
    assert all(isinstance(part, ScoreMatrix) for part in parts)
    assert sum(part.rows for part in parts) == len(units) * 4 * len(METRICS)
    assert count_units(Store(url), manifest()) == len(units)


def test_units_are_counted_once_wherever_they_lie(url):
    store, units = fill(url, less=3, failed=False)
    fold(store, 20)
    store.write(units[5].key, encode(rows_of(units[5], np.random.default_rng(5))))  # left beside its pack
    store.write_file("units/no/notes.parquet", b"of somebody else")
    assert count_units(Store(url), manifest()) == len(units) - 3
    assert manifest().unit_count == len(units)
    plan = manifest()
    assert count_units(Store(url), replace(plan, chunks=plan.chunks[2:])) == 2 * 3 * len(RECIPES)


def test_rows_of_some_images_are_those_of_all_rows(url):
    fill(url)
    compact(url)
    rows, some = read_rows(url), IMAGES[5:9]
    wanted = rows[rows["image"].isin(IMAGES[4:12])].reset_index(drop=True)  # the units that hold them
    assert read_rows(url, images=some).equals(wanted)


def test_rows_that_make_no_matrix_come_as_a_frame(url):
    store, units = fill(url)
    random = np.random.default_rng(2)
    store.write(units[0].key, encode(rows_of(units[0], random, curves=POINTS | {"sic": 7})))
    doubled = rows_of(units[1], random)
    store.write(units[1].key, encode(doubled + [row for row in doubled if row["metric"] == "deletion"]))
    parts = check_same(url)
    frames = {(part["model"].iloc[0], part["metric"].iloc[0]) for part in parts if not isinstance(part, ScoreMatrix)}
    assert frames == {("m0", "sic"), ("m0", "deletion")}


def test_a_damaged_file_is_left_out_as_it_is_of_all_rows(tmp_path):
    store, units = fill(tmp_path)
    Path(store.unit_path(units[1].key)).write_bytes(b"PAR1" * 30)
    check_same(tmp_path)


def test_rows_of_several_versions_are_refused(tmp_path):
    store, units = fill(tmp_path)
    rows = [row | {"weights": "others"} for row in rows_of(units[1], np.random.default_rng(0))]
    store.write(units[1].key, encode(rows))
    with pytest.raises(InputError, match="the rows of m0 come from 2 sets of weights"):
        list(read_scores(tmp_path))


def test_a_few_numbers_at_a_time_give_the_same_table(tmp_path, monkeypatch):
    fill(tmp_path)
    wanted = table_of(read_scores(tmp_path)).to_json()
    for place in (agreement, breakdown, table_rows):
        monkeypatch.setattr(place, "MAX_NUMBERS", 7)
    ranked = []
    monkeypatch.setattr(agreement, "combinations", lambda given, two: iter(ranked.extend(given) or ()))
    table_of(read_scores(tmp_path))
    assert all(isinstance(each.values, Path) for each in ranked)
    monkeypatch.undo()
    for place in (agreement, breakdown, table_rows):
        monkeypatch.setattr(place, "MAX_NUMBERS", 7)
    assert table_of(read_scores(tmp_path)).to_json() == wanted


def test_win_rates_of_blocks_are_those_of_all_images(monkeypatch):
    values = np.random.default_rng(0).normal(size=(40, 5)).round(1)
    values[3, 2] = np.nan
    wanted = resampling.win_rates(values, -1)
    monkeypatch.setattr(resampling, "MAX_NUMBERS", 12)
    np.testing.assert_allclose(resampling.win_rates(values, -1), wanted, rtol=1e-12)
    np.testing.assert_allclose(resampling.win_rates(-values), wanted, rtol=1e-12)


@pytest.mark.parametrize("layout", ["loose", "packed"])
def test_a_report_reads_no_frame_of_rows_and_no_list_of_units(url, monkeypatch, layout):
    fill(url)
    if layout == "packed":
        compact(url)

    def refuse(*_, **__):
        raise AssertionError("rows or units were read into memory")

    monkeypatch.setattr(module, "read_rows", refuse)
    monkeypatch.setattr(module, "read_part", refuse)
    monkeypatch.setattr(unit_tables, "_query", refuse)
    monkeypatch.setattr(PackIndex, "_load", refuse)
    report = benchmark_report(url, resamples=20)
    assert (report.run, report.counts) == ("look", {"images": 20, "units": 40, "missing_units": 0, "failed_maps": 4})
    assert report.summary.rows == 2 * len(RECIPES) * len(METRICS) * len(IMAGES)
    assert json.dumps(report.json())


def test_flagged_rows_are_read_alone_failures_before_remarks(url):
    fill(url)
    rows = read_rows(url)
    wanted = rows[rows["flag"] != ""]
    found = read_flagged(url, 1000)
    order = ["model", "recipe", "metric", "image"]
    assert found[[*order, "flag"]].to_numpy().tolist() == wanted[[*order, "flag"]].to_numpy().tolist()
    assert set(read_flagged(url, 16)["flag"]) == {"failed: out of luck"}
