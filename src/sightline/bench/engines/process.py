"""A worker process of the local engine: it does what it is told, and ends when nobody is left to tell it.

It is started as ``python -m sightline.bench.engines.process DESCRIPTOR SETTING`` with its end of a connection.
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

from sightline.bench.engines.messages import pack, tell_error, unpack
from sightline.bench.unit import Setting, Unit

__all__ = ["main"]


def main(descriptor: int, setting: Setting) -> None:
    """Serve until the driver hangs up."""
    connection = Connection(descriptor)
    orders: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(connection, orders), daemon=True).start()
    warnings.simplefilter("ignore")  # what matters is in the rows

    from sightline.bench.work import Worker  # torch, after the listener: a driver that is gone is noticed meanwhile

    worker = Worker(setting)
    with suppress(BrokenPipeError):  # the driver has hung up
        connection.send_bytes(pack({"kind": "ready"}))
        while True:
            head, blobs = answer(worker, *unpack(orders.get()))
            connection.send_bytes(pack(head, *blobs))


def _listen(connection: Connection, orders: queue.SimpleQueue[bytes]) -> None:
    """Take orders; when the driver is gone, end at once, even in the middle of a unit."""
    while True:
        try:
            orders.put(connection.recv_bytes())
        except (EOFError, OSError):
            os._exit(0)


def answer(worker: Any, order: dict[str, Any], _: list[bytes]) -> tuple[dict[str, Any], list[bytes]]:
    """Do what an order says."""
    if order["kind"] == "describe":
        try:
            found = worker.describe(order["model"], order["recipes"], order["metrics"])
        except Exception as error:
            return tell_error(error), []
        return {"kind": "described", **found.json()}, []
    result = worker.work(Unit.of(order["unit"]))
    return {"kind": "done", "key": result.key}, [result.rows, *([] if result.maps is None else [result.maps])]


if __name__ == "__main__":
    main(int(sys.argv[1]), Setting.of(json.loads(sys.argv[2])))
