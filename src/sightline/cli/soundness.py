"""One run of ``sightline sanity``: methods against models that know nothing, other classes and other images."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from rich.table import Table
from rich.text import Text
from torch import Tensor

from sightline import __version__, api
from sightline.audit.panel import choose, is_agnostic, is_control, reseed
from sightline.audit.sanity_verdict import DOUBTFUL, FAILS, PASSES, Evidence, Verdict, verdict
from sightline.audit.seen import frame_of
from sightline.cli import console
from sightline.cli.error_log import Complaints
from sightline.cli.loading import gather, open_model
from sightline.cli.staged_output import safe, writing
from sightline.cli.tables import score
from sightline.cli.target import find_class
from sightline.data.images import read_image
from sightline.data.shapes import Shapes
from sightline.errors import SightlineError, SightlineWarning
from sightline.metrics.case import Case
from sightline.metrics.judge import Scores, judge
from sightline.metrics.sanity.randomisation import random_maps
from sightline.metrics.similarity import spearman
from sightline.models.adapter import Adapter
from sightline.models.targets import resolve_target
from sightline.recipe import parse_metric, text
from sightline.report.figure import Tile, panel
from sightline.types import Method, Target

__all__ = ["Finding", "Outcome", "Question", "answer", "examine"]

AT_ONCE = 8  # images per randomised model: copying a model costs about as much as explaining a few images
BACKWARD = 2.0  # a backward pass takes about as long as two forward ones


@dataclass(frozen=True)
class Question:
    """What the user asked for; without paths, `count` images of `shapes`."""

    model: str
    methods: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    count: int = 4
    target: str | None = None
    stages: int = 5
    seed: int | None = None
    classes: tuple[str, ...] = ()
    device: str = "auto"
    out: Path | None = None


@dataclass(frozen=True, eq=False)
class Finding:
    """What was found out about one method; `strip` is the first image's map and those of the randomised models."""

    recipe: str
    control: bool
    agnostic: bool
    evidence: Evidence
    verdict: Verdict
    strip: tuple[Any, ...] = ()

    def json(self) -> dict[str, Any]:
        """Return everything but the maps."""
        facts = {"recipe": self.recipe, "control": self.control, "class_agnostic": self.agnostic}
        return {**facts, "verdict": self.verdict.word, "sentence": self.verdict.sentence, **self.evidence.json()}


@dataclass
class Outcome:
    """What a run found."""

    question: Question
    images: int = 0
    findings: list[Finding] = field(default_factory=list)
    pictures: list[Path] = field(default_factory=list)
    errors: Complaints = field(default_factory=Complaints)

    @property
    def failed(self) -> bool:
        """Whether something went wrong, or a method failed that was not there to fail."""
        named = bool(self.question.methods)
        return bool(self.errors) or any(
            one.verdict.word == FAILS and (named or not one.control) for one in self.findings
        )

    def json(self) -> dict[str, Any]:
        """Return everything for a script to read."""
        return {
            "model": self.question.model,
            "images": self.images,
            "methods": [finding.json() for finding in self.findings],
            "pictures": [str(path) for path in self.pictures],
            "errors": self.errors,
            "version": __version__,
        }

    def show(self) -> None:
        """Print the numbers, then a sentence per method."""
        if not self.findings:
            return
        console.show(_table(self), "")
        for finding in self.findings:
            style = {PASSES: "green", DOUBTFUL: "yellow", FAILS: "red"}.get(finding.verdict.word, "")
            mark = " (a control: it should fail)" if finding.control else ""
            console.show(
                Text.assemble(
                    (f"{finding.recipe}{mark} ", "bold"), (finding.verdict.word, style), f": {finding.verdict.sentence}"
                )
            )
        console.show("", "Passing is necessary, not sufficient: a map may depend on the model and still be wrong.")
        for path in self.pictures:
            console.show(Text(f"picture: {console.plain(path)}"))


def answer(question: Question) -> Outcome:
    """Do what was asked; a file that cannot be read is reported and the others are used."""
    methods = reseed(question.methods, question.seed)  # a typo is found before anything is loaded
    outcome = Outcome(question)
    images = _images(question, outcome.errors)
    if not images:
        return outcome
    model = open_model(question.model, question.device, question.classes)
    for method in methods:
        api.check_needs(method, model)
    target = None if question.target is None else find_class(model, question.target)
    batch = api.as_batch(model, images)
    outcome.images = len(batch)
    with api.ready(model):
        aim = resolve_target(target, model, batch)
    _examine_all(model, batch, methods or reseed(choose(model), question.seed), aim, outcome)
    if question.out is not None:
        _draw(question.out, outcome, frame_of(model, images[0], batch[0]).picture)
    return outcome


def _examine_all(model: Adapter, batch: Tensor, methods: Sequence[Method], aim: Target, outcome: Outcome) -> None:
    """Examine one method after the other; what the panel offered in vain is left out, unless nothing remains."""
    question = outcome.question
    refusals: list[SightlineError] = []
    with console.progress(sum(_price(method, model) for method in methods), "checking") as advance:
        for method in methods:
            try:
                outcome.findings.append(examine(model, batch, method, aim, question.stages, question.seed or 0))
            except console.USAGE_ERRORS as error:
                if question.methods:
                    raise
                refusals.append(error)
                console.note(f"left out {text(method)}: {error}")
            except SightlineError as error:
                outcome.errors.add(question.model, error, text(method))
            advance(_price(method, model), text(method))
    if refusals and not outcome.findings:
        raise refusals[0]


