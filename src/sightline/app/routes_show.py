"""Routes that show and hand out: the values of maps, pictures, files to keep, and cards."""

from __future__ import annotations

import json
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, HTTPException, Query, Response
from fastapi import Path as InPath

from sightline.app.jobs import Job
from sightline.app.keep import page_of, result_of
from sightline.app.maps import KeptMap
from sightline.app.pictures import png
from sightline.app.routes_ask import REFUSED
from sightline.app.snippets import command_of, python_of
from sightline.app.state import JobOfVisitor
from sightline.catalogue.cards import card
from sightline.report.figure import DIVERGING

__all__ = ["routes"]

routes = APIRouter(prefix="/api", responses=REFUSED)
MapIndex = Annotated[int, InPath(ge=0, le=1000, description="The map's position in the job.")]


@routes.get("/jobs/{job}/pictures/{which}", tags=["maps"], response_class=Response)
def show_input(job: JobOfVisitor, which: Literal["seen", "insertion", "deletion"]) -> Response:
    """Return what the model saw, or what pixels become that insertion or deletion removes, as a PNG file."""
    if which not in job.fills:
        raise HTTPException(404, "the job has not come that far yet")
    return Response(job.fills[which], media_type="image/png")


@routes.get("/jobs/{job}/labels", tags=["maps"], response_class=Response)
def show_labels(job: JobOfVisitor) -> Response:
    """Return the label that a segmentation gives each cell: 16-bit integers, row by row, little-endian; -1 for none."""
    if job.labels is None:
        raise HTTPException(404, "the job has no labels of cells; they belong to a segmentation")
    return Response(job.labels.astype("<i2").tobytes(), media_type="application/octet-stream")


@routes.get("/jobs/{job}/maps/{index}/values", tags=["maps"], response_class=Response)
def show_values(
    job: JobOfVisitor,
    index: MapIndex,
    layer: Annotated[
        int | None, Query(ge=0, le=10000, description="A layer by position; the own map if left out.")
    ] = None,
    share: Annotated[int | None, Query(ge=0, le=1000, description="The share of a class of a `var`, instead.")] = None,
) -> Response:
    """Return a map at the size of the model's input: signed, unscaled 32-bit floats, row by row, little-endian."""
    kept = _map(job, index)
    if layer is not None and layer >= len(kept.attribution.layers):
        raise HTTPException(404, f"the map has {len(kept.attribution.layers)} layers; leave `layer` out for its own")
    if share is not None and (kept.shares is None or share >= len(kept.shares[0])):
        raise HTTPException(404, "the map has no share of this class; it belongs to a contrast by var")
    values = kept.pixels(layer) if share is None or kept.shares is None else kept.shares[1][share]
    return Response(np.ascontiguousarray(values, dtype="<f4").tobytes(), media_type="application/octet-stream")


@routes.get("/jobs/{job}/maps/{index}/overlay.png", tags=["maps"], response_class=Response)
def show_overlay(job: JobOfVisitor, index: MapIndex) -> Response:
    """Return the map over what the model saw, with its colour scale, as a PNG file."""
    return _file(png(_map(job, index).attribution.overlay()), "image/png", "overlay.png")


@routes.get("/jobs/{job}/maps/{index}/map.safetensors", tags=["maps"], response_class=Response)
def show_safetensors(job: JobOfVisitor, index: MapIndex) -> Response:
    """Return the attribution with all its layers; `sightline.Attribution.load` reads it."""
    with tempfile.TemporaryDirectory() as folder:
        data = _map(job, index).attribution.save(Path(folder) / "map.safetensors").read_bytes()
    return _file(data, "application/octet-stream", "map.safetensors")


@routes.get("/jobs/{job}/maps/{index}/snippets", tags=["maps"])
def show_snippets(job: JobOfVisitor, index: MapIndex) -> dict[str, str]:
    """Return the Python lines and the command that make this map."""
    recipe = _map(job, index).attribution.recipe
    return {"python": python_of(job.question, recipe), "command": command_of(job.question, recipe)}


@routes.get("/jobs/{job}/result.json", tags=["jobs"], response_class=Response)
def show_result(job: JobOfVisitor) -> Response:
    """Return everything but the pictures of a job that is done."""
    return _file(json.dumps(result_of(_done(job)), indent=2).encode(), "application/json", "result.json")


@routes.get("/jobs/{job}/page.html", tags=["jobs"], response_class=Response)
def show_page(job: JobOfVisitor) -> Response:
    """Return the ranked panel of a job that is done as one file that needs nothing else."""
    return _file(page_of(_done(job)), "text/html", "page.html")


@routes.get("/cards/{name}", tags=["cards"])
def show_card(name: Annotated[str, InPath(max_length=100)]) -> dict[str, Any]:
    """Return the card of a method, operator or metric: formula, options, cost, citation, parity."""
    return asdict(card(name))


@routes.get("/colours", tags=["cards"])
def show_colours() -> list[list[int]]:
    """Return the 256 colours of signed values; the middle, number 128, is zero."""
    colours: list[list[int]] = DIVERGING.table.tolist()
    return colours


def _map(job: Job, index: int) -> KeptMap:
    if index >= len(job.maps):
        raise HTTPException(404, f"the job has {len(job.maps)} maps so far")
    return job.maps[index]


def _done(job: Job) -> Job:
    if job.state != "done":
        raise HTTPException(404, f"the job is {job.state}; wait for its end")
    return job


def _file(data: bytes, kind: str, name: str) -> Response:
    return Response(data, media_type=kind, headers={"Content-Disposition": f'attachment; filename="{name}"'})
