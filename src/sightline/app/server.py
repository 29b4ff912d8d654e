"""The server: the JSON API, the page, and how it is started."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException
from starlette.middleware.base import BaseHTTPMiddleware

from sightline import __version__, report
from sightline.allocator import keep_freed_memory
from sightline.app import routes_ask, routes_show
from sightline.app.jobs import Busy, Queues
from sightline.app.limits import Limits
from sightline.app.maps import MapCache
from sightline.app.models import Models, found_models
from sightline.app.pictures import TooLarge
from sightline.app.security import LOOPBACK, Guard
from sightline.app.state import ServerState
from sightline.app.visitors import Visitors
from sightline.errors import InputError, SightlineError
from sightline.models.adapter import Adapter

__all__ = ["create_app", "load_first_model", "serve"]

STATIC = Path(__file__).parent / "static"
SHARED = Path(report.__file__).parent / "scripts"  # what the page draws with, and the notebook widget too
ABOUT = (
    "Maps of what a vision model looked at, ranked by what was measured on the picture. Keep the cookie of the first "
    "answer: it names the visitor, who sees their own pictures and jobs alone."
)


def create_app(
    models: Sequence[str] | Mapping[str, Adapter] = (),
    *,
    limits: Limits | None = None,
    hosts: tuple[str, ...] | None = LOOPBACK,
    token: str | None = None,
    keep: Path | None = None,
) -> FastAPI:
    """Return the application.

    Args:
        models: ids, the one to open the page with first; those found on the machine follow. Or loaded models by id,
            which then are the only ones.
        limits: what the server accepts and keeps.
        hosts: names that the server may be called by; None for any, which needs a token.
        token: what a visitor must know.
        keep: a folder for what is done; None keeps nothing after the process ends.
    """
    if hosts is None and not token:
        raise InputError("a server that other machines can reach needs a token; give one")
    limits = Limits() if limits is None else limits
    given = models if isinstance(models, Mapping) else {}
    ids = [] if given else [*models, *found_models()]
    state = ServerState(
        limits,
        Models(ids, limits, given),
        Visitors(limits),
        Queues(limits.waiting),
        MapCache(limits.cached_bytes),
        keep,
    )
    app = FastAPI(
        title="sightline", version=__version__, description=ABOUT, lifespan=_lifespan,
        openapi_url="/api/openapi.json", docs_url=None, redoc_url=None,
    )  # fmt: skip
    app.state.server = state
    app.include_router(routes_ask.routes)
    app.include_router(routes_show.routes)
    app.add_middleware(BaseHTTPMiddleware, dispatch=Guard(hosts, token))
    for kind, handler in ((SightlineError, _refused), (RequestValidationError, _invalid), (HTTPException, _http)):
        app.add_exception_handler(kind, handler)
    app.get("/", include_in_schema=False)(_page)
    app.mount("/static/shared", StaticFiles(directory=SHARED), name="shared")
    app.mount("/static", StaticFiles(directory=STATIC), name="static")
    return app


def load_first_model(app: FastAPI) -> None:
    """Load the model that the page opens with, so that the first visit does not wait for it."""
    models: Models = app.state.server.models
    models.offers(models.ids[0])


def serve(app: FastAPI, host: str, port: int) -> None:
    """Answer requests until the process is told to stop."""
    keep_freed_memory()
    uvicorn.run(app, host=host, port=port, log_level="warning", server_header=False, timeout_graceful_shutdown=2)


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    yield
    app.state.server.queues.close()


def _page() -> FileResponse:
    return FileResponse(STATIC / "index.html")


def _refused(request: Request, error: Any) -> JSONResponse:
    status = 413 if isinstance(error, TooLarge) else 503 if isinstance(error, Busy) else 422
    headers = {"Retry-After": "20"} if status == 503 else None
    return JSONResponse({"error": str(error)}, status_code=status, headers=headers)


def _invalid(request: Request, error: Any) -> JSONResponse:
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"] if part not in ("body", "query", "path"))
    return JSONResponse({"error": f"{where or 'the request'}: {first['msg']}"}, status_code=422)


def _http(request: Request, error: Any) -> JSONResponse:
    return JSONResponse({"error": str(error.detail)}, status_code=error.status_code, headers=error.headers)
