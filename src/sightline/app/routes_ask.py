"""Routes that ask: models, samples, pictures, jobs and their events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import StreamingResponse

from sightline.app.jobs import Busy, Job
from sightline.app.keep import keep_job
from sightline.app.pictures import Picture, TooLarge, read_upload, samples
from sightline.app.question import Question
from sightline.app.schemas import ClassFound, Error, JobAsked, JobShown, ModelShown, OfferShown, PictureShown
from sightline.app.snippets import command_of, python_of
from sightline.app.state import JobOfVisitor, KnownVisitor, ServerState, Visiting, WithState
from sightline.app.visitors import Visitor
from sightline.app.work import answer
from sightline.errors import InputError
from sightline.models.adapter import Adapter
from sightline.models.tasks.reading import NEEDED as TASKS
from sightline.models.vision_language.adapter import VisionLanguage

__all__ = ["routes"]

REFUSED: dict[int | str, dict[str, Any]] = {
    code: {"model": Error} for code in (400, 401, 403, 404, 413, 421, 422, 429, 503)
}
PAUSE = 0.04  # seconds between two looks at a job's events
HEARTBEAT = 10.0  # seconds after which something is sent even if nothing happened
FOUND = 20  # classes in one answer

routes = APIRouter(prefix="/api", responses=REFUSED)
ModelId = Annotated[str, Query(max_length=200, description="One of the server's model ids.")]


@routes.get("/models", tags=["models"])
def list_models(state: WithState) -> list[str]:
    """List the models of this server, the first being the one the page opens with."""
    return state.models.ids


@routes.get("/model", tags=["models"])
def describe_model(model: ModelId, state: WithState) -> ModelShown:
    """Describe a model and the recipes that it can be explained with here; the first time this loads it."""
    adapter = state.models.load(model)
    return ModelShown(
        id=model,
        name=adapter.name,
        output=adapter.output,
        classes=adapter.num_classes,
        takes_text=type(adapter).encode_text is not Adapter.encode_text and adapter.declared_output == "embedding",
        prompt=adapter.prompt if isinstance(adapter, VisionLanguage) else None,
        sample=_suited(model),
        recipes=[OfferShown.of(offer) for offer in state.models.offers(model)],
    )


@routes.get("/classes", tags=["models"])
def find_classes(
    model: ModelId, state: WithState, query: Annotated[str, Query(max_length=100, description="Part of a label.")] = ""
) -> list[ClassFound]:
    """Find classes of a model by their number or a part of their label."""
    adapter = state.models.load(model)
    labels = [adapter.label(index) for index in range(adapter.num_classes or 0)]
    wanted = query.casefold().strip()
    found = [
        ClassFound(index=index, label=label)
        for index, label in enumerate(labels)
        if wanted in label.casefold() or wanted == str(index)
    ]
    return found[:FOUND]


@routes.get("/samples", tags=["pictures"])
def list_samples() -> list[PictureShown]:
    """List the pictures that are there without an upload."""
    return [PictureShown.of(picture) for picture in samples().values()]


@routes.get("/pictures", tags=["pictures"])
def list_pictures(visitor: KnownVisitor) -> list[PictureShown]:
    """List the pictures that this visitor uploaded."""
    return [PictureShown.of(picture) for picture in visitor.pictures.values()]


@routes.post(
    "/pictures",
    tags=["pictures"],
    status_code=201,
    openapi_extra={
        "requestBody": {"required": True, "content": {"image/*": {"schema": {"type": "string", "format": "binary"}}}}
    },
)
async def upload_picture(
    request: Request,
    state: WithState,
    visitor: Visiting,
    name: Annotated[str, Query(max_length=300, description="The file's name.")] = "picture.png",
) -> PictureShown:
    """Take the bytes of an image file as the request's body; its pixels are encoded anew, nothing else is kept."""
    data = await _body(request, state.limits.upload_bytes)
    picture = await run_in_threadpool(read_upload, data, name, state.limits)
    visitor.keep_picture(picture, state.limits)
    return PictureShown.of(picture)


@routes.get("/pictures/{picture}", tags=["pictures"], response_class=Response)
def show_picture(picture: str, visitor: KnownVisitor) -> Response:
    """Return a sample, or a picture of this visitor's own, as a PNG file."""
    return Response(_picture(visitor, picture).data, media_type="image/png")


@routes.delete("/pictures/{picture}", tags=["pictures"], status_code=204)
def forget_picture(picture: str, visitor: KnownVisitor) -> None:
    """Forget a picture of this visitor's own."""
    if visitor.pictures.pop(picture, None) is None:
        raise HTTPException(404, "there is no such picture among yours")


