"""Plans: what they mean, and a sentence for each mistake."""

import subprocess
import sys

import pytest

from sightline.bench.images import dataset_of
from sightline.bench.plan import Plan, make_plan, read_plan
from sightline.errors import InputError, RecipeError
from sightline.methods.chance.controls import CONTROLS
from sightline.metrics.protocols import PROTOCOLS

LEAST = {
    "name": "look",
    "models": ["bundled/shapes-cnn"],
    "methods": ["ig(steps=20)"],
    "metrics": ["insertion"],
    "dataset": "shapes",
}


def test_a_plan_is_read_from_toml_and_options_take_the_place_of_settings(tmp_path):
    file = tmp_path / "plan.toml"
    file.write_text(
        'name = "look"\nmodels = "bundled/shapes-cnn"\nmethods = ["ixg"]\nmetrics = ["insertion"]\n'
        'limit = 4\n[dataset]\nname = "shapes"\ncount = 9\n'
    )
    plan = read_plan(file, limit=2, models=["bundled/shapes-vit"], methods=None)
    assert (plan.limit, plan.models, plan.methods) == (2, ["bundled/shapes-vit"], ["ixg"])
    assert plan.dataset == {"name": "shapes", "count": 9}
    assert (plan.batch, plan.threads, plan.target, plan.controls) == (8, 1, "predicted", True)


def test_recipes_are_canonical_and_come_once_with_the_controls_last():
    plan = make_plan(LEAST | {"methods": ["ig(20)", "ixg", "ig( steps = 20 )", "random"]})
    found = plan.expanded().recipes
    assert found[1:] == ("ixg", "random", "centre", "sobel", "input_norm")
    assert make_plan(LEAST | {"controls": False}).expanded().recipes == (found[0],)
    assert set(CONTROLS) <= set(found)


def test_a_protocol_adds_its_metrics():
    plan = make_plan(LEAST | {"metrics": ["deletion"], "protocol": "rise"})
    assert plan.expanded().metrics == ("deletion", "insertion", "ins_del")
    assert set(PROTOCOLS["rise"].metrics) == set(plan.expanded().metrics)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"modles": []}, "there is no setting called 'modles'; did you mean 'models'?"),
        ({"qqq": 1}, "there is no setting called 'qqq'; a plan has name, models, methods"),
        ({"name": None}, "name is None; give the run's name"),
        ({"models": []}, r"models is \[\]; give a list of model ids"),
        ({"models": ["bundled/shapes-vt"]}, "no model called 'bundled/shapes-vt'; did you mean 'bundled/shapes-vit'"),
        ({"models": ["shapes-vit"]}, "no model called 'shapes-vit'; did you mean 'bundled/shapes-vit'"),
        ({"methods": ["ixg", 4]}, r"methods\[1\] is 4; give a list of recipes"),
        ({"methods": ["gea"]}, "methods: there is no method called 'gea'; did you mean 'gae'"),
        ({"methods": ["plux(ixg)"]}, "there is no method called 'plux'; did you mean 'plus'"),
        ({"methods": ["ig(stepz=3)"]}, "methods: there is no option called 'stepz' in ig"),
        ({"metrics": ["insertio"]}, "metrics: there is no metric called 'insertio'; did you mean 'insertion'"),
        ({"metrics": []}, "metrics is missing; name one at least, or a protocol"),
        ({"protocol": "caapp"}, "protocol: there is no protocol called 'caapp'"),
        ({"limit": 0}, "limit is 0; give how many images at most, 1 or more"),
        ({"limit": True}, "limit is True; give how many"),
        ({"seed": -1}, "seed is -1"),
        ({"target": "class"}, "target is 'class'; give the class explained: predicted or label"),
        ({"batch": "8"}, "batch is '8'; give images per unit of work"),
        ({"threads": 0}, "threads is 0"),
        ({"dataset": 3}, "dataset is 3; give the images"),
    ],
)
def test_a_mistake_is_one_sentence_that_says_what_is_meant(change, sentence):
    with pytest.raises(RecipeError, match=sentence) as raised:
        make_plan(LEAST | change, "plan.toml")
    assert str(raised.value).startswith("plan.toml")
    assert "\n" not in str(raised.value)


def test_a_missing_setting_is_named_with_its_meaning():
    with pytest.raises(RecipeError, match=r"dataset is missing; write dataset = …, the images"):
        make_plan({key: value for key, value in LEAST.items() if key != "dataset"})


def test_every_mistake_is_told_at_once():
    with pytest.raises(RecipeError) as raised:
        make_plan(LEAST | {"methods": ["gea", "ixgg"], "metrics": ["insertio"], "models": ["bundled/x"]}, "plan.toml")
    assert str(raised.value).startswith("plan.toml has 4 mistakes:\n- models: ")
    assert str(raised.value).count("\n- ") == 4


def test_a_file_that_is_no_plan_is_told(tmp_path):
    with pytest.raises(InputError, match="there is no plan"):
        read_plan(tmp_path / "none.toml")
    broken = tmp_path / "broken.toml"
    broken.write_text('name = "a"\nmodels = ]\n')
    with pytest.raises(RecipeError, match=r"broken.toml is not TOML: .*line 2"):
        read_plan(broken)
    with pytest.raises(InputError, match="cannot be read"):
        read_plan(tmp_path)


@pytest.mark.parametrize(
    ("dataset", "more", "wanted"),
    [
        ("shapes", {}, "shapes"),
        ("shapes", {"limit": 3}, "shapes(limit=3)"),
        ("shapes()", {"limit": 3}, "shapes(limit=3)"),
        ("shapes(count=9)", {"limit": 3, "seed": 7}, "shapes(count=9, limit=3)"),  # its seed draws other pictures
        ("shapes(limit=5)", {"limit": 3}, "shapes(limit=5)"),
        ("imagenet(root='x')", {"limit": 3, "seed": 7}, "imagenet(root='x', limit=3, seed=7)"),
        ("folder(root='/data/limit=3/x')", {"limit": 2}, "folder(root='/data/limit=3/x', limit=2)"),
        ("folder(root='/data/limit=3/x', limit=5,)", {"limit": 2}, "folder(root='/data/limit=3/x', limit=5)"),
        ("folder('/data/seed=1')", {"limit": 2, "seed": 4}, "folder('/data/seed=1', limit=2, seed=4)"),
        ("imagenet(root='x'", {"limit": 3}, "imagenet(root='x'"),  # its own mistake is said when it is opened
        ("photos (1)/", {"limit": 3}, {"name": "photos (1)/", "limit": 3}),
        ("photos", {}, "photos"),
        ({"name": "shapes", "count": 9}, {"limit": 3, "seed": 7}, {"limit": 3, "name": "shapes", "count": 9}),
    ],
)
def test_limit_and_seed_reach_the_data_set(dataset, more, wanted):
    plan = Plan.model_validate(LEAST | {"dataset": dataset} | more)
    assert dataset_of(plan) == wanted


def test_plans_and_units_load_neither_torch_nor_pandas():
    code = (
        "import sys, sightline, sightline.cli.main, sightline.bench.plan, sightline.bench.unit\n"
        "print([name for name in ('torch', 'pandas', 'pyarrow', 'duckdb', 'numpy') if name in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "[]\n"
