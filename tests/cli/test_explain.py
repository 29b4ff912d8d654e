"""`sightline explain`, from paths to pictures, page and record."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from sightline.audit import panel as audit_panel
from sightline.audit import panel as default_panel
from sightline.audit.panel import CONTROLS, CONVOLUTIONAL, TRANSFORMER
from sightline.data.shapes import CLASSES, Shapes
from sightline.errors import NumericalError, SightlineError
from sightline.report.page import load_template

VIT, CNN = "bundled/shapes-vit", "bundled/shapes-cnn"
QUICK = ("--metric-step", 1024, "--method", "ixg", "--method", "random")


def told(result):
    """Return what a run with --json says; nothing else may stand on stdout."""
    return json.loads(result.stdout)


@pytest.fixture(scope="module")
def panel(tmp_path_factory):
    """One run of the default panel on one image, shared by the tests that only read it."""
    from typer.testing import CliRunner

    from sightline.cli.main import app

    folder = tmp_path_factory.mktemp("panel")
    Image.fromarray(Shapes(seed=5)[0].image).save(folder / "shape.png")
    words = ["explain", folder / "shape.png", "--model", VIT, "--out", folder / "out", "--json"]
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 0, result.stderr
    return folder, told(result)


def test_the_default_panel_ranks_every_map_by_insertion_minus_deletion_under_several_fills(panel):
    maps = panel[1]["images"][0]["maps"]
    assert [one["rank"] for one in maps] == list(range(1, len(maps) + 1))
    scores = [one["score"] for one in maps]
    assert scores == sorted(scores, reverse=True)
    fills = panel[1]["images"][0]["fills"]
    assert set(fills) == {"blur", "strong_blur", "zero", "noise", "tokens"}
    counted = [fill for fill, entry in fills.items() if entry["room"]] or list(fills)
    assert all(
        one["score"] == pytest.approx(sum(one["fills"][fill] for fill in counted) / len(counted)) for one in maps
    )
    assert all(one["ins_del"] == pytest.approx(one["insertion"] - one["deletion"]) for one in maps)
    assert set(TRANSFORMER) <= {one["recipe"] for one in maps}


def test_the_controls_are_ranked_too_and_marked(panel):
    maps = panel[1]["images"][0]["maps"]
    assert {one["recipe"] for one in maps if one["control"]} == set(CONTROLS)
    assert {one["recipe"] for one in maps if one["class_agnostic"]} == set(CONTROLS)


def test_a_map_says_what_it_cost(panel):
    passes = {one["recipe"]: one["passes"] for one in panel[1]["images"][0]["maps"]}
    assert passes["skip_plus(decompx)"] == {"forward": 1.0, "backward": 1.0}
    assert passes["random"] == {"forward": 0.0, "backward": 0.0}


def test_the_record_matches_the_files_on_disk(opened, panel):
    folder, record = panel
    maps = record["images"][0]["maps"]
    overlays = [one["overlay"] for one in maps]
    assert sorted(overlays) == sorted(map(str, (folder / "out").rglob("*.png")))
    assert record["page"] == str(folder / "out" / "index.html")
    assert {path.name for path in (folder / "out").iterdir()} == {"shape", "index.html", ".sightline"}
    first = opened(overlays[0])
    number = "1".zfill(len(str(len(overlays))))
    assert overlays[0].endswith(f"/shape/{number}-{re.sub('[()]', '-', maps[0]['recipe']).strip('-')}.png")
    assert first.info["recipe"] == maps[0]["recipe"]


def test_the_record_says_what_the_model_saw(panel):
    image = panel[1]["images"][0]
    chances = [one["probability"] for one in image["top"]]
    assert chances == sorted(chances, reverse=True)
    assert len(chances) == 5
    assert image["target"] == image["top"][0]["index"]
    assert image["label"] == image["top"][0]["label"] == CLASSES[Shapes(seed=5)[0].label]
    assert image["probability"] == chances[0]


def test_the_page_needs_nothing_but_itself(panel):
    folder, record = panel
    page = (folder / "out" / "index.html").read_text(encoding="utf-8")
    assert not re.search(r"""(src|href)=["'](?!data:|#)""", page)
    assert not re.search(r"url\((?!data:|['\"]?\s*['\"]?\s*\+)['\"]?https?:", page)
    assert all(one["recipe"] in page for one in record["images"][0]["maps"])
    assert "sightline explain" in page
    assert "petsiuk2018" in page
    assert "deletion under each fill" in page
    assert "strong blur" in page


