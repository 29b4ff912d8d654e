"""Visitors: each has a random name in a cookie, and sees the pictures and jobs that are their own."""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict
from dataclasses import dataclass, field

from sightline.app.jobs import Job
from sightline.app.limits import Limits
from sightline.app.pictures import Picture, samples

__all__ = ["COOKIE", "Visitor", "Visitors"]

COOKIE = "sightline_visitor"


@dataclass(eq=False)
class Visitor:
    """Somebody who uses the page.

    Attributes:
        name: random; only the visitor's browser and the server know it.
        pictures: uploaded, by identifier, the oldest first.
        jobs: asked for, by identifier, the oldest first.
    """

    name: str
    pictures: OrderedDict[str, Picture] = field(default_factory=OrderedDict)
    jobs: OrderedDict[str, Job] = field(default_factory=OrderedDict)

    def keep_picture(self, picture: Picture, limits: Limits) -> None:
        """Keep an upload; the oldest goes where there are too many."""
        self.pictures[picture.identifier] = picture
        while len(self.pictures) > limits.pictures:
            self.pictures.popitem(last=False)

    def picture(self, identifier: str) -> Picture | None:
        """Return a sample, or a picture of this visitor's own."""
        return samples().get(identifier) or self.pictures.get(identifier)

    def keep_job(self, job: Job, limits: Limits) -> None:
        """Keep a job; the oldest that has ended goes where there are too many."""
        self.jobs[job.identifier] = job
        ended = [name for name, each in self.jobs.items() if each.ended]
        for name in ended[: max(0, len(ended) - limits.finished)]:
            del self.jobs[name]

    @property
    def unfinished(self) -> int:
        """How many jobs wait or run."""
        return sum(not job.ended for job in list(self.jobs.values()))


class Visitors:
    """All visitors the server knows, at most so many."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._known: OrderedDict[str, Visitor] = OrderedDict()
        self._lock = threading.Lock()

    def find(self, name: str | None) -> Visitor | None:
        """Return the visitor of this name, who now was here last."""
        with self._lock:
            if name is None or name not in self._known:
                return None
            self._known.move_to_end(name)
            return self._known[name]

    def admit(self) -> Visitor:
        """Return a new visitor; the one who was away longest is forgotten, and their jobs are cancelled."""
        visitor = Visitor(secrets.token_urlsafe(24))
        with self._lock:
            self._known[visitor.name] = visitor
            forgotten = [self._known.popitem(last=False)[1] for _ in range(len(self._known) - self.limits.visitors)]
        for gone in forgotten:
            for job in list(gone.jobs.values()):
                job.cancel()
        return visitor

    def __len__(self) -> int:
        return len(self._known)
