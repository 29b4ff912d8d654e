"""Plans of several panels: read, found by name, run into a store each, and laid out as published."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from sightline.api.prepare import prepare
from sightline.bench.panels import panel_stores, plan_names, read_plan_file, write_panels
from sightline.bench.plan import make_plan
from sightline.bench.run import run
from sightline.bench.store.store import read_rows
from sightline.bench.sure_images import sure_images
from sightline.bench.tables.paper_table import PanelResult, paper_table
from sightline.bench.tables.table import make_table
from sightline.bench.unit import RunConfig, Unit
from sightline.data.dataset import open_dataset
from sightline.errors import InputError, RecipeError
from sightline.models.zoo.ids import load

PLAN = """
name = "two"
title = "Two panels"
source = "A paper, table 1"
models = ["bundled/shapes-cnn"]
methods = ["ixg", "var(ixg, classes='picture', preset='recommended')"]
metrics = ["region_attribution", "iou"]
target = "label"
controls = false
notes = ["of both"]

[layout]
rows = ["model", "method"]
columns = ["heading", "metric"]
cell = "gain"
average = true
digits = 2

[labels]
ixg = "IxG"
iou = "IoU"
"bundled/shapes-cnn" = "CNN"

[[panels]]
name = "cells"
heading = "Quads"
dataset = { name = "quads", of = "shapes(count=4)", side = 64 }
notes = ["of cells"]

[panels.printed."bundled/shapes-cnn"]
ixg = ["0.55 +37 %", "0.20 +0 %"]

