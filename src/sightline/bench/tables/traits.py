"""Traits of recipes and metrics: which recipes are controls, which ignore the class, and which way a metric points."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from sightline.errors import RecipeError

__all__ = ["Traits", "direction_of", "traits_of"]


class Traits(NamedTuple):
    """What is known of a recipe without running it.

    Attributes:
        control: whether its map does not depend on the model.
        agnostic: whether its map is the same whatever class is explained.
    """

    control: bool
    agnostic: bool


@lru_cache(maxsize=4096)
def traits_of(recipe: str) -> Traits:
    """Return the traits of a recipe; one of a package that is not installed here has none.

    >>> traits_of("random(seed=3)")
    Traits(control=True, agnostic=True)
    """
    from sightline.audit.panel import is_agnostic, is_control  # loads torch
    from sightline.recipe import parse

    try:
        method = parse(recipe)
    except RecipeError:
        return Traits(control=False, agnostic=False)
    return Traits(is_control(method), is_agnostic(method))


def direction_of(metric: str) -> str:
    """Return whether "higher" or "lower" is better.

    >>> direction_of("deletion(step=448)")
    'lower'
    """
    name = metric.partition("(")[0]
    direction = _direction_in_index(name)
    if direction is None:
        from sightline.registry import METRICS  # loads torch

        direction = METRICS[name].direction
    return direction or "higher"


@lru_cache(maxsize=1024)
def _direction_in_index(name: str) -> str | None:
    """Return what the source files say; None of a metric from outside."""
    from sightline.catalogue.index import entries

    entry = entries("metric").get(name)
    return None if entry is None else entry.direction
