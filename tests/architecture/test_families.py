"""Methods lie in the folder of their family, and cards speak the field's language."""

from __future__ import annotations

import re

import pytest

from sightline.registry import METHODS, METRICS, OPERATORS, Spec

REGISTRIES = {"method": METHODS, "operator": OPERATORS, "metric": METRICS}
SPECS = [registry[name] for registry in REGISTRIES.values() for name in registry]
LONGEST = 120
BANNED = (
    "handed back", "hands back", "hand back", "handed on", "hands on", "hand on", "way back", "books",
    "feed back", "feeds back", "veil", "stillborn", "sharing out", "shared out", "shares out",
)  # fmt: skip
SENTENCE_END = re.compile(r"[.!?](?=\s|$)")  # a stop inside a number or a name ends no sentence


def misplaced(spec: Spec) -> str:
    """Say where a registered class should lie, nothing where it lies there."""
    module = spec.build.__module__
    folder = f"sightline.{spec.kind}s"
    if spec.kind == "method":
        folder += f".{spec.family}"
    return "" if module.startswith(f"{folder}.") else f"{spec.name} is in {module} and belongs in {folder}"


def faults(summary: str) -> list[str]:
    """Return what is wrong with the first line of a docstring."""
    found = []
    if len(summary) > LONGEST:
        found.append(f"{len(summary)} characters")
    if not summary.endswith("."):
        found.append("no full stop at the end of the line")
    if len(SENTENCE_END.findall(summary)) > 1:
        found.append("more than one sentence")
    if summary.startswith("The map that"):
        found.append("begins with 'The map that'")
    if summary[:1] != summary[:1].upper():
        found.append("begins in lower case")
    return found


def banned(text: str) -> list[str]:
    """Return the words of a text that no reader of the field would expect."""
    plain = " ".join(text.lower().split())
    return [words for words in BANNED if re.search(rf"\b{words}\b", plain)]


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: f"{spec.kind}-{spec.name}")
def test_everything_lies_in_the_folder_of_its_family(spec: Spec) -> None:
    assert misplaced(spec) == ""


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: f"{spec.kind}-{spec.name}")
def test_a_summary_is_one_short_sentence(spec: Spec) -> None:
    assert faults(spec.summary) == []


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: f"{spec.kind}-{spec.name}")
def test_a_card_uses_no_words_of_its_own(spec: Spec) -> None:
    assert banned(f"{spec.doc} {spec.cost}") == []


@pytest.mark.parametrize(
    ("summary", "fault"),
    [
        ("The map that shows a thing.", "begins with 'The map that'"),
        ("Relevance. It is propagated.", "more than one sentence"),
        ("Relevance that is", "no full stop at the end of the line"),
        ("relevance.", "begins in lower case"),
        ("R" + "e" * 120 + ".", "122 characters"),
    ],
)
def test_a_planted_fault_of_a_summary_is_found(summary: str, fault: str) -> None:
    assert faults(summary) == [fault]


def test_a_sound_summary_has_no_fault() -> None:
    assert faults("Integrated gradients: 0.5 times x.y, from a baseline to the image.") == []


def test_banned_words_are_found_across_lines_and_not_inside_other_words() -> None:
    assert banned("gradients that keep the\n    books") == ["books"]
    assert banned("Relevance handed\nback layer by layer") == ["handed back"]
    assert banned("notebooks, unveiled, feedback, a handout") == []


def test_a_method_outside_its_family_is_found() -> None:
    spec = METHODS["lrp"]
    assert misplaced(spec) == ""
    moved = Spec(**{name: getattr(spec, name) for name in Spec.__dataclass_fields__} | {"family": "cam"})
    assert misplaced(moved) == "lrp is in sightline.methods.relevance.lrp and belongs in sightline.methods.cam"
