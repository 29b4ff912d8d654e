"""The bibliography can be read by a small regular expression, and every key in it and to it leads somewhere."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ENTRY = re.compile(r"^@(?P<kind>\w+)\{(?P<key>[^,\s]+),\n(?P<body>.*?)^\}$", flags=re.MULTILINE | re.DOTALL)
FIELD = re.compile(r"^  (?P<name>\w+)\s*= \{(?P<value>.*?)\},$", flags=re.MULTILINE | re.DOTALL)
CITE = re.compile(r"""\bcite=["'](?P<keys>[\w, ]+)["']|:cite:\w+:`(?P<role>[\w, ]+)`""")
VENUE = {"inproceedings": "booktitle", "article": "journal", "misc": "howpublished", "book": "publisher"}


def read(text: str) -> list[tuple[str, str, dict[str, str]]]:
    return [
        (entry["kind"], entry["key"], {field["name"]: field["value"] for field in FIELD.finditer(entry["body"])})
        for entry in ENTRY.finditer(text)
    ]


def faults(text: str) -> list[str]:
    entries = read(text)
    keys = [key for _, key, _ in entries]
    found = [f"{key} stands twice" for key in sorted({key for key in keys if keys.count(key) > 1})]
    if text.count("\n@") + text.startswith("@") != len(entries):
        found.append("an entry cannot be read")
    for kind, key, fields in entries:
        wanted = ["author", "title", "year", VENUE.get(kind, "venue")]
        found += [f"{key} has no {name}" for name in wanted if not fields.get(name, "").strip()]
        if not re.fullmatch(r"(19|20)\d\d", fields.get("year", "")):
            found.append(f"{key} has no four-digit year")
        found += [f"{key}: unbalanced {name}" for name, value in fields.items() if value.count("{") != value.count("}")]
    return found


def cited(text: str) -> set[str]:
    keys = (match["keys"] or match["role"] for match in CITE.finditer(text))
    return {key.strip() for group in keys for key in group.split(",")}


REFERENCES = (ROOT / "docs" / "references.bib").read_text(encoding="utf-8")


def test_the_bibliography_is_whole():
    assert len(read(REFERENCES)) > 30
    assert faults(REFERENCES) == []


@pytest.mark.parametrize("folder", ["src", "docs"])
def test_everything_cited_is_in_it(folder):
    known = {key for _, key, _ in read(REFERENCES)}
    texts = (
        path for path in (ROOT / folder).rglob("*") if path.suffix in {".py", ".md"} and "_build" not in path.parts
    )
    unknown = {path.name: cited(path.read_text(encoding="utf-8")) - known for path in texts}
    assert {name: keys for name, keys in unknown.items() if keys} == {}


GOOD = "@misc{a2020,\n  author = {A},\n  title = {{T}},\n  howpublished = {web},\n  year = {2020},\n}\n"


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (GOOD + GOOD, "a2020 stands twice"),
        (GOOD.replace("  author = {A},\n", ""), "a2020 has no author"),
        (GOOD.replace("@misc", "@inproceedings"), "a2020 has no booktitle"),
        (GOOD.replace("2020}", "soon}"), "a2020 has no four-digit year"),
        (GOOD.replace("{{T}}", "{{T}"), "a2020: unbalanced title"),
        (GOOD + GOOD.replace("a2020,", "b2020, note"), "an entry cannot be read"),
    ],
)
def test_a_planted_fault_is_found(text, fault):
    assert faults(GOOD) == []
    assert fault in faults(text)


def test_citations_are_found_where_they_stand():
    text = """@METHODS.register("x", cite="a2020, b2021")\n\"\"\"As in :cite:p:`c2022`.\"\"\""""
    assert cited(text) == {"a2020", "b2021", "c2022"}
