"""Maps of one image for several classes and methods, alone and inside an operator, for figures and tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sightline import api
from sightline.errors import InputError
from sightline.models.adapter import Adapter
from sightline.models.inputs import adapt, as_batch
from sightline.models.targets import find_class
from sightline.recipe import parse, text
from sightline.types import Attribution

__all__ = ["class_maps", "likeliest_classes", "operated"]


def class_maps(
    model: Any,
    image: Any,
    methods: Sequence[str],
    classes: Sequence[int | str] | None = None,
    *,
    operator: str = "",
    enlarge: Any = None,
) -> list[list[Attribution]]:
    """Explain one image for several classes with several methods.

    Args:
        model: as for `explain`.
        image: one image, as for `explain`.
        methods: recipes.
        classes: numbers or labels; the two most probable ones by default.
        operator: an operator such as ``"var"`` or ``"var(preset='recommended')"``; each method is then followed by
            itself inside the operator. ``var`` contrasts the given classes unless it names its own.
        enlarge: how cells become pixels, as for `explain`.

    Returns:
        For each recipe a list of attributions, one per class.

    >>> import sightline
    >>> from sightline.data.shapes import Shapes
    >>> model = sightline.load("bundled/shapes-cnn")
    >>> image = model.normalise(Shapes(seed=1).draw(1).images)
    >>> rows = class_maps(model, image, ["grad_cam"], ["star", "circle"], operator="var")
    >>> [(row[0].recipe, [one.labels[0] for one in row]) for row in rows]
    [('grad_cam', ['star', 'circle']), ("var(grad_cam, classes='picture')", ['star', 'circle'])]
    """
    adapter = adapt(model)
    batch = as_batch(adapter, image)
    if len(batch) != 1:
        raise InputError(f"got {len(batch)} images; maps of several classes are made of one image at a time")
    wanted = _numbers(adapter, classes) if classes else likeliest_classes(adapter, batch)
    recipes = [recipe for method in methods for recipe in (method, *([operated(operator, method)] * bool(operator)))]
    by_class = [
        api.explain(adapter, batch, recipes, one, classes=wanted if len(wanted) > 1 else None, enlarge=enlarge)
        for one in wanted
    ]
    return [list(of_recipe) for of_recipe in zip(*by_class, strict=True)]


def operated(operator: str, method: str, classes: str = "picture") -> str:
    """Return the recipe of a method inside an operator, which is written with its options and without the method.

    ``var`` contrasts `classes` unless the operator names its own.

    >>> operated("var(preset='recommended')", "ixg")
    "var(ixg, classes='picture', preset='recommended')"
    """
    name, _, options = operator.strip().partition("(")
    options = options.rstrip().removesuffix(")").strip()
    if name.strip() == "var" and "classes" not in options:
        options = ", ".join(filter(None, (f"classes='{classes}'", options)))
    return text(parse(f"{name}({', '.join(filter(None, (method, options)))})"))


def likeliest_classes(model: Adapter, batch: Tensor, count: int = 2) -> list[int]:
    """Return the most probable classes of one image, the first being the predicted one."""
    with api.ready(model), torch.no_grad():
        logits = model.check_logits(model.predict(batch))
    return [int(index) for index in logits[0].argsort(descending=True, stable=True)[:count]]


def _numbers(model: Adapter, classes: Sequence[int | str]) -> list[int]:
    return [find_class(model, one) if isinstance(one, str) else int(one) for one in classes]
