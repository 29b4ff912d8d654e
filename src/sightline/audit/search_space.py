"""What a search tries: recipes that suit a model, operators on some of them, and their options varied.

The options are not listed here: what an option may hold instead is read off its annotation and its range
(`sightline.catalogue.variations`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from typing import Any

from sightline.api.explain import check_needs
from sightline.audit.panel import choose, is_control, map_cost
from sightline.catalogue.variations import variations
from sightline.errors import RecipeError, UnsupportedModel
from sightline.models.adapter import Adapter
from sightline.recipe import parse, text
from sightline.registry import is_registered

__all__ = ["candidates", "expand", "varied"]

OPERATORS = ("{}", "plus({})", "libra({})", "plus(libra({}))", "skip_plus({})", "smooth({})")
DEARER = 3  # a variation may cost so many times as much, its scoring included
ADDED = ("ixg", "gae", "grad_cam")  # what operators are tried on


def candidates(
    model: Adapter, recipes: Sequence[str] | str | None, failures: dict[str, str]
) -> tuple[list[str], list[str]]:
    """Return the recipes to search and the controls; what the model cannot be explained with is noted, by default."""
    panel = choose(model)
    controls = [recipe for recipe in panel if is_control(parse(recipe))]
    if recipes is None:
        bases = [recipe for recipe in panel if recipe not in controls]
        given = [*bases, *(form.format(base) for base in ADDED for form in OPERATORS)]
    else:
        given = [each for recipe in ([recipes] if isinstance(recipes, str) else recipes) for each in expand(recipe)]
    kept: dict[str, None] = {}
    for recipe in given:
        try:
            method = parse(recipe)
            check_needs(method, model)
        except (RecipeError, UnsupportedModel) as error:
            if recipes is not None:
                raise
            failures[recipe] = str(error)
            continue
        kept.setdefault(text(method))
    wanted = [recipe for recipe in kept if recipe not in controls]
    if not wanted:
        raise RecipeError("got no recipe to search; name one at least that is no control")
    return wanted, controls


def expand(recipe: str) -> list[str]:
    """Return a recipe with every value that its braces name.

    >>> expand("ig(steps={10,20})")
    ['ig(steps=10)', 'ig(steps=20)']
    """
    found = re.search(r"\{([^{}]*)\}", recipe)
    if found is None:
        return [recipe]
    before, after = recipe[: found.start()], recipe[found.end() :]
    return [each for value in found[1].split(",") for each in expand(f"{before}{value.strip()}{after}")]


def varied(recipe: str, model: Adapter) -> list[str]:
    """Return the recipe with one option changed at a time, of each of its parts, as far as the model can do it."""
    found: dict[str, None] = {}
    base = parse(recipe)
    own = map_cost(base, model, fills=False)
    for method in _varied(base):
        try:
            check_needs(method, model)
            cost = map_cost(method, model, fills=False)
        except UnsupportedModel:
            continue
        if cost > DEARER * own:
            continue
        found.setdefault(text(method))
    found.pop(recipe, None)
    return list(found)


def _varied(part: Any) -> Iterator[Any]:
    for name, value in variations(part):
        try:
            yield replace(part, **{name: value})
        except RecipeError:  # two options that do not go together
            continue
    for field in fields(part):
        inner = getattr(part, field.name)
        if is_registered(inner):
            yield from (replace(part, **{field.name: other}) for other in _varied(inner))
