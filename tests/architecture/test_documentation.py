"""The pages of the documentation that are written from the code say what the code says, and their code runs."""

from __future__ import annotations

import csv
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors import safe_open
from tests.architecture import pages
from tests.models import families_vlm

import sightline
from sightline.data.dataset import DATASETS
from sightline.errors import RecipeError
from sightline.recipe import parse, parse_metric
from sightline.registry import METHODS, METRICS, OPERATORS
from sightline.torchvision_repair import repair_torchvision

sys.path.insert(0, str(pages.ROOT / "scripts"))
import documentation_coverage
import documentation_examples
import documentation_pages
import documentation_text
import documentation_twins
import measured_text

GUIDES = ["which_method", "trust", "algebra", "targets", "migrate"]
HOOKS = "ActivationsAndGradients"
COMMANDS = sorted({*pages.commands("docs/guide/benchmarks.md", "sightline")})


@pytest.mark.parametrize("page", ["methods.md", "operators.md", "metrics.md"])
def test_the_reference_is_what_the_registries_hold(page):
    import reference_tables

    written = pages.read(f"docs/reference/{page}")
    assert reference_tables.page(page) == written, "run python scripts/reference_tables.py"


def test_every_public_name_has_its_place_in_the_reference():
    named = re.findall(
        r"^\.\. (?:auto\w+|py:data):: sightline\.(\w+)", pages.read("docs/reference/api.md"), re.MULTILINE
    )
    assert sorted(named) == sorted(sightline.__all__)


def test_every_page_is_reached_from_the_first():
    index = pages.read("docs/index.md")
    trees = "\n".join(re.findall(r"```\{toctree\}\n(.*?)```", index, re.DOTALL))
    files = {path.relative_to(pages.ROOT / "docs") for path in (pages.ROOT / "docs").rglob("*.md")}
    made = {"_build", "generated"}
    there = {file.with_suffix("").as_posix() for file in files if not made & {*file.parts}} - {"index"}
    listed = {line for line in trees.splitlines() if line and not line.startswith(":")}
    assert there - listed == set()
    kinds = (*documentation_pages.REGISTRIES, "datasets")
    generated = {f"generated/{kind}/index" for kind in kinds} | {
        f"generated/{name}" for name in ("models", "measured", "coverage", "parity")
    }
    assert listed - there == generated


