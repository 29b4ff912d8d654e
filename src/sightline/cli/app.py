"""``sightline app``: the web page."""

from __future__ import annotations

import secrets
import threading
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from sightline.cli import console
from sightline.cli.options import Models

__all__ = ["app"]

LOOPBACK = "127.0.0.1"


def app(
    model: Models = None,
    port: Annotated[int, typer.Option(metavar="N", min=1, max=65535, help="The port to listen on.")] = 8000,
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="The address to listen on; other than loopback needs --token.")
    ] = LOOPBACK,
    token: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="What visitors must know; 'random' makes one.", show_default=False),
    ] = None,
    open_page: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    keep: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write pages of what is done there; nothing is kept otherwise.")
    ] = None,
) -> None:
    """Start the web page: drop in a picture, see which maps of it can be believed, compare classes, methods, models."""
    from sightline.extras import check_installed

    check_installed("fastapi", "uvicorn")
    from sightline.app.security import LOOPBACK as NAMES
    from sightline.app.server import create_app, load_first_model, serve

    local = host in NAMES
    if not local and not token:
        raise typer.BadParameter(f"{host} can be reached from other machines; give --token too, or --token random")
    token = secrets.token_urlsafe(16) if token == "random" else token
    application = create_app(model or [], hosts=NAMES if local else None, token=token, keep=keep)
    with console.waiting("loading the first model"):
        load_first_model(application)
    address = f"http://{'localhost' if host == '::1' else host}:{port}/" + (f"?token={token}" if token else "")
    console.note(f"open {address} in a browser; Ctrl-C stops the server")
    if open_page:
        threading.Timer(1.0, webbrowser.open, [address]).start()
    serve(application, host, port)
