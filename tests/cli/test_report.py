"""``sightline report``: from a store to a page, tables and JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save
from tests.report import invented

from sightline.audit.benchmarked import soundness
from sightline.bench.store.rows import encode
from sightline.bench.store.store import Store
from sightline.bench.unit import Chunk, Manifest, ModelInfo, RunConfig

MODEL, IMAGES = "bundled/shapes-vit", 8
METHODS = {name: invented.METHODS[name] for name in ("gae", "rollout", "cam")}  # of which cam fails on an image
RECIPES = (*METHODS, *invented.CONTROLS)


def filled(
    folder: Path | str, *, model: str = MODEL, dataset: str = "shapes(count=8)", less: int = 0, maps: int = 8
) -> Any:
    """Write a store by hand, as a run would have left it; `less` units are missing."""
    frame = invented.rows(images=IMAGES, models=(model,), methods=METHODS, points=9)
    frame["image"] = frame["image"].str.replace("photo-", "shape-00")
    ids = tuple(f"shape-{index:06}" for index in range(IMAGES))
    plan = {
        "name": "first-look",
        "batch": 4,
        "maps": maps,
        "title": "A first look",
        "cite": ["petsiuk2018"],
        "notes": ["Drawn by code."],
    }
    manifest = Manifest(
        plan=plan,
        config=RunConfig(dataset),
        dataset="shapes",
        chunks=(Chunk(ids[:4], "d1"), Chunk(ids[4:], "d2")),
        models=(ModelInfo(model, "00000000", RECIPES, invented.METRICS, (("grad_cam", "it needs luck"),)),),
        skipped=(("broken.png", "it is cut short"),),
        version="0.1.0",
        command="sightline bench run plan.toml",
    )
    store = Store(str(folder))
    store.write_manifest(manifest)
    draw = np.random.default_rng(0)
    for unit in list(manifest.units())[less:]:
        rows = frame[(frame["recipe"] == unit.recipe) & frame["image"].isin(unit.images)].assign(unit=unit.key)
        kept = {image: draw.normal(size=(7, 7)).astype(np.float16) for image in unit.images[: unit.maps]}
        store.write(unit.key, encode(_plain(rows)), save(kept) if kept else None)
    return folder


def _plain(rows: Any) -> list[dict[str, Any]]:
    return [
        {**row, "label": int(row["label"]), "target": int(row["target"])}
        for row in rows.astype({"label": "int64", "target": "int64"}).to_dict("records")
    ]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return filled(tmp_path / "store")


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
    found = json.loads(result.stdout)
    assert len(found["table"]) == len(RECIPES) * len(invented.METRICS)
    assert {"model", "recipe", "metric", "mean", "low", "high", "rank", "group"} <= set(found["table"][0])
    assert (found["run"], found["images"], found["failed_maps"], found["missing_units"]) == ("first-look", 8, 1, 0)
    assert found["files"] == []
    assert not (store / "report").exists()


def test_out_chooses_the_folder_also_with_json(sightline, store, tmp_path):
    result = sightline("report", store, "--json", "--out", tmp_path / "there", "--gallery", 0, "--resamples", 50)
    assert Path(json.loads(result.stdout)["files"][0]).name == "index.html"
    assert (tmp_path / "there" / "table.tex").read_text().startswith(("%", "\\"))
    assert 'id="gallery"' not in (tmp_path / "there" / "index.html").read_text()


def test_a_run_that_is_not_finished_is_reported_as_far_as_it_is(sightline, tmp_path):
    result = sightline("report", filled(tmp_path / "store", less=5), "--resamples", 50, "--gallery", 0)
    assert result.exit_code == 0
    assert "the run is not finished: 5 of 14 units are missing" in result.stderr
    assert "The run is not finished: 5 of 14" in (tmp_path / "store" / "report" / "index.html").read_text()


def test_without_the_model_or_the_images_maps_stand_alone(sightline, tmp_path):
    folder = filled(tmp_path / "store", dataset="/nowhere/at/all")
    result = sightline("report", folder, "--resamples", 50)
    assert result.exit_code == 0
    assert "the gallery shows maps alone: " in result.stderr
    page = (folder / "report" / "index.html").read_text()
    assert "the maps stand alone" in page
    assert "--photo: url(" not in page


def test_the_store_may_be_a_url(sightline):
    result = sightline("report", filled("memory://somewhere/store"), "--resamples", 50, "--gallery", 1)
    assert result.exit_code == 0
    assert Path("sightline-report", "index.html").stat().st_size > 100_000


def test_maps_that_are_damaged_cost_only_themselves(sightline, store):
    damaged = next((store / "maps").iterdir())
    damaged.write_bytes(b"nothing")
    result = sightline("report", store, "--resamples", 50)
    assert result.exit_code == 0
    assert "cannot be read" in result.stderr


def test_the_page_of_a_store_without_maps_has_no_gallery(sightline, tmp_path):
    folder = filled(tmp_path / "store", maps=0)
    assert sightline("report", folder, "--resamples", 50).exit_code == 0
    assert 'id="gallery"' not in (folder / "report" / "index.html").read_text()


def test_what_is_no_store_is_said_in_a_sentence(sightline, tmp_path):
    result = sightline("report", tmp_path)
    assert result.exit_code == 1
    assert "is no store" in result.stderr
    empty = sightline("report", filled(tmp_path / "store", less=14))
    assert empty.exit_code == 1
    assert "holds no finished unit" in empty.stderr


def test_wrong_usage_and_folders_that_cannot_be_written(sightline, store, tmp_path):
    assert sightline("report").exit_code == 2
    assert sightline("report", store, "--gallery", -1).exit_code == 2
    (tmp_path / "file").write_text("")
    result = sightline("report", store, "--out", tmp_path / "file", "--gallery", 0, "--resamples", 50)
    assert result.exit_code == 1
    assert "cannot write into" in result.stderr


def test_verdicts_are_those_of_sanity():
    frame = invented.rows(images=4, methods={"gae": (0.8, 1, 1), "ixg": (0.1, 1, 1)}, trouble=False)
    same = frame["recipe"] == "sobel"
    frame.loc[same & frame["curve"].notna(), "curve"] = frame.loc[same & frame["curve"].notna(), "curve"].map(
        lambda curve: [1.0] * len(curve)
    )
    found = {one.recipe: one for one in soundness(frame)}
    assert (found["gae"].word, found["ixg"].word, found["sobel"].word) == ("passes", "fails", "fails")
    assert found["sobel"].control
    assert list(found["gae"].similarities) == ["randomisation_spearman"]


def test_without_sanity_metrics_there_is_no_verdict():
    assert soundness(invented.rows(images=2, metrics=("insertion",))) == []
    logits = invented.rows(images=2, metrics=("random_logit",))
    assert {one.word for one in soundness(logits)} == {"no verdict"}
