"""The bibliography: which papers a recipe stands on, as BibTeX or in a sentence each."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from pathlib import Path

from sightline import __version__
from sightline.errors import InputError, RecipeError
from sightline.recipe import parse, parse_metric, parts
from sightline.registry import METHODS, METRICS, OPERATORS, Spec, is_registered, spec_of, unknown

__all__ = ["Reference", "bibtex_of", "itself", "keys_of", "references", "specs_of"]

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
    """One entry of the bibliography."""

    key: str
    kind: str
    fields: dict[str, str]
    bibtex: str

    def __str__(self) -> str:
        """Return the reference as a line of text: authors (year), title, venue."""
        authors = _plain(self.fields.get("author", "")).split(" and ")
        names = [" ".join(reversed(author.split(", ", 1))) for author in authors]
        listed = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
        venue = next((self.fields[name] for name in _VENUES if name in self.fields), "")
        number = f" arXiv:{self.fields['eprint']}" if self.fields.get("archiveprefix") == "arXiv" else ""
        where = (_plain(venue) + number).replace("arXiv preprint arXiv:", "arXiv:").strip()
        year = f" ({self.fields['year']})" if "year" in self.fields else ""
        return f"{listed}{year}. {_plain(self.fields.get('title', ''))}. {where}."

    @property
    def brief(self) -> str:
        """The first author and the year: Petsiuk et al. 2018."""
        authors = _plain(self.fields.get("author", "")).split(" and ")
        family = authors[0].split(",")[0]
        return f"{family}{' et al.' if len(authors) > 2 else ''} {self.fields.get('year', '')}".strip()


@lru_cache(maxsize=1)
def references() -> dict[str, Reference]:
    """Read the bibliography, by key."""
    inside = resources.files("sightline").joinpath(
        "references.bib"
    )  # in a wheel; in the repository it is with the docs
    beside = Path(__file__).parents[2] / "docs" / "references.bib"
    for place in (inside, beside):
        if place.is_file():
            return {entry.key: entry for entry in _split(place.read_text(encoding="utf-8"))}
    raise InputError("the bibliography references.bib is missing; reinstall sightline")


def specs_of(recipe: str) -> list[Spec]:
    """Return what a name or a recipe is made of: methods, operators, or a metric."""
    name = recipe.strip()
    for registry in (METHODS, OPERATORS, METRICS):
        if name in registry:
            return [registry[name]]
    if name.isidentifier():
        raise RecipeError(unknown(name, "method", [*METHODS, *OPERATORS, *METRICS]))
    if name.partition("(")[0].strip() in METRICS:
        return [spec_of(parse_metric(name))]
    return [spec_of(part) for part in parts(parse(name)) if is_registered(part)]


def keys_of(specs: Iterable[Spec]) -> list[str]:
    """Return the keys of the papers, each once, in order."""
    keys = (key.strip() for spec in specs for key in spec.cite.split(","))
    return list(dict.fromkeys(filter(None, keys)))


def bibtex_of(specs: Iterable[Spec]) -> str:
    """Return the BibTeX of the papers and of sightline itself."""
    known = references()
    return "\n\n".join([*(known[key].bibtex for key in keys_of(specs) if key in known), itself().bibtex])


def itself() -> Reference:
    """Return the entry for sightline."""
    fields = {"author": "{The sightline authors}", "title": f"{{{_TITLE}}}", "howpublished": f"Version {__version__}"}
    lines = [f"  {name} = {{{value}}}," for name, value in fields.items()]
    return Reference("sightline", "misc", fields, "\n".join(["@misc{sightline,", *lines, "}"]))


def _split(text: str) -> Iterator[Reference]:
    for found in _ENTRY.finditer(text):
        opening = text.index("{", found.start())
        body = _braced(text, opening)
        fields = {field["name"].lower(): _braced(body, field.end() - 1) for field in _FIELD.finditer(body)}
        tidy = {name: " ".join(value.split()) for name, value in fields.items()}
        whole = text[found.start() : opening] + "{" + body + "}"
        yield Reference(found["key"], found["kind"], tidy, whole)


def _braced(text: str, opening: int) -> str:
    """Return what stands between an opening brace and the one that closes it."""
    depth = 0
    for place in range(opening, len(text)):
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if depth == 0:
            return text[opening + 1 : place]
    return text[opening + 1 :]


def _plain(text: str) -> str:
    """Write TeX's accents and signs as letters."""
    accented = _ACCENT.sub(lambda m: unicodedata.normalize("NFC", m["letter"] + _COMBINING[m["sign"]]), text)
    return accented.replace("\\&", "&").replace("--", "–").replace("{", "").replace("}", "")