def test_the_terminal_shows_the_ranking_and_the_verdict(sightline, photos):
    result = sightline("explain", photos / "a.png", "--model", CNN, *QUICK)
    assert result.exit_code == 0, result.stderr
    assert re.search(r"^ +1 +(ixg|random) ", result.stdout, flags=re.MULTILINE)
    assert "control" in result.stdout
    assert "under each fill" in result.stdout
    assert "strong blur" in " ".join(result.stdout.split())
    assert "page: sightline-out/index.html" in result.stdout
    assert result.stderr == ""


def test_a_convolutional_network_gets_a_panel_of_its_own(sightline, photos):
    result = sightline("explain", photos / "a.png", "--model", CNN, "--json", "--metric-step", 1024)
    recipes = {one["recipe"] for one in told(result)["images"][0]["maps"]}
    assert {*CONVOLUTIONAL, "random", "centre", "sobel"} <= recipes
    assert not recipes & set(TRANSFORMER)


@pytest.mark.parametrize("form", ["{0}/a.png {0}/b.png", "{0}", "{0}/*.png", "{0} {0}/a.png"])
def test_files_folders_and_patterns_are_taken_each_image_once(sightline, photos, form):
    result = sightline("explain", *form.format(photos).split(), "--model", VIT, *QUICK, "--json", "--no-page")
    assert [image["path"][-5:] for image in told(result)["images"]] == ["a.png", "b.png"]


def test_without_a_page_there_are_only_pictures(sightline, photos, tmp_path):
    result = sightline(
        "explain", photos / "a.png", "--model", VIT, *QUICK, "--no-page", "--json", "--out", tmp_path / "o"
    )
    assert told(result)["page"] is None
    assert {path.name for path in (tmp_path / "o").iterdir()} == {"a", ".sightline"}


@pytest.mark.parametrize("wanted", ["4", "star", "STAR "])
def test_the_target_is_a_number_or_a_label(sightline, photos, wanted):
    result = sightline("explain", photos / "a.png", "--model", VIT, *QUICK, "--json", "--target", wanted)
    image = told(result)["images"][0]
    assert (image["target"], image["label"]) == (4, "star")


def test_the_model_may_come_from_the_environment(sightline, photos, monkeypatch):
    monkeypatch.setenv("SIGHTLINE_MODEL", CNN)
    assert told(sightline("explain", photos / "a.png", *QUICK, "--json"))["model"] == CNN


def test_a_seed_is_handed_to_what_draws_and_left_alone_where_it_is_written(sightline, photos):
    words = ("--method", "random", "--method", "random(seed=9)", "--method", "ixg", "--seed", 3, "--metric-step", 1024)
    record = told(sightline("explain", photos / "a.png", "--model", VIT, *words, "--json"))
    assert {one["recipe"] for one in record["images"][0]["maps"]} == {"random(seed=3)", "random(seed=9)", "ixg"}


def test_the_step_of_the_curves_can_be_chosen(sightline, photos):
    record = told(sightline("explain", photos / "a.png", "--model", VIT, *QUICK, "--json"))
    assert record["images"][0]["metric_step"] == 1024


def test_a_step_that_is_the_metrics_own_default_will_do(sightline, photos):
    words = ("--method", "random", "--metric-step", 224, "--no-page", "--json")
    assert told(sightline("explain", photos / "a.png", "--model", VIT, *words))["images"][0]["metric_step"] == 224


def test_what_the_panel_offers_in_vain_is_left_out_and_said_once(sightline, photos, monkeypatch):
    monkeypatch.setattr(
        default_panel, "choose", lambda model: ["plus(ixg)", "random"]
    )  # a CNN has no blocks to start at
    result = sightline("explain", photos, "--model", CNN, "--metric-step", 1024, "--json")
    assert result.exit_code == 0
    assert [[one["recipe"] for one in image["maps"]] for image in told(result)["images"]] == [["random"]] * 2
    assert result.stderr.startswith("note: left out plus(ixg): ")
    assert len(result.stderr.splitlines()) == 1


def test_a_map_that_fails_is_reported_and_the_others_are_made(sightline, photos, monkeypatch):
    def failing(model, images, method, target):
        if type(method).__name__ == "Random":
            raise NumericalError("random gave NaN")
        return attribute(model, images, method, target)

    attribute = audit_panel.attribute
    monkeypatch.setattr(audit_panel, "attribute", failing)
    result = sightline("explain", photos / "a.png", "--model", VIT, *QUICK, "--json")
    assert result.exit_code == 1
    record = told(result)
    assert [one["recipe"] for one in record["images"][0]["maps"]] == ["ixg"]
    assert record["errors"] == [{"path": str(photos / "a.png"), "error": "random gave NaN", "recipe": "random"}]
    assert "random on " in result.stderr


