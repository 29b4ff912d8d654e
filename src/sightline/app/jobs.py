"""Jobs and their queues: one queue and one thread per model, in which visitors take turns map by map."""

from __future__ import annotations

import secrets
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from typing import Any, Literal

from numpy.typing import NDArray

from sightline.app.maps import KeptMap
from sightline.app.question import Question
from sightline.audit.panel import ExplainedImage
from sightline.errors import InputError, SightlineError

__all__ = ["Busy", "Job", "ModelQueue", "Queues", "State"]

State = Literal["waiting", "running", "done", "cancelled", "failed"]
Steps = Callable[["Job"], Iterator[None]]  # the work of a job, which pauses wherever another visitor may take a turn


class Busy(InputError):
    """A queue, or a visitor's share of it, is full."""


class Job:
    """One request for maps: what has come of it so far, and everything that happened, in order.

    Attributes:
        identifier: cannot be guessed.
        question: what was asked.
        state: waiting, running, done, cancelled or failed.
        events: kind and plain data of everything that happened; only ever longer.
        image: what the model says of the image, and at the end all scored maps by rank.
        maps: every map made so far.
        fills: what removed pixels become, as PNG files by metric.
        labels: of a segmentation the label of each cell, (height, width); None for other models.
        listeners: how many connections follow the events.
    """

    def __init__(self, question: Question, steps: Steps) -> None:
        self.identifier = secrets.token_urlsafe(16)
        self.question = question
        self.state: State = "waiting"
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.image: ExplainedImage | None = None
        self.maps: list[KeptMap] = []
        self.fills: dict[str, bytes] = {}
        self.labels: NDArray[Any] | None = None
        self.listeners = 0
        self.error = ""
        self._steps = steps
        self._work: Iterator[None] | None = None
        self._cancelled = threading.Event()
        self._lock = threading.Lock()

    @property
    def ended(self) -> bool:
        """Whether nothing more will happen."""
        return self.state in ("done", "cancelled", "failed")

    def tell(self, kind: str, data: dict[str, Any]) -> None:
        """Note something that happened."""
        self.events.append((kind, data))

    def cancel(self) -> None:
        """Stop before the next step; what has come so far stays."""
        self._cancelled.set()
        if self.state == "waiting":
            self._end("cancelled")

    def advance(self) -> bool:
        """Do one step of the work; return whether there is more to do."""
        if self.ended or self._cancelled.is_set():
            self._end("cancelled")
            return False
        try:
            if self._work is None:
                self.state = "running"
                self.tell("state", {"state": self.state})
                self._work = self._steps(self)
            next(self._work)
            return True
        except StopIteration:
            self._end("done")
        except SightlineError as error:
            self._end("failed", str(error))
        except Exception as error:  # the thread serves other visitors, and goes on
            self._end("failed", f"the server failed on this: {type(error).__name__}")
        return False

    def _end(self, state: State, error: str = "") -> None:
        with self._lock:
            if self.ended:
                return
            self.state, self.error = state, error
            self.tell("end", {"state": state, "error": error})
        self._work = None


class ModelQueue:
    """The jobs of one model: one thread, which gives each visitor a step in turn."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._waiting: OrderedDict[str, deque[Job]] = OrderedDict()
        self._changed = threading.Condition()
        self._closed = False
        self._thread: threading.Thread | None = None

    def __len__(self) -> int:
        return sum(not job.ended for jobs in list(self._waiting.values()) for job in list(jobs))

    def add(self, visitor: str, job: Job) -> None:
        """Put a job behind the visitor's others.

        Raises:
            Busy: too many jobs wait.
        """
        with self._changed:
            if len(self) >= self.limit:
                raise Busy(f"{self.limit} jobs wait for this model already; try again in a minute")
            self._waiting.setdefault(visitor, deque()).append(job)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="sightline-model", daemon=True)
                self._thread.start()
            self._changed.notify()

    def close(self) -> None:
        """Cancel everything, and end the thread after its step."""
        with self._changed:
            self._closed = True
            for jobs in self._waiting.values():
                for job in jobs:
                    job.cancel()
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(timeout=30)

    def _run(self) -> None:
        while (turn := self._next()) is not None:
            visitor, job = turn
            more = job.advance()
            with self._changed:
                jobs = self._waiting.get(visitor)
                if jobs and not more:
                    jobs.popleft()
                if jobs:
                    self._waiting.move_to_end(visitor)  # behind those who came during the step
                else:
                    self._waiting.pop(visitor, None)

    def _next(self) -> tuple[str, Job] | None:
        """Wait for a job, and return the first of the visitor whose turn it is."""
        with self._changed:
            while not self._waiting and not self._closed:
                self._changed.wait()
            if self._closed:
                return None
            visitor = next(iter(self._waiting))
            return visitor, self._waiting[visitor][0]


class Queues:
    """One queue per model, made when it is first needed."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._queues: dict[str, ModelQueue] = {}
        self._lock = threading.Lock()

    def of(self, model: str) -> ModelQueue:
        """Return the queue of a model."""
        with self._lock:
            return self._queues.setdefault(model, ModelQueue(self.limit))

    def close(self) -> None:
        """End every thread."""
        for queue in list(self._queues.values()):
            queue.close()


class Clock:
    """The time left, from the share of the declared cost that is done."""

    def __init__(self, total: float) -> None:
        self.total, self.done = max(total, 1e-9), 0.0
        self._spent, self._begun = 0.0, 0.0

    def start(self) -> None:
        """Begin to count: other visitors' turns do not."""
        self._begun = time.perf_counter()

    def skip(self, cost: float) -> None:
        """Leave out a piece of work whose result is known."""
        self.total = max(self.total - cost, 1e-9)

    def stop(self, cost: float) -> dict[str, float]:
        """Count a piece of work, and return how far it is."""
        self._spent += time.perf_counter() - self._begun
        self.done += cost
        left = self._spent / self.done * (self.total - self.done) if self.done else 0.0
        return {"done": min(1.0, self.done / self.total), "seconds_left": round(max(0.0, left), 2)}
