"""Messages between a driver and its workers: plain data and bytes, nothing that runs when it is read."""

from __future__ import annotations

import json
from typing import Any

from sightline import errors
from sightline.errors import SightlineError

__all__ = ["error_of", "pack", "pack_error", "unpack"]

WORD = 8  # bytes of a length


def pack(head: dict[str, Any], *blobs: bytes) -> bytes:
    """Put plain data and some bytes into one message."""
    parts = [json.dumps(head).encode(), *blobs]
    lengths = b"".join(len(part).to_bytes(WORD, "big") for part in parts)
    return b"".join([len(parts).to_bytes(WORD, "big"), lengths, *parts])


def unpack(message: bytes) -> tuple[dict[str, Any], list[bytes]]:
    """Return the plain data and the bytes of a message."""
    count = int.from_bytes(message[:WORD], "big")
    start = WORD * (count + 1)
    parts = []
    for index in range(1, count + 1):
        length = int.from_bytes(message[WORD * index : WORD * (index + 1)], "big")
        parts.append(message[start : start + length])
        start += length
    return json.loads(parts[0]), parts[1:]


def pack_error(error: Exception) -> dict[str, Any]:
    """Return an error as plain data."""
    return {"kind": "error", "type": type(error).__name__, "text": str(error)}


def error_of(head: dict[str, Any]) -> Exception:
    """Return the error that `pack_error` was given: one of ours as it was, any other in words."""
    ours = getattr(errors, head["type"], None)
    if isinstance(ours, type) and issubclass(ours, SightlineError):
        return ours(head["text"])
    return SightlineError(f"a worker failed: {head['type']}: {head['text']}")
