"""What the ranking of an image is worth: which map to believe, if any, and why."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from sightline.audit.scored_map import ScoredMap

__all__ = ["Verdict", "verdict"]

_JUDGED = "Judged by insertion \N{MINUS SIGN} deletion, measured on this very image."


@dataclass(frozen=True)
class Verdict:
    """What the ranking of one image says.

    Attributes:
        headline: in one line.
        reason: in a sentence or a few.
        badge: a few words for the first map.
        best: the recipe to believe, None where no map should be.
    """

    headline: str
    reason: str
    badge: str = ""
    best: str | None = None

    @property
    def sentence(self) -> str:
        """The headline and its reason."""
        return f"{self.headline}. {self.reason}"


def verdict(maps: Sequence[ScoredMap]) -> Verdict:
    """Say which map comes first on this image, how that was judged, and how far it can be believed."""
    scored = sorted((each for each in maps if each.rank is not None), key=lambda each: each.rank or 0)
    if not scored:
        return Verdict("These maps were not scored", "Without scores on this image no order among them can be trusted.")
    first, methods = scored[0], [each for each in scored if not each.control]
    if first.control:
        best = f" The best method, {methods[0].recipe}, comes in place {methods[0].rank}." if methods else ""
        reason = f"{_JUDGED} The control {first.recipe} comes first, and it knows nothing of the model.{best}"
        return Verdict("No method beat the controls on this image", reason, "a control comes first")
    reason = f"{_JUDGED} {_comparison(first, [each for each in scored if each.control])}"
    believed = math.isfinite(first.ins_del) and first.ins_del > 0
    if not believed:
        reason += " Even so its score is not above zero: trust none of these maps here."
    headline = f"{first.recipe} is the most faithful map here"
    return Verdict(headline, reason, "most faithful on this image", first.recipe if believed else None)


def _comparison(first: ScoredMap, controls: Sequence[ScoredMap]) -> str:
    """Say by how much the first map beats the best control."""
    if not controls:
        return "No control was run, so chance is not ruled out."
    names = ", ".join(each.recipe for each in controls)
    lead = f" It leads the best of them by {first.ins_del - controls[0].ins_del:.2f}."
    return f"Controls that know nothing of the model stand beside it for comparison ({names}).{lead}"
