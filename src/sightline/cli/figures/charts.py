"""The figures over all images that ``sightline figure`` can draw: curves, ablations, radar and attention charts."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sightline.cli.figures.kinds import Drawing, Drawn, Kind, mda_recipes

if TYPE_CHECKING:
    from sightline.audit.figures.option_sweep import Sweep

__all__ = ["OVER_IMAGES"]


def _draw_randomisation(drawing: Drawing) -> Drawn:
    import torch

    from sightline.audit.figures.randomisation_curves import randomisation_curves
    from sightline.report.figures.randomisation import randomisation_chart

    options = drawing.options
    found = randomisation_curves(
        drawing.model,
        torch.cat([subject.batch for subject in drawing.subjects]),
        drawing.methods,
        torch.tensor([subject.classes[0] for subject in drawing.subjects]),
        operator=options.operator,
        stages=options.stages,
        seed=options.seed,
        enlarge=options.enlarge,
    )
    curves = {one.recipe: {name: values.mean(axis=0).tolist() for name, values in one.curves.items()} for one in found}
    facts = {"model": drawing.model.name, "recipes": [one.recipe for one in found], "curves": curves}
    return randomisation_chart(found, title=drawing.model.name), facts


def _sweep(drawing: Drawing, recipes: dict[str, str]) -> tuple[Sweep, dict[str, Any]]:
    """Score recipes on all images; masks are given where every image has one of its own."""
    import torch

    from sightline.audit.figures.option_sweep import sweep

    first = [subject.masks[0] for subject in drawing.subjects if subject.masks]
    fitting = len(first) == len(drawing.subjects) and all(
        mask.shape == subject.batch.shape[-2:] for mask, subject in zip(first, drawing.subjects, strict=True)
    )
    found = sweep(
        drawing.model,
        torch.cat([subject.batch for subject in drawing.subjects]),
        recipes,
        drawing.options.metric,
        torch.tensor([subject.classes[0] for subject in drawing.subjects]),
        torch.stack(first) if fitting else None,
        enlarge=drawing.options.enlarge,
    )
    return found, {"model": drawing.model.name, "recipes": list(recipes.values()), "means": found.means()}


def _draw_ablation(drawing: Drawing) -> Drawn:
    from sightline.audit.figures.option_sweep import MDA_OPTIONS, caap_settings, mda_settings
    from sightline.report.figures.sweep import sweep_chart

    vary, model = drawing.options.vary, drawing.model
    if vary in MDA_OPTIONS:
        own = next(iter(mda_recipes(drawing)), "mda")
        given = drawing.options.gamma if vary == "gamma" else drawing.options.kappa if vary == "kappa" else ()
        recipes = mda_settings(vary, own, given)
    else:
        depth = getattr(model, "depth", None) or len(getattr(model, "units", ()))
        recipes = caap_settings(vary, depth)  # type: ignore[arg-type]
    found, facts = _sweep(drawing, recipes)
    title = f"{'MDA' if vary in MDA_OPTIONS else 'CAAP'} on {model.name}, {len(drawing.subjects)} images"
    ordered = vary == "depth" or vary in MDA_OPTIONS
    return sweep_chart(found, title=title, x_label=vary, ordered=ordered), facts


def _draw_radar(drawing: Drawing) -> Drawn:
    from sightline.report.figures.sweep import radar_chart

    found, facts = _sweep(drawing, {recipe: recipe for recipe in drawing.methods})
    return radar_chart(found, title=f"{drawing.model.name}, {len(drawing.subjects)} images"), facts


def _draw_attention(drawing: Drawing) -> Drawn:
    import torch

    from sightline.audit.figures.attention_pairs import PAIRS, attention_pairs
    from sightline.errors import InputError
    from sightline.report.figures.attention import attention_chart

    if not all(subject.masks for subject in drawing.subjects):
        raise InputError("the figure of attention needs masks of objects; give --data with masks, such as quads(of=…)")
    batch = torch.cat([subject.batch for subject in drawing.subjects])
    pairs = attention_pairs(drawing.model, batch, [torch.stack(subject.masks) for subject in drawing.subjects])
    means = {name: pairs[:, :, k].mean(axis=0).tolist() for k, name in enumerate(PAIRS)}
    return attention_chart(pairs, title=drawing.model.name), {"model": drawing.model.name, "means": means}


OVER_IMAGES: dict[Kind, Callable[[Drawing], Drawn]] = {
    Kind.randomisation: _draw_randomisation,
    Kind.ablation: _draw_ablation,
    Kind.radar: _draw_radar,
    Kind.attention: _draw_attention,
}
