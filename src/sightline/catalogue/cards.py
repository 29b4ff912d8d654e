"""Cards: everything that is known of one method, operator or metric, as plain data.

``card("ig")`` gathers its formula, options, cost, needs, papers and what it was checked against, and `sightline card`
prints it.
"""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass

from sightline.catalogue.aliases import registered_name, unknown_method
from sightline.catalogue.footprint import footprint
from sightline.catalogue.options import option_texts, without_options
from sightline.catalogue.trust import trust_of
from sightline.citations import keys_of, references
from sightline.errors import RecipeError
from sightline.recipe import example, options, read_call
from sightline.registry import METHODS, METRICS, OPERATORS, Spec

__all__ = ["Card", "card", "description", "formulas", "readable"]

_MATH = re.compile(
    r"^\.\. math::[ ]*(?P<first>[^\n]*)\n?(?P<rest>(?:[ \t]+[^\n]*\n|[ \t]*\n(?=[ \t]))*)", flags=re.MULTILINE
)
_ROLE = re.compile(r":(?P<role>cite:\w+|\w+):`(?P<text>[^`]*)`")


@dataclass(frozen=True, slots=True)
class Card:
    """What is known of one method, operator or metric.

    Attributes:
        name: as written in recipes.
        kind: method, operator or metric.
        family: the word it is listed under.
        summary: what it is, in one sentence.
        formula: displayed formulas, as LaTeX.
        description: the rest of the documentation.
        options: the defaults of its options, as text; "required" where there is none.
        option_texts: what its options mean.
        cost: model passes, for people.
        memory: what it holds at once, for people; empty for metrics.
        needs: what the model must offer, and for metrics the case.
        direction: "higher" or "lower" is better, for metrics; None otherwise.
        class_agnostic: whether the map is the same for every class.
        citations: papers by key, a line of text each.
        parity: what the implementation has been checked against.
        trust: for metrics, how far they can be trusted, measured where the truth is known; empty where it was not.
        command: how to use it on the command line.
        python: how to use it from Python.
    """

    name: str
    kind: str
    family: str
    summary: str
    formula: list[str]
    description: str
    options: dict[str, str]
    option_texts: dict[str, str]
    cost: str
    memory: str
    needs: list[str]
    direction: str | None
    class_agnostic: bool
    citations: dict[str, str]
    parity: str
    trust: str
    command: str
    python: str


def card(name: str) -> Card:
    """Return the card of a method, an operator or a metric; of a recipe, that of its outermost name.

    Raises:
        RecipeError: there is none of this name; the sentence holds the nearest one.
    """
    spec = _spec(read_call(name).name)
    recipe = example(spec)
    known = references()
    return Card(
        name=spec.name,
        kind=spec.kind,
        family=spec.family,
        summary=readable(spec.summary),
        formula=formulas(spec.doc),
        description=description(spec.doc),
        options=options(spec),
        option_texts=_option_texts(spec),
        cost=spec.cost,
        memory="" if spec.kind == "metric" else footprint(spec.cost, spec.needs),
        needs=sorted(spec.needs),
        direction=spec.direction or None,
        class_agnostic=spec.agnostic,
        citations={key: str(known[key]) for key in keys_of([spec]) if key in known},
        parity=spec.parity,
        trust=trust_of(spec.name) if spec.kind == "metric" else "",
        command=_command(spec, recipe),
        python=_python(spec, recipe),
    )


def formulas(doc: str) -> list[str]:
    """Return the LaTeX of every displayed formula of a docstring."""
    blocks = ((match["first"] + "\n" + textwrap.dedent(match["rest"])).strip() for match in _MATH.finditer(doc))
    return [formula for formula in blocks if formula]


def description(doc: str) -> str:
    """Return a docstring's text for reading: no summary line, no formulas, no options, no markup."""
    body = _MATH.sub("\n", without_options(doc)).partition("\n")[2]
    paragraphs = (" ".join(part.split()) if "\n  " not in part else part for part in body.strip().split("\n\n"))
    return readable("\n\n".join(part.strip("\n") for part in paragraphs if part.strip()))


def readable(text: str) -> str:
    """Return text without Sphinx's roles and quotes: citations in brackets, the rest bare."""
    plain = _ROLE.sub(lambda m: f"[{m['text']}]" if m["role"].startswith("cite") else m["text"], text)
    return plain.replace("``", "").replace("`", "")


def _spec(name: str) -> Spec:
    for registry in (METHODS, OPERATORS, METRICS):
        if (known := name if name in registry else registered_name(name)) in registry:
            return registry[known]
    raise RecipeError(unknown_method(name, [*METHODS, *OPERATORS, *METRICS]))


def _option_texts(spec: Spec) -> dict[str, str]:
    inner = {"method": "the method it is applied to."} if "method" in options(spec) else {}
    return inner | {option: readable(text) for option, text in option_texts(spec.build).items()}


def _command(spec: Spec, recipe: str) -> str:
    if spec.kind != "metric":
        return f'sightline explain dog.jpg --model timm/vit_base_patch16_224 --method "{recipe}"'
    return "sightline demo" if "masks" in spec.needs else "sightline explain dog.jpg --model timm/vit_base_patch16_224"


def _python(spec: Spec, recipe: str) -> str:
    if spec.kind != "metric":
        return f'sightline.explain(model, images, "{recipe}").map'
    masks = ", masks=masks" if "masks" in spec.needs else ""
    return f'sightline.evaluate(model, images, attribution, "{recipe}"{masks})["{recipe}"]'
