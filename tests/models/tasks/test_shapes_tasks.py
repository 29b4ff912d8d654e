"""The bundled segmenter and detector on scenes with several objects: maps show what was asked for alone."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import sightline
from sightline import Box, Region
from sightline.audit.panel import choose
from sightline.cli.main import app
from sightline.data.shapes_scenes import ShapesScenes
from sightline.errors import InputError
from sightline.models.zoo.ids import TASK_MODELS, WEIGHTS

SCENES = ShapesScenes(seed=7)  # of another seed than those that trained the heads
COUNT = 10


def test_scenes_are_the_same_every_time_and_their_boxes_are_tight() -> None:
    for index in range(20):
        scene = SCENES[index]
        assert np.array_equal(scene.image, ShapesScenes(seed=7)[index].image)
        assert 2 <= len(scene.labels) <= 3
        assert len(set(scene.labels)) == len(scene.labels)
        assert not np.sum(scene.masks, axis=0).max() > 1
        for label, mask, (x1, y1, x2, y2) in zip(scene.labels, scene.masks, scene.boxes, strict=True):
            assert mask[y1:y2, x1:x2].sum() == mask.sum()
            assert mask[y1].any() and mask[y2 - 1].any() and mask[:, x1].any() and mask[:, x2 - 1].any()  # noqa: PT018
            assert (scene.segmentation == 1 + label).sum() == mask.sum()
    with pytest.raises(InputError, match="count from 0"):
        SCENES[-1]


def test_the_heads_are_small_and_load() -> None:
    assert sum((WEIGHTS / f"{name}.safetensors").stat().st_size for name in TASK_MODELS) < 3e6
    segmenter = sightline.load("bundled/shapes-segmenter")
    drawn = SCENES.draw(40)
    predicted = segmenter.model(segmenter.normalise(drawn.images)).argmax(dim=1)
    assert float((predicted == drawn.segmentation).float().mean()) > 0.92


def precisions(model: Any, recipe: str, targets: list[Any]) -> tuple[float, float]:
    """Return the average precision on the object that is explained, and on those beside it, over scenes."""
    drawn = SCENES.draw(COUNT)
    images = model.normalise(drawn.images)
    own, beside = [], []
    for row, (scene, target) in enumerate(zip(drawn.scenes, targets, strict=True)):
        found = sightline.explain(model, images[row : row + 1], recipe, target=target)
        for number, mask in enumerate(scene.masks):
            masks = torch.from_numpy(mask).long()[None]
            scores = sightline.evaluate(model, images[row : row + 1], found, "average_precision", masks=masks)
            (beside if number else own).append(float(scores["average_precision"]))
    return sum(own) / len(own), sum(beside) / len(beside)


def test_maps_of_a_region_show_its_object_and_not_those_beside_it() -> None:
    model = sightline.load("bundled/shapes-segmenter")
    scenes = [SCENES[index] for index in range(COUNT)]
    regions = [Region(1 + scene.labels[0], torch.from_numpy(scene.masks[0])) for scene in scenes]
    controls = [precisions(model, control, regions) for control in ("centre", "random")]
    for recipe in ("seg_xres_cam", "ixg"):
        own, beside = precisions(model, recipe, regions)
        assert own > 1.5 * max(control for control, _ in controls)
        assert beside <= max(control for _, control in controls)


def test_maps_of_a_box_show_its_object_and_not_those_beside_it() -> None:
    model = sightline.load("bundled/shapes-detector")
    scenes = [SCENES[index] for index in range(COUNT)]
    boxes = [Box(tuple(map(float, scene.boxes[0])), scene.labels[0]) for scene in scenes]
    controls = [precisions(model, control, boxes) for control in ("centre", "random")]
    own, beside = precisions(model, "d_rise(samples=150, cells=8)", boxes)
    assert own > 1.5 * max(control for control, _ in controls)
    assert beside <= max(control for _, control in controls)


def test_gae_reads_a_detector_at_its_box_and_balanced_gradients_reach_it() -> None:
    model = sightline.load("bundled/shapes-detector")
    scenes = [SCENES[index] for index in range(COUNT)]
    boxes = [Box(tuple(map(float, scene.boxes[0])), scene.labels[0]) for scene in scenes]
    controls = [precisions(model, control, boxes) for control in ("centre", "random")]
    for recipe in ("gae", "libra(ixg)"):
        own, beside = precisions(model, recipe, boxes)
        assert own > 1.5 * max(control for control, _ in controls)
        assert beside <= max(control for _, control in controls)


@pytest.mark.parametrize("name", ["bundled/shapes-segmenter", "bundled/shapes-detector"])
def test_the_map_that_rank_believes_shows_the_object_that_was_asked_for(name: str) -> None:
    """The default panel with a box or region named by its label: the first map beats the controls, and there alone."""
    model, boxes = sightline.load(name), name.endswith("detector")
    drawn = SCENES.draw(3)
    images = model.normalise(drawn.images)
    scores: dict[str, list[float]] = {f"{which} {side}": [] for which in ("best", "centre", "random") for side in "ob"}
    for row, scene in enumerate(drawn.scenes):
        image = images[row : row + 1]
        label = model.label(scene.labels[0] + (not boxes))
        target = Box(0, label) if boxes else Region(label)
        ranking = sightline.rank(model, image, target=target, fills=False)
        assert label in ranking.to_pandas()["label"][0]
        assert ranking.best[0] is not None
        for which in ("best", "centre", "random"):
            found = sightline.explain(model, image, ranking.best[0] if which == "best" else which, target=target)
            for number, mask in enumerate(scene.masks):
                masks = torch.from_numpy(mask).long()[None]
                precision = sightline.evaluate(model, image, found, "average_precision", masks=masks)
                scores[f"{which} {'b' if number else 'o'}"].append(float(precision["average_precision"]))
    means = {name: sum(each) / len(each) for name, each in scores.items()}
    assert means["best o"] > 1.5 * max(means["centre o"], means["random o"])
    assert means["best b"] < max(means["centre b"], means["random b"])


def test_the_panels_of_tasks_have_the_methods_made_for_them() -> None:
    assert {"odam", "d_rise(samples=100, cells=8)", "gae"} <= set(choose(sightline.load("bundled/shapes-detector")))
    assert {"grad_cam", "seg_xres_cam"} <= set(choose(sightline.load("bundled/shapes-segmenter")))


@pytest.mark.parametrize(("model", "target", "words"), [
    ("bundled/shapes-segmenter", "region:{label}", "region of {label}"),
    ("bundled/shapes-detector", "box:{label}", "{label} in the box"),
])  # fmt: skip
def test_the_command_line_explains_regions_and_boxes(tmp_path: Path, model: str, target: str, words: str) -> None:
    scene = SCENES[0]
    Image.fromarray(scene.image).save(tmp_path / "scene.png")
    label = sightline.load(model).label(scene.labels[0] + ("segmenter" in model))
    arguments = [str(tmp_path / "scene.png"), "--model", model, "--target", target.format(label=label)]
    options = [
        "--method",
        "ixg",
        "--method",
        "random",
        "--metric-step",
        "1024",
        "--json",
        "--out",
        str(tmp_path / "out"),
    ]
    done = CliRunner().invoke(app, ["explain", *arguments, *options])
    assert done.exit_code == 0, done.output
    outcome = json.loads(done.stdout)
    assert words.format(label=label) in json.dumps(outcome["images"][0])
    assert Path(outcome["page"]).is_file()


def test_scenes_of_a_data_set_are_explained_by_the_labels_they_show(tmp_path: Path) -> None:
    data = "shapes_scenes(count=1, seed=7, task='detection')"
    options = ["--method", "ixg", "--metric-step", "1024", "--json", "--out", str(tmp_path)]
    done = CliRunner().invoke(app, ["explain", "--data", data, "--model", "bundled/shapes-detector", *options])
    assert done.exit_code == 0, done.output
    assert "in the box" in json.dumps(json.loads(done.stdout)["images"])
