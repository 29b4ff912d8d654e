"""The Ray engine: long-lived actors on the nodes of a cluster, each with a model loaded.

Actors hold nothing that could be lost: they reply to the driver, and the driver alone writes the store. An actor that
dies, with its node or alone, is replaced where there is room, and its task sent to another. Actors belong to the
driver's job, so that none outlives it.
"""

from __future__ import annotations

import os
import secrets
import sys
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from sightline import __version__
from sightline.allocator import keep_freed_memory
from sightline.bench.engines.engine import TRIES, cores
from sightline.bench.engines.messages import pack, pack_error, unpack
from sightline.bench.engines.queue import Task, TaskEngine, TaskQueue
from sightline.bench.unit import RunConfig
from sightline.errors import InputError, SightlineError
from sightline.extras import require

__all__ = ["RayEngine"]

STORE = 256 * 2**20  # bytes of shared memory for a cluster of our own; replies are small and fetched at once
PATIENCE = 5.0  # seconds without a reply after which the driver sees whether its own node is still there
# Read by Ray as it is imported and started. No statistics are sent home; and what it has to say of workers that died is
# not printed, which it does on standard output, where a command's results go.
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS_SKIP_REGEX": r"[\s\S]",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
# A cluster of our own listens on the loopback interface alone, which it otherwise does on other systems only; it asks
# for a token that nobody else knows, where Ray would leave one in the user's home; and it starts no workers in advance,
# which would lack our environment.
ALONE = QUIET | {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_AUTH_TOKEN": secrets.token_hex(32),
    "RAY_prestart_worker_first_driver": "0",
}


class RayWorker:
    """What runs in an actor; torch comes with the first task, after the number of threads is in the environment."""

    def __init__(self, config: dict[str, Any]) -> None:
        self._config = RunConfig.from_json(config)
        self._worker: Any = None

    def start(self) -> bytes:
        """Load the worker; return on which node and with which version of sightline it runs."""
        import warnings

        keep_freed_memory()
        warnings.simplefilter("ignore")  # what matters is in the rows
        try:
            from sightline.bench.worker import Worker

            self._worker = Worker(self._config)
        except Exception as error:
            return pack(pack_error(error))
        node = require("ray").get_runtime_context().get_node_id()
        return pack({"kind": "ready", "node": node, "version": __version__, "process": os.getpid()})

    def handle_task(self, message: bytes) -> bytes:
        """Compute what a task asks for, and return the reply."""
        from sightline.bench.engines.process import handle_task

        head, blobs = handle_task(self._worker, *unpack(message))
        return pack(head, *blobs)


@dataclass(eq=False)
class ActorHandle:
    """One actor, as its driver sees it.

    Attributes:
        actor: the handle that Ray gave.
        pending: the call whose result is awaited, None while it is idle.
        node: where it runs, empty until it is ready.
        model: the one it has loaded.
        group: of the task it was sent last.
        task: what it is computing.
        failed_starts: how many actors before it, in a row, died before they were ready.
    """

    actor: Any
    pending: Any
    node: str = ""
    model: str = ""
    group: str = ""
    task: Task | None = None
    failed_starts: int = 0