[[panels]]
name = "objects"
heading = "Objects"
dataset = { name = "quads", of = "shapes(count=4)", side = 64, region = "object" }
"""


@pytest.fixture
def plan_path(tmp_path: Path) -> Path:
    path = tmp_path / "two.toml"
    path.write_text(PLAN)
    return path


def test_a_panel_has_what_stands_above_and_its_own(plan_path: Path) -> None:
    read = read_plan_file(plan_path)
    first, second = (panel.plan for panel in read.panels)
    assert (read.name, first.name, second.name) == ("two", "two-cells", "two-objects")
    assert first.methods == second.methods
    assert (first.notes, second.notes) == (["of both", "of cells"], ["of both"])
    assert first.printed
    assert not second.printed
    assert [panel.store("runs/x") for panel in read.panels] == ["runs/x/cells", "runs/x/objects"]


def test_changes_hold_for_every_panel_and_drop_the_printed_numbers(plan_path: Path) -> None:
    read = read_plan_file(plan_path, limit=1, models=None)
    assert [panel.plan.limit for panel in read.panels] == [1, 1]
    assert not any(panel.plan.printed for panel in read.panels)
    (chosen,) = read_plan_file(plan_path, panels=["objects"]).panels
    assert chosen.name == "objects"


def test_a_plan_without_panels_is_one(tmp_path: Path) -> None:
    path = tmp_path / "one.toml"
    path.write_text(
        'name = "one"\nmodels = "bundled/shapes-cnn"\nmethods = "ixg"\nmetrics = "iou"\ndataset = "shapes"\n'
    )
    (panel,) = read_plan_file(path).panels
    assert (panel.name, panel.store("runs/one")) == ("", "runs/one")
    with pytest.raises(InputError, match="no panels"):
        read_plan_file(path, panels=["x"])


def test_plans_are_found_by_name_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "caap-table-1" in plan_names()
    assert [panel.plan.name for panel in read_plan_file("caap-table-1").panels] == ["caap-table-1"]
    assert len(read_plan_file("var-table-1").panels) == 6
    (panel,) = read_plan_file("var-table-1-quads-vit").panels  # the names that panels had as plans of their own
    assert panel.plan.name == "var-table-1-quads-vit"
    with pytest.raises(InputError, match="caap-table-1"):
        read_plan_file("caap-tabel-1")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (PLAN.replace('name = "objects"', 'name = "cells"'), "name of its own"),
        (PLAN.replace('name = "objects"', 'name = "a/b"'), "without slashes"),
        (PLAN.replace("[[panels]]", "[panel]", 1), "panel"),
        (PLAN.replace('cell = "gain"', 'cell = "mean"'), "layout"),
    ],
)
def test_a_mistake_in_a_panel_is_said(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text(text)
    with pytest.raises((RecipeError, InputError), match=message):
        read_plan_file(path)


def test_a_panel_that_is_not_there_is_refused(plan_path: Path) -> None:
    with pytest.raises(InputError, match="objects"):
        read_plan_file(plan_path, panels=["object"])


def test_panels_run_into_stores_of_their_own_and_make_the_published_table(plan_path: Path, tmp_path: Path) -> None:
    store = str(tmp_path / "runs")
    read = read_plan_file(plan_path)
    write_panels(store, read)
    results = []
    for panel in read.panels:
        outcome = run(panel.plan, panel.store(store), workers=0)
        assert outcome.complete
        rows = read_rows(panel.store(store))
        results.append(PanelResult(panel.plan, make_table(rows, resamples=20)))
    assert panel_stores(store) == {name: f"{store}/{name}" for name in ("cells", "objects")}
    assert panel_stores(f"{store}/cells") == {"": f"{store}/cells"}
    paper = paper_table(results)
    assert paper is not None
    assert paper.heads() == [
        "model", "method",
        "Quads · region_attribution ↑", "Quads · IoU ↑", "Objects · region_attribution ↑", "Objects · IoU ↑",
    ]  # fmt: skip
    means = {(row.recipe, row.metric): row.mean for row in results[0].table.rows}
    value, base = means[results[0].plan.methods[1], "iou"], means["ixg", "iou"]
    (row, average) = paper.lines()
    assert row[:2] == ["CNN", "IxG"]
    assert row[3] == f"{value:.2f} {100 * (value / base - 1):+.0f} % [0.20 +0 %]"
    assert average[1] == "average improvement"
    assert average[3] == f"{100 * (value / base - 1):+.2f} %"
    assert "In brackets: as printed." in paper.to_markdown()
    assert paper.to_csv().count("\n") == 3
    assert json.dumps(paper.to_json())


def test_values_errors_differences_and_seconds(tmp_path: Path) -> None:
    layout = {"rows": ["method"], "columns": ["metric"], "error": True, "seconds": True, "scale": 100.0, "digits": 1}
    metrics = ["insertion(step=512)", "deletion(step=512)"]
    settings = {
        "name": "one",
        "models": "bundled/shapes-cnn",
        "methods": ["ixg", "grad_cam"],
        "metrics": metrics,
        "dataset": "shapes(count=3)",
        "layout": layout | {"differences": {"ID": metrics}},
        "printed": {"bundled/shapes-cnn": {"ixg": [51.0, "9 ± 1", 42.0, "0.01 ± 0.002"]}},
    }
    plan = make_plan(settings)
    run(plan, str(tmp_path), workers=0)
    rows = read_rows(tmp_path)
    table = make_table(rows, resamples=20)
    paper = paper_table([PanelResult(plan, table)])
    assert paper is not None
    assert paper.heads() == ["method", "insertion(step=512) ↑", "deletion(step=512) ↓", "ID ↑", "seconds"]
    means = {(row.recipe, row.metric): row for row in table.rows}
    ins, out = (means["ixg", f"{name}(step=512)"] for name in ("insertion", "deletion"))
    own = {line[0]: line[1:] for line in paper.lines()}
    assert list(own) == ["ixg", "grad_cam"]  # the plan's order, and no control
    assert own["ixg"][0] == f"{100 * ins.mean:.1f} ± {100 * ins.standard_error:.1f} [51.0]"
    assert own["ixg"][2] == f"{100 * (ins.mean - out.mean):.1f} [42.0]"
    assert own["ixg"][3].endswith("[0.01 ± 0.002]")
    assert "±" in own["grad_cam"][3]


SETTINGS = {"models": "bundled/shapes-vit"}

# ---- which images, and how they are prepared -----------------------------------------------------------------------


def test_images_are_chosen_by_what_the_models_say(tmp_path: Path) -> None:
    settings = SETTINGS | {"name": "sure", "methods": "ixg", "metrics": "sparseness", "dataset": "shapes(count=40)"}
    model, images = load("bundled/shapes-vit"), open_dataset("shapes(count=40)")
    sure, right = [], []
    for sample in images:
        assert sample.tensor is not None
        likely = model.predict(model.normalise(sample.tensor)[None]).softmax(dim=1)[0]
        right += [sample.id] if int(likely.argmax()) == sample.label else []
        sure += [sample.id] if float(likely.max()) >= 0.985 else []
    assert 0 < len(sure) < 40
    found = sure_images(make_plan(settings | {"confidence": 0.985}), images)
    assert list(found.ids) == sure
    assert {reason.rpartition(", below ")[2] for _, reason in found.skipped} == {"0.985"}
    assert list(sure_images(make_plan(settings | {"correct": True}), images).ids) == right
    assert list(sure_images(make_plan(settings | {"confidence": 0.985, "limit": 2}), images).ids) == sure[:2]
    few = sure_images(make_plan(settings | {"per_class": 1}), images)
    assert len(few) < 40
    assert sure_images(make_plan(settings), images) is images
    with pytest.raises(InputError, match="sure of"):
        sure_images(make_plan(settings | {"confidence": 1.0}), images)
    outcome = run(make_plan(settings | {"confidence": 0.985, "limit": 2, "controls": False}), str(tmp_path), workers=0)
    assert outcome.complete
    assert sorted(read_rows(tmp_path)["image"].unique()) == sorted(sure[:2])


def test_unlikely_classes_of_a_picture_do_not_compete(tmp_path: Path) -> None:
    recipe = "var(ixg, classes='picture', preset='recommended')"
    settings = SETTINGS | {"name": "likely", "methods": ["ixg", recipe], "metrics": "iou", "target": "label"}
    settings |= {"controls": False, "dataset": "quads(of=shapes(count=4), side=64)"}
    values = {}
    for confidence in (None, 1e-9, 0.02):
        plan = make_plan(settings | {"confidence": confidence})
        run(plan, str(tmp_path / str(confidence)), workers=0)
        rows = read_rows(tmp_path / str(confidence))
        values[confidence] = dict(zip(rows["image"] + rows["recipe"], rows["value"], strict=True))
    assert values[None] == values[1e-9]
    kept = values[0.02]
    changed = [key for key in kept if kept[key] != values[None][key]]
    assert all(recipe in key for key in changed)
    assert changed


def test_the_confidence_is_in_a_key_only_where_there_is_one() -> None:
    config = RunConfig("shapes")
    assert "confidence" not in config.to_json()
    assert RunConfig.from_json(RunConfig("shapes", confidence=0.5).to_json()).confidence == 0.5
    words = ("run", "model", "weights", "recipe", "dataset", "data", "target", "device", "resize", "version")
    fields = dict.fromkeys(words, "x") | dict.fromkeys(("metrics", "images", "classes"), ())
    fields |= {"seed": 0, "threads": 1, "maps": 0}
    plain, sure = Unit(**fields), Unit(**fields, confidence=0.5)
    assert "confidence" not in plain.to_json()
    assert plain.key != sure.key
    assert Unit.from_json(sure.to_json()) == sure


def test_crop_takes_the_middle_of_the_short_side() -> None:
    from PIL import Image

    from sightline.data.source import Sample

    model = load("bundled/shapes-vit")
    picture = Image.new("RGB", (256, 64))
    picture.paste((255, 255, 255), (96, 0, 160, 64))  # the middle square is white
    mask = torch.zeros(64, 256, dtype=torch.int8)
    mask[:, 96:160] = 1
    image, cut = prepare(model, Sample("one", picture, mask=mask.numpy()), "crop")
    assert image.shape == (3, 64, 64)
    assert cut is not None
    assert bool((cut == 1).all())
    assert torch.allclose(model.denormalise(image), torch.ones(3, 64, 64), atol=1e-5)
