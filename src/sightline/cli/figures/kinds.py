"""The figures of one image that ``sightline figure`` can draw: what each computes, and how it is drawn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from PIL import Image
    from torch import Tensor

    from sightline.models.adapter import Adapter
    from sightline.types import Attribution, Enlarge

__all__ = ["KINDS", "OF_MODELS", "PER_IMAGE", "Drawing", "Drawn", "Kind", "Options", "Subject", "mda_recipes"]


class Kind(StrEnum):
    """The figures by name."""

    classes = "classes"
    panel = "panel"
    distribution = "distribution"
    input = "input"
    layers = "layers"
    masking = "masking"
    randomisation = "randomisation"
    order = "order"
    film = "film"
    density = "density"
    baselines = "baselines"
    ablation = "ablation"
    radar = "radar"
    attention = "attention"


KINDS = {
    Kind.classes: "a row per method and a column per class, each method also inside --operator",
    Kind.panel: "a row per class and a column per method, below each other for several models",
    Kind.distribution: "the distribution over classes of var: as mixed colours, as a stack, and a map per class",
    Kind.input: "maps times the input",
    Kind.layers: "a map per block of the network",
    Kind.masking: "the evidence of each class masked in turn, with the probabilities of all classes",
    Kind.randomisation: "similarity of maps while layers are randomised, over all images, with confidence bands",
    Kind.order: "the order of MDA as numbered patches",
    Kind.film: "insertion and deletion, frame by frame, with the score of each frame",
    Kind.density: "MDA at several densities (--gamma) and thresholds (--kappa)",
    Kind.baselines: "the orders of MDA for insertion, deletion and both, with zero and with a blur, and their scores",
    Kind.ablation: "scores of CAAP over --vary depth, neighbourhood or blank, or of MDA over gamma, kappa or tau",
    Kind.radar: "scores of methods, an axis per --metric",
    Kind.attention: "attention within objects, between them and to the background, over the blocks",
}


@dataclass(frozen=True)
class Options:
    """What a figure is asked for, beside the model, the images and the methods; a plan's figure has the same names."""

    operator: str = "var"
    common: bool = False
    share: float = 0.1
    stages: int = 5
    seed: int = 0
    frames: int = 6
    gamma: tuple[float, ...] = ()
    kappa: tuple[float, ...] = ()
    vary: str = "depth"
    metric: tuple[str, ...] = ("insertion", "deletion", "ins_del")
    enlarge: Enlarge | None = None

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Options:
        """Take what is given and not None; lists become tuples."""
        known: dict[str, Any] = {key: value for key, value in given.items() if value not in (None, [])}
        lists = {key: tuple(value) for key, value in known.items() if isinstance(value, list)}
        return cls(**known | lists)


@dataclass(frozen=True, eq=False)
class Subject:
    """One image that a figure is drawn of.

    Attributes:
        name: of the image.
        batch: the model's input.
        classes: that are explained.
        masks: of its objects, each (height, width), where the data set has them.
    """

    name: str
    batch: Tensor
    classes: tuple[int, ...]
    masks: tuple[Any, ...] = ()


@dataclass(frozen=True, eq=False)
class Drawing:
    """What a figure is drawn with: the model, the recipes, the options, and the images as the model takes them."""

    model: Adapter
    methods: tuple[str, ...]
    options: Options
    subjects: tuple[Subject, ...]


Drawn = tuple["Image.Image | str", dict[str, Any]]  # a picture, or a chart as SVG, and what --json says of it


# ---- figures of one image -------------------------------------------------------------------------------------------


def _facts(drawing: Drawing, subject: Subject, recipes: Sequence[str]) -> dict[str, Any]:
    labels = [drawing.model.label(index) for index in subject.classes]
    return {"model": drawing.model.name, "recipes": list(recipes), "classes": labels}


def _explained(drawing: Drawing, subject: Subject, recipes: Sequence[str]) -> list[Attribution]:
    """Explain the first class of an image by several recipes."""
    from sightline import api

    listed, enlarge = list(recipes), drawing.options.enlarge
    return list(api.explain(drawing.model, subject.batch, listed, subject.classes[0], enlarge=enlarge))


def _maps(drawing: Drawing, subject: Subject, operator: str = "") -> list[list[Attribution]]:
    from sightline.audit.figures.class_maps import class_maps

    enlarge = drawing.options.enlarge
    return class_maps(
        drawing.model, subject.batch, drawing.methods, subject.classes, operator=operator, enlarge=enlarge
    )


def _draw_classes(drawing: Drawing, subject: Subject) -> Drawn:
    from sightline.report.figures.classes import class_grid

    rows = _maps(drawing, subject, drawing.options.operator if len(subject.classes) > 1 else "")
    picture = class_grid(rows, common=drawing.options.common, title=subject.name)
    return picture, _facts(drawing, subject, [row[0].recipe for row in rows])


def _draw_panel(pairs: Sequence[tuple[Drawing, Subject]]) -> Drawn:
    from sightline.report.figures.classes import method_panel

    rows: list[list[Attribution]] = []
    names: list[str] = []
    for drawing, subject in pairs:
        maps = _maps(drawing, subject)
        rows += [list(of_class) for of_class in zip(*maps, strict=True)]
        names += [drawing.model.name] * len(subject.classes)
    several = len(pairs) > 1
    facts = _facts(*pairs[0], [one.recipe for one in rows[0]])
    if several:
        facts |= {"models": [drawing.model.name for drawing, _ in pairs]}
    return method_panel(rows, names=names if several else (), title=pairs[0][1].name), facts


