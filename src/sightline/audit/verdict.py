"""One explained image: its maps with their scores, in order, and the verdict: which to believe, or why none.

What is measured is made in `sightline.audit.panel`; here it is put in order and into words.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sightline.audit.fills import FillRoom, FillScores
from sightline.errors import SightlineError
from sightline.models.inputs import View
from sightline.types import Passes

__all__ = [
    "CONTESTED",
    "NO_ROOM",
    "ClassScore",
    "ExplainedImage",
    "Failure",
    "ScoredMap",
    "Verdict",
    "ranked",
    "verdict",
]

CONTESTED, NO_ROOM = "contested", "no room"
_JUDGED = "Judged by insertion \N{MINUS SIGN} deletion, measured on this very image"
_IMAGES = {"blur": "blurred", "strong_blur": "strongly blurred", "zero": "blank", "noise": "noise"}

# ---- one map ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class ScoredMap:
    """One map of one image with its scores; `rank` is None for a map that says nothing.

    Insertion and deletion are those of the main fills, a blur to start from and zero to end at; `fills` holds what the
    map scores under each of several, None where it was judged by the main ones alone, and `share` under how many of
    them it beats the best control, None where there is none to beat.
    """

    recipe: str
    map: NDArray[Any]
    insertion: float
    deletion: float
    curves: dict[str, list[float]]
    passes: Passes
    seconds: float
    control: bool
    agnostic: bool
    flags: tuple[str, ...] = ()
    rank: int | None = None
    fills: FillScores | None = None
    share: float | None = None

    @property
    def ins_del(self) -> float:
        return self.insertion - self.deletion

    @property
    def score(self) -> float:
        """What the map is ranked by: insertion minus deletion, the mean over the fills it was judged under."""
        return self.ins_del if self.fills is None else self.fills.score

    @property
    def note(self) -> str:
        """What a reader should know of the map, in a word or two."""
        kind = "control" if self.control else "class-agnostic" if self.agnostic else ""
        return ", ".join(filter(None, (kind, *self.flags)))

    def json(self) -> dict[str, Any]:
        """Return what was measured, as plain data."""
        return {
            "recipe": self.recipe,
            "rank": self.rank,
            "insertion": self.insertion,
            "deletion": self.deletion,
            "ins_del": self.ins_del,
            **self.judged_json(),
            "passes": {"forward": self.passes.forward, "backward": self.passes.backward},
            "seconds": round(self.seconds, 4),
            "control": self.control,
            "class_agnostic": self.agnostic,
            "flags": list(self.flags),
        }

    def judged_json(self) -> dict[str, Any]:
        """Return what the map is ranked by, as plain data."""
        if self.fills is None:
            return {"score": self.score, "interval": None, "share": None, "fills": {}}
        judged = {"score": self.score, "interval": list(self.fills.interval), "share": self.share}
        return {**judged, "fills": self.fills.means}


@dataclass(frozen=True)
class Failure:
    """A map that could not be made, and why."""

    recipe: str
    error: SightlineError


def ranked(maps: Iterable[ScoredMap]) -> tuple[ScoredMap, ...]:
    """Put the most faithful map first, by its score; maps that say nothing come last, without a rank."""
    meaningful: list[ScoredMap] = []
    constant: list[ScoredMap] = []
    for scored in maps:
        useless = "constant map" in scored.flags or not math.isfinite(scored.score)
        (constant if useless else meaningful).append(scored)
    # a method that only equals a control does not stand before it
    meaningful.sort(key=lambda scored: (-scored.score, not scored.control))
    meaningful = _with_shares(meaningful)
    return (*(replace(scored, rank=rank) for rank, scored in enumerate(meaningful, 1)), *constant)


def _with_shares(maps: list[ScoredMap]) -> list[ScoredMap]:
    """Give every map that is no control the share of fills under which it beats the best control."""
    controls = [scored.fills.means for scored in maps if scored.control and scored.fills is not None]
    if not controls:
        return maps
    best = {fill: max(means[fill] for means in controls) for fill in controls[0]}
    return [
        scored if scored.control or scored.fills is None else replace(scored, share=scored.fills.share(best))
        for scored in maps
    ]


# ---- one image -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ClassScore:
    """A class, label or value; `probability` is None where the model's output has none."""

    index: int | None
    label: str
    probability: float | None

    def json(self) -> dict[str, Any]:
        """Return the class as plain data."""
        return {"index": self.index, "label": self.label, "probability": self.probability}


