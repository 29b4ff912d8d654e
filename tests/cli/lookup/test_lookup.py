"""`sightline list`, `card` and `cite`."""

import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest

from sightline.catalogue.cards import card, description, formulas
from sightline.catalogue.options import option_texts
from sightline.citations import bibtex_of, cite, itself, keys_of, references, specs_of
from sightline.registry import METHODS, METRICS, OPERATORS

ROOT = Path(__file__).parents[3]
REGISTRIES = {"methods": METHODS, "operators": OPERATORS, "metrics": METRICS}
NAMES = sorted({name for registry in REGISTRIES.values() for name in registry})


@pytest.mark.parametrize("kind", REGISTRIES)
def test_everything_registered_is_listed_with_its_summary(sightline, kind):
    rows = json.loads(sightline("list", kind, "--json").stdout)
    assert {row["name"] for row in rows} == set(REGISTRIES[kind])
    assert all(row["summary"] == REGISTRIES[kind][row["name"]].summary for row in rows)
    text = sightline("list", kind).stdout
    assert all(re.search(rf"^{name} ", text, flags=re.MULTILINE) for name in REGISTRIES[kind])


def test_what_a_method_holds_is_listed_beside_its_cost(sightline):
    rows = {row["name"]: row for row in json.loads(sightline("list", "methods", "--json").stdout)}
    assert rows["gae"]["memory"] == "the graph of one image, with the attention of every block"
    assert rows["rise"]["memory"] == "the activations of a batch of images"
    assert rows["sobel"]["memory"] == "the image"
    assert all(row["memory"] for row in rows.values())


def test_a_family_can_be_picked_out(sightline):
    rows = json.loads(sightline("list", "methods", "--family", "attention", "--json").stdout)
    assert {row["family"] for row in rows} == {"attention"}
    assert "rollout" in {row["name"] for row in rows}


def test_an_unknown_family_is_answered_with_those_there_are(sightline):
    result = sightline("list", "methods", "--family", "atention")
    assert result.exit_code == 2
    assert "did you mean 'attention'?" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_class_agnostic_methods_are_marked(sightline):
    marked = [line.split()[0] for line in sightline("list", "methods").stdout.splitlines() if " agnostic " in line]
    assert sorted(marked) == sorted(name for name in METHODS if METHODS[name].agnostic)


def test_models_are_listed_by_id(sightline):
    names = sightline("list", "models").stdout.splitlines()
    assert {"bundled/shapes-vit", "bundled/shapes-cnn", "package/efficientnet_lite0"} <= set(names)
    assert all("vit" in name.lower() for name in sightline("list", "models", "vit").stdout.splitlines())


def test_every_data_set_is_listed_with_what_it_needs(sightline):
    rows = {row["name"]: row for row in json.loads(sightline("list", "datasets", "--json").stdout)}
    assert {"shapes", "quads", "folder", "csv", "hub", "imagenet", "imagenet_s", "coco", "voc"} <= set(rows)
    assert rows["imagenet"]["needs"] == ["root"]
    assert "LOC_val_solution.csv" in rows["imagenet"]["layout"]
    assert "limit" in rows["shapes"]["options"]
    shown = sightline("list", "datasets").stdout
    assert all(name in shown for name in rows)


@pytest.mark.parametrize("name", NAMES)
def test_every_name_has_a_card(sightline, name):
    facts = json.loads(sightline("card", name, "--json").stdout)
    assert facts == asdict(card(name))
    assert facts["name"] == name
    assert facts["summary"].endswith(".")
    assert "`" not in facts["summary"] + facts["description"] + "".join(facts["option_texts"].values())
    assert "Attributes:" not in facts["description"]
    assert set(facts["citations"]) == set(keys_of(specs_of(name)))
    assert facts["command"].startswith("sightline ")
    assert facts["python"].startswith("sightline.")
    shown = " ".join(sightline("card", name).stdout.split())
    assert facts["cost"] in shown
    assert facts["memory"] in shown
    assert all(option in shown for option in facts["options"])
    assert not set(facts["options"]) - set(facts["option_texts"]), "options whose meaning no docstring tells"
    assert all(text.split()[0] in shown for text in facts["option_texts"].values())


