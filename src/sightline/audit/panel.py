"""One image: the methods that explain it, the map of each scored on that very image, and which map to believe."""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sightline.api.explain import as_method, attribute, check_needs, describe
from sightline.audit.fills import LEFT, Judge, fill_cost
from sightline.audit.verdict import ClassScore, ExplainedImage, Failure, ScoredMap, Verdict, ranked, verdict
from sightline.data.images import ImageSource
from sightline.errors import HELD_BACK, RecipeError, SightlineError
from sightline.methods.chance.controls import CONTROLS
from sightline.metrics.case import Case, CurveArea
from sightline.metrics.faithfulness.insertion_deletion import Deletion, Insertion
from sightline.models.adapter import Adapter
from sightline.models.inputs import Picture, seen_pixels, view_of
from sightline.models.passes import ready
from sightline.models.targets import resolve_target
from sightline.perturb.curve import Score
from sightline.progress import Advance
from sightline.recipe import specs_of, text
from sightline.registry import METHODS, Spec
from sightline.targets.tasks import Box, Region, target_mask
from sightline.targets.words import Word
from sightline.types import Attribution, Enlarge, Logit, LogProbability, Method, Passes, Probability, Target, Value

__all__ = [
    "CONTROLS", "STEPS", "ClassScore", "ExplainedImage", "Failure", "ScoredMap", "Verdict", "choose", "explain_image",
    "is_agnostic", "is_control", "judge_map", "map_cost", "method_specs", "metric_step", "metrics_of", "panel_of",
    "picture_targets", "ranked", "reseed", "score_map", "short", "verdict", "without_warnings",
]  # fmt: skip

# ---- the panel ------------------------------------------------------------------------------------------------------

# Of classifiers, as experiments/default_panel.py chooses them: of each family of methods the best recipe of few passes
# by single deletion and average precision, and of these the five best, the best first (docs/guide/leaderboard.md).
TRANSFORMER = ("inflow", "e_caap", "libra(full_grad_plus)", "lrp_rollout", "skip_plus(decompx)")
CONVOLUTIONAL = ("finer_cam(grad_cam)", "conductance(steps=10)", "full_grad", "act", "contrastive_excitation")
# Of whatever else there is, for which nothing was measured: something of every family that runs there.
ATTENTION = ("gae", "rollout")
TOKENS = ("plus(libra(ixg))", "caap(frozen=True)")
LANGUAGE = ("plus(libra(ixg))", "token_activation_map")  # where attention is causal and no token can be patched
SPATIAL = ("grad_cam",)  # wherever some layer lies on a grid
SPATIAL_OF_TASKS: dict[str | None, tuple[str, ...]] = {"dense": ("grad_cam", "seg_xres_cam"), "boxes": ("odam",)}
DETECTION = ("d_rise(samples=100, cells=8)",)  # as many passes as two maps take to be scored
PIXELS = ("ixg",)  # where there are no tokens to start at
CUTS = ("iia2",)  # where inner layers can be run by themselves
BLACK_BOX = ("simple_insertion", "simple_deletion")  # where nothing but the output is known
GRADIENT = ("smooth_grad(samples=10)", "ig(steps=20)")


def choose(model: Adapter) -> list[str]:
    """Return a handful of recipes that suit the model, controls last: measured for classifiers, varied for the rest."""
    return [*(_measured(model) or _varied(model)), *CONTROLS]


def _measured(model: Adapter) -> tuple[str, ...]:
    """Return the panel that was chosen by measurement for this kind of model, empty where there is none."""
    if model.declared_output not in (None, "softmax", "sigmoid") or "language" in model.offers:
        return ()
    if {"attention", "tokens"} <= model.offers:
        return TRANSFORMER
    attends = model.attention_layers is not None or bool(model.no_attention)
    return CONVOLUTIONAL if "cuts" in model.offers and not attends else ()


def _varied(model: Adapter) -> list[str]:
    """Return recipes that are cheap beside their scoring and show what the families of methods disagree on."""
    offers = model.offers
    chosen: list[str] = []
    attention = ATTENTION if "gradient" in offers else ATTENTION[1:]
    chosen += [recipe for recipe in attention if not model.lacks(recipe, METHODS[recipe].needs)]
    if "gradient" in offers:
        chosen += LANGUAGE if "language" in offers else TOKENS if "tokens" in offers else PIXELS
        chosen += SPATIAL_OF_TASKS.get(model.declared_output, SPATIAL) if "layers" in offers else ()
        chosen += CUTS if "cuts" in offers else ()
        chosen += GRADIENT
    if not offers:
        chosen += BLACK_BOX
    if model.declared_output == "boxes":
        chosen += DETECTION
    return chosen