@dataclass(frozen=True, eq=False)
class ExplainedImage:
    """One image: what the model says of it, and the maps that explain it, the most faithful first.

    Attributes:
        name: what to call the image.
        view: what the model sees of it.
        target: what is explained.
        top: the likeliest classes; empty where the model's output has no probabilities.
        maps: every map with its scores, by rank.
        failures: maps that could not be made.
        step: pixels per step of the two curves.
        rooms: how much of the class each fill removes; empty where the maps were judged by the main fills alone.
        region: which pixels of the model's input the target lies in, bool, (height, width); None for a class.
        inputs: what the model was given as pixels, uint8, (height, width, 3): "seen", and "insertion" and "deletion",
            which are what the two metrics put in place of pixels that are removed.
    """

    name: str
    view: View
    target: ClassScore
    top: tuple[ClassScore, ...]
    maps: tuple[ScoredMap, ...]
    failures: tuple[Failure, ...]
    step: int
    rooms: tuple[FillRoom, ...] = ()
    region: NDArray[np.bool_] | None = None
    inputs: Mapping[str, NDArray[np.uint8]] = field(default_factory=dict)

    @cached_property
    def verdict(self) -> Verdict:
        """Which map to believe, if any, and why."""
        return verdict(self.maps, self.rooms)

    def target_json(self) -> dict[str, Any]:
        """Return what was explained, as plain data."""
        return {"target": self.target.index, "label": self.target.label, "probability": self.target.probability}

    def json(self) -> dict[str, Any]:
        """Return all that is known of the image, as plain data."""
        return {
            **self.target_json(),
            "top": [each.json() for each in self.top],
            "metric_step": self.step,
            "verdict": self.verdict.sentence,
            "best": self.verdict.best,
            "withheld": self.verdict.withheld,
            "fills": {each.fill: {"filled": each.filled, "room": each.room} for each in self.rooms},
            "maps": [scored.json() for scored in self.maps],
        }


# ---- the verdict -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Verdict:
    """What the ranking of one image says.

    Attributes:
        headline: in one line.
        reason: in a sentence or a few.
        badge: a few words for the first map.
        best: the recipe to believe, None where no map should be.
        withheld: why no map is named although a method comes first: "contested" where the fills disagree, "no room"
            where most of them leave the class recognisable; empty otherwise.
    """

    headline: str
    reason: str
    badge: str = ""
    best: str | None = None
    withheld: str = ""

    @property
    def sentence(self) -> str:
        """The headline and its reason."""
        return f"{self.headline}. {self.reason}"


def verdict(maps: Sequence[ScoredMap], rooms: Sequence[FillRoom] = ()) -> Verdict:
    """Say which map comes first on this image, how that was judged, and how far it can be believed."""
    scored = sorted((each for each in maps if each.rank is not None), key=lambda each: each.rank or 0)
    if not scored:
        return Verdict("These maps were not scored", "Without scores on this image no order among them can be trusted.")
    full = [room for room in rooms if not room.room]
    if 2 * len(full) > len(rooms):
        return _no_room(full, len(rooms))
    judged = _judged(full, len(rooms))
    first, methods = scored[0], [each for each in scored if not each.control]
    if first.control:
        best = f" The best method, {methods[0].recipe}, comes in place {methods[0].rank}." if methods else ""
        reason = f"{judged} The control {first.recipe} comes first, and it knows nothing of the model.{best}"
        return Verdict("No method beat the controls on this image", reason, "a control comes first")
    controls = [each for each in scored if each.control]
    against = _lost(first, controls)
    if against and math.isfinite(first.score) and first.score > 0:
        return _contested(first, controls, against, judged)
    reason = f"{judged} {_comparison(first, controls)}"
    believed = math.isfinite(first.score) and first.score > 0
    if not believed:
        reason += " Even so its score is not above zero: trust none of these maps here."
    headline = f"{first.recipe} is the most faithful map here"
    return Verdict(headline, reason, "most faithful on this image", first.recipe if believed else None)


