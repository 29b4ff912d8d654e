"""The default panel: the methods that are run when the user names none, and which of them are controls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

from sightline.api.explain import as_method, check_needs
from sightline.errors import RecipeError
from sightline.methods.chance.controls import CONTROLS
from sightline.models.adapter import Adapter
from sightline.recipe import parts
from sightline.registry import Spec, is_registered, spec_of
from sightline.types import Method

__all__ = ["CONTROLS", "choose", "is_agnostic", "is_control", "method_specs", "panel_of", "reseed", "short"]

ATTENTION = ("gae", "rollout")
TOKENS = ("plus(libra(ixg))", "caap(frozen=True)")
SPATIAL = ("grad_cam",)  # wherever some layer lies on a grid
PIXELS = ("ixg",)  # where there are no tokens to start at
CUTS = ("iia2",)  # where inner layers can be run by themselves
BLACK_BOX = ("simple_insertion", "simple_deletion")  # where nothing but the output is known
GRADIENT = ("smooth_grad(samples=10)", "ig(steps=20)")


def choose(model: Adapter) -> list[str]:
    """Return a handful of recipes that suit the model, controls last.

    Each is cheap beside its scoring, and together they show what the families disagree on: attention, balanced
    gradients at every layer, activation patching, class activation, smoothed gradients, path integrals.
    """
    offers = model.offers
    chosen: list[str] = []
    if "attention" in offers:
        chosen += ATTENTION if "gradient" in offers else ATTENTION[1:]
    if "gradient" in offers:
        chosen += TOKENS if "tokens" in offers else PIXELS
        chosen += SPATIAL if "layers" in offers else ()
        chosen += CUTS if "cuts" in offers else ()
        chosen += GRADIENT
    if not offers:
        chosen += BLACK_BOX
    return [*chosen, *CONTROLS]


def short(model: Adapter) -> list[str]:
    """Return the recipes to compare models by: those of the panel that look into the model, none of them slow."""
    return [recipe for recipe in choose(model) if recipe not in CONTROLS and recipe not in GRADIENT]


def panel_of(model: Adapter, methods: Sequence[Any] | str | None = None, seed: int | None = None) -> list[Method]:
    """Build the methods that are named, refusing those the model cannot be explained with, or the default panel."""
    if methods is None:
        return reseed(choose(model), seed)
    built = reseed([methods] if isinstance(methods, str) else list(methods), seed)
    if not built:
        raise RecipeError("got an empty list of methods; name one at least, or leave it out for the default panel")
    for method in built:
        check_needs(method, model)
    return built


def method_specs(method: Method) -> list[Spec]:
    """Return the specs of the methods a recipe is made of, its operators left out."""
    specs = [spec_of(part) for part in parts(method) if is_registered(part)]
    return [spec for spec in specs if spec.kind == "method"]


def is_control(method: Method) -> bool:
    """Tell whether a map knows nothing of the model."""
    specs = method_specs(method)
    return bool(specs) and all(spec.family == "chance" for spec in specs)


def is_agnostic(method: Method) -> bool:
    """Tell whether a map is the same whatever class is asked for."""
    specs = method_specs(method)
    return bool(specs) and all(spec.agnostic for spec in specs)


def reseed(recipes: Sequence[Any], seed: int | None) -> list[Method]:
    """Build the methods; a `seed` replaces every one that a recipe leaves at its default."""
    built = [as_method(recipe) for recipe in recipes]
    return built if seed is None else [_reseeded(method, seed) for method in built]


def _reseeded(part: Any, seed: int) -> Any:
    if not is_dataclass(part) or isinstance(part, type):
        return part
    changes = {field.name: _reseeded(getattr(part, field.name), seed) for field in fields(part)}
    own = next((field for field in fields(part) if field.name == "seed"), None)
    if own is not None and isinstance(own.default, int) and changes["seed"] == own.default:
        changes["seed"] = seed
    return replace(part, **changes)
