"""What a running server holds, and how a route reaches it for the visitor who asks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from fastapi import Depends, HTTPException, Request, Response

from sightline.app.jobs import Job, Queues
from sightline.app.limits import Limits
from sightline.app.maps import MapCache
from sightline.app.models import Models
from sightline.app.visitors import COOKIE, Visitor, Visitors

__all__ = ["JobOfVisitor", "KnownVisitor", "ServerState", "Visiting", "WithState"]

WEEK = 7 * 24 * 3600


@dataclass(eq=False)
class ServerState:
    """What a running server holds; `keep` is a folder for finished jobs, None to keep nothing."""

    limits: Limits
    models: Models
    visitors: Visitors
    queues: Queues
    cache: MapCache
    keep: Path | None = None


def _state(request: Request) -> ServerState:
    state: ServerState = request.app.state.server
    return state


WithState = Annotated[ServerState, Depends(_state)]


def _known(request: Request, state: WithState) -> Visitor:
    """Return the visitor; one who is not known yet has nothing, and is not remembered either."""
    return state.visitors.find(request.cookies.get(COOKIE)) or Visitor("")


KnownVisitor = Annotated[Visitor, Depends(_known)]


def _visiting(request: Request, response: Response, state: WithState) -> Visitor:
    """Return the visitor, who from now on is known by a cookie."""
    visitor = state.visitors.find(request.cookies.get(COOKIE))
    if visitor is None:
        visitor = state.visitors.admit()
        response.set_cookie(COOKIE, visitor.name, httponly=True, samesite="strict", max_age=WEEK)
    return visitor


Visiting = Annotated[Visitor, Depends(_visiting)]


def _job(job: str, visitor: KnownVisitor) -> Job:
    """Return a job of the visitor's own; another's is as unknown as one that never was."""
    found = visitor.jobs.get(job)
    if found is None:
        raise HTTPException(404, "there is no such job among yours; it may have ended long ago, so ask again")
    return found


JobOfVisitor = Annotated[Job, Depends(_job)]
