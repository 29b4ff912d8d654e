"""The Ray engine: long-lived actors on the nodes of a cluster, each with a model warm.

Actors hold nothing that could be lost: they answer the driver, and the driver alone writes the store. An actor that
dies, with its node or alone, is replaced where there is room, and its order is given out again. Actors belong to the
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
from sightline.bench.engines.engine import TRIES, cores
from sightline.bench.engines.messages import pack, tell_error, unpack
from sightline.bench.engines.queue import Desk, Order, Ordering
from sightline.bench.unit import Setting
from sightline.errors import InputError, SightlineError
from sightline.extras import require

__all__ = ["RayEngine"]

STORE = 256 * 2**20  # bytes of shared memory for a cluster of our own; answers are small and fetched at once
PATIENCE = 5.0  # seconds without an answer after which the driver sees whether its own node is still there
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


class Hand:
    """What runs in an actor; torch comes with the first order, after the number of threads is in the environment."""

    def __init__(self, setting: dict[str, Any]) -> None:
        self._setting = Setting.of(setting)
        self._worker: Any = None

    def start(self) -> bytes:
        """Get ready; tell where this is, and by whom it is answered."""
        import warnings

        warnings.simplefilter("ignore")  # what matters is in the rows
        try:
            from sightline.bench.work import Worker

            self._worker = Worker(self._setting)
        except Exception as error:
            return pack(tell_error(error))
        node = require("ray").get_runtime_context().get_node_id()
        return pack({"kind": "ready", "node": node, "version": __version__, "process": os.getpid()})

    def answer(self, message: bytes) -> bytes:
        """Do what an order says."""
        from sightline.bench.engines.process import answer

        head, blobs = answer(self._worker, *unpack(message))
        return pack(head, *blobs)


@dataclass(eq=False)
class _Seat:
    """A worker's place, as the driver sees it; when an actor dies, another one takes it.

    Attributes:
        actor: who sits there.
        pending: what it was last asked, None while it rests.
        node: where it is, empty until it is ready.
        model: the one it has loaded.
        order: what it is at.
        stillborn: how many actors in a row died before they were ready.
    """

    actor: Any
    pending: Any
    node: str = ""
    model: str = ""
    order: Order | None = None
    stillborn: int = 0


class RayEngine(Ordering, AbstractContextManager["RayEngine"]):
    """Actors on a Ray cluster.

    Args:
        setting: what every worker is told.
        workers: how many; as many as the cluster's processors have room for by default.
        address: of a cluster to join; "auto" joins the one that runs on this machine. Without it, and where there is
            none, a cluster of this machine alone is started, and ended with the engine.
    """

    def __init__(self, setting: Setting, *, workers: int | None = None, address: str | None = None) -> None:
        if workers == 0:
            raise InputError("the ray engine needs a worker; leave --workers 0 to the local engine")
        self.setting = setting
        self.workers = workers
        self.address = address or os.environ.get("RAY_ADDRESS") or "local"
        with _environment(ALONE if self.address == "local" else QUIET):
            self.ray = require("ray")
        self.seats: list[_Seat] = []
        self.done: Counter[str] = Counter()  # orders answered, by node
        self._guest = False  # whether someone else has started Ray in this process
        self._own = False  # whether the cluster is ours
        self._node = ""

    # ---- the cluster -------------------------------------------------------------------------------------------

    def __enter__(self) -> RayEngine:
        self._guest = self.ray.is_initialized()
        if not self._guest:
            self._connect()
        try:
            self._node = self.ray.get_runtime_context().get_node_id()
            room = [int(node["Resources"].get("CPU", 0) // self.setting.threads) for node in self._nodes()]
            if not any(room):
                raise InputError(
                    f"no node of the Ray cluster has {self.setting.threads} processors, which the plan's threads need; "
                    "set threads = 1, or start the nodes with --num-cpus"
                )
            self.workers = self.workers or sum(room)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for seat in self.seats:
            self._dismiss(seat)
        self.seats.clear()
        if not self._guest:
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
        processors = max(cores(), (self.workers or 1) * self.setting.threads)
        for attempt in range(1, TRIES + 1):
            try:
                with _environment(ALONE):
                    self._init(address="local", num_cpus=processors, include_dashboard=False, object_store_memory=STORE)
                self._own = True
                return
            except Exception as error:  # Ray raises no class of its own here
                _end_half_started(error)
                self.ray.shutdown()
                if attempt == TRIES:
                    raise SightlineError(f"Ray cannot be started on this machine: {_first_line(error)}") from error

    def _init(self, **options: Any) -> None:
        self.ray.init(log_to_driver=False, logging_level="ERROR", **options)

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

    # ---- giving out orders -------------------------------------------------------------------------------------

    def serve(self, desk: Desk) -> None:
        """See `Ordering`."""
        while len(self.seats) < min(self.workers or 1, desk.left):
            self.seats.append(_Seat(*self._hire()))
        while True:
            for seat in [seat for seat in self.seats if seat.pending is None]:
                self._give(seat, desk)
            if not desk.left and all(seat.order is None for seat in self.seats):
                return
            asked = {seat.pending: seat for seat in self.seats if seat.pending is not None}
            ready, _ = self.ray.wait(list(asked), num_returns=1, timeout=PATIENCE)
            for pending in ready:
                self._hear(asked[pending], desk)
            if not ready:
                self._check()

    def _give(self, seat: _Seat, desk: Desk) -> None:
        others = Counter(other.model for other in self.seats if other is not seat and other.order is not None)
        seat.order = desk.next(seat.model, others)
        if seat.order is not None:
            seat.model = seat.order.model
            seat.pending = seat.actor.answer.remote(seat.order.message)

    def _hear(self, seat: _Seat, desk: Desk) -> None:
        pending, seat.pending = seat.pending, None
        try:
            message = self.ray.get(pending)
        except self.ray.exceptions.RayTaskError as error:
            raise SightlineError(f"a worker failed: {error.cause!r}") from None
        except self.ray.exceptions.RayError as error:
            self._check()
            self._replace(seat, desk, error)
            return
        if not seat.node:
            self._welcome(seat, message)
            return
        order, seat.order = seat.order, None
        self.done[seat.node] += 1
        self._give(seat, desk)  # so that it does not wait while its answer is stored
        assert order is not None
        order.answered(message)

    def _welcome(self, seat: _Seat, message: bytes) -> None:
        """Hear that an actor is ready."""
        head, _ = unpack(message)
        if head["kind"] == "error":
            raise SightlineError(f"a worker cannot start: {head['type']}: {head['text']}")
        if head["version"] != __version__:
            raise SightlineError(
                f"a node of the Ray cluster has sightline {head['version']}, this is {__version__}; install the same"
            )
        seat.node, seat.stillborn = head["node"], 0

    def _replace(self, seat: _Seat, desk: Desk, error: Exception) -> None:
        """Take on another actor for one that died, and give its order out again."""
        self._dismiss(seat)
        self.seats.remove(seat)
        stillborn = 0 if seat.node else seat.stillborn + 1
        desk.died(seat.order)
        if desk.left and stillborn < TRIES:
            self.seats.append(_Seat(*self._hire(), stillborn=stillborn))
        if desk.left and not self.seats:
            raise SightlineError(f"the workers end as soon as they start: {_first_line(error)}")

    def _hire(self) -> tuple[Any, Any]:
        """Start an actor, now or as soon as there is room; return it and what it was asked first."""
        actor = (
            self.ray.remote(Hand)
            .options(
                num_cpus=self.setting.threads,
                num_gpus=1 if self.setting.device.startswith("cuda") else 0,
                runtime_env={"env_vars": self._variables()},
                scheduling_strategy="SPREAD",
                max_restarts=0,
                max_task_retries=0,
            )
            .remote(self.setting.json())
        )
        return actor, actor.start.remote()

    def _variables(self) -> dict[str, str]:
        """Return what a worker's environment holds before torch is loaded; on this machine, also our import path."""
        names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
        counts = dict.fromkeys(names, str(self.setting.threads))
        memory = {"MALLOC_ARENA_MAX": "2"}
        path = {"PYTHONPATH": os.pathsep.join(part for part in sys.path if part)} if self._own else {}
        return {**memory, **counts, **path}

    def _dismiss(self, seat: _Seat) -> None:
        with suppress(Exception):  # it, or the whole cluster, may be gone
            self.ray.kill(seat.actor)


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
