"""`sightline figure`: every kind of figure on the bundled models."""

import json
import tomllib
from pathlib import Path

import pytest

from sightline.bench.plan import make_plan
from sightline.bench.run import run
from sightline.cli.figures.charts import OVER_IMAGES
from sightline.cli.figures.kinds import KINDS, OF_MODELS, PER_IMAGE, Kind
from sightline.errors import RecipeError

VIT, CNN = "bundled/shapes-vit", "bundled/shapes-cnn"
QUADS = ("--data", "quads(of=shapes(count=8), side=64, region='object')")
METHODS = ("--method", "grad_cam", "--method", "ixg")
MAPS = {
    Kind.classes: ("--model", CNN, "--method", "grad_cam"),
    Kind.panel: ("--model", CNN, "--method", "grad_cam", "--method", "ixg"),
    Kind.distribution: ("--model", CNN, "--method", "grad_cam"),
    Kind.input: ("--model", CNN, "--method", "ixg"),
    Kind.layers: ("--model", VIT, "--method", "ixg"),
    Kind.masking: ("--model", CNN, "--method", "grad_cam"),
    Kind.order: ("--model", CNN, "--method", "mda(seed=grad_cam, cells=2, steps=8)"),
    Kind.density: ("--model", CNN, "--method", "mda(seed=grad_cam, cells=2, steps=8)", "--gamma", 0.5),
    Kind.baselines: ("--model", CNN, "--method", "mda(seed=grad_cam, cells=2, steps=8)"),
    Kind.film: ("--model", CNN, "--method", "grad_cam", "--frames", 2),
}
CHARTS = {
    Kind.randomisation: ("--model", CNN, "--method", "grad_cam", "--stages", 1),
    Kind.ablation: ("--model", VIT, "--vary", "neighbourhood", "--metric", "sparseness"),
    Kind.radar: ("--model", CNN, *METHODS, "--metric", "sparseness", "--metric", "complexity", "--metric", "iou"),
    Kind.attention: ("--model", VIT),
}


@pytest.mark.parametrize("kind", MAPS)
def test_a_figure_of_maps_is_drawn_of_every_image(opened, sightline, photos, kind):
    result = sightline("figure", kind.value, photos, *MAPS[kind], "--target", "star", "--target", "circle", "--json")
    assert result.exit_code == 0, result.stderr
    drawn = json.loads(result.stdout)["drawn"]
    assert [one["image"] for one in drawn] == ["a", "b"]
    assert all(one["classes"] == ["star", "circle"] for one in drawn)
    picture = opened(drawn[0]["path"])
    assert picture.info["classes"] == "['star', 'circle']"
    assert len(picture.getcolors(picture.width * picture.height)) > 100


@pytest.mark.parametrize("kind", CHARTS)
def test_a_chart_is_drawn_over_all_images(sightline, kind):
    result = sightline("figure", kind.value, *QUADS, "--limit", 2, *CHARTS[kind], "--json")
    assert result.exit_code == 0, result.stderr
    (drawn,) = json.loads(result.stdout)["drawn"]
    assert drawn["images"] == 2
    assert Path(drawn["path"]).read_text().startswith("<svg xmlns=")


def test_every_kind_is_explained(sightline):
    assert set(KINDS) == set(Kind) == {*MAPS, *CHARTS} == {*PER_IMAGE, *OF_MODELS, *OVER_IMAGES}
    assert all(kind.value in sightline("figure", "--help").stdout for kind in Kind)


def test_the_pictures_of_a_data_set_bring_their_classes(sightline):
    words = ("figure", "classes", *QUADS, "--limit", 2, "--model", CNN, "--method", "grad_cam", "--json")
    drawn = json.loads(sightline(*words).stdout)["drawn"]
    assert [one["image"] for one in drawn] == ["quad-0000-top-left", "quad-0001-top-left"]
    assert all(len(one["classes"]) > 1 for one in drawn)
    assert drawn[0]["recipes"] == ["grad_cam", "var(grad_cam, classes='picture')"]


def test_what_cannot_be_drawn_is_said(sightline, photos):
    result = sightline("figure", "layers", photos / "a.png", "--model", CNN, "--method", "grad_cam")
    assert result.exit_code == 1
    assert "one layer only" in result.stderr
    assert sightline("figure", "classes", "--model", CNN).exit_code == 2
    assert sightline("figure", "clases", photos, "--model", CNN).exit_code == 2


