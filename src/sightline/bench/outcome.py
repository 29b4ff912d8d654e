"""What a run tells: while it goes on, by a callback; when it has ended, as plain data."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from sightline import __version__
from sightline.bench.running_means import Failure, RunningMeans
from sightline.bench.unit import Manifest, Unit

__all__ = ["Callback", "Outcome"]


class Callback:
    """Told how a run goes, for instance to draw a progress bar. Every method may be left as it is."""

    def planned(self, manifest: Manifest, total: int, todo: int) -> None:
        """Called once, when it is known how many units there are and how many of them are to be computed."""

    def advanced(self, unit: Unit | None, means: RunningMeans) -> None:
        """Called when a unit was computed here, or, with None, when another driver turned out to have done one."""

    def note(self, sentence: str) -> None:
        """Called with something that a user should know."""


@dataclass
class Outcome:
    """What a run has done, as plain data.

    Attributes:
        run: the plan's name.
        store: where its rows are.
        total: units of the plan.
        before: units that were there already, every image scored.
        computed: units computed now.
        failures: images that could not be scored.
        unstored: units that could not be written.
        damaged: files that could not be read and were moved to ``corrupt/``.
        left_out: (model, recipe or metric, reason) of what does not run on a model.
        skipped: (image, reason) of what the data set left out.
        running_means: means over the images so far.
        seconds: that it took.
    """

    run: str
    store: str
    total: int = 0
    before: int = 0
    computed: int = 0
    failures: list[Failure] = field(default_factory=list)
    unstored: list[str] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)
    left_out: list[tuple[str, str, str]] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)
    running_means: RunningMeans = field(default_factory=RunningMeans)
    seconds: float = 0.0

    @property
    def complete(self) -> bool:
        """Whether every unit is stored and every image scored."""
        return not self.failures and not self.unstored

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data; the running means are called ``standings``, as in every version."""
        units = {"total": self.total, "before": self.before, "computed": self.computed, "unstored": len(self.unstored)}
        return {
            "run": self.run,
            "store": self.store,
            "units": units,
            "complete": self.complete,
            "standings": [mean.to_json() for mean in self.running_means.ranked()],
            "failures": [asdict(failure) for failure in self.failures],
            "damaged": self.damaged,
            "left_out": [{"model": model, "recipe": recipe, "reason": why} for model, recipe, why in self.left_out],
            "skipped": [{"image": image, "reason": reason} for image, reason in self.skipped],
            "seconds": self.seconds,
            "version": __version__,
        }