@routes.post("/jobs", tags=["jobs"], status_code=202)
def start_job(asked: JobAsked, state: WithState, visitor: Visiting) -> JobShown:
    """Ask for maps of a picture; they come one by one, see the job's events."""
    if visitor.unfinished >= state.limits.unfinished:
        raise Busy(f"{visitor.unfinished} of your jobs have not ended; wait for one, or cancel it")
    question = _question(asked, state, visitor)
    job = Job(question, partial(_work, question, state))
    state.queues.of(question.model).add(visitor.name, job)
    visitor.keep_job(job, state.limits)
    return _shown(job)


@routes.get("/jobs/{job}", tags=["jobs"])
def show_job(job: JobOfVisitor) -> JobShown:
    """Return a job and what has come of it so far."""
    return _shown(job)


@routes.delete("/jobs/{job}", tags=["jobs"], status_code=202)
def cancel_job(job: JobOfVisitor) -> JobShown:
    """Cancel a job; what has come of it so far stays."""
    job.cancel()
    return _shown(job)


@routes.get("/jobs/{job}/events", tags=["jobs"], response_class=StreamingResponse)
async def follow_job(job: JobOfVisitor, request: Request, state: WithState) -> StreamingResponse:
    """Send what happens as server-sent events, from the start or after Last-Event-ID.

    They are state, image, map, progress, failure, verdict, end; the data of each is JSON. A job that nobody follows
    any more is cancelled after a few seconds.
    """
    last = request.headers.get("last-event-id", "")
    first = int(last) + 1 if last.isascii() and last.isdigit() and len(last) < 9 else 0
    return StreamingResponse(_events(job, first, state.limits.grace), media_type="text/event-stream")


# ---- what the routes do ---------------------------------------------------------------------------------------------


def _shown(job: Job) -> JobShown:
    return JobShown.of(job, python_of(job.question), command_of(job.question))


def _work(question: Question, state: ServerState, job: Job) -> Iterator[None]:
    yield from answer(question, state.models, state.cache, job)
    if state.keep is not None:
        keep_job(job, state.keep)


def _suited(model: str) -> str:
    """Return the sample to begin with: a shape for the bundled models, a photograph for others where there is one."""
    kind = "shapes" if model.startswith("bundled/") else "photograph"
    return next((name for name, picture in samples().items() if picture.kind == kind), next(iter(samples())))


def _picture(visitor: Visitor, identifier: str) -> Picture:
    picture = visitor.picture(identifier)
    if picture is None:
        raise HTTPException(404, "there is no such picture among yours; upload it again")
    return picture


def _question(asked: JobAsked, state: ServerState, visitor: Visitor) -> Question:
    """Turn what came from the page into a question, every part of it checked against the server's own lists."""
    picture = _picture(visitor, asked.picture)
    recipes = state.models.check_recipes(state.models.check(asked.model), asked.recipes)
    model = state.models.load(asked.model)
    classes = model.num_classes
    contrast, other = (asked.contrast.kind, asked.contrast.other) if asked.contrast else (None, None)
    for index in (asked.target, other):
        if index is not None and classes is not None and index >= classes:
            raise InputError(f"got class {index}; {asked.model} has classes 0 to {classes - 1}")
    if contrast and asked.text:
        raise InputError("got a text and a contrast between classes; give one of them")
    if asked.box is not None and model.declared_output != "boxes":
        raise InputError(f"got a detection as the target, and {asked.model} is no detector; give a class")
    if contrast and model.declared_output in TASKS:
        raise InputError(f"got a contrast between classes, and {asked.model} has no class for a whole picture")
    if asked.prompt and not isinstance(model, VisionLanguage):
        raise InputError(f"got a question, and {asked.model} answers none; leave the prompt out")
    return Question(
        asked.model, picture, recipes, asked.target, asked.text, contrast, other, asked.box, asked.fills,
        asked.prompt.strip(),
    )  # fmt: skip


async def _body(request: Request, limit: int) -> bytes:
    """Read the request's body, and stop as soon as it is too long."""
    data = bytearray()
    async for chunk in request.stream():
        data += chunk
        if len(data) > limit:
            raise TooLarge(f"got more than {limit} bytes; give a smaller file")
    return bytes(data)


async def _events(job: Job, position: int, grace: float) -> AsyncIterator[str]:
    """Yield the events of a job as they come; note when nobody is left to hear them."""
    job.listeners += 1
    quiet = 0.0
    try:
        while True:
            ended = job.ended  # read first: what happens in between is then sent in the next round
            for kind, data in job.events[position:]:
                yield f"id: {position}\nevent: {kind}\ndata: {json.dumps(data)}\n\n"
                position, quiet = position + 1, 0.0
            if ended:
                return
            await asyncio.sleep(PAUSE)
            quiet += PAUSE
            if quiet >= HEARTBEAT:
                yield ": still here\n\n"
                quiet = 0.0
    finally:
        job.listeners -= 1
        if not job.ended:
            asyncio.get_running_loop().call_later(grace, _abandoned, job)


def _abandoned(job: Job) -> None:
    if job.listeners == 0:
        job.cancel()