def test_options_may_be_documented_in_a_base_class():
    @dataclass(frozen=True)
    class Base:
        """Base.

        Attributes:
            steps: how many, the more
                the better.
            seed: of the noise.
        """

        steps: int = 3
        seed: int = 0

    @dataclass(frozen=True)
    class Derived(Base):
        """Derived.

        Attributes:
            seed: of another noise.

        Example:
            not: an option.
        """

        blank: str = "zero"

    assert option_texts(Derived) == {"steps": "how many, the more the better.", "seed": "of another noise."}


def test_a_card_shows_formula_options_citation_and_parity(sightline):
    shown = sightline("card", "ig").stdout
    for words in (
        "formula (LaTeX)",
        r"\int_0^1",
        "steps=50",
        "[sundararajan2017]",
        "captum",
        'explain(model, images, "ig")',
    ):
        assert words in shown


def test_a_card_of_nothing_is_answered_with_the_nearest_name(sightline):
    result = sightline("card", "grad_cm")
    assert result.exit_code == 2
    assert result.stderr == "error: there is no method called 'grad_cm'; did you mean 'grad_cam'?\n"


def test_formulas_are_read_out_of_documentation():
    first, second = ".. math::\n    a &= b \\\\\n\n    c &= d", ".. math:: e = f"
    text = f"Summary.\n\n{first}\n\nwhere :math:`a` is new :cite:p:`k2020`.\n\n{second}\n"
    assert formulas(text) == ["a &= b \\\\\n\nc &= d", "e = f"]
    assert description(text) == "where a is new [k2020]."


def test_citing_from_python_gives_the_references():
    assert [reference.key for reference in cite("skip_plus(ixg)", "insertion(step=448)", "coco")] == [
        "skipplus2024",
        "shrikumar2016",
        "petsiuk2018",
        "lin2014",
        "sightline",
    ]


def test_citing_a_recipe_names_the_papers_of_all_its_parts(sightline):
    lines = sightline("cite", "skip_plus(ixg)", "insertion").stdout.splitlines()
    assert [line.split("]")[0][1:] for line in lines] == ["skipplus2024", "shrikumar2016", "petsiuk2018", "sightline"]
    assert "Vitali Petsiuk, Abir Das and Kate Saenko (2018). RISE: " in lines[2]


def test_bibtex_is_that_of_the_bibliography(sightline):
    printed = sightline("cite", "smooth(ig)", "--bibtex").stdout
    bibliography = (ROOT / "docs" / "references.bib").read_text(encoding="utf-8")
    entries = printed.strip().split("\n\n")
    assert [entry.split("{")[1].split(",")[0] for entry in entries] == ["smilkov2017", "sundararajan2017", "sightline"]
    assert all(entry in bibliography for entry in entries[:-1])


def test_what_has_no_paper_is_said_on_the_side(sightline):
    result = sightline("cite", "rectify(random)")
    assert result.stdout.startswith("[sightline] ")
    assert result.stderr.splitlines() == [
        "note: rectify has no paper of its own",
        "note: random has no paper of its own",
    ]


@pytest.mark.parametrize(
    ("recipe", "said"),
    [("gea", "did you mean 'gae'?"), ("smooth(gea)", "did you mean 'gae'?"), ("insertoin", "insertion")],
)
def test_citing_nothing_is_answered_with_the_nearest_name(sightline, recipe, said):
    result = sightline("cite", recipe)
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr


def test_the_whole_bibliography_is_read():
    text = (ROOT / "docs" / "references.bib").read_text(encoding="utf-8")
    found = references()
    assert len(found) == len(re.findall("^@", text, flags=re.MULTILINE))
    assert all(entry.bibtex in text for entry in found.values())
    assert not [str(entry) for entry in found.values() if re.search(r"[{}\\]|, and |\s\s", str(entry))]


def test_every_paper_behind_a_name_is_in_the_bibliography():
    specs = [spec for registry in REGISTRIES.values() for spec in registry.values()]
    assert set(keys_of(specs)) <= set(references())
    assert bibtex_of(specs).count("\n@") == len(keys_of(specs))


def test_accents_are_letters():
    assert "Fernanda Viégas" in str(references()["smilkov2017"])
    assert references()["smilkov2017"].brief == "Smilkov et al. 2017"


def test_sightline_is_cited_by_the_title_of_its_citation_file():
    title = re.search(r'^title: "(.*)"$', (ROOT / "CITATION.cff").read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert title is not None
    assert title[1] in itself().bibtex
    assert title[1] in str(itself())
