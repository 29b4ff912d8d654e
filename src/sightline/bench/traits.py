"""Kinds: which recipes are controls, which ignore the class, and which way a metric points."""

from __future__ import annotations

from functools import lru_cache

from sightline.errors import RecipeError


@lru_cache(maxsize=4096)
def kind_of(recipe: str) -> tuple[bool, bool]:
    """Tell whether a recipe is a control, that knows nothing of the model, and whether its map ignores the class.

    A recipe that cannot be read, of a package that is not installed here, counts as neither.

    >>> kind_of("random(seed=3)")
    (True, True)
    """
    from sightline.recipe import parse, parts  # loads torch
    from sightline.registry import is_registered, spec_of

    try:
        specs = [spec_of(part) for part in parts(parse(recipe)) if is_registered(part)]
    except RecipeError:
        return False, False
    methods = [spec for spec in specs if spec.kind == "method"]
    control = bool(methods) and all(spec.family == "chance" for spec in methods)
    return control, bool(methods) and all(spec.agnostic for spec in methods)


def direction_of(metric: str) -> str:
    """Return whether "higher" or "lower" is better.

    >>> direction_of("deletion(step=448)")
    'lower'
    """
    from sightline.registry import METRICS  # loads torch

    return METRICS[metric.partition("(")[0]].direction or "higher"
