"""Sanity checks: does a method's map depend on the model, on the class, and on the image?"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from sightline import api
from sightline.audit.panel import BACKWARD, Failure, is_agnostic, is_control, panel_of, without_warnings
from sightline.audit.ranking import single_images
from sightline.audit.sanity_verdict import FAILS, SanityScores, SanityVerdict, sanity_verdict
from sightline.data.shapes import Shapes
from sightline.errors import USAGE_ERRORS, SightlineError, warn
from sightline.extras import require
from sightline.files import write_by_suffix
from sightline.metrics.case import Case
from sightline.metrics.judge import Scores, judge
from sightline.metrics.sanity.randomisation import random_maps
from sightline.metrics.similarity import spearman
from sightline.models.adapter import Adapter
from sightline.models.inputs import adapt, view_of
from sightline.models.targets import resolve_target
from sightline.progress import Advance, no_progress, progress_bar
from sightline.recipe import parse_metric, text
from sightline.types import Enlarge, Method, Target, check_enlarge

__all__ = ["MethodSanity", "SanityCheck", "check_method", "check_methods", "sanity"]

AT_ONCE = 8  # images per randomised model: copying a model costs about as much as explaining a few images
DRAWN = 4  # images of `shapes` where none are given


@dataclass(frozen=True, eq=False)
class MethodSanity:
    """What was found out about one method; `strip` is the first image's map and those of the randomised models."""

    recipe: str
    control: bool
    agnostic: bool
    scores: SanityScores
    verdict: SanityVerdict
    strip: tuple[Any, ...] = ()

    def json(self) -> dict[str, Any]:
        """Return everything but the maps, as plain data."""
        traits = {"recipe": self.recipe, "control": self.control, "class_agnostic": self.agnostic}
        return traits | {"verdict": self.verdict.word, "sentence": self.verdict.sentence, **self.scores.json()}


@dataclass(frozen=True, eq=False, repr=False)
class SanityCheck:
    """Which methods depend on the model at all; plain data, no model inside.

    In a notebook the strip of maps on ever more random models shows itself.

    Attributes:
        model: what the model is called.
        images: how many images were used.
        picture: what the model sees of the first of them.
        methods: one entry per method.
        failures: methods that could not be checked.
    """

    model: str
    images: int
    picture: Image.Image
    methods: tuple[MethodSanity, ...]
    failures: tuple[Failure, ...] = ()

    @property
    def verdicts(self) -> dict[str, str]:
        """Per method, the verdict and its reason in one sentence."""
        return {method.recipe: str(method.verdict) for method in self.methods}

    @property
    def failed(self) -> list[str]:
        """The recipes that do not depend on the model or on the image, controls included."""
        return [method.recipe for method in self.methods if method.verdict.word == FAILS]

    def to_pandas(self) -> Any:
        """Return a data frame with one row per method."""
        pandas = require("pandas")
        return pandas.DataFrame([method.json() for method in self.methods])

    def json(self) -> dict[str, Any]:
        """Return everything but the maps, as plain data."""
        return {
            "model": self.model,
            "images": self.images,
            "methods": [method.json() for method in self.methods],
            "errors": [{"recipe": failure.recipe, "error": str(failure.error)} for failure in self.failures],
        }

    def save(self, path: str | PathLike[str]) -> Path:
        """Write the check: a page with every strip (.html), or the numbers alone (.csv, .json)."""
        return write_by_suffix(
            path,
            {
                ".html": self._page,
                ".csv": lambda: str(self.to_pandas().to_csv(index=False)),
                ".json": lambda: json.dumps(self.json(), indent=2),
            },
            "a sanity check",
        )

    def _page(self) -> str:
        from sightline.report.views import sanity_page

        return sanity_page(self)

    def __len__(self) -> int:
        return len(self.methods)

    def __repr__(self) -> str:
        verdicts = ", ".join(f"{method.recipe} {method.verdict.word}" for method in self.methods[:4])
        more = ", …" if len(self.methods) > 4 else ""
        return f"SanityCheck({self.model}: {self.images} image{'s' * (self.images != 1)}; {verdicts}{more})"

    def _repr_html_(self) -> str:
        from sightline.report.views import sanity_html

        return sanity_html(self)


