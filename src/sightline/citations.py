"""The papers to cite for a method, an operator, a metric or a data set, as BibTeX or as a line of text each."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import resources
from importlib.metadata import version
from pathlib import Path
from typing import Protocol

from sightline.catalogue.index import IndexEntry, find
from sightline.errors import InputError
from sightline.recipe import read_call

__all__ = ["Reference", "bibtex", "bibtex_of", "brief_citation", "cite", "itself", "keys_of", "references", "specs_of"]

_ENTRY = re.compile(r"^@(?P<kind>\w+)\{(?P<key>[^,\s]+),", flags=re.MULTILINE)
_FIELD = re.compile(r"^\s*(?P<name>\w+)\s*=\s*\{", flags=re.MULTILINE)
_VENUES = ("booktitle", "journal", "publisher", "howpublished")
_ACCENT = re.compile(r"\{?\\(?P<sign>['`\"^~=.]|[cvuHk](?![A-Za-z]))\s*\{?(?P<letter>[A-Za-z])\}?\}?")
_SIGNS = "'`\"^~=.cvuHk"
_MARKS = "\u0301\u0300\u0308\u0302\u0303\u0304\u0307\u0327\u030c\u0306\u030b\u0328"
_COMBINING = dict(zip(_SIGNS, _MARKS, strict=True))
_TITLE = "sightline: what a vision model looked at, and how far the explanation can be trusted"


@dataclass(frozen=True)
class Reference:
    """One entry of the bibliography; as text, its authors, year, title and venue.

    Attributes:
        key: as in ``\\cite{key}``.
        kind: article, inproceedings and so on.
        fields: its fields by name, as TeX.
        bibtex: the whole entry.
    """

    key: str
    kind: str
    fields: dict[str, str]
    bibtex: str

    def __str__(self) -> str:
        """Return the reference as a line of text: authors (year), title, venue."""
        authors = _plain(self.fields.get("author", "")).split(" and ")
        names = [" ".join(reversed(author.split(", ", 1))) for author in authors]
        everyone = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
        venue = next((self.fields[name] for name in _VENUES if name in self.fields), "")
        number = f" arXiv:{self.fields['eprint']}" if self.fields.get("archiveprefix") == "arXiv" else ""
        where = (_plain(venue) + number).replace("arXiv preprint arXiv:", "arXiv:").strip()
        year = f" ({self.fields['year']})" if "year" in self.fields else ""
        return f"{everyone}{year}. {_plain(self.fields.get('title', ''))}. {where}."

    @property
    def brief(self) -> str:
        """The first author and the year: Petsiuk et al. 2018."""
        authors = _plain(self.fields.get("author", "")).split(" and ")
        family = authors[0].split(",")[0]
        return f"{family}{' et al.' if len(authors) > 2 else ''} {self.fields.get('year', '')}".strip()


@lru_cache(maxsize=1)
def references() -> dict[str, Reference]:
    """Read the bibliography, by key."""
    installed = resources.files("sightline").joinpath("references.bib")  # in a wheel
    in_repository = Path(__file__).parents[2] / "docs" / "references.bib"
    for file in (installed, in_repository):
        if file.is_file():
            return {entry.key: entry for entry in _split(file.read_text(encoding="utf-8"))}
    raise InputError("the bibliography references.bib is missing; reinstall sightline")


class Citable(Protocol):
    """Anything that names its papers: a spec of a registry, an entry of the index."""

    @property
    def cite(self) -> str:
        """Keys of the bibliography, separated by commas."""
        ...


def cite(*recipes: str) -> list[Reference]:
    """Return the papers to cite for recipes, metrics and data sets, each once, and sightline itself last.

    >>> [reference.key for reference in cite("plus(libra(ixg))")]
    ['skipplus2024', 'libragrad2025', 'shrikumar2016', 'sightline']

    Raises:
        RecipeError: a name in a recipe is not known.
    """
    known = references()
    keys = keys_of(entry for recipe in recipes for entry in specs_of(recipe))
    return [*(known[key] for key in keys if key in known), itself()]


def specs_of(recipe: str) -> list[IndexEntry]:
    """Return what a recipe names, outermost first: methods, operators, a metric or data sets."""
    return [find(name) for name in read_call(recipe).names()]


@cache
def brief_citation(recipe: str) -> str:
    """Return the papers behind a recipe in a few words: first author and year of each."""
    known = references()
    return "; ".join(known[key].brief for key in keys_of(specs_of(recipe)) if key in known)


@cache
def bibtex(*recipes: str) -> str:
    """Return the BibTeX of the papers behind recipes and metrics, and of sightline itself."""
    return bibtex_of(spec for recipe in recipes for spec in specs_of(recipe))


def keys_of(specs: Iterable[Citable]) -> list[str]:
    """Return the keys of the papers, each once, in order."""
    keys = (key.strip() for spec in specs for key in spec.cite.split(","))
    return list(dict.fromkeys(filter(None, keys)))


def bibtex_of(specs: Iterable[Citable]) -> str:
    """Return the BibTeX of the papers and of sightline itself."""
    known = references()
    entries = [*(known[key] for key in keys_of(specs) if key in known), itself()]
    return "\n\n".join(entry.bibtex for entry in entries)


def itself() -> Reference:
    """Return the entry for sightline."""
    fields = {
        "author": "{The sightline authors}",
        "title": f"{{{_TITLE}}}",
        "howpublished": f"Version {version('sightline')}",
    }
    lines = [f"  {name} = {{{value}}}," for name, value in fields.items()]
    return Reference("sightline", "misc", fields, "\n".join(["@misc{sightline,", *lines, "}"]))


def _split(text: str) -> Iterator[Reference]:
    """Yield the entries of a BibTeX file."""
    for entry in _ENTRY.finditer(text):
        opening = text.index("{", entry.start())
        body = _braced(text, opening)
        fields = {field["name"].lower(): _braced(body, field.end() - 1) for field in _FIELD.finditer(body)}
        tidy = {name: " ".join(value.split()) for name, value in fields.items()}
        bibtex = text[entry.start() : opening] + "{" + body + "}"
        yield Reference(entry["key"], entry["kind"], tidy, bibtex)


def _braced(text: str, opening: int) -> str:
    """Return what stands between an opening brace and the one that closes it."""
    depth = 0
    for position in range(opening, len(text)):
        depth += {"{": 1, "}": -1}.get(text[position], 0)
        if depth == 0:
            return text[opening + 1 : position]
    return text[opening + 1 :]


def _plain(text: str) -> str:
    """Write TeX's accents and signs as letters."""
    accented = _ACCENT.sub(lambda m: unicodedata.normalize("NFC", m["letter"] + _COMBINING[m["sign"]]), text)
    return accented.replace("\\&", "&").replace("--", "–").replace("{", "").replace("}", "")