def test_where_a_control_comes_first_the_verdict_says_so(sightline, photos):
    words = ("--method", "centre", "--method", "sobel", "--metric-step", 1024)
    result = sightline("explain", photos / "a.png", "--model", VIT, *words)
    assert "No method beat the controls on this image" in " ".join(result.stdout.split())


def test_many_images_get_a_line_each(sightline, photos):
    for index in range(9):
        shutil.copy(photos / "a.png", photos / f"copy{index}.png")
    words = ("--method", "random", "--metric-step", 4096, "--no-page")
    lines = sightline("explain", photos, "--model", VIT, *words).stdout.splitlines()
    assert sum("copy" in line for line in lines) == 9
    assert len(lines) < 16


def test_images_of_the_same_name_do_not_overwrite_each_other(sightline, photos, tmp_path):
    (tmp_path / "other").mkdir()
    shutil.copy(photos / "b.png", tmp_path / "other" / "a.png")
    paths = (photos / "a.png", tmp_path / "other")
    record = told(sightline("explain", *paths, "--model", VIT, *QUICK, "--json", "--out", tmp_path / "o"))
    assert len({one["overlay"] for image in record["images"] for one in image["maps"]}) == 4
    assert {path.name for path in (tmp_path / "o").iterdir()} == {"a", "a-2", "index.html", ".sightline"}


def test_a_second_run_replaces_the_pictures_of_the_first_and_nothing_else(sightline, photos, tmp_path):
    out = tmp_path / "o"
    sightline("explain", photos / "a.png", "--model", VIT, *QUICK, "--out", out)
    Image.new("RGB", (4, 4)).save(out / "a" / "1-mine.png")
    sightline("explain", photos / "a.png", "--model", VIT, "--method", "gae", "--metric-step", 1024, "--out", out)
    assert {path.name for path in (out / "a").iterdir()} == {"1-gae.png", "1-mine.png"}


# ---- bad input -------------------------------------------------------------------------------------------------


def assert_refused(result, code, *said):
    """One sentence on stderr, nothing on stdout, no output folder."""
    assert result.exit_code == code, result.stderr
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1, result.stderr
    assert "Traceback" not in result.stderr
    for words in said:
        assert words in result.stderr


def assert_nothing_written(folder):
    assert not [path for path in folder.rglob("*") if "here" in path.parts and path.name != "here"]


@pytest.mark.parametrize(
    ("recipe", "said"),
    [
        ("skip_plos(ixg)", "did you mean 'skip_plus'?"),
        ("ig(stepz=3)", "no option called 'stepz' in ig; it has steps, rule, blank, at"),
        ("ig(steps='many')", "ig got steps='many'"),
        ("__import__('os').system('touch owned')", "names and literals only"),
        ("(lambda: 1)()", "names and literals only"),
        ("", "got '' as a recipe"),
    ],
)
def test_a_wrong_recipe_is_wrong_usage(sightline, photos, tmp_path, recipe, said):
    result = sightline("explain", photos / "a.png", "--model", VIT, "--method", recipe)
    assert_refused(result, 2, said)
    assert_nothing_written(tmp_path)


def test_a_recipe_that_only_fails_when_run_is_wrong_usage_too(sightline, photos, tmp_path):
    result = sightline("explain", photos / "a.png", "--model", VIT, "--method", "skip_plus(ixg, start=99)")
    assert_refused(result, 2, "got start=99")
    assert_nothing_written(tmp_path)


def test_a_method_that_needs_attention_names_those_that_work(sightline, photos, tmp_path):
    result = sightline("explain", photos / "a.png", "--model", CNN, "--method", "rollout")
    assert_refused(result, 2, "rollout needs attention maps", "Methods that work: ", "grad_cam")
    assert_nothing_written(tmp_path)


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ("8", "has classes 0 to 7"),
        ("-1", "has classes 0 to 7"),
        ("hart", "did you mean 'heart'?"),
        ("zebra", "no class"),
    ],
)
def test_a_target_the_model_does_not_have_is_wrong_usage(sightline, photos, tmp_path, wanted, said):
    result = sightline("explain", photos / "a.png", "--model", VIT, f"--target={wanted}")
    assert_refused(result, 2, said)
    assert_nothing_written(tmp_path)


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("bundled/shapes-vitt", "shapes-vit"),
        ("nonsense", "as a model id"),
        ("timm/vit_tinny_patch16_224", "vit_tiny_patch16_224"),
    ],
)
def test_an_unknown_model_is_answered_with_a_known_one(sightline, photos, tmp_path, model, said):
    assert_refused(sightline("explain", photos / "a.png", "--model", model), 2, said)
    assert_nothing_written(tmp_path)


