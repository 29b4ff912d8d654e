"""Orders: what a driver gives out to its workers, wherever they are, and what it does with their answers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sightline.bench.engines.engine import TRIES, Done, Wanted, given_up
from sightline.bench.engines.messages import error_of, pack, unpack
from sightline.bench.store.rows import Result
from sightline.bench.unit import Described, Unit
from sightline.errors import SightlineError

__all__ = ["Desk", "Order", "Ordering"]


@dataclass(eq=False)
class Order:
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
    reply: Callable[[dict[str, Any], list[bytes]], None]
    lost: Callable[[], None]
    wanted: Callable[[], bool] = lambda: True
    tries: int = 0

    def answered(self, message: bytes) -> None:
        """Take in a worker's answer."""
        self.reply(*unpack(message))


class Desk:
    """The orders that are left, by model, so that a worker stays with the model it has loaded."""

    def __init__(self, orders: Iterable[Order]) -> None:
        self.waiting: dict[str, deque[Order]] = {}
        for order in orders:
            self.waiting.setdefault(order.model, deque()).append(order)

    @property
    def left(self) -> int:
        """How many there are."""
        return sum(map(len, self.waiting.values()))

    def next(self, model: str, others: Counter[str]) -> Order | None:
        """Return an order for a worker with this model: of the same model, or of the one that lacks workers most."""
        while self.left:
            queues = {name: queue for name, queue in self.waiting.items() if queue}
            name = model if model in queues else max(queues, key=lambda one: len(queues[one]) / (1 + others[one]))
            order = queues[name].popleft()
            if order.wanted():
                return order
        return None

    def died(self, order: Order | None) -> None:
        """Take back the order of a worker that died, or give it up."""
        if order is None:
            return
        order.tries += 1
        if order.tries < TRIES:
            self.waiting.setdefault(order.model, deque()).appendleft(order)
        else:
            order.lost()


class Ordering(ABC):
    """An engine whose workers are told what to do in messages."""

    def describe(self, models: Sequence[str], recipes: Sequence[str], metrics: Sequence[str]) -> list[Described]:
        """See `Engine`."""
        found: dict[str, Described] = {}

        def order(model: str) -> Order:
            def reply(head: dict[str, Any], _: list[bytes]) -> None:
                if head.pop("kind") == "error":
                    raise error_of(head)
                found[model] = Described.of(head)

            def lost() -> None:
                raise SightlineError(f"loading {model} killed its worker three times; see whether it fits the memory")

            asked = {"kind": "describe", "model": model, "recipes": list(recipes), "metrics": list(metrics)}
            return Order(model, pack(asked), reply, lost)

        self.serve(Desk(map(order, models)))
        return [found[model] for model in models]

    def run(self, units: Sequence[Unit], done: Done, wanted: Wanted) -> None:
        """See `Engine`."""

        def order(unit: Unit) -> Order:
            def reply(head: dict[str, Any], blobs: list[bytes]) -> None:
                if head["kind"] == "error":
                    raise error_of(head)
                done(unit, Result(head["key"], *blobs))

            return Order(
                unit.model,
                pack({"kind": "work", "unit": unit.json()}),
                reply,
                lost=lambda: done(unit, given_up(unit)),
                wanted=lambda: wanted(unit),
            )

        self.serve(Desk(map(order, units)))

    @abstractmethod
    def serve(self, desk: Desk) -> None:
        """Give out orders until all are answered."""