# ---- guides --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("guide", GUIDES)
def test_the_python_of_a_guide_runs_and_prints_what_it_says(guide, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert pages.run(f"docs/guide/{guide}.md") == []


def test_the_guide_to_vision_language_models_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for part in families_vlm.llava():
        part.save_pretrained("my-model")
    families_vlm.picture(64, 48).save("photo.jpg")
    assert pages.run("docs/guide/vision_language.md") == []


def test_what_a_guide_registers_works_in_a_process_of_its_own(tmp_path):
    code = "\n".join(pages.blocks("docs/guide/add_your_own.md", "python"))
    (tmp_path / "guide.py").write_text(code, encoding="utf-8")
    answer = subprocess.run([sys.executable, "guide.py"], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert answer.stdout.splitlines() == re.findall(pages.PRINTS.pattern, code, re.MULTILINE), answer.stderr[-2000:]


@pytest.mark.parametrize("line", COMMANDS)
def test_every_command_of_the_guide_to_benchmarks_exists(line):
    assert pages.missing_options(line) == []


def rows(table: str) -> dict[str, dict[str, str]]:
    with (pages.ROOT / "docs" / "measured" / f"{table}.csv").open(encoding="utf-8", newline="") as file:
        return {row["recipe"]: row for row in csv.DictReader(file)}


def test_the_choice_of_methods_quotes_the_measured_tables():
    tables = {"vision transformer": "pets-vit", "convolutional network": "pets-cnn", "only a function": "pets-cnn"}
    metrics = {"insertion minus deletion": "ins_del(step=3584)"}
    quoted = re.findall(
        r"^\| (\w[\w ]+) \| [^|]+ \| `([^|]+)` \| [^|]+ \| ([a-z ]+) (\.\d+) ± (\.\d+) \|$",
        pages.read("docs/guide/which_method.md"),
        re.MULTILINE,
    )
    assert len(quoted) == 10
    for model, recipe, metric, mean, error in quoted:
        row = rows(tables[model])[recipe]
        name = metrics.get(metric, metric.replace(" ", "_"))
        assert (row[name], row[f"{name}_error"]) == (mean, error), recipe


@pytest.mark.parametrize("guide", ["caap", "iia", "libra", "skip_plus", "var"])
def test_a_figure_of_a_paper_page_is_in_the_measured_tables(guide):
    known = {
        (row[name], row[f"{name}_error"])
        for table in ("pets-vit", "pets-cnn")
        for row in rows(table).values()
        for name in row
        if f"{name}_error" in row
    }
    known |= {(row["difference"].lstrip("-"), row["error"]) for row in measured_text.read("claims")}
    quoted = re.findall(r"(\.\d{3}) ± (\.\d{3})", pages.read(f"docs/guide/{guide}.md"))
    assert quoted
    assert {*quoted} <= known


@pytest.mark.parametrize("table", ["pets-vit", "pets-cnn"])
def test_every_measured_recipe_can_be_read(table):
    assert len(rows(table)) > 40
    for recipe in rows(table):
        parse(recipe)


def test_the_plans_that_guides_name_are_there():
    texts = "\n".join(path.read_text(encoding="utf-8") for path in (pages.ROOT / "docs" / "guide").glob("*.md"))
    named = set(re.findall(r"\b(?:caap|iia|var|mda|skipplus)-(?:table|figure)-\d+\b", texts))
    assert len(named) >= 10
    assert {name for name in named if not (pages.ROOT / "plans" / f"{name}.toml").is_file()} == set()


def test_the_model_cards_say_what_the_weights_say():
    card = pages.read("docs/model_cards.md")
    rows = dict(re.findall(r"^\| ([a-z][^|]+) \| ([^\n]+) \|$", card, re.MULTILINE))
    weights = pages.ROOT / "src" / "sightline" / "models" / "zoo" / "weights"
    counts, accuracies = [], []
    for name in ("shapes-vit", "shapes-cnn"):
        with safe_open(weights / f"{name}.safetensors", "pt") as file:
            counts.append(f"{sum(file.get_tensor(key).numel() for key in file.keys()):,}".replace(",", " "))  # noqa: SIM118
            accuracies.append(file.metadata()["accuracy"].lstrip("0"))
            assert file.metadata()["classes"].replace(" ", ", ") in card
    assert rows["parameters and buffers"] == " | ".join(counts)
    assert rows["accuracy on 2000 held-out clean images"] == " | ".join(accuracies)


def test_the_container_copies_what_is_there():
    copied = re.findall(r"^COPY (.+) \S+$", pages.read("Dockerfile"), re.MULTILINE)
    assert {"src", "plans", "docs/references.bib"} <= {*copied}
    assert [name for line in copied for name in line.split() if not (pages.ROOT / name).exists()] == []


def test_the_citation_file_can_be_read():
    yaml = pytest.importorskip("yaml")
    citation = yaml.safe_load(pages.read("CITATION.cff"))
    assert citation["cff-version"] == "1.2.0"
    assert citation["type"] == "software"
    assert citation["license"] == "Apache-2.0"
    assert all(citation[key] for key in ("message", "title", "authors", "abstract"))


# ---- generated pages -----------------------------------------------------------------------------------------------


def test_a_page_says_what_is_known_of_a_method():
    shown = documentation_examples.Example("gae", ("bundled/shapes-vit: a map",), Path("pictures/methods/gae.png"))
    page = documentation_pages.spec_page(METHODS["gae"], shown)
    for part in ("# gae", "$$\nA = r^", "`start=0`", "1 forward, 1 backward", "attention maps", "chefer2021generic"):
        assert part in page
    for part in ("../pictures/methods/gae.png", "[`rollout`](rollout.md)", "average_precision .859 ± .008", '"gae"'):
        assert part in page
    assert ":math:" not in page
    assert ".. math::" not in page


def test_a_page_says_what_is_known_of_a_data_set():
    page = documentation_pages.dataset_page(DATASETS["pets"], None)
    for part in ("# pets", "annotations/trimaps", "`limit=None`", "pets(protocol='caap')", "parkhi2012"):
        assert part in page


def test_no_markup_of_docstrings_is_left_on_a_page():
    specs = [registry[name] for registry in (METHODS, OPERATORS, METRICS, DATASETS) for name in registry]
    texts = {spec.name: documentation_text.body(spec.doc) for spec in specs}
    assert {name for name, text in texts.items() if re.search(r"^\.\. |:\w+:`|``", text, re.MULTILINE)} == set()


@pytest.mark.parametrize("name", documentation_examples.RECIPES)
def test_an_example_with_options_can_be_read(name):
    recipe = documentation_examples.RECIPES[name]
    assert name in recipe
    parse_metric(recipe) if name in METRICS else parse(recipe)


def test_an_example_is_run_and_drawn(tmp_path):
    example = documentation_examples.shown_example(METHODS["ixg"], tmp_path)
    assert [line.partition(":")[0] for line in example.lines] == ["bundled/shapes-vit", "bundled/shapes-cnn"]
    assert example.picture.stat().st_size > 5000


def test_what_no_bundled_model_offers_is_said_in_place_of_a_picture(tmp_path, monkeypatch):
    monkeypatch.setitem(documentation_examples.RECIPES, "plus", "plus(lime)")
    example = documentation_examples.shown_example(OPERATORS["plus"], tmp_path)
    assert example.picture is None
    assert "lime" in example.lines[0]
    assert "Neither bundled model offers what `plus(lime)` needs" in documentation_pages.spec_page(
        OPERATORS["plus"], example
    )


def test_a_page_that_loads_something_from_another_host_is_found(tmp_path):
    (tmp_path / "guide").mkdir()
    (tmp_path / "index.html").write_text('<a href="https://example.org">elsewhere</a><script src="own.js"></script>')
    (tmp_path / "guide" / "one.html").write_text('<script async src="https://example.org/x.js"></script>')
    assert documentation_twins.foreign_pages(tmp_path) == ["guide/one.html"]


# ---- coverage of other libraries -----------------------------------------------------------------------------------


def test_every_recipe_of_the_coverage_table_can_be_built():
    given = list(documentation_coverage.counterparts())
    assert {each.library for each in given} == {*documentation_coverage.LIBRARIES}
    for each in given:
        each.check()


def said(kind: str) -> list[str]:
    """Recipes of the table that say more than a name, which the conformance tests run on their own."""
    found = {each.text for each in documentation_coverage.counterparts() if each.how == kind}
    return sorted(text for text in found if "(" in text)


@pytest.mark.parametrize("recipe", said("method"))
def test_a_method_of_the_coverage_table_runs(recipe, tiny_cnn, tiny_vit, images):
    model = tiny_vit if recipe.startswith("libra") else tiny_cnn
    assert sightline.explain(model, images, recipe, target=1).map.abs().sum() > 0


@pytest.mark.parametrize("recipe", said("metric"))
def test_a_metric_of_the_coverage_table_runs(recipe, tiny_cnn, images):
    found = sightline.explain(tiny_cnn, images, "absolute(ixg)", target=1)
    assert sightline.evaluate(tiny_cnn, images, found, recipe)[recipe].isfinite().all()


@pytest.mark.parametrize(
    "recipe", sorted({each.text for each in documentation_coverage.counterparts() if each.target == "Neuron"})
)
def test_a_method_for_neurons_runs_on_one(recipe, tiny_cnn, images):
    quick = {"feature_ablation": "feature_ablation(segments=('grid', 3))"}.get(recipe, recipe)
    target = sightline.Neuron("norm2", (1, 2, 3))
    assert sightline.explain(tiny_cnn, images, quick, target=target).map.abs().sum() > 0


def test_a_recipe_that_does_not_exist_is_found():
    with pytest.raises(RecipeError):
        documentation_coverage.Counterpart("captum", "methods", "X", "method", "no_such_method").check()
    with pytest.raises(ModuleNotFoundError):
        documentation_coverage.Counterpart("captum", "methods", "X", "call", "sightline.no_such_call").check()


def names_of(library: str) -> set[str]:
    return {each.name for each in documentation_coverage.counterparts() if each.library == library}


@pytest.mark.parametrize(
    ("library", "module", "others"),
    [
        ("grad_cam", "pytorch_grad_cam", {f"AblationLayer{kind}" for kind in ("", "FasterRCNN", "Vit")} | {HOOKS}),
        ("torchcam", "torchcam.methods", {"OutputTarget"}),
        ("pair", "saliency.core", {"CoreSaliency", "XRAIOutput", "XRAIParameters"}),
    ],
)  # fmt: skip
def test_every_class_of_a_library_is_in_the_table(library, module, others):
    repair_torchvision()
    found = importlib.import_module(module)
    classes = {name for name, value in vars(found).items() if isinstance(value, type)}
    assert classes - others - names_of(library) == set()


def test_every_composite_of_zennit_and_metric_of_quantus_is_in_the_table():
    repair_torchvision()
    composites = importlib.import_module("zennit.composites").COMPOSITES.values()
    assert {each.__name__ for each in composites} - names_of("zennit") == set()
    metrics = pytest.importorskip("quantus").AVAILABLE_METRICS.values()
    assert {name.strip() for family in metrics for name in family} - names_of("quantus") == set()


def test_every_method_of_captum_is_in_the_table():
    captum = importlib.import_module("captum.attr")
    bases = {"Attribution", "GradientAttribution", "PerturbationAttribution", "NeuronAttribution", "LayerAttribution"}
    kinds = [getattr(captum, name) for name in captum.__all__ if name not in bases]
    names = {kind.__name__ for kind in kinds if isinstance(kind, type) and issubclass(kind, captum.Attribution)}
    assert names - names_of("captum") - {"DataLoaderAttribution", "RemoteLLMAttribution"} == set()


# ---- twins ---------------------------------------------------------------------------------------------------------


def test_twins_and_their_list_are_plain_markdown(tmp_path):
    source, out = tmp_path / "docs", tmp_path / "html"
    (source / "guide").mkdir(parents=True)
    (source / "guide" / "one.md").write_text("# One\n\nFirst words {cite:p}`a2020`.\n\n```{toctree}\nx\n```\n\nLast.\n")
    documentation_twins.write(source, out, ["guide/one", "not_markdown"])
    assert (out / "guide" / "one.md").read_text() == "# One\n\nFirst words [a2020].\n\nLast.\n"
    assert "- [One](guide/one.md): First words [a2020]." in (out / "llms.txt").read_text()
