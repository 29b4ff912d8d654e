"""The report of a benchmark from Python: what is read from a store, what is written, what is warned of."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.report import invented
from typer.testing import CliRunner

from sightline.bench.store.compact import compact
from sightline.cli.main import app
from sightline.errors import InputError, OutputError, SightlineWarning
from sightline.report.benchmark import assemble, benchmark_report, write_report
from sightline.report.benchmark.provenance import packages
from sightline.report.benchmark.sanity import sanity_results, sanity_tables


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return invented.store(tmp_path / "store")


def test_a_report_holds_rows_table_and_counts(store):
    report = benchmark_report(store, resamples=50)
    assert repr(report) == "BenchmarkReport('first-look', 8 images, 7 recipes, 4 metrics)"
    assert len(report.table.rows) == len(invented.STORED) * len(invented.METRICS)
    assert report.counts == {"images": 8, "units": 14, "missing_units": 0, "failed_maps": 1}
    assert report.manifest is not None
    assert report.warnings == ["1 map could not be made or scored; the reasons are under Failures"]
    assert not (store / "report").exists()


def test_the_report_as_json_is_plain_data(store):
    report = benchmark_report(store, resamples=50).json()
    assert json.loads(json.dumps(report)) == report
    assert (report["run"], report["failed_maps"], report["files"]) == ("first-look", 1, [])


def test_a_report_is_written_from_python_as_by_the_command(store, tmp_path):
    report = write_report(store, tmp_path / "python", gallery=2, resamples=50)
    assert [path.name for path in report.files] == ["index.html", "table.csv", "table.md", "table.tex"]
    words = ("report", store, "--out", tmp_path / "command", "--gallery", 2, "--resamples", 50)
    assert CliRunner().invoke(app, list(map(str, words))).exit_code == 0
    for path in report.files:
        assert path.read_bytes() == (tmp_path / "command" / path.name).read_bytes()


def test_by_default_the_page_lies_in_the_store(store):
    report = write_report(store, gallery=0, resamples=50)
    assert report.files[0] == store / "report" / "index.html"
    assert report.files[0].is_file()


def test_the_page_of_a_large_run_is_drawn_from_its_first_images_and_says_so(store, tmp_path, monkeypatch):
    whole = write_report(store, tmp_path / "whole", gallery=0, resamples=50)
    monkeypatch.setattr(assemble, "MOST_ROWS", len(whole.rows) // 4)
    monkeypatch.setattr(assemble, "FEWEST_IMAGES", 1)
    large = write_report(store, tmp_path / "large", gallery=0, resamples=50)
    chosen = set(large.manifest.images[:2])
    shown = large.page_rows[large.page_rows["flag"].fillna("") == ""]
    assert chosen <= set(shown["image"]) < set(whole.rows["image"])
    flagged = [frame[frame["flag"].fillna("") != ""]["value"].size for frame in (whole.rows, large.page_rows)]
    assert flagged[0] == flagged[1] > 0
    assert large.warnings[-1].startswith("the run is large: curves, gallery and sanity verdicts are drawn from 2 of 8")
    assert large.table == whole.table
    assert "8 images" in large.files[0].read_text()


def test_a_run_whose_units_are_all_folded_has_a_page_with_its_dates(store):
    for path in sorted((store / "units").rglob("*.parquet")):
        if b"failed" in path.read_bytes():
            path.unlink()
    compact(str(store))
    assert not list((store / "units").rglob("*.parquet"))
    page = write_report(store, gallery=0, resamples=50).files[0].read_text()
    assert " UTC" in page


def test_the_packages_that_took_part_are_named():
    package = SimpleNamespace(name="my-methods", version="1.4", digest="5f0e")
    manifest = SimpleNamespace(packages=(package,))
    assert packages(manifest) == [{"name": "my-methods", "version": "1.4", "digest": "5f0e"}]
    assert packages(None) == []


def test_what_is_missing_is_warned_of(tmp_path):
    report = benchmark_report(invented.store(tmp_path / "store", less=5), resamples=50)
    assert "the run is not finished: 5 of 14 units are missing" in report.warnings[0]


def test_without_the_data_set_maps_are_shown_alone_with_a_warning(tmp_path):
    report = benchmark_report(invented.store(tmp_path / "store", dataset="/nowhere/at/all"), resamples=50)
    with pytest.warns(SightlineWarning, match="the gallery shows maps alone"):
        page = report.save(gallery=1).files[0].read_text()
    assert 'id="gallery"' in page
    assert "--photo: url(" not in page


def test_a_store_without_results_and_a_folder_that_is_a_file_are_refused(tmp_path):
    with pytest.raises(InputError, match="holds no finished unit of the run 'other'"):
        benchmark_report(invented.store(tmp_path / "store"), run="other")
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot write"):
        write_report(tmp_path / "store", tmp_path / "file", gallery=0, resamples=50)


def test_verdicts_are_those_of_sanity():
    frame = invented.rows(images=4, methods={"gae": (0.8, 1, 1), "ixg": (0.1, 1, 1)}, failures=False)
    same = frame["recipe"] == "sobel"
    frame.loc[same & frame["curve"].notna(), "curve"] = frame.loc[same & frame["curve"].notna(), "curve"].map(
        lambda curve: [1.0] * len(curve)
    )
    by_recipe = {result.recipe: result for result in sanity_results(frame)}
    assert (by_recipe["gae"].verdict, by_recipe["ixg"].verdict, by_recipe["sobel"].verdict) == (
        "passes",
        "fails",
        "fails",
    )
    assert by_recipe["sobel"].control
    assert list(by_recipe["gae"].similarities) == ["randomisation_spearman"]


def test_without_sanity_metrics_there_is_no_verdict():
    assert sanity_results(invented.rows(images=2, metrics=("insertion",))) == []
    logits = invented.rows(images=2, metrics=("random_logit",))
    assert {result.verdict for result in sanity_results(logits)} == {"no verdict"}


def test_methods_that_pass_come_first_and_controls_last():
    results = sanity_results(invented.rows(images=4, methods={"ixg": (0.1, 1, 1), "gae": (0.8, 1, 1)}, failures=False))
    (table,) = sanity_tables(results, [invented.MODEL, "another"])
    assert [row["recipe"] for row in table["rows"]][:2] == ["gae", "ixg"]
    assert [row["control"] for row in table["rows"]] == [False] * 2 + [True] * 4
