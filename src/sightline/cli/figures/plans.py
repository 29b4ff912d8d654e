"""Figures that a plan describes: ``figure = "panel"``, or a table with its name and options, beside models and images.

A plan with a figure has no metrics; what stands in its table has the names of the options of ``sightline figure``::

    name = "mda-figure-8"
    models = ["timm/vit_base_patch32_224"]
    methods = ["mda"]
    dataset = { name = "imagenet", root = "imagenet" }
    limit = 1
    figure = { name = "ablation", vary = "tau", metric = ["insertion_mda"] }
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sightline.cli.figures.kinds import Kind, Options
from sightline.cli.request import Request
from sightline.errors import RecipeError

if TYPE_CHECKING:
    from sightline.bench.panels import PlanFile
    from sightline.bench.plan import Plan

__all__ = ["PlannedFigure", "is_plan", "planned_figures"]

_OPTIONS = tuple(field.name for field in fields(Options) if field.name != "enlarge")


@dataclass(frozen=True)
class PlannedFigure:
    """One figure of a plan: which, of what, and how."""

    kind: Kind
    request: Request
    options: Options


def is_plan(name: str) -> bool:
    """Tell whether the name of a figure is that of a plan: of a TOML file, or of one that sightline brings."""
    from sightline.bench.panels import plan_names

    return name.endswith(".toml") or name in plan_names()


def planned_figures(
    read: PlanFile, out: Path, *, options: Mapping[str, Any] | None = None, paths: Sequence[str] = (), **changes: Any
) -> list[PlannedFigure]:
    """Return the figures of a plan, one for each of its panels.

    Args:
        read: the plan.
        out: the folder for what is written; panels have folders of their own inside.
        options: of the figure, in place of the plan's, where they are not None.
        paths: images in place of the plan's.
        **changes: target, seed, classes and device of the request, in place of the plan's, where they are not None.
    """
    changes = {key: value for key, value in changes.items() if value not in (None, [])}
    return [
        _figure(panel.plan, read.path.parent, out / panel.name, dict(options or {}), tuple(paths), changes)
        for panel in read.panels
    ]


def _figure(
    plan: Plan, base: Path, out: Path, options: dict[str, Any], paths: tuple[str, ...], changes: dict[str, Any]
) -> PlannedFigure:
    from sightline.bench.images import dataset_of

    table = {"name": plan.figure} if isinstance(plan.figure, str) else dict(plan.figure or {})
    kind, target = _kind(table.pop("name", None), plan), table.pop("target", None)
    if unknown := set(table) - set(_OPTIONS):
        raise RecipeError(
            f"{plan.name}: a figure has no option {sorted(unknown)[0]!r}; it has name, target, {', '.join(_OPTIONS)}"
        )
    given = table | {key: value for key, value in options.items() if value not in (None, [])}
    asked = {"target": target, "seed": given.get("seed"), "device": plan.device, **changes}
    if not paths:
        every = plan.model_copy(update={"limit": None})
        asked |= {"data": dataset_of(every), "limit": plan.limit, "base": base}
    words = asked.pop("classes", ", ".join(plan.classes))
    request = Request.of(paths, plan.models, plan.methods, words, out=out, enlarge=plan.enlarge, **asked)
    return PlannedFigure(kind, request, Options.of({**given, "enlarge": request.enlarge}))


def _kind(name: Any, plan: Plan) -> Kind:
    if plan.figure is None:
        raise RecipeError(f"{plan.name} is a plan of a table; run it with `sightline bench run {plan.name}`")
    if name not in set(Kind):
        raise RecipeError(f"{plan.name}: there is no figure {name!r}; there are {', '.join(Kind)}")
    return Kind(name)
