"""Claims: which driver is at work on which unit, so that several drivers on one store do not do the same twice.

::

    claims/<name>.claim      holds the name of the process that works on it
    claims/<process>.beat    a number that this process counts up every few seconds, for as long as it lives

A claim is a lease: it holds while its owner's number goes on changing, and may be taken over when the number has stood
still for `LEASE` seconds. Everybody measures that with its own clock, from when it first saw the number, so clocks that
differ between machines do not matter. The claims of a process of the same machine that is gone may be taken at once.

In a folder a claim is made by creating a file that must not exist, which one process alone succeeds in. Where a bucket
has no such thing, whoever writes last has the claim: each writes, waits a moment and reads back, so that two get the
same one only if writing takes longer than that moment. Nothing depends on it but work: rows are the same whoever
computes them, and a claim that cannot be written, for instance on a full disk, keeps nobody from working.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from sightline.files import host_name

if TYPE_CHECKING:
    from sightline.bench.store.store import Store

__all__ = ["LEASE", "Claims"]

LEASE = 60.0  # seconds without a sign of life after which a claim may be taken over
RENEWALS = 4  # signs of life in that time
FOLDER, CLAIM, BEAT = "claims", ".claim", ".beat"


@cache
def _machine() -> str:
    """Name what the numbers of processes are counted in: this machine since it was started, or this container."""
    words = [host_name()]
    with suppress(OSError):
        words += [Path("/proc/sys/kernel/random/boot_id").read_text(), str(Path("/proc/self/ns/pid").readlink())]
    return f"{host_name()[:40]}-{hashlib.blake2b(''.join(words).encode(), digest_size=4).hexdigest()}"


@dataclass
class Claims(AbstractContextManager["Claims"]):
    """The claims of one driver; all of them are given up when the block ends.

    Attributes:
        store: to share.
        lease: seconds without a sign of life after which a claim of another may be taken over.
        clock: seconds that only ever grow.
        owner: the driver's own name.
        held: the names it has claimed.
    """

    store: Store
    lease: float = field(default_factory=lambda: LEASE)
    clock: Callable[[], float] = time.monotonic
    owner: str = field(default_factory=lambda: f"{_machine()}.{os.getpid()}.{secrets.token_hex(4)}")
    held: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._beats = 0
        self._seen: dict[str, tuple[str | None, float]] = {}  # owner -> its last number, and since when
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        for name in list(self.held):
            self.release(name)
        with suppress(Exception):
            self.store.remove(f"{FOLDER}/{self.owner}{BEAT}")

    # ---- claiming ----------------------------------------------------------------------------------------------

    def take(self, name: str) -> bool:
        """Claim something; return whether it is ours now."""
        self._start()
        for _ in range(2):
            try:
                if name in self.held or self._create(name):
                    self.held.add(name)
                    return True
            except Exception:  # a store that refuses a claim must not keep anybody from working
                return True
            owner = self._owner_of(name)
            if self._is_alive(owner, name):
                return False
            self._break(name, owner)
        return False

    def release(self, name: str) -> None:
        """Give a claim up; one that was taken over meanwhile stays with its new owner."""
        self.held.discard(name)
        with suppress(Exception):
            if self._owner_of(name) == self.owner:
                self.store.remove(_claim(name))

    def is_taken(self, name: str) -> bool:
        """Tell whether someone else holds a claim and gives signs of life."""
        return self._is_alive(self._owner_of(name), name)

    def _is_alive(self, owner: str | None, name: str) -> bool:
        """Tell whether the owner of a claim is someone else who gives signs of life."""
        return owner not in (None, self.owner) and not self._is_gone(owner or f"{name}?")

    def _create(self, name: str) -> bool:
        """Write a claim where there is none."""
        if self.store.create(_claim(name), self.owner.encode()):
            return True
        return self._owner_of(name) == self.owner

    def _break(self, name: str, gone: str | None) -> None:
        """Remove the claim of a driver that is gone; in a folder only one of several that try gets hold of it."""
        folder = self.store.folder
        if gone is None:
            return
        if folder is None:
            self.store.remove(_claim(name))
            return
        with suppress(OSError), _locked(folder / FOLDER):
            if self._owner_of(name) == gone:  # else someone was faster, and it is its claim now
                (folder / _claim(name)).unlink()

    def _owner_of(self, name: str) -> str | None:
        """Return who holds a claim, None where nobody does."""
        return self._read(_claim(name))

    def _read(self, name: str) -> str | None:
        try:
            data: bytes = self.store.files.cat_file(self.store.path(name))
        except OSError:
            return None
        return data.decode(errors="replace")

    # ---- signs of life -----------------------------------------------------------------------------------------

    def _start(self) -> None:
        """Give the first sign of life, and go on giving them in a thread."""
        if self._thread is None:
            self.beat()
            self._thread = threading.Thread(target=self._run, name="sightline-claims", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(self.lease / RENEWALS):
            self.beat()
            self.observe()

    def beat(self) -> None:
        """Give a sign of life."""
        self._beats += 1
        with suppress(Exception):
            self.store.write_file(f"{FOLDER}/{self.owner}{BEAT}", str(self._beats).encode(), sync=False)

    def observe(self) -> None:
        """Look at everybody's signs of life, so that it is known early who is gone."""
        with suppress(Exception):
            for path in self.store.files.ls(self.store.path(FOLDER), detail=False):
                name = PurePosixPath(path).name
                if name.endswith(BEAT) and name.removesuffix(BEAT) != self.owner:
                    self._is_gone(name.removesuffix(BEAT))

    def _is_gone(self, owner: str) -> bool:
        """Tell whether a driver has given no sign of life for too long, as far as we have seen."""
        if _has_ended(owner):
            return True
        number, now = self._read(f"{FOLDER}/{owner}{BEAT}"), self.clock()
        with self._lock:
            before = self._seen.get(owner)
            if before is None or before[0] != number:
                self._seen[owner] = (number, now)
                return False
            return now - before[1] > self.lease


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder; a process that dies gives it back."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _claim(name: str) -> str:
    return f"{FOLDER}/{name}{CLAIM}"


def _has_ended(owner: str) -> bool:
    """Tell whether a driver was a process of this machine that is no more."""
    machine, _, process = owner.rpartition(".")[0].rpartition(".")
    if machine != _machine() or not process.isdigit():
        return False
    try:
        os.kill(int(process), 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False
