"""The task queue: what a driver sends to its workers, wherever they are, and what it does with their replies."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sightline.bench.engines.engine import TRIES, IsNeeded, OnDone, worker_died
from sightline.bench.engines.messages import error_of, pack
from sightline.bench.store.rows import UnitResult
from sightline.bench.unit import ModelInfo, Unit
from sightline.errors import SightlineError

__all__ = ["Task", "TaskEngine", "TaskQueue"]


@dataclass(eq=False)
class Task:
    """Something for a worker to compute.

    Attributes:
        model: which it needs.
        message: makes what the worker is sent, when it is.
        on_reply: called with its reply.
        on_lost: called when workers have died over it too often.
        is_needed: asked before it is sent.
        group: of tasks that a worker does for less one after the other: units of the same images.
        tries: how often a worker has died over it.
    """

    model: str
    message: Callable[[], bytes]
    on_reply: Callable[[dict[str, Any], list[bytes]], None]
    on_lost: Callable[[], None]
    is_needed: Callable[[], bool] = lambda: True
    group: str = ""
    tries: int = 0


class TaskQueue:
    """The tasks that are left, by model and group: a worker stays with the model it has loaded and the images it has.

    A worker that has done a group begins one that nobody has begun; where there is none, it helps with the group that
    has most tasks left.
    """

    def __init__(self, tasks: Iterable[Task]) -> None:
        self._models: dict[str, _ModelTasks] = {}
        for task in tasks:
            self._of(task.model).add(task)

    def _of(self, model: str) -> _ModelTasks:
        return self._models.setdefault(model, _ModelTasks())

    def __len__(self) -> int:
        return sum(tasks.count for tasks in self._models.values())

    def next_task(self, model: str, busy: Counter[str], group: str = "") -> Task | None:
        """Return a task for a worker with this model: of the same model, or of the one that lacks workers most.

        Args:
            model: the one that the worker has loaded, empty for none.
            busy: how many other workers are at work with each model.
            group: of the task that the worker did last.
        """
        while len(self):
            left = {name: tasks for name, tasks in self._models.items() if tasks.count}
            chosen = model if model in left else max(left, key=lambda name: left[name].count / (1 + busy[name]))
            task = left[chosen].take(group)
            if task.is_needed():
                return task
        return None

    def worker_died(self, task: Task | None) -> None:
        """Queue the task of a worker that died again, or give it up."""
        if task is None:
            return
        task.tries += 1
        if task.tries < TRIES:
            self._of(task.model).put_back(task)
        else:
            task.on_lost()


class _ModelTasks:
    """The tasks of one model that are left."""

    def __init__(self) -> None:
        self.count = 0
        self._new: dict[str, deque[Task]] = {}  # groups of which no task was taken, in order
        self._begun: dict[str, deque[Task]] = {}

    def add(self, task: Task) -> None:
        self._new.setdefault(task.group, deque()).append(task)
        self.count += 1

    def put_back(self, task: Task) -> None:
        """Add a task that was taken, to be taken again before the others of its group."""
        self._begun.setdefault(task.group, deque()).appendleft(task)
        self.count += 1

    def take(self, group: str) -> Task:
        """Take a task of this group if there is one, else of a new group, else of the one that has most left."""
        if group not in self._begun:
            if self._new:
                group = next(iter(self._new))
                self._begun[group] = self._new.pop(group)
            else:
                group = max(self._begun, key=lambda name: len(self._begun[name]))
        tasks = self._begun[group]
        task = tasks.popleft()
        self.count -= 1
        if not tasks:
            del self._begun[group]
        return task


class TaskEngine(ABC):
    """An engine whose workers are sent tasks as messages."""

    def describe(self, models: Sequence[str], recipes: Sequence[str], metrics: Sequence[str]) -> list[ModelInfo]:
        """See `Engine`."""
        described: dict[str, ModelInfo] = {}

        def task(model: str) -> Task:
            def on_reply(head: dict[str, Any], _: list[bytes]) -> None:
                if head.pop("kind") == "error":
                    raise error_of(head)
                described[model] = ModelInfo.from_json(head)

            def on_lost() -> None:
                raise SightlineError(f"loading {model} killed its worker three times; see whether it fits the memory")

            message = {"kind": "describe", "model": model, "recipes": list(recipes), "metrics": list(metrics)}
            return Task(model, lambda: pack(message), on_reply, on_lost)

        self.run_tasks(TaskQueue(map(task, models)))
        return [described[model] for model in models]

    def run(self, units: Sequence[Unit], on_done: OnDone, is_needed: IsNeeded) -> None:
        """See `Engine`."""

        def task(unit: Unit) -> Task:
            def on_reply(head: dict[str, Any], blobs: list[bytes]) -> None:
                if head["kind"] == "error":
                    raise error_of(head)
                on_done(unit, UnitResult(head["key"], *blobs))

            return Task(
                unit.model,
                lambda: pack({"kind": "compute", "unit": unit.to_json()}),
                on_reply,
                on_lost=lambda: on_done(unit, worker_died(unit)),
                is_needed=lambda: is_needed(unit),
                group=unit.data,
            )

        self.run_tasks(TaskQueue(map(task, units)))

    @abstractmethod
    def run_tasks(self, queue: TaskQueue) -> None:
        """Send tasks to workers until each has its reply."""