def short(model: Adapter) -> list[str]:
    """Return the recipes to compare models by: those of the panel that look into the model, none of them slow."""
    return [recipe for recipe in choose(model) if recipe not in CONTROLS and recipe not in (*GRADIENT, *DETECTION)]


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
    return [spec for spec in specs_of(method) if spec.kind == "method"]


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


# ---- one map --------------------------------------------------------------------------------------------------------

NO_ROOM_FLAG = "insertion has no room"  # the filled image keeps more than half of the class's probability
STEPS = 28  # of each curve, so 54 forward passes per map and three per image
BACKWARD = 2.0  # a backward pass takes about as long as two forward ones

Metrics = tuple[CurveArea, CurveArea]  # insertion and deletion


@contextmanager
def without_warnings() -> Iterator[None]:
    """Hold back what sightline warns of in this thread: a constant map has a flag, which is shown."""
    token = HELD_BACK.set(True)
    try:
        yield
    finally:
        HELD_BACK.reset(token)


def score_map(
    model: Adapter,
    batch: Tensor,
    method: Method,
    target: Target,
    metrics: Metrics,
    judge: Judge | None = None,
    *,
    attribution: Attribution | None = None,
    enlarge: Enlarge | None = None,
    known: dict[Hashable, tuple[Any, Passes]] | None = None,
) -> ScoredMap:
    """Make the map of one image, unless it is given, and score it; the target is resolved, the model in eval mode.

    `judge` scores it under several fills; `known` is what the image's other maps have computed, see `Case`.
    """
    check_needs(method, model)
    begun = time.perf_counter()
    with without_warnings():
        attribution = attribute(model, batch, method, target) if attribution is None else attribution
    seconds = time.perf_counter() - begun
    maps = attribution.pixels(enlarge)
    case = Case(model, batch, target, maps, known=known)
    if judge is not None:
        judge.share_with(case)
    insertion, deletion = (metric(case) for metric in metrics)
    if known is not None:
        known.update({key: (value, Passes()) for key, (value, _) in known.items()})  # run once, and counted once
    curves = {"insertion": insertion.curve, "deletion": deletion.curve}
    flags = (*attribution.flags[:1], *insertion.flags, *deletion.flags, *_without_room(insertion.curve, metrics[0]))
    return ScoredMap(
        recipe=attribution.recipe,
        map=maps[0].float().cpu().numpy(),
        insertion=float(insertion.values[0]),
        deletion=float(deletion.values[0]),
        curves={name: curve[0].tolist() for name, curve in curves.items() if curve is not None},
        passes=attribution.passes,
        seconds=seconds,
        control=is_control(method),
        agnostic=is_agnostic(method),
        flags=tuple(dict.fromkeys(filter(None, flags))),
        fills=None if judge is None else judge.scores(case),
    )


def _without_room(curve: Tensor | None, insertion: CurveArea) -> tuple[str, ...]:
    """Say where the fill that insertion starts from leaves the class recognisable, so that it can tell little."""
    if curve is None or insertion.score != "probability":
        return ()
    start, end = float(curve[0, 0]), float(curve[0, -1])
    return (NO_ROOM_FLAG,) if start > LEFT * end > 0 else ()


def judge_map(model: Adapter, batch: Tensor, scored: ScoredMap, target: Target, judge: Judge) -> ScoredMap:
    """Judge a map that is scored already under several fills; its own curves are not measured again."""
    case = Case(model, batch, target, torch.from_numpy(scored.map)[None])
    for metric, name in zip(judge.metrics, ("insertion", "deletion"), strict=True):
        case.once(metric.curve, partial(torch.tensor, [scored.curves[name]]))
    return replace(scored, fills=judge.scores(judge.share_with(case)))


def metrics_of(model: Adapter, target: Target, step: int) -> Metrics:
    """Return insertion and deletion of the class's probability, or of the number itself where it has none."""
    of_class = isinstance(target, Logit | Probability | LogProbability | Value)
    number = of_class and (isinstance(target, Value) or not model.has_probabilities)
    score: Score = "logit" if number else "probability"
    return Insertion(step=step, score=score), Deletion(step=step, score=score)


