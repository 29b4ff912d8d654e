"""Download weights from model hubs, or report within seconds that a hub cannot be reached.

The hubs' own clients download, and find what is cached without a network. Without one they retry for most of a minute,
so they are switched to offline mode beforehand when the hub does not respond.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, TypeVar
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from sightline.errors import SightlineError, UnsupportedModel, WeightsError
from sightline.extras import require

T = TypeVar("T")
RANDOM = ", or pretrained=False for random weights"
TIMEOUT = 8.0  # seconds to wait for a host


def reachable(url: str, seconds: float = TIMEOUT) -> bool:
    """Tell whether the host of an address, or the proxy on the way to it, accepts a connection."""
    connected: list[bool] = []
    # looking a name up cannot be given a time limit, so a thread does it, and is waited for no longer than that
    thread = threading.Thread(target=lambda: connected.append(_connects(_first_host(url), seconds)), daemon=True)
    thread.start()
    thread.join(seconds)
    return bool(connected and connected[0])


def _first_host(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    proxy = getproxies().get(parts.scheme)
    if proxy and not proxy_bypass(parts.hostname or ""):
        parts = urlsplit(proxy if "//" in proxy else f"//{proxy}")
    return parts.hostname or "", parts.port or (80 if parts.scheme == "http" else 443)


def _connects(address: tuple[str, int], seconds: float) -> bool:
    try:
        socket.create_connection(address, timeout=seconds).close()
    except OSError:
        return False
    return True


def fetched(model_id: str, url: str, build: Callable[[], T], *, instead: str, kept: bool = True) -> T:
    """Build a model whose weights come from a hub, and turn whatever goes wrong into one sentence.

    Args:
        model_id: what the user asked for.
        url: an address on the hub.
        build: builds the model; may download, or find everything in the hub's cache.
        instead: what to write without a network.
        kept: False when it is certain that the cache does not hold the weights.
    """
    online = reachable(url)
    unavailable = (
        f"the weights of {model_id} are not on this machine and {urlsplit(url).hostname} cannot be reached; "
        f"give a local copy as {instead}"
    )
    if not online and not kept:
        raise WeightsError(unavailable)
    try:
        with nullcontext() if online else _offline():
            return build()
    except SightlineError:
        raise
    except TypeError as error:
        raise UnsupportedModel(f"{model_id} cannot be built this way: {_first_line(error)}") from error
    except Exception as error:
        failed = f"the weights of {model_id} cannot be loaded: {_first_line(error)}"
        raise WeightsError(failed if online else unavailable) from error


def built(model_id: str, build: Callable[[], T]) -> T:
    """Build a model that needs nothing from a hub."""
    try:
        return build()
    except SightlineError:
        raise
    except (TypeError, ValueError, RuntimeError, AssertionError, OSError) as error:
        raise UnsupportedModel(f"{model_id} cannot be built this way: {_first_line(error)}") from error


def huggingface() -> str:
    """Return the address of the Hugging Face hub, or of the mirror that is set in its place."""
    return str(require("huggingface_hub.constants").ENDPOINT)


@contextmanager
def _offline() -> Iterator[None]:
    """Let the Hugging Face client use its cache only, and silence the libraries' logging."""
    constants: Any = require("huggingface_hub.constants")
    offline, disabled = constants.HF_HUB_OFFLINE, logging.root.manager.disable
    try:
        constants.HF_HUB_OFFLINE = True
        logging.disable(logging.CRITICAL)
        yield
    finally:
        constants.HF_HUB_OFFLINE = offline
        logging.disable(disabled)


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).split("\n", 1)[0].rstrip(".")