def examine(model: Adapter, batch: Tensor, method: Method, aim: Target, stages: int = 5, seed: int = 0) -> Finding:
    """Put one method to the test on a batch of images."""
    options = f"stages={stages}, seed={seed}"
    metrics = [f"randomisation_{name}({options})" for name in ("spearman", "pearson", "cosine", "ssim")]
    metrics += [f"randomisation_spearman({options}, absolute=True)", f"random_logit(seed={seed})"]
    metrics = [text(parse_metric(metric)) for metric in metrics]  # curves are kept under the canonical recipe
    found: list[Scores] = []
    maps: list[Tensor] = []
    strip: tuple[Any, ...] = ()
    for first in range(0, len(batch), AT_ONCE):
        case = _case(model, batch[first : first + AT_ONCE], method, aim.take(range(first, _end(first, batch))))
        with api.ready(model):
            found.append(judge(case, metrics))
            strip = strip or tuple(_first(one) for one in (case.maps, *random_maps(case, stages, seed)))
        maps.append(case.maps)
    signed, absolute = (
        torch.cat([scores.curves[name] for scores in found]).nanmean(dim=0).tolist()
        for name in (metrics[0], metrics[4])
    )
    pearson, cosine, ssim, other_class = (
        float(torch.cat([scores[name] for scores in found]).nanmean()) for name in (*metrics[1:4], metrics[5])
    )
    evidence = Evidence(tuple(signed), absolute[-1], pearson, cosine, ssim, other_class, _other_images(torch.cat(maps)))
    agnostic = is_agnostic(method)
    return Finding(text(method), is_control(method), agnostic, evidence, verdict(evidence, agnostic=agnostic), strip)


def _end(first: int, batch: Tensor) -> int:
    return min(first + AT_ONCE, len(batch))


def _case(model: Adapter, batch: Tensor, method: Method, aim: Target) -> Case:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SightlineWarning)  # a constant map has its own verdict
        attribution = api.explain(model, batch, method, target=aim)
    return Case(model, batch, aim, attribution.pixels(), method=method)


def _other_images(maps: Tensor) -> float:
    """Return the mean rank correlation of every image's map with the next one's; NaN for a single image."""
    if len(maps) < 2:
        return float("nan")
    return float(spearman(maps, maps.roll(1, dims=0)).nanmean())


def _first(maps: Tensor) -> Any:
    return maps[0].float().cpu().numpy()


def _images(question: Question, errors: Complaints) -> list[Image.Image]:
    if not question.paths:
        drawn = Shapes(seed=question.seed or 0)
        return [Image.fromarray(drawn[index].image) for index in range(question.count)]
    found = []
    for path in gather(question.paths, errors.add):
        try:
            found.append(read_image(path))
        except SightlineError as error:
            errors.add(path, error)
    return found


def _price(method: Method, model: Adapter) -> float:
    try:
        passes = method.cost(model)
    except SightlineError:  # it will say so itself when it is run
        return 1.0
    return 1.0 + passes.forward + BACKWARD * passes.backward


def _draw(out: Path, outcome: Outcome, photograph: Image.Image) -> None:
    """Write a strip per method: the first image's map, then those of ever more random models."""
    with writing(out) as outbox:
        for finding in outcome.findings:
            stages = len(finding.strip) - 1
            names = ["the model", *(f"{100 * stage // stages} % random" for stage in range(1, stages + 1))]
            notes = ["", *(f"Spearman {score(value)}" for value in finding.evidence.curve[1:])]
            tiles = [Tile(*tile) for tile in zip(names, finding.strip, notes, strict=True)]
            line = f"{finding.verdict.word}: {finding.verdict.sentence}"
            title = f"{finding.recipe} (Spearman: mean over {outcome.images} images)"
            picture = panel(photograph, tiles, title=title, line=line, width=150)
            name = f"{outbox.subfolder(safe(finding.recipe))}-sanity.png"
            outcome.pictures.append(outbox.png(name, picture, {"model": outcome.question.model}))


def _table(outcome: Outcome) -> Table:
    count = outcome.images
    title = Text(f"{console.plain(outcome.question.model)}, {count} image{'s' * (count != 1)}", "bold")
    table = Table(title=title, title_justify="left", caption_justify="left", box=None, pad_edge=False)
    table.caption = (
        "Similarity of the map to those of randomised models, a mean over the stages ('all' with every layer random, "
        "'sizes' of absolute values), to the map for another class, and to other images' maps."
    )
    heads = ("method", "verdict", "spearman", "all", "sizes", "pearson", "cosine", "ssim", "other class", "other image")
    for head in heads:
        table.add_column(head, justify="left" if head in heads[:2] else "right", overflow="fold")
    for one in outcome.findings:
        found = one.evidence
        numbers = (found.mean, found.last, found.absolute, found.pearson, found.cosine, found.ssim)
        cells = [score(value) for value in (*numbers, found.other_class, found.other_image)]
        table.add_row(Text(one.recipe), one.verdict.word, *cells, style="dim" if one.control else "")
    return table