def metric_step(batch: Tensor, steps: int = STEPS) -> int:
    """Return how many pixels change at a time for a curve of this many steps."""
    return max(1, -(-batch.shape[-1] * batch.shape[-2] // steps))


def map_cost(method: Method, model: Adapter, *, fills: bool = True) -> float:
    """Return what making and scoring one map costs, in forward passes; an estimate, for the time left."""
    try:
        passes = method.cost(model)
    except SightlineError:  # it will say so itself when it is run
        passes = Passes()
    scoring = 2 * (STEPS - 1) + (fill_cost(STEPS, model) if fills else 0)
    return passes.forward + BACKWARD * passes.backward + scoring


# ---- one image ------------------------------------------------------------------------------------------------------

TOP = 5  # classes to name


def picture_targets(picture: ImageSource, given: Sequence[Any] = (), model: Adapter | None = None) -> list[Any]:
    """Return what is explained of a picture: what is given, else the classes that it shows, else the predicted class.

    Where these are several classes each target knows all of them, for ``var(…, classes='picture')``. Of a segmentation
    or a detector they are labels, whose region or box is looked for.

    >>> picture_targets(ImageSource("a.png", "a", "a", classes=(3, 5)))
    [Logit(index=(3,)), Logit(index=(5,))]
    >>> picture_targets(ImageSource("a.png", "a", "a"), [None])
    [None]
    """
    wanted = list(given) or list(picture.classes)
    numbers = [one for one in wanted if isinstance(one, int)]
    shown = tuple(numbers) if len(numbers) > 1 else picture.classes
    if len(shown) < 2 or (model is not None and model.declared_output in ("dense", "boxes")):
        return wanted or [None]
    return [Logit((one,), classes=(shown,)) if isinstance(one, int) else one for one in wanted]


def explain_image(
    model: Adapter,
    batch: Tensor,
    methods: Sequence[Method],
    target: Any = None,
    *,
    photograph: Picture | None = None,
    name: str = "image",
    step: int | None = None,
    fills: bool | None = None,
    enlarge: Enlarge | None = None,
    advance: Advance | None = None,
) -> ExplainedImage:
    """Explain a batch of one image with every method and score each map on it; `advance` hears what each has cost.

    Maps are judged under several fills where there are several methods, or as `fills` says, and become pixels as
    `enlarge` says, or each method itself.
    """
    maps, failures = [], []
    several = len(methods) > 1 if fills is None else fills
    with ready(model):
        logits = model.check_logits(model.predict(batch))
        probable = model.has_probabilities
        resolved = Logit(int(logits[0].argmax())) if _predicted(target, model) else resolve_target(target, model, batch)
        explained, top = _classes(model, logits, resolved, probable)
        step = metric_step(batch) if step is None else step
        metrics = metrics_of(model, resolved, step)
        judge = Judge(model, batch, resolved, logits, metrics) if several else None
        known: dict[Hashable, tuple[Any, Passes]] = {"clean": (logits, Passes())}
        for method in methods:
            try:
                maps.append(score_map(model, batch, method, resolved, metrics, judge, enlarge=enlarge, known=known))
            except SightlineError as error:
                failures.append(Failure(text(method), error))
            if advance is not None:
                advance(map_cost(method, model, fills=several), text(method))
    view = view_of(model, batch[0], photograph)
    rooms = () if judge is None else judge.rooms
    located = isinstance(resolved, Box | Region)
    mask = target_mask(resolved, (batch.shape[-2], batch.shape[-1])) if located else None
    region = None if mask is None else mask.numpy()
    inputs = _inputs(model, batch, metrics)
    return ExplainedImage(name, view, explained, top, ranked(maps), tuple(failures), step, rooms, region, inputs)


def _inputs(model: Adapter, batch: Tensor, metrics: Metrics) -> dict[str, NDArray[np.uint8]]:
    """Return what the model sees, and what the two metrics fill it with, as pixels."""
    insertion, deletion = (metric.curve.fill for metric in metrics)
    with torch.no_grad():
        given = {"seen": batch, "insertion": insertion(model, batch), "deletion": deletion(model, batch)}
        return {name: seen_pixels(model, each)[0].permute(1, 2, 0).numpy() for name, each in given.items()}


def _predicted(target: Any, model: Adapter) -> bool:
    """Tell whether the predicted class is wanted, which the logits at hand name."""
    return target is None and model.output in ("softmax", "sigmoid")


def _classes(
    model: Adapter, logits: Tensor, target: Target, probable: bool
) -> tuple[ClassScore, tuple[ClassScore, ...]]:
    """Return what is explained, and the likeliest classes where the logits have probabilities."""
    index = target.index if isinstance(target, Logit | Probability | LogProbability | Value) else None
    index = index[0] if isinstance(index, tuple) else index
    if isinstance(target, Word):
        probability = float(replace(target, score="probability")(logits.float())[0])
        return ClassScore(None, describe(target, model, 1)[0], probability), ()
    if not probable:
        return ClassScore(index, describe(target, model, 1)[0], None), ()
    shares = model.probabilities(logits.float())[0].tolist()
    classes = [ClassScore(number, model.label(number), share) for number, share in enumerate(shares)]
    top = tuple(sorted(classes, key=lambda each: -(each.probability or 0.0))[:TOP])
    if index is None or isinstance(target, Value):
        return ClassScore(index, describe(target, model, 1)[0], None if index is None else shares[index]), top
    return classes[index], top
