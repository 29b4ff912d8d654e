"""A worker process of the local engine: it computes the tasks it is sent, and ends when its driver is gone.

It is started as ``python -m sightline.bench.engines.process DESCRIPTOR CONFIG`` with its end of a connection.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import warnings
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from sightline.allocator import keep_freed_memory
from sightline.bench.engines.messages import pack, pack_error, unpack
from sightline.bench.unit import RunConfig, Unit

__all__ = ["handle_task", "main"]


def main(descriptor: int, config: RunConfig) -> None:
    """Compute tasks until the driver hangs up."""
    connection = Connection(descriptor)
    tasks: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(connection, tasks), daemon=True).start()
    keep_freed_memory()
    warnings.simplefilter("ignore")  # what matters is in the rows

    from sightline.bench.worker import Worker  # torch, after the listener: a driver that is gone is noticed meanwhile

    worker = Worker(config)
    with suppress(BrokenPipeError):  # the driver is gone
        connection.send_bytes(pack({"kind": "ready"}))
        while True:
            head, blobs = handle_task(worker, *unpack(tasks.get()))
            connection.send_bytes(pack(head, *blobs))


def _listen(connection: Connection, tasks: queue.SimpleQueue[bytes]) -> None:
    """Receive tasks; when the driver is gone, end at once, even in the middle of a unit."""
    while True:
        try:
            tasks.put(connection.recv_bytes())
        except (EOFError, OSError):
            os._exit(0)


def handle_task(worker: Any, task: dict[str, Any], _: list[bytes]) -> tuple[dict[str, Any], list[bytes]]:
    """Compute what a task asks for, and return the reply."""
    if task["kind"] == "describe":
        try:
            info = worker.describe(task["model"], task["recipes"], task["metrics"])
        except Exception as error:
            return pack_error(error), []
        return {"kind": "described", **info.to_json()}, []
    result = worker.compute(Unit.from_json(task["unit"]))
    return {"kind": "done", "key": result.key}, [result.rows, *([] if result.maps is None else [result.maps])]


if __name__ == "__main__":
    main(int(sys.argv[1]), RunConfig.from_json(json.loads(sys.argv[2])))
