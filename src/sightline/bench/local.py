"""The local engine: long-lived processes on this machine, each with a model warm.

Processes are started afresh, never forked, with their number of threads in the environment before torch is loaded. A
process that dies is noticed by its connection, replaced, and its order given out again.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any

from sightline.bench.engine import TRIES, Done, Wanted, given_up
from sightline.bench.messages import error_of, pack, unpack
from sightline.bench.rows import Result
from sightline.bench.unit import Described, Setting, Unit
from sightline.errors import SightlineError

__all__ = ["LocalEngine"]

GRACE = 5.0  # seconds for a worker to end by itself

Reply = Callable[[dict[str, Any], list[bytes]], None]


@dataclass(eq=False)
class _Order:
    """Something for a worker to do.

    Attributes:
        model: which it needs.
        message: what it is told.
        reply: called with its answer.
        lost: called when workers have died over it too often.
        wanted: asked before it is given out.
        tries: how often a worker has died over it.
    """

    model: str
    message: bytes
    reply: Reply
    lost: Callable[[], None]
    wanted: Callable[[], bool] = lambda: True
    tries: int = 0


@dataclass(eq=False)
class _Hand:
    """One worker process, as its driver sees it."""

    process: subprocess.Popen[bytes]
    connection: Connection
    ready: bool = False
    model: str = ""
    order: _Order | None = field(default=None)


class LocalEngine(AbstractContextManager["LocalEngine"]):
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

    # ---- what a run asks ---------------------------------------------------------------------------------------

    def describe(self, models: Sequence[str], recipes: Sequence[str], metrics: Sequence[str]) -> list[Described]:
        """See `Engine`."""
        found: dict[str, Described] = {}

        def order(model: str) -> _Order:
            def reply(head: dict[str, Any], _: list[bytes]) -> None:
                if head.pop("kind") == "error":
                    raise error_of(head)
                found[model] = Described.of(head)

            def lost() -> None:
                raise SightlineError(f"loading {model} killed its worker three times; see whether it fits the memory")

            asked = {"kind": "describe", "model": model, "recipes": list(recipes), "metrics": list(metrics)}
            return _Order(model, pack(asked), reply, lost)

        self._serve([order(model) for model in models])
        return [found[model] for model in models]

    def run(self, units: Sequence[Unit], done: Done, wanted: Wanted) -> None:
        """See `Engine`."""

        def order(unit: Unit) -> _Order:
            def reply(head: dict[str, Any], blobs: list[bytes]) -> None:
                if head["kind"] == "error":
                    raise error_of(head)
                done(unit, Result(head["key"], *blobs))

            return _Order(
                unit.model,
                pack({"kind": "work", "unit": unit.json()}),
                reply,
                lost=lambda: done(unit, given_up(unit)),
                wanted=lambda: wanted(unit),
            )

        self._serve(map(order, units))

    # ---- giving out orders -------------------------------------------------------------------------------------

    def _serve(self, orders: Iterable[_Order]) -> None:
        """Give out orders until all are answered."""
        desk = _Desk(orders)
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

    def _give(self, hand: _Hand, desk: _Desk) -> None:
        others = Counter(other.model for other in self.hands if other is not hand and other.order is not None)
        hand.order = desk.next(hand.model, others)
        if hand.order is not None:
            hand.model = hand.order.model
            with suppress(OSError):  # a dead worker's end; it is noticed when it is listened to
                hand.connection.send_bytes(hand.order.message)

    def _hear(self, hand: _Hand, desk: _Desk) -> None:
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

    def _replace(self, hand: _Hand, desk: _Desk) -> None:
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
        order = hand.order
        if order is not None:
            order.tries += 1
            if order.tries < TRIES:
                desk.put_back(order)
            else:
                order.lost()
        if desk.left:
            self._hire()

    def _hire(self) -> None:
        """Start a worker."""
        ours, theirs = Pipe()
        with theirs:
            command = [sys.executable, "-P", "-m", "sightline.bench.process", str(theirs.fileno())]
            process = subprocess.Popen(
                [*command, json.dumps(self.setting.json())],
                stdin=subprocess.DEVNULL,
                stdout=2,  # results on stdout are the driver's alone
                env=_environment(self.setting.threads),
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C is for the driver
            )
        self.hands.append(_Hand(process, ours))


class _Desk:
    """The orders that are left, by model, so that a worker stays with the model it has loaded."""

    def __init__(self, orders: Iterable[_Order]) -> None:
        self.waiting: dict[str, deque[_Order]] = {}
        for order in orders:
            self.waiting.setdefault(order.model, deque()).append(order)

    @property
    def left(self) -> int:
        return sum(map(len, self.waiting.values()))

    def next(self, model: str, others: Counter[str]) -> _Order | None:
        """Return an order for a worker with this model: of the same model, or of the one that lacks workers most."""
        while self.left:
            queues = {name: queue for name, queue in self.waiting.items() if queue}
            name = model if model in queues else max(queues, key=lambda one: len(queues[one]) / (1 + others[one]))
            order = queues[name].popleft()
            if order.wanted():
                return order
        return None

    def put_back(self, order: _Order) -> None:
        """Take an order back that was not carried out."""
        self.waiting.setdefault(order.model, deque()).appendleft(order)


def _environment(threads: int) -> dict[str, str]:
    """Return the environment of a worker: our import path, its threads, and few heaps."""
    counts = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(threads))
    memory = {"MALLOC_ARENA_MAX": "2"}
    path = os.pathsep.join(part for part in sys.path if part)
    return {**memory, **os.environ, **counts, "PYTHONPATH": path}
