"""``sightline report``: from a store to a page, tables and JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.report import invented


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return invented.store(tmp_path / "store")


def test_a_page_and_three_tables_are_written_into_the_store(sightline, store):
    result = sightline("report", store, "--resamples", 50, "--gallery", 3)
    assert result.exit_code == 0
    assert f"page: {store / 'report' / 'index.html'}" in result.stdout
    names = {path.name for path in (store / "report").iterdir()}
    assert names == {"index.html", "table.csv", "table.md", "table.tex"}
    page = (store / "report" / "index.html").read_text()
    for words in ("A first look", "Drawn by code.", "sightline bench run plan.toml", "@inproceedings{petsiuk2018",
                  "it needs luck", "it is cut short", "failed: the model returned NaN", "1 map could not be made",
                  'id="sanity"'):  # fmt: skip
        assert words in page
    assert page.count("--photo: url(data:image/") == 3
    assert "shown and explained" in page


def test_json_holds_the_rows_of_the_table_and_writes_nothing(sightline, store):
    result = sightline("report", store, "--json", "--resamples", 50)
    assert result.exit_code == 0
    printed = json.loads(result.stdout)
    assert len(printed["table"]) == len(invented.STORED) * len(invented.METRICS)
    assert {"model", "recipe", "metric", "mean", "low", "high", "rank", "group"} <= set(printed["table"][0])
    assert (printed["run"], printed["images"], printed["failed_maps"], printed["missing_units"]) == (
        "first-look",
        8,
        1,
        0,
    )
    assert printed["files"] == []
    assert not (store / "report").exists()


def test_out_chooses_the_folder_also_with_json(sightline, store, tmp_path):
    result = sightline("report", store, "--json", "--out", tmp_path / "there", "--gallery", 0, "--resamples", 50)
    assert Path(json.loads(result.stdout)["files"][0]).name == "index.html"
    assert (tmp_path / "there" / "table.tex").read_text().startswith(("%", "\\"))
    assert 'id="gallery"' not in (tmp_path / "there" / "index.html").read_text()


def test_a_run_that_is_not_finished_is_reported_as_far_as_it_is(sightline, tmp_path):
    result = sightline("report", invented.store(tmp_path / "store", less=5), "--resamples", 50, "--gallery", 0)
    assert result.exit_code == 0
    assert "the run is not finished: 5 of 14 units are missing" in result.stderr
    assert "The run is not finished: 5 of 14" in (tmp_path / "store" / "report" / "index.html").read_text()


def test_without_the_model_or_the_images_maps_stand_alone(sightline, tmp_path):
    folder = invented.store(tmp_path / "store", dataset="/nowhere/at/all")
    result = sightline("report", folder, "--resamples", 50)
    assert result.exit_code == 0
    assert "the gallery shows maps alone: " in result.stderr
    page = (folder / "report" / "index.html").read_text()
    assert "maps are shown alone" in page
    assert "--photo: url(" not in page


def test_the_store_may_be_a_url(sightline):
    result = sightline("report", invented.store("memory://somewhere/store"), "--resamples", 50, "--gallery", 1)
    assert result.exit_code == 0
    assert Path("sightline-report", "index.html").stat().st_size > 100_000


def test_maps_that_are_damaged_cost_only_themselves(sightline, store):
    damaged = next((store / "maps").iterdir())
    damaged.write_bytes(b"nothing")
    result = sightline("report", store, "--resamples", 50)
    assert result.exit_code == 0
    assert "cannot be read" in result.stderr


def test_the_page_of_a_store_without_maps_has_no_gallery(sightline, tmp_path):
    folder = invented.store(tmp_path / "store", maps=0)
    assert sightline("report", folder, "--resamples", 50).exit_code == 0
    assert 'id="gallery"' not in (folder / "report" / "index.html").read_text()


def test_what_is_no_store_is_said_in_a_sentence(sightline, tmp_path):
    result = sightline("report", tmp_path)
    assert result.exit_code == 1
    assert "is no store" in result.stderr
    empty = sightline("report", invented.store(tmp_path / "store", less=14))
    assert empty.exit_code == 1
    assert "holds no finished unit" in empty.stderr


def test_wrong_usage_and_folders_that_cannot_be_written(sightline, store, tmp_path):
    assert sightline("report").exit_code == 2
    assert sightline("report", store, "--gallery", -1).exit_code == 2
    (tmp_path / "file").write_text("")
    result = sightline("report", store, "--out", tmp_path / "file", "--gallery", 0, "--resamples", 50)
    assert result.exit_code == 1
    assert "cannot write" in result.stderr
    assert (tmp_path / "file").read_text() == ""