def test_without_a_model_some_are_named(sightline, photos):
    assert_refused(sightline("explain", photos / "a.png"), 2, "bundled/shapes-vit", "SIGHTLINE_MODEL")


def test_a_missing_file_is_a_failure(sightline, tmp_path):
    assert_refused(sightline("explain", tmp_path / "no.png", "--model", VIT), 1, "no.png does not exist")
    assert_nothing_written(tmp_path)


def test_an_empty_folder_is_a_failure(sightline, tmp_path):
    (tmp_path / "empty").mkdir()
    assert_refused(sightline("explain", tmp_path / "empty", "--model", VIT), 1, "holds no image")


def test_a_corrupt_image_is_reported_and_the_others_are_done(sightline, photos):
    whole = (photos / "a.png").read_bytes()
    (photos / "cut.png").write_bytes(whole[: len(whole) // 2])
    (photos / "none.jpg").write_bytes(b"")
    result = sightline("explain", photos, "--model", VIT, *QUICK, "--json")
    assert result.exit_code == 1
    record = told(result)
    assert len(record["images"]) == 2
    assert [error["path"][-8:] for error in record["errors"]] == ["/cut.png", "none.jpg"]
    lines = result.stderr.splitlines()
    assert len(lines) == 2
    assert "cut.png is damaged or cut short" in lines[0]
    assert "none.jpg is empty" in lines[1]


def test_a_missing_file_among_good_ones_is_reported_and_the_others_are_done(sightline, photos):
    result = sightline("explain", photos / "a.png", photos / "gone.png", "--model", VIT, *QUICK, "--json")
    assert result.exit_code == 1
    assert len(told(result)["images"]) == 1
    assert "gone.png does not exist" in result.stderr


def test_when_no_image_can_be_read_nothing_is_written(sightline, tmp_path):
    (tmp_path / "bad.png").write_bytes(b"no image")
    result = sightline("explain", tmp_path / "bad.png", "--model", VIT)
    assert_refused(result, 1, "bad.png is not an image that can be read")
    assert_nothing_written(tmp_path)


def test_an_output_folder_inside_a_file_is_refused_before_any_work(sightline, photos, tmp_path):
    (tmp_path / "file").write_text("mine")
    result = sightline("explain", photos / "a.png", "--model", "bundled/none", "--out", tmp_path / "file" / "out")
    assert_refused(result, 1, "cannot write into", "choose another --out")
    assert (tmp_path / "file").read_text() == "mine"


def test_a_missing_extra_is_named_with_its_pip_line_before_any_work(sightline, photos, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    load_template.cache_clear()  # a page was written before, in this process
    result = sightline("explain", photos / "a.png", "--model", "bundled/none")
    assert_refused(result, 1, 'jinja2 is not installed; pip install "sightline[report]"')
    assert_nothing_written(tmp_path)
    assert sightline("explain", photos / "a.png", "--model", VIT, *QUICK, "--no-page").exit_code == 0


def test_without_a_network_a_pretrained_model_says_how_to_use_a_file(sightline, photos, tmp_path, monkeypatch):
    monkeypatch.setattr("sightline.models.zoo.hub.reachable", lambda *_: False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    result = sightline("explain", photos / "a.png", "--model", "timm/vit_tiny_patch16_224")
    assert_refused(result, 1, "cannot be reached", "file:PATH.safetensors@timm/")
    assert_nothing_written(tmp_path)


def test_classes_are_for_models_that_read(sightline, photos, tmp_path):
    result = sightline("explain", photos / "a.png", "--model", VIT, "--classes", "cat, dog")
    assert_refused(result, 2, VIT)
    assert_nothing_written(tmp_path)


def test_a_device_that_is_not_there_is_wrong_usage(sightline, photos):
    result = sightline("explain", photos / "a.png", "--model", VIT, "--device", "abacus")
    assert_refused(result, 2, "there is no device 'abacus' here")


def test_ctrl_c_before_the_first_image_is_done_leaves_nothing_behind(sightline, photos, tmp_path, monkeypatch):
    def interrupted(*words, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(audit_panel, "attribute", interrupted)
    result = sightline("explain", photos, "--model", VIT, *QUICK)
    assert result.exit_code == 130
    assert result.stderr == "note: stopped; nothing half-written was left behind\n"
    assert_nothing_written(tmp_path)


def test_a_failure_at_the_last_step_keeps_the_images_that_are_done(sightline, photos, tmp_path, monkeypatch):
    def full(*_):
        raise SightlineError("no space left on the disk")

    monkeypatch.setattr("sightline.report.explain_files.page_bytes", full)
    words = ("explain", photos, "--model", VIT, *QUICK, "--out", tmp_path / "o")
    result = sightline(*words)
    assert (result.exit_code, result.stderr) == (1, "error: no space left on the disk\n")
    assert {path.name for path in (tmp_path / "o").iterdir()} == {"a", "b", ".sightline"}
    monkeypatch.undo()
    assert "2 of 2 images were explained before" in sightline(*words).stderr
    assert (tmp_path / "o" / "index.html").exists()


def test_a_file_name_that_is_markup_is_shown_as_it_is(sightline, photos):
    odd = photos / "[bold]<b>&.png"
    shutil.copy(photos / "a.png", odd)
    result = sightline("explain", str(odd), "--model", VIT, *QUICK)
    assert result.exit_code == 0, result.stderr
    assert "[bold]<b>&.png" in result.stdout.replace("\n", "")


def test_the_installed_entry_point_answers(tmp_path):
    words = ["sightline", "explain", "no.png", "-m", "x"]
    code = f"import sys; from sightline.cli.main import main; sys.argv = {words}; main()"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert (run.returncode, run.stdout) == (1, "")
    assert run.stderr.startswith("error: no.png does not exist")


# ---- a model of one's own, and texts ---------------------------------------------------------------------------------


def test_options_describe_the_model(sightline, photos, tmp_path):
    names = tmp_path / "names.txt"
    names.write_text("\n".join(f"shape {number}" for number in range(len(CLASSES))))
    result = sightline(
        "explain", photos / "a.png", "--model", VIT, *QUICK, "--labels", names, "--output", "sigmoid",
        "--target", "shape 2", "--json",
    )  # fmt: skip
    assert result.exit_code == 0, result.stderr
    (image,) = told(result)["images"]
    assert image["label"] == "shape 2"


@pytest.mark.parametrize(("words", "said"), [
    (("--output", "softmx"), "there is no output called 'softmx'; did you mean 'softmax'"),
    (("--device", "abacus"), "there is no device 'abacus' here; give cpu, cuda, mps or auto"),
    (("--text", "a dog", "--classes", "cat, dog"), "give --text or --classes, not both"),
    (("--text", "a dog"), "has no transformer with a text encoder|has no text encoder"),
])  # fmt: skip
def test_options_that_do_not_fit_are_wrong_usage(sightline, photos, words, said):
    result = sightline("explain", photos / "a.png", "--model", VIT, *QUICK, *words)
    assert result.exit_code == 2
    assert re.search(said, " ".join(result.stderr.split()))


def test_every_text_gets_its_maps(sightline, photos, monkeypatch):
    from tests.models.vit.test_clip import with_words

    from sightline.models import adapt
    from sightline.models.zoo import ids

    def tiny_clip(name, pretrained, options):
        return adapt(with_words("CLIP"), preprocess=lambda image: to_pixels(image.resize((32, 32))))

    monkeypatch.setitem(ids.LIBRARIES, "openclip", tiny_clip)
    result = sightline(
        "explain",
        photos / "a.png",
        "--model",
        "openclip/tiny:x",
        *QUICK,
        "--text",
        "a red bus",
        "--text",
        "a dog",
        "--json",
    )
    assert result.exit_code == 0, result.stderr
    assert [image["label"] for image in told(result)["images"]] == ["a red bus", "a dog"]
    alone = sightline("explain", photos / "a.png", "--model", "openclip/tiny:x", *QUICK, "--text", "a dog")
    assert alone.exit_code == 2
    assert "give a second" in " ".join(alone.stderr.split())


def to_pixels(image):
    import numpy as np
    import torch

    return torch.from_numpy(np.asarray(image, dtype=np.float32) / 255).permute(2, 0, 1) * 2 - 1


def test_every_target_that_is_named_is_explained(sightline, photos):
    words = ("--model", CNN, *QUICK, "--target", "star", "--target", "circle", "--enlarge", "nearest", "--json")
    record = told(sightline("explain", photos / "a.png", *words))
    assert [one["label"] for one in record["images"]] == ["star", "circle"]
    assert "--target star --target circle" in Path(record["page"]).read_text()
    assert "--enlarge nearest" in Path(record["page"]).read_text()


def test_the_classes_of_a_data_set_are_explained(sightline):
    record = told(sightline("explain", "--data", "shapes(count=3)", "--limit", 2, "--model", CNN, *QUICK, "--json"))
    assert {one["path"] for one in record["images"]} == {"shape-000000", "shape-000001"}
