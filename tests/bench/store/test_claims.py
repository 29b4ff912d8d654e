"""Claims: one owner at a time, taken over when the owner is gone, whatever the clocks say."""

import os
import subprocess
import sys
import threading
import uuid

import pytest

from sightline.bench.store import store_files
from sightline.bench.store.claims import BEAT, CLAIM, FOLDER, Claims, _machine
from sightline.bench.store.store import Store


@pytest.fixture(params=["folder", "memory"])
def store(request, tmp_path, monkeypatch):
    monkeypatch.setattr(store_files, "SETTLE", 0.0)
    return Store(str(tmp_path) if request.param == "folder" else f"memory://{uuid.uuid4().hex}")


class Clock:
    def __init__(self, now=0.0):
        self.now = now

    def __call__(self):
        return self.now


def elsewhere(store, clock, name="other-machine.1.aa"):
    """A driver on another machine, whose process cannot be looked for; its signs of life are given by hand."""
    claims = Claims(store, lease=1000.0, clock=clock, owner=name)
    return claims


def test_a_claim_has_one_owner_until_it_is_given_up(store):
    with Claims(store) as one, Claims(store) as other:
        assert one.take("a")
        assert one.take("a")
        assert not other.take("a")
        assert other.take("b")
        assert (one.is_taken("a"), other.is_taken("a"), one.is_taken("c")) == (False, True, False)
        one.release("a")
        assert other.take("a")
        one.release("a")  # no longer its own
        assert one.is_taken("a")


def test_everything_is_given_up_at_the_end(store):
    with Claims(store) as one:
        assert one.take("a")
    assert [path for path in store.files.find(store.path(FOLDER)) if path.endswith((CLAIM, BEAT))] == []


def test_a_claim_is_taken_over_when_its_owner_gives_no_sign_of_life(store):
    clock, dead = Clock(), elsewhere(store, Clock())
    assert dead.take("a")
    with Claims(store, lease=60.0, clock=clock) as ours:
        assert not ours.take("a")
        clock.now = 59.0
        assert not ours.take("a")
        dead.beat()
        clock.now = 100.0
        assert not ours.take("a")  # a sign of life was seen just now
        clock.now = 159.0
        assert not ours.take("a")
        clock.now = 161.0
        assert ours.take("a")
        assert dead.is_taken("a")
        dead.release("a")  # it comes back to life, and must not give up what is no longer its own
        assert dead.is_taken("a")


@pytest.mark.parametrize("skew", [-1e6, -100.0, 100.0, 1e6])
def test_clocks_may_differ(store, skew):
    theirs, ours = Clock(skew), Clock(0.0)
    other = elsewhere(store, theirs)
    assert other.take("a")
    with Claims(store, lease=60.0, clock=ours) as claims:
        for _ in range(5):
            assert not claims.take("a")
            ours.now += 50
            theirs.now += 50
            other.beat()


def test_the_claims_of_a_process_of_this_machine_that_has_ended_are_free_at_once(store):
    ended = subprocess.Popen(["true"])
    ended.wait()
    assert elsewhere(store, Clock(), f"{_machine()}.{ended.pid}.aa").take("a")
    with Claims(store) as ours:
        assert ours.take("a")


def test_what_drivers_have_seen_early_counts(store):
    clock = Clock()
    assert elsewhere(store, Clock()).take("a")
    with Claims(store, lease=60.0, clock=clock) as ours:
        ours.observe()
        clock.now = 61.0
        assert ours.take("a")


def test_a_store_that_refuses_claims_keeps_nobody_from_working(store, monkeypatch):
    def refuse(*_, **__):
        raise OSError(28, "No space left on device")

    for name in ("create", "write_file"):
        monkeypatch.setattr(Store, name, refuse)
    with Claims(store) as one, Claims(store) as other:
        assert one.take("a")
        assert other.take("a")


def test_only_one_of_many_threads_gets_a_claim_of_the_dead(tmp_path):
    """Twenty drivers find the same twenty claims of a dead one at the same moment."""
    store = Store(str(tmp_path))
    ended = subprocess.Popen(["true"])
    ended.wait()
    dead = elsewhere(store, Clock(), f"{_machine()}.{ended.pid}.aa")
    names = [f"unit{index}" for index in range(20)]
    assert all(dead.take(name) for name in names)
    got, start = [], threading.Barrier(20)

    def race():
        claims = Claims(Store(str(tmp_path)))
        start.wait()
        got.extend(name for name in names if claims.take(name))

    threads = [threading.Thread(target=race) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(got) == sorted(names)


def test_creating_is_exclusive_between_processes(tmp_path):
    code = (
        "import sys; from sightline.bench.store.store import Store\n"
        "store = Store(sys.argv[1])\n"
        "print(sum(store.create(f'claims/{i}.claim', b'x') for i in range(200)))"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) for _ in range(3)]
    assert sum(int(process.communicate()[0]) for process in processes) == 200