def _draw_distribution(drawing: Drawing, subject: Subject) -> Drawn:
    from sightline import api
    from sightline.audit.figures.class_maps import operated
    from sightline.report.figures.distribution import class_distribution
    from sightline.report.layout import stack

    name, _, options = drawing.options.operator.partition("(")
    own = options.rstrip().removesuffix(")") if name.strip() == "var" else ""
    operator = f"var({', '.join(filter(None, (own, 'distribution=True')))})"
    recipes = [operated(operator, method) for method in drawing.methods]
    model, shown, enlarge = drawing.model, list(subject.classes), drawing.options.enlarge
    found = api.explain(model, subject.batch, recipes, shown[0], classes=shown, enlarge=enlarge)
    labels = [drawing.model.label(index) for index in range(drawing.model.num_classes or 0)]
    pictures = [class_distribution(one, labels, title=subject.name) for one in found]
    return stack(pictures), _facts(drawing, subject, recipes)


def _draw_input(drawing: Drawing, subject: Subject) -> Drawn:
    from sightline.report.figures.times_input import maps_times_input

    rows = _maps(drawing, subject)
    picture = maps_times_input([one for row in rows for one in row], title=subject.name)
    return picture, _facts(drawing, subject, [row[0].recipe for row in rows])


def _draw_layers(drawing: Drawing, subject: Subject) -> Drawn:
    from sightline.report.figures.layers import layer_strip
    from sightline.report.layout import stack

    found = _explained(drawing, subject, drawing.methods)
    return stack([layer_strip(one) for one in found]), _facts(drawing, subject, drawing.methods)


def _draw_masking(drawing: Drawing, subject: Subject) -> Drawn:
    from sightline.audit.figures.evidence_masking import mask_evidence
    from sightline.report.figures.masking import masked_evidence

    rows = _maps(drawing, subject, drawing.options.operator if len(subject.classes) > 1 else "")
    found = [mask_evidence(drawing.model, subject.batch, row, share=drawing.options.share) for row in rows]
    facts = _facts(drawing, subject, [row[0].recipe for row in rows])
    probabilities = {"before": [one.before for one in found], "after": [one.after for one in found]}
    return masked_evidence(found, title=subject.name), facts | probabilities


def _refined(drawing: Drawing, subject: Subject) -> list[Attribution]:
    """Explain an image by the methods that refine an order of patches; by MDA where none is named."""
    return _explained(drawing, subject, mda_recipes(drawing) or ["mda"])


def mda_recipes(drawing: Drawing) -> list[str]:
    """Return the recipes of MDA among those that are named."""
    return [recipe for recipe in drawing.methods if recipe.startswith("mda")]


def _draw_order(drawing: Drawing, subject: Subject) -> Drawn:
    from sightline.report.figures.refinement import numbered_patches, refinement_of
    from sightline.report.layout import stack

    found = _refined(drawing, subject)
    orders = [list(refinement_of(one).images[0].search.order) for one in found]
    facts = _facts(drawing, subject, [one.recipe for one in found]) | {"orders": orders}
    return stack([numbered_patches(one) for one in found]), facts


def _draw_density(drawing: Drawing, subject: Subject) -> Drawn:
    from sightline.report.figures.refinement import GAMMAS, density_sweep
    from sightline.report.layout import stack

    gammas, kappas = drawing.options.gamma or GAMMAS, drawing.options.kappa or None
    found = _refined(drawing, subject)
    facts = _facts(drawing, subject, [one.recipe for one in found]) | {"gammas": list(gammas)}
    return stack([density_sweep(one, gammas=gammas, kappas=kappas) for one in found]), facts


def _draw_baselines(drawing: Drawing, subject: Subject) -> Drawn:
    from sightline import api
    from sightline.audit.figures.option_sweep import mda_baselines
    from sightline.report.figures.refinement import patch_orders

    recipes = mda_baselines(next(iter(mda_recipes(drawing)), "mda"))
    found = _explained(drawing, subject, list(recipes.values()))
    metrics = ["insertion_mda", "deletion_mda"]
    scores = [api.evaluate(drawing.model, subject.batch, one, metrics) for one in found]
    insertion, deletion = ([float(one[metric][0]) for one in scores] for metric in metrics)
    notes = [f"insertion {first:.2f}, deletion {second:.2f}" for first, second in zip(insertion, deletion, strict=True)]
    facts = _facts(drawing, subject, list(recipes.values())) | {"insertion": insertion, "deletion": deletion}
    return patch_orders(found, list(recipes), notes, title=subject.name), facts


def _draw_film(drawing: Drawing, subject: Subject) -> Drawn:
    from sightline.audit.figures.insertion_film import insertion_film
    from sightline.report.figures.film import film_strip

    found = _explained(drawing, subject, drawing.methods)
    films = [insertion_film(drawing.model, subject.batch, one, frames=drawing.options.frames) for one in found]
    scores = {"insertion": [one.insertion for one in films], "deletion": [one.deletion for one in films]}
    return film_strip(films, title=subject.name), _facts(drawing, subject, drawing.methods) | scores


PER_IMAGE: dict[Kind, Callable[[Drawing, Subject], Drawn]] = {
    Kind.classes: _draw_classes,
    Kind.distribution: _draw_distribution,
    Kind.input: _draw_input,
    Kind.layers: _draw_layers,
    Kind.masking: _draw_masking,
    Kind.order: _draw_order,
    Kind.film: _draw_film,
    Kind.density: _draw_density,
    Kind.baselines: _draw_baselines,
}


OF_MODELS: dict[Kind, Callable[[Sequence[tuple[Drawing, Subject]]], Drawn]] = {Kind.panel: _draw_panel}