def _judged(full: Sequence[FillRoom], fills: int) -> str:
    """Say how the maps were judged, and which fills were left out."""
    if not fills:
        return f"{_JUDGED}."
    left_out = f" Left out, because the filled image still gives the class that much: {_said(full)}." if full else ""
    return f"{_JUDGED} under {fills - len(full)} fills.{left_out}"


def _no_room(full: Sequence[FillRoom], fills: int) -> Verdict:
    """Withhold the verdict: filled images still show the class."""
    first = max(full, key=lambda room: room.filled or 0.0)
    headline = f"No room: the {_image(first)} already gives the class {_share(first.filled)}"
    reason = (
        f"Under {len(full)} of {fills} fills the filled image keeps more than half of the probability "
        f"{_share(first.clean)} ({_said(full)}), so removing pixels cannot tell good maps from bad ones here."
    )
    return Verdict(headline, reason, NO_ROOM, withheld=NO_ROOM)


def _contested(first: ScoredMap, controls: Sequence[ScoredMap], against: Sequence[str], judged: str) -> Verdict:
    """Withhold the verdict: the first map loses under some of the fills."""
    assert first.fills is not None
    count = len(first.fills.counted)
    opponent = "beats the best control" if controls else "scores above zero"
    reason = (
        f"{judged} {first.recipe} has the highest mean score, {first.score:.2f}, but {opponent} under "
        f"{count - len(against)} of {count} fills only, not under {_listed(against)}."
    )
    return Verdict(f"Contested: the fills disagree about {first.recipe}", reason, CONTESTED, withheld=CONTESTED)


def _lost(first: ScoredMap, controls: Sequence[ScoredMap]) -> list[str]:
    """Return the fills under which a map does not beat the best control, or zero where no control was run."""
    if first.fills is None:
        return []
    means = [each.fills.means for each in controls if each.fills is not None]
    bars = {fill: max((each[fill] for each in means), default=0.0) for fill in first.fills.counted}
    return [fill for fill, bar in bars.items() if not first.fills.means[fill] > bar]


def _comparison(first: ScoredMap, controls: Sequence[ScoredMap]) -> str:
    """Say by how much the first map beats the best control."""
    if not controls:
        return "No control was run, so chance is not ruled out."
    names = ", ".join(each.recipe for each in controls)
    everywhere = "" if first.fills is None else " and is above all of them under every fill"
    lead = f" It leads the best of them by {first.score - controls[0].score:.2f}{everywhere}."
    return f"Controls that know nothing of the model stand beside it for comparison ({names}).{lead}"


def _said(full: Sequence[FillRoom]) -> str:
    return _listed([f"{_name(room.fill)} {_share(room.filled)}" for room in full])


def _image(room: FillRoom) -> str:
    return f"{_IMAGES[room.fill]} image"


def _share(probability: float | None) -> str:
    """Return a probability with two digits and no leading zero, as in .83."""
    return f"{probability or 0.0:.2f}".removeprefix("0")


def _name(fill: str) -> str:
    return fill.replace("_", " ")


def _listed(names: Sequence[str]) -> str:
    *rest, last = map(_name, names)
    return f"{', '.join(rest)} and {last}" if rest else last
