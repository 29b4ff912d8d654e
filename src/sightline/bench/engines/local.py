"""The local engine: long-lived processes on this machine, each with a model loaded.

Processes are started afresh, never forked, with their number of threads in the environment before torch is loaded. A
process that dies is noticed by its connection, replaced, and its task sent to another.
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
from sightline.bench.engines.queue import Task, TaskEngine, TaskQueue
from sightline.bench.unit import RunConfig
from sightline.errors import SightlineError

__all__ = ["LocalEngine"]

GRACE = 5.0  # seconds for a worker to end by itself


@dataclass(eq=False)
class WorkerHandle:
    """One worker process, as its driver sees it.

    Attributes:
        process: it runs in.
        connection: the driver's end.
        ready: whether it has started.
        model: the one it has loaded.
        group: of the task it was sent last.
        task: what it is computing.
    """

    process: subprocess.Popen[bytes]
    connection: Connection
    ready: bool = False
    model: str = ""
    group: str = ""
    task: Task | None = field(default=None)


class LocalEngine(TaskEngine, AbstractContextManager["LocalEngine"]):
    """Processes on this machine.

    Args:
        config: what every worker is told.
        workers: how many.
    """

    def __init__(self, config: RunConfig, *, workers: int) -> None:
        self.config = config
        self.max_workers = workers
        self.workers: list[WorkerHandle] = []
        self._failed_starts = 0

    def __enter__(self) -> LocalEngine:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        for worker in self.workers:
            worker.connection.close()
        for worker in self.workers:
            if kind is not None:
                worker.process.kill()
            try:
                worker.process.wait(GRACE)
            except subprocess.TimeoutExpired:
                worker.process.kill()
                worker.process.wait()
        self.workers.clear()

    def run_tasks(self, queue: TaskQueue) -> None:
        """Send tasks to workers until each has its reply."""
        while len(self.workers) < min(self.max_workers, len(queue)):
            self._start_worker()
        while True:
            for worker in [worker for worker in self.workers if worker.ready and worker.task is None]:
                self._assign(worker, queue)
            if not len(queue) and all(worker.task is None for worker in self.workers):
                return
            listening = {worker.connection: worker for worker in self.workers}
            for connection in wait(list(listening)):
                self._receive(listening[connection], queue)  # type: ignore[index]

    def _assign(self, worker: WorkerHandle, queue: TaskQueue) -> None:
        busy = Counter(other.model for other in self.workers if other is not worker and other.task is not None)
        worker.task = queue.next_task(worker.model, busy, worker.group)
        if worker.task is not None:
            worker.model, worker.group = worker.task.model, worker.task.group
            with suppress(OSError):  # a dead worker's end; it is noticed when it is listened to
                worker.connection.send_bytes(worker.task.message())

    def _receive(self, worker: WorkerHandle, queue: TaskQueue) -> None:
        try:
            head, blobs = unpack(worker.connection.recv_bytes())
        except (EOFError, OSError):
            self._replace(worker, queue)
            return
        if head["kind"] == "ready":
            worker.ready, self._failed_starts = True, 0
            return
        task, worker.task = worker.task, None
        self._assign(worker, queue)  # so that it does not wait while its reply is stored
        assert task is not None
        task.on_reply(head, blobs)

    def _replace(self, worker: WorkerHandle, queue: TaskQueue) -> None:
        """Start another worker for one that died, and queue its task again."""
        self.workers.remove(worker)
        worker.connection.close()
        worker.process.wait()
        if not worker.ready:
            self._failed_starts += 1
            if self._failed_starts >= TRIES:
                raise SightlineError(
                    f"the workers end as soon as they start, with exit code {worker.process.returncode}; "
                    "what they said is above"
                )
        queue.worker_died(worker.task)
        if len(queue):
            self._start_worker()

    def _start_worker(self) -> None:
        ours, theirs = Pipe()
        with theirs:
            command = [sys.executable, "-P", "-m", "sightline.bench.engines.process", str(theirs.fileno())]
            process = subprocess.Popen(
                [*command, json.dumps(self.config.to_json())],
                stdin=subprocess.DEVNULL,
                stdout=2,  # results on stdout are the driver's alone
                env=_environment(self.config.threads),
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C is for the driver
            )
        self.workers.append(WorkerHandle(process, ours))


def _environment(threads: int) -> dict[str, str]:
    """Return the environment of a worker: our import path, its threads, and few heaps."""
    counts = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(threads))
    memory = {"MALLOC_ARENA_MAX": "2"}
    path = os.pathsep.join(part for part in sys.path if part)
    return {**memory, **os.environ, **counts, "PYTHONPATH": path}
