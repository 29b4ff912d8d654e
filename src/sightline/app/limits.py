"""Limits of the server: what one visitor, one picture and one job may cost."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Limits"]


@dataclass(frozen=True, slots=True)
class Limits:
    """What the server accepts and keeps.

    Attributes:
        upload_bytes: of one uploaded file.
        pixels: of one uploaded picture, read from its header before it is decoded.
        side: pixels of the longer side of a picture as it is kept; a larger one is reduced.
        pictures: kept for a visitor; an upload beyond that replaces the oldest.
        visitors: known at a time; the one who was away longest is forgotten first.
        unfinished: jobs of a visitor that wait or run.
        finished: jobs of a visitor that are kept for looking at.
        waiting: jobs of all visitors that wait for a model or run on it.
        recipes: in one job.
        passes: that one recipe may declare; a backward pass counts as two.
        cached_bytes: of maps that are kept for the next who asks for the same.
        grace: seconds after which a job is cancelled that nobody listens to any more.
    """

    upload_bytes: int = 20_000_000
    pixels: int = 50_000_000
    side: int = 1600
    pictures: int = 8
    visitors: int = 100
    unfinished: int = 4
    finished: int = 6
    waiting: int = 64
    recipes: int = 24
    passes: float = 600.0
    cached_bytes: int = 200_000_000
    grace: float = 5.0