def sanity(
    model: Any,
    images: Any = None,
    methods: Sequence[Any] | str | None = None,
    target: Any = None,
    *,
    stages: int = 5,
    seed: int | None = None,
    enlarge: Enlarge | None = None,
    progress: bool = False,
) -> SanityCheck:
    """Check whether methods depend on the model, the class and the image, with a verdict for each.

    The layers of a copy of the model are re-initialised from the output to the input, and each method explains the copy
    again: a map that explains a model cannot stay the same when the model forgets everything.

    Args:
        model: as for `explain`.
        images: as for `explain`; None draws a few synthetic shapes, for a model whose preprocessing is known.
        methods: recipes or built methods; by default a panel that suits the model, controls included.
        target: as for `explain`.
        stages: how many randomised models, from the last layers to all.
        seed: of the random weights, and of methods that leave theirs at the default.
        enlarge: how cells become pixels, as for `explain`.
        progress: show a progress bar on stderr.

    >>> import sightline
    >>> check = sightline.sanity(sightline.load("bundled/shapes-cnn"), methods=["sobel"], stages=2)
    >>> check.failed
    ['sobel']
    """
    if enlarge is not None:
        check_enlarge(enlarge)
    adapter = adapt(model)
    panel = panel_of(adapter, methods, seed)
    given = drawn_shapes(DRAWN, seed) if images is None else images
    single = list(single_images(adapter, given))
    batch = torch.cat([row for _, _, row in single])
    with api.ready(adapter):
        resolved = resolve_target(target, adapter, batch)
    with progress_bar(sum(sanity_cost(m, adapter) for m in panel), "checking", enabled=progress) as advance:
        checked, failures = check_methods(
            adapter,
            batch,
            panel,
            resolved,
            named=methods is not None,
            stages=stages,
            seed=seed or 0,
            enlarge=enlarge,
            advance=advance,
        )
    picture = view_of(adapter, batch[0], single[0][1]).picture
    return SanityCheck(adapter.name, len(batch), picture, tuple(checked), tuple(failures))


def drawn_shapes(count: int, seed: int | None) -> list[Image.Image]:
    """Draw images of the synthetic set `shapes`."""
    shapes = Shapes(seed=seed or 0)
    return [Image.fromarray(shapes[index].image) for index in range(count)]


def check_methods(
    model: Adapter,
    batch: Tensor,
    methods: Sequence[Method],
    target: Target,
    *,
    named: bool = True,
    stages: int = 5,
    seed: int = 0,
    enlarge: Enlarge | None = None,
    advance: Advance = no_progress,
) -> tuple[list[MethodSanity], list[Failure]]:
    """Check one method after the other; what the panel offered in vain is left out, unless nothing remains."""
    checked: list[MethodSanity] = []
    failures: list[Failure] = []
    refusals: list[SightlineError] = []
    for method in methods:
        try:
            checked.append(check_method(model, batch, method, target, stages, seed, enlarge))
        except USAGE_ERRORS as error:
            if named:
                raise
            refusals.append(error)
            warn(f"left out {text(method)}: {error}", stacklevel=2)
        except SightlineError as error:
            failures.append(Failure(text(method), error))
        advance(sanity_cost(method, model), text(method))
    if refusals and not checked:
        raise refusals[0]
    return checked, failures


def check_method(
    model: Adapter,
    batch: Tensor,
    method: Method,
    target: Target,
    stages: int = 5,
    seed: int = 0,
    enlarge: Enlarge | None = None,
) -> MethodSanity:
    """Put one method to the test on a batch of images."""
    options = f"stages={stages}, seed={seed}"
    metrics = [f"randomisation_{name}({options})" for name in ("spearman", "pearson", "cosine", "ssim")]
    metrics += [f"randomisation_spearman({options}, absolute=True)", f"random_logit(seed={seed})"]
    metrics = [text(parse_metric(metric)) for metric in metrics]  # curves are kept under the canonical recipe
    scores: list[Scores] = []
    maps: list[Tensor] = []
    strip: tuple[Any, ...] = ()
    for first in range(0, len(batch), AT_ONCE):
        rows = range(first, min(first + AT_ONCE, len(batch)))
        case = _case(model, batch[rows.start : rows.stop], method, target.take(rows), enlarge)
        with api.ready(model):
            scores.append(judge(case, metrics))
            strip = strip or tuple(_first(each) for each in (case.maps, *random_maps(case, stages, seed)))
        maps.append(case.maps)
    signed, absolute = (
        torch.cat([part.curves[name] for part in scores]).nanmean(dim=0).tolist() for name in (metrics[0], metrics[4])
    )
    pearson, cosine, ssim, other_class = (
        float(torch.cat([part[name] for part in scores]).nanmean()) for name in (*metrics[1:4], metrics[5])
    )
    measured = SanityScores(
        tuple(signed), absolute[-1], pearson, cosine, ssim, other_class, _other_images(torch.cat(maps))
    )
    agnostic = is_agnostic(method)
    reached = sanity_verdict(measured, agnostic=agnostic)
    return MethodSanity(text(method), is_control(method), agnostic, measured, reached, strip)


def sanity_cost(method: Method, model: Adapter) -> float:
    """Return what checking a method costs, in forward passes; an estimate, for the time left."""
    try:
        passes = method.cost(model)
    except SightlineError:  # it will say so itself when it is run
        return 1.0
    return 1.0 + passes.forward + BACKWARD * passes.backward


def _case(model: Adapter, batch: Tensor, method: Method, target: Target, enlarge: Enlarge | None) -> Case:
    with without_warnings():  # a constant map has its own verdict
        attribution = api.explain(model, batch, method, target=target, enlarge=enlarge)
    return Case(model, batch, target, attribution.pixels(), method=method, enlarge=enlarge)


def _other_images(maps: Tensor) -> float:
    """Return the mean rank correlation of every image's map with the next one's; NaN for a single image."""
    if len(maps) < 2:
        return float("nan")
    return float(spearman(maps, maps.roll(1, dims=0)).nanmean())


def _first(maps: Tensor) -> Any:
    return maps[0].float().cpu().numpy()