def test_models_share_a_panel_and_have_other_figures_of_their_own(opened, sightline, photos):
    models = ("--model", VIT, "--model", CNN, "--method", "grad_cam", "--method", "rollout", "--target", "star")
    result = sightline("figure", "panel", photos / "a.png", *models, "--json")
    assert result.exit_code == 0, result.stderr
    (panel,) = json.loads(result.stdout)["drawn"]
    assert panel["models"] == [VIT, CNN]
    assert "left out: rollout needs attention maps" in result.stderr
    height = opened(panel["path"]).height
    one = json.loads(sightline("figure", "panel", photos / "a.png", *models[:2], *models[4:], "--json").stdout)
    assert height > 1.5 * opened(one["drawn"][0]["path"]).height
    drawn = json.loads(sightline("figure", "input", photos / "a.png", *models[:-4], *models[-2:], "--json").stdout)
    assert [Path(one["path"]).name for one in drawn["drawn"]] == [
        "a-bundled-shapes-vit-input.png",
        "a-bundled-shapes-cnn-input.png",
    ]


def test_the_enlargement_decides_what_is_drawn(opened, sightline, photos):
    words = ("figure", "panel", photos / "a.png", "--model", VIT, "--method", "gae", "--json")
    pictures = []
    for mode in ("nearest", "bilinear"):
        (drawn,) = json.loads(sightline(*words, "--enlarge", mode).stdout)["drawn"]
        pictures.append(opened(drawn["path"]).tobytes())
    assert pictures[0] != pictures[1]


PLAN = """
name = "look"
models = ["bundled/shapes-cnn"]
methods = ["grad_cam"]
dataset = "shapes(count=3)"
limit = 2
figure = { name = "ablation", vary = "blank", metric = ["sparseness"] }
"""


def test_a_plan_describes_a_figure(sightline, tmp_path):
    plan = tmp_path / "look.toml"
    plan.write_text(PLAN)
    words = ("--model", VIT, "--out", tmp_path / "out", "--json")
    drawn = json.loads(sightline("figure", plan, *words).stdout)["drawn"]
    assert [(one["images"], one["path"]) for one in drawn] == [(2, str(tmp_path / "out" / "ablation.svg"))]
    assert list(drawn[0]["means"]) == ["sparseness"]
    blanks = ("black", "blurred_noise", "mean", "noise", "white")
    assert drawn[0]["recipes"] == [f"caap(blank='{blank}')" for blank in blanks]
    other = json.loads(sightline("figure", plan, *words, "--vary", "neighbourhood", "--limit", 1).stdout)["drawn"]
    assert (other[0]["images"], len(other[0]["recipes"])) == (1, 4)


def test_a_plan_names_its_own_model_whatever_the_environment_says(sightline, tmp_path, monkeypatch):
    monkeypatch.setenv("SIGHTLINE_MODEL", VIT)
    (tmp_path / "look.toml").write_text(PLAN.replace('"ablation"', '"panel"'))
    result = sightline("figure", tmp_path / "look.toml", "--limit", 1, "--json")
    assert json.loads(result.stdout)["drawn"][0]["model"] == CNN


def test_bench_run_draws_the_figure_of_a_plan_for_each_panel(sightline, tmp_path):
    plan = tmp_path / "look.toml"
    head = PLAN.partition("figure =")[0]
    panels = "".join(f"[[panels]]\nname = '{kind}'\nfigure = '{kind}'\n" for kind in ("panel", "input"))
    plan.write_text(head + panels)
    result = sightline("bench", "run", plan, "--store", tmp_path / "runs", "--limit", 1, "--json")
    assert result.exit_code == 0, result.stderr
    drawn = json.loads(result.stdout)["drawn"]
    names = ["panel/shape-000000-panel.png", "input/shape-000000-input.png"]
    assert [one["path"] for one in drawn] == [str(tmp_path / "runs" / name) for name in names]
    assert all(Path(one["path"]).is_file() for one in drawn)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (("'ablation'", "'piechart'"), "there is no figure 'piechart'; there are classes, panel"),
        (("vary = ", "varies = "), "a figure has no option 'varies'; it has name, target, operator"),
        (("figure = {", "metrics = ['insertion']\nlabels = {"), "look is a plan of a table; run it with"),
    ],
)
def test_what_a_plan_says_wrong_of_a_figure_is_said(sightline, tmp_path, changed, words):
    plan = tmp_path / "look.toml"
    before, after = changed
    text = PLAN.replace('"ablation"', "'ablation'").replace(before, after)
    plan.write_text(text.replace('labels = { name = \'ablation\', vary = "blank", metric = ["sparseness"] }', ""))
    result = sightline("figure", plan)
    assert result.exit_code == 2
    assert words in result.stderr


def test_a_plan_of_a_figure_is_no_benchmark(tmp_path):
    plan = make_plan(tomllib.loads(PLAN))
    with pytest.raises(RecipeError, match="look describes a figure; draw it with"):
        run(plan, str(tmp_path / "store"), workers=0)
