"""The local engine: long-lived processes on this machine, each with a model warm.

Processes are started afresh, never forked, with their number of threads in the environment before torch is loaded. A
process that dies is noticed by its connection, replaced, and its order given out again.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait

from sightline.bench.engines.engine import TRIES
from sightline.bench.engines.messages import unpack
from sightline.bench.engines.queue import Desk, Order, Ordering
from sightline.bench.unit import Setting
from sightline.errors import SightlineError

__all__ = ["LocalEngine"]

GRACE = 5.0  # seconds for a worker to end by itself


@dataclass(eq=False)
class _Hand:
    """One worker process, as its driver sees it."""

    process: subprocess.Popen[bytes]
    connection: Connection
    ready: bool = False
    model: str = ""
    order: Order | None = field(default=None)


class LocalEngine(Ordering, AbstractContextManager["LocalEngine"]):
    """Processes on this machine.

    Args:
        setting: what every worker is told.
        workers: how many.
    """

    def __init__(self, setting: Setting, *, workers: int) -> None:
        self.setting = setting
        self.workers = workers
        self.hands: list[_Hand] = []
        self._stillborn = 0

    def __enter__(self) -> LocalEngine:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        for hand in self.hands:
            hand.connection.close()
        for hand in self.hands:
            if kind is not None:
                hand.process.kill()
            try:
                hand.process.wait(GRACE)
            except subprocess.TimeoutExpired:
                hand.process.kill()
                hand.process.wait()
        self.hands.clear()

    def serve(self, desk: Desk) -> None:
        """Give out orders until all are answered."""
        while len(self.hands) < min(self.workers, desk.left):
            self._hire()
        while True:
            for hand in [hand for hand in self.hands if hand.ready and hand.order is None]:
                self._give(hand, desk)
            if not desk.left and all(hand.order is None for hand in self.hands):
                return
            busy = {hand.connection: hand for hand in self.hands}
            for connection in wait(list(busy)):
                self._hear(busy[connection], desk)  # type: ignore[index]

    def _give(self, hand: _Hand, desk: Desk) -> None:
        others = Counter(other.model for other in self.hands if other is not hand and other.order is not None)
        hand.order = desk.next(hand.model, others)
        if hand.order is not None:
            hand.model = hand.order.model
            with suppress(OSError):  # a dead worker's end; it is noticed when it is listened to
                hand.connection.send_bytes(hand.order.message)

    def _hear(self, hand: _Hand, desk: Desk) -> None:
        try:
            head, blobs = unpack(hand.connection.recv_bytes())
        except (EOFError, OSError):
            self._replace(hand, desk)
            return
        if head["kind"] == "ready":
            hand.ready, self._stillborn = True, 0
            return
        order, hand.order = hand.order, None
        self._give(hand, desk)  # so that it does not wait while its answer is stored
        assert order is not None
        order.reply(head, blobs)

    def _replace(self, hand: _Hand, desk: Desk) -> None:
        """Take on another worker for one that died, and give its order out again."""
        self.hands.remove(hand)
        hand.connection.close()
        hand.process.wait()
        if not hand.ready:
            self._stillborn += 1
            if self._stillborn >= TRIES:
                raise SightlineError(
                    f"the workers end as soon as they start, with exit code {hand.process.returncode}; "
                    "what they said is above"
                )
        desk.died(hand.order)
        if desk.left:
            self._hire()

    def _hire(self) -> None:
        """Start a worker."""
        ours, theirs = Pipe()
        with theirs:
            command = [sys.executable, "-P", "-m", "sightline.bench.engines.process", str(theirs.fileno())]
            process = subprocess.Popen(
                [*command, json.dumps(self.setting.json())],
                stdin=subprocess.DEVNULL,
                stdout=2,  # results on stdout are the driver's alone
                env=_environment(self.setting.threads),
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C is for the driver
            )
        self.hands.append(_Hand(process, ours))


def _environment(threads: int) -> dict[str, str]:
    """Return the environment of a worker: our import path, its threads, and few heaps."""
    counts = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(threads))
    memory = {"MALLOC_ARENA_MAX": "2"}
    path = os.pathsep.join(part for part in sys.path if part)
    return {**memory, **os.environ, **counts, "PYTHONPATH": path}