class RayEngine(TaskEngine, AbstractContextManager["RayEngine"]):
    """Actors on a Ray cluster.

    Args:
        config: what every worker is told.
        workers: how many; as many as the cluster's processors have room for by default.
        address: of a cluster to join; "auto" joins the one that runs on this machine. Without it, and where there is
            none, a cluster of this machine alone is started, and ended with the engine.
    """

    def __init__(self, config: RunConfig, *, workers: int | None = None, address: str | None = None) -> None:
        if workers == 0:
            raise InputError("the ray engine needs a worker; leave --workers 0 to the local engine")
        self.config = config
        self.max_workers = workers
        self.address = address or os.environ.get("RAY_ADDRESS") or "local"
        with _environment(ALONE if self.address == "local" else QUIET):
            self.ray = require("ray")
        self.workers: list[ActorHandle] = []
        self.done: Counter[str] = Counter()  # tasks done, by node
        self._was_initialised = False  # whether someone else has started Ray in this process
        self._own_cluster = False  # whether the cluster is ours
        self._node = ""

    # ---- the cluster -------------------------------------------------------------------------------------------

    def __enter__(self) -> RayEngine:
        self._was_initialised = self.ray.is_initialized()
        if not self._was_initialised:
            self._connect()
        try:
            self._node = self.ray.get_runtime_context().get_node_id()
            self.max_workers = self.max_workers or self._room()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers:
            self._stop(worker)
        self.workers.clear()
        if not self._was_initialised:
            self.ray.shutdown()

    def _connect(self) -> None:
        """Join a cluster, or start one."""
        if self.address != "local":
            try:
                with _environment(QUIET):
                    self._init(address=self.address)
                return
            except (OSError, ValueError, RuntimeError, self.ray.exceptions.RayError) as error:
                if self.address != "auto":
                    raise InputError(f"no Ray cluster answers at {self.address}: {_first_line(error)}") from None
        self._start()

    def _start(self) -> None:
        """Start a cluster; on a busy machine Ray loses patience with itself, so that it is asked more than once."""
        processors = max(cores(), (self.max_workers or 1) * self.config.threads)
        for attempt in range(1, TRIES + 1):
            try:
                with _environment(ALONE):
                    self._init(address="local", num_cpus=processors, include_dashboard=False, object_store_memory=STORE)
                self._own_cluster = True
                return
            except Exception as error:  # Ray raises no class of its own here
                _end_half_started(error)
                self.ray.shutdown()
                if attempt == TRIES:
                    raise SightlineError(f"Ray cannot be started on this machine: {_first_line(error)}") from error

    def _init(self, **options: Any) -> None:
        self.ray.init(log_to_driver=False, logging_level="ERROR", **options)

    def _room(self) -> int:
        """Return how many workers the nodes have room for: by processors, and by GPUs where models run on them.

        A cluster that starts nodes when they are asked for has room for any number: then the user says how many.
        """
        threads = self.config.threads
        nodes = [node["Resources"] for node in self._nodes()]
        room = [(int(node.get("CPU", 0) // threads), int(node.get("GPU", 0))) for node in nodes]
        if not any(by_processors for by_processors, _ in room):
            raise InputError(
                f"no node of the Ray cluster has {threads} processors, which the plan's threads need; set threads = 1, "
                "start the nodes with --num-cpus, or give --workers where the cluster starts nodes by itself"
            )
        if not self._gpus:
            return sum(by_processors for by_processors, _ in room)
        if not any(map(min, room)):
            raise InputError(
                "no node of the Ray cluster has a GPU, which the plan's device needs; set device = 'cpu', start the "
                "nodes with --num-gpus, or give --workers where the cluster starts nodes by itself"
            )
        return sum(map(min, room))

    @property
    def _gpus(self) -> int:
        """How many GPUs a worker needs."""
        return 1 if self.config.device.startswith("cuda") else 0

    def _nodes(self) -> list[dict[str, Any]]:
        """Return the nodes that are alive."""
        return [node for node in self.ray.nodes() if node["Alive"]]

    def _check(self) -> None:
        """See whether the driver's own node is still there; without it nothing is heard of any other."""
        try:
            alive = any(node["NodeID"] == self._node for node in self._nodes())
        except Exception:
            alive = False
        if not alive:
            raise SightlineError("the Ray node of this machine is gone; what is done is stored, go on with resume")

    # ---- sending tasks -----------------------------------------------------------------------------------------

    def run_tasks(self, queue: TaskQueue) -> None:
        """See `TaskEngine`."""
        while len(self.workers) < min(self.max_workers or 1, len(queue)):
            self.workers.append(ActorHandle(*self._start_worker()))
        while True:
            for worker in [worker for worker in self.workers if worker.pending is None]:
                self._assign(worker, queue)
            if not len(queue) and all(worker.task is None for worker in self.workers):
                return
            awaited = {worker.pending: worker for worker in self.workers if worker.pending is not None}
            ready, _ = self.ray.wait(list(awaited), num_returns=1, timeout=PATIENCE)
            for pending in ready:
                self._receive(awaited[pending], queue)
            if not ready:
                self._check()

    def _assign(self, worker: ActorHandle, queue: TaskQueue) -> None:
        busy = Counter(other.model for other in self.workers if other is not worker and other.task is not None)
        worker.task = queue.next_task(worker.model, busy, worker.group)
        if worker.task is not None:
            worker.model, worker.group = worker.task.model, worker.task.group
            worker.pending = worker.actor.handle_task.remote(worker.task.message())

    def _receive(self, worker: ActorHandle, queue: TaskQueue) -> None:
        pending, worker.pending = worker.pending, None
        try:
            message = self.ray.get(pending)
        except self.ray.exceptions.RayTaskError as error:
            raise SightlineError(f"a worker failed: {error.cause!r}") from None
        except self.ray.exceptions.RayError as error:
            self._check()
            self._replace(worker, queue, error)
            return
        if not worker.node:
            self._check_ready(worker, message)
            return
        task, worker.task = worker.task, None
        self.done[worker.node] += 1
        self._assign(worker, queue)  # so that it does not wait while its reply is stored
        assert task is not None
        task.on_reply(*unpack(message))

    def _check_ready(self, worker: ActorHandle, message: bytes) -> None:
        """Note where an actor has started; refuse one that could not, or that has another version."""
        head, _ = unpack(message)
        if head["kind"] == "error":
            raise SightlineError(f"a worker cannot start: {head['type']}: {head['text']}")
        if head["version"] != __version__:
            raise SightlineError(
                f"a node of the Ray cluster has sightline {head['version']}, this is {__version__}; install the same"
            )
        worker.node, worker.failed_starts = head["node"], 0

    def _replace(self, worker: ActorHandle, queue: TaskQueue, error: Exception) -> None:
        """Start another actor for one that died, and queue its task again."""
        self._stop(worker)
        self.workers.remove(worker)
        failed_starts = 0 if worker.node else worker.failed_starts + 1
        queue.worker_died(worker.task)
        if len(queue) and failed_starts < TRIES:
            self.workers.append(ActorHandle(*self._start_worker(), failed_starts=failed_starts))
        if len(queue) and not self.workers:
            raise SightlineError(f"the workers end as soon as they start: {_first_line(error)}")

    def _start_worker(self) -> tuple[Any, Any]:
        """Start an actor, now or as soon as there is room; return it and its first call."""
        actor = (
            self.ray.remote(RayWorker)
            .options(
                num_cpus=self.config.threads,
                num_gpus=self._gpus,
                runtime_env={"env_vars": self._variables()},
                scheduling_strategy="SPREAD",
                max_restarts=0,
                max_task_retries=0,
            )
            .remote(self.config.to_json())
        )
        return actor, actor.start.remote()

    def _variables(self) -> dict[str, str]:
        """Return what a worker's environment holds before torch is loaded; on this machine, also our import path."""
        names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
        counts = dict.fromkeys(names, str(self.config.threads))
        memory = {"MALLOC_ARENA_MAX": "2"}
        path = {"PYTHONPATH": os.pathsep.join(part for part in sys.path if part)} if self._own_cluster else {}
        return {**memory, **counts, **path}

    def _stop(self, worker: ActorHandle) -> None:
        with suppress(Exception):  # it, or the whole cluster, may be gone
            self.ray.kill(worker.actor)


def _end_half_started(error: Exception) -> None:
    """End the processes of a node that did not come up, which Ray forgets; the error's frames alone still know it."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        node: Any = frame.f_locals.get("self")
        if hasattr(node, "kill_all_processes"):
            with suppress(Exception):
                node.kill_all_processes(check_alive=False, wait=True)


def _first_line(error: Exception) -> str:
    """Return the first line of what Ray says, which may go on for pages."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


@contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    """Set variables for a while, where they are not set; those that Ray adds meanwhile go, too."""
    before = set(os.environ)
    os.environ.update({name: value for name, value in variables.items() if name not in before})
    try:
        yield
    finally:
        for name in [name for name in os.environ if name.startswith("RAY_") and name not in before]:
            del os.environ[name]
