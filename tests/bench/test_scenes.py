"""Benchmarks of segmentations and detectors, on scenes whose objects are known."""

from pathlib import Path
from typing import Any

import pytest
from pandas import DataFrame

from sightline.bench.plan import make_plan
from sightline.bench.run import run
from sightline.bench.store.store import read_rows
from sightline.data.dataset import open_dataset

COUNT = 10


def rows_of(store: Path, model: str, method: str, **options: Any) -> DataFrame:
    task = "segmentation" if "segmenter" in model else "detection"
    plan = make_plan({
        "name": "scenes", "models": [model], "methods": [method, "centre", "random"], "metrics": ["average_precision"],
        "dataset": {"name": "shapes_scenes", "count": COUNT, "seed": 7, "task": task, **options}, "target": "label",
    })  # fmt: skip
    run(plan, str(store), workers=0)
    return read_rows(store)


def means(rows: DataFrame) -> dict[str, float]:
    return {str(recipe): float(value) for recipe, value in rows.groupby("recipe")["value"].mean().items()}


@pytest.mark.parametrize(("model", "method"), [
    ("bundled/shapes-segmenter", "seg_xres_cam"), ("bundled/shapes-detector", "d_rise(samples=100, cells=8)"),
])  # fmt: skip
def test_controls_are_beaten_on_the_object_that_is_asked_for_and_not_on_its_neighbours(
    tmp_path: Path, model: str, method: str
) -> None:
    own = rows_of(tmp_path / "own", model, method)
    found = own[own["flag"] == ""]
    assert len(found) >= 0.7 * 3 * COUNT  # an object that the model does not find is a failure with its reason
    assert own[own["flag"] != ""]["flag"].str.contains("predicts|finds no").all()
    assert (found["target"] == found["label"]).all()
    scores = means(found)
    assert scores[method] > 1.5 * max(scores["centre"], scores["random"])
    beside = rows_of(tmp_path / "beside", model, method, region="neighbours")
    scores = means(beside[beside["flag"] == ""])
    assert scores[method] < max(scores["centre"], scores["random"])


def test_scenes_know_their_objects_and_count_labels_as_the_task_does() -> None:
    for task, first in (("detection", 0), ("segmentation", 1)):
        data = open_dataset(f"shapes_scenes(count=3, seed=7, task={task!r})")
        beside = open_dataset(f"shapes_scenes(count=3, seed=7, task={task!r}, region='neighbours')")
        for name in data.ids:
            sample, others = data.read(name), beside.read(name)
            assert sample.label == sample.classes[0] >= first
            assert sample.mask.any()
            assert others.mask.any()
            assert not (sample.mask & others.mask).any()
