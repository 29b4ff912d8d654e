"""The experiments run, continue where they stopped, and mean what they print."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

import sightline
from sightline.errors import RecipeError

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "experiments"
SCRIPTS = ["behaviour", "contrast_quads", "ablations", "attention_inside", "metric_trust"]
SHAPES = ["--model", "bundled/shapes-vit"]


@pytest.fixture
def script(monkeypatch, capsys):
    """Run a script as from the command line, in this process, and return what it printed."""
    monkeypatch.syspath_prepend(FOLDER)
    monkeypatch.chdir(ROOT)

    def run(name, *arguments):
        monkeypatch.setattr(sys, "argv", [f"experiments/{name}.py", *map(str, arguments)])
        runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
        return capsys.readouterr().out

    return run


@pytest.fixture
def module(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    return import_module


def rows(printed):
    """Return the rows of the tables, by recipe."""
    split = [[cell.strip() for cell in line.strip("|").split("|")] for line in printed.splitlines() if line[:1] == "|"]
    return {cells[0].strip("`"): cells[1:] for cells in split}


# ---- the scripts -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_script_explains_itself(script, name, capsys):
    with pytest.raises(SystemExit) as done:
        script(name, "--help")
    assert done.value.code == 0
    printed = capsys.readouterr().out
    assert f"python experiments/{name}.py" in printed
    assert all(option in printed for option in ("--limit", "--threads", "--json", "--model"))


def test_a_script_runs_from_the_root_of_the_repository():
    command = [sys.executable, "experiments/behaviour.py", *SHAPES, "--limit", "2", "--threads", "1"]
    command += ["--recipe", "gae", "--recipe", "centre"]
    run = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    assert run.returncode == 0, run.stderr
    found = rows(run.stdout)
    assert found["gae"][-2:] == ["1, 1", "2, 2"]
    assert found["centre"][6] == "0"  # its margin over itself


def test_behaviour_goes_on_where_it_stopped(script, tmp_path):
    file = tmp_path / "values.json"
    usual = [*SHAPES, "--sets", "pets", "--recipe", "rollout", "--recipe", "centre", "--json", file]
    printed = script("behaviour", *usual, "--limit", 2)
    kept = json.loads(file.read_text())["found"]
    pets = kept["bundled/shapes-vit on pets"]["rollout"]
    assert len(pets) == 2
    assert all({"aupr1", "aupr0", "pointing_game", "forward", "backward"} <= set(values) for values in pets.values())
    for values in pets.values():
        values["aupr1"] = 0.125  # what is in the file is believed
    file.write_text(json.dumps({"found": kept}))
    again = script("behaviour", *usual, "--limit", 3)
    assert rows(printed)["rollout"][0] != "12.5 ± 0.0"
    pets = json.loads(file.read_text())["found"]["bundled/shapes-vit on pets"]["rollout"]
    assert sorted(values["aupr1"] == 0.125 for values in pets.values()) == [False, True, True]
    assert rows(again)["rollout"][-1] == "3"
    redone = script("behaviour", *usual, "--limit", 2, "--redo")
    assert rows(redone)["rollout"][0] == rows(printed)["rollout"][0]


def test_what_does_not_exist_is_named_and_passed_over(script):
    printed = script("behaviour", *SHAPES, "--limit", 1, "--sets", "pets", "--recipe", "nonsense", "--recipe", "centre")
    assert rows(printed)["nonsense"][0] == "not available"
    assert "there is no method called 'nonsense'" in printed
    assert rows(printed)["centre"][-1] == "1"


def test_a_mistake_is_one_sentence(script, capsys):
    with pytest.raises(SystemExit) as done:
        script("behaviour", *SHAPES, "--limit", 0)
    assert done.value.code == 2
    assert capsys.readouterr().err == "got --limit 0; at least one image is needed\n"


def test_quads_ask_for_each_class_with_and_without_its_rivals(script, tmp_path):
    file = tmp_path / "quads.json"
    arguments = ["--limit", 2, "--recipe", "gae", "--preset", "recommended", "--json", file]
    found = rows(script("contrast_quads", *SHAPES, *arguments))
    contrasted = "var(gae, classes={classes}, preset='recommended')"
    assert found["gae"][1] == "0"
    assert found["gae"][2].startswith("0.250")  # positive everywhere: a quarter
    assert found["gae"][-1] == found[contrasted][-1] == "2"
    assert float(found[contrasted][0][:5]) > float(found["gae"][0][:5])
    values = json.loads(file.read_text())["found"]["bundled/shapes-vit on quads"]["gae"]
    assert len(values) == 8
    assert {name.partition("#")[2] for name in values} == set("0123")


def test_an_ablation_has_a_table_for_each_of_its_sets(script):
    printed = script("ablations", "full_grad_plus", *SHAPES, "--limit", 1, "--recipe", "ixg", "--recipe", "plus(ixg)")
    assert "bundled/shapes-vit on photographs" in printed
    assert "bundled/shapes-vit on pets" in printed
    header = next(line for line in printed.splitlines() if "insertion" in line)
    assert "insertion − deletion" in header
    assert "aupr1" not in header


def test_the_ablations_are_listed_and_one_must_be_named(script, capsys):
    printed = script("ablations", "--list")
    names = "caap_blank caap_neighbourhood caap_depth caap_score skip_plus_start full_grad_plus iia mda_tau mda_gamma"
    assert set(f"{names} mda_kappa mda_seed var_classes var_temperatures".split()) == {
        line.split()[0] for line in printed.splitlines()
    }
    with pytest.raises(SystemExit) as done:
        script("ablations")
    assert done.value.code == 2


def test_attention_inside_draws_what_it_counts(script, tmp_path):
    printed = script(
        "attention_inside", *SHAPES, "--limit", 2, "--png", tmp_path / "a.png", "--json", tmp_path / "a.json"
    )
    assert len(rows(printed)) == 2 + 6  # a head, a line and six blocks
    assert (tmp_path / "a.png").stat().st_size > 5000
    assert len(json.loads((tmp_path / "a.json").read_text())) == 2


def test_behaviour_on_the_real_transformer(script, shared):
    arguments = ["--shared", shared, "--limit", 1, "--sets", "pets", "--recipe", "gae", "--recipe", "centre"]
    weights = shared / "weights" / "vit_tiny_patch16_224.safetensors"
    found = rows(script("behaviour", "--model", f"file:{weights}@timm/vit_tiny_patch16_224", *arguments))
    assert 0 < float(found["gae"][0]) <= 100


# ---- what they share -------------------------------------------------------------------------------------------


def test_standard_errors_are_the_deviation_over_the_root_of_the_number(module):
    results = module("results")
    assert results.mean_and_error([1.0, 2.0, 3.0]) == "2.0 ± 0.6"  # 1 / √3
    assert results.mean_and_error([2.0, 2.0], digits=2, sign="+") == "+2.00 ± 0.00"
    assert results.mean_and_error([4.0]) == "4.0"
    assert results.mean_and_error([]) == "–"


def test_a_column_pairs_images_and_averages_the_parts_of_one(module):
    results = module("results")
    found = results.Results()
    found.add("p", "a", ["x#0", "x#1", "y#0"], {"m": [1.0, 3.0, 5.0], "n": [0.0, 1.0, 1.0]})
    found.add("p", "b", ["x#0", "x#1", "z"], {"m": [0.0, float("nan"), 9.0]})
    column = results.Column("", "p", "m")
    assert column.values(found, "a") == [2.0, 5.0]
    assert column.values(found, "a", {"y#0"}) == [5.0]
    assert results.Column("", "p", "m", minus="n").values(found, "a") == [1.5, 4.0]
    assert results.Column("", "p", "m", against="b").values(found, "a") == [1.0]  # x#1 has no rival, y none at all
    assert results.Column("", "p", "m", against={"a": "b"}).values(found, "a") == [1.0]
    assert results.Column("", "p", "m", against={"a": "b"}).cell(found, "b") == "0"


def test_files_of_several_runs_are_merged(module, tmp_path):
    results = module("results")
    one, two = results.Results(tmp_path / "1.json"), results.Results(tmp_path / "2.json")
    one.add("p", "a", ["x"], {"m": [1.0]})
    two.add("p", "a", ["x", "y"], {"n": [2.0, float("inf")]})
    merged = results.Results.open(tmp_path / "1.json", also=[tmp_path / "2.json"])
    assert merged.found == {"p": {"a": {"x": {"m": 1.0, "n": 2.0}, "y": {"n": None}}}}
    assert merged.lacking("p", "a", ["x", "y"], ["m", "n"]) == ["m"]
    assert merged.lacking("p", "b", ["x"], ["n"]) == ["n"]
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["1.json", "2.json"]  # no draft is left


def test_weights_files_are_known_by_their_name(module):
    panel = module("panel")
    assert panel.place_of("file:/some/where/w.safetensors@timm/vit", "pets") == "w.safetensors on pets"
    assert panel.place_of("package/efficientnet_lite0", "pets") == "package/efficientnet_lite0 on pets"


def recipes_of(module):
    ablations, behaviour, quads = module("ablations"), module("behaviour"), module("contrast_quads")
    listed = [*behaviour.RECIPES, *(recipe for one in ablations.ABLATIONS.values() for recipe in one.recipes)]
    listed += [quads.contrasted(recipe, "text") for recipes in quads.RECIPES.values() for recipe in recipes]
    return [recipe.replace("{classes}", "(0, 1, 2, 3)") for recipe in dict.fromkeys(listed)]


def test_every_recipe_of_the_experiments_can_be_read(module):
    wrong = {}
    for recipe in recipes_of(module):
        try:
            sightline.parse(recipe)
        except RecipeError as error:
            wrong[recipe] = str(error)
    assert wrong == {}


def test_the_pictures_are_those_that_are_promised(module, shared):
    pictures = module("pictures")
    model = sightline.load(f"file:{shared}/weights/vit_tiny_patch16_224.safetensors@timm/vit_tiny_patch16_224")
    photographs = pictures.load_shots("photographs", model, 2, shared)
    assert model.predict(torch.stack([shot.image for shot in photographs])).argmax(dim=1).tolist() == [
        shot.label for shot in photographs
    ]
    first, second = (pictures.load_shots("photographs", model, 1, shared, shuffle)[0].name for shuffle in (None, 1))
    assert first == photographs[0].name != second
    (pet,) = pictures.load_shots("pets", model, 1, shared)
    assert pet.mask.shape == (224, 224)
    cells = pictures.load_shots("quads", model, 1, shared)
    assert len(cells) == 4
    assert tuple(cell.label for cell in cells) == cells[0].classes
    assert torch.equal(torch.stack([cell.mask for cell in cells]).sum(dim=0), torch.ones(224, 224, dtype=torch.int64))
    parts = pictures.load_shots("pet_quads", model, 1, shared)
    assert all(0 < (part.mask == 1).float().mean() < 0.25 for part in parts)


def test_mean_weights_by_hand(module):
    inside = module("attention_inside")
    labels = torch.tensor([1, 1, 0, -1])
    weights = torch.zeros(1, 5, 5)
    weights[0, 1:, 1:] = torch.tensor([[1.0, 2, 3, 9], [4, 5, 6, 9], [7, 8, 0.5, 9], [9, 9, 9, 9]])
    # object → object: 1 2 4 5; object → background: 3 6; background → background: 0.5; times five tokens
    assert_close(inside.mean_weights(weights, labels, prefix=1), torch.tensor([3.0, 4.5, 0.5]) * 5)
    others = inside.mean_weights(weights, labels, prefix=1, others=True)
    assert_close(others[:2], torch.tensor([3.0, 4.5]) * 5)
    assert torch.isnan(others[2])


def test_a_patch_belongs_to_what_covers_most_of_it(module):
    mask = torch.tensor([[1, 1, 0, 0, 1, -1], [1, 0, 0, 0, -1, 0]])
    assert module("attention_inside").patch_labels(mask, 1, 3).tolist() == [1, 0, -1]
