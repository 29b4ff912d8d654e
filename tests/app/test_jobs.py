"""Queues: visitors take turns, a job stops when it is cancelled or left, and nothing grows without end."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from fastapi.testclient import TestClient
from tests.app.conftest import CNN, ask, follow, picture

from sightline.app.jobs import Busy, Clock, Job, ModelQueue
from sightline.app.limits import Limits
from sightline.app.maps import MapCache
from sightline.app.routes_ask import _events
from sightline.app.server import create_app
from sightline.errors import TargetError


def job_of(steps: Callable[[Job], Iterator[None]]) -> Job:
    return Job(None, steps)  # type: ignore[arg-type]


def wait_for(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.01)


@pytest.fixture
def queue() -> Iterator[ModelQueue]:
    queue = ModelQueue(limit=10)
    yield queue
    queue.close()


@pytest.mark.parametrize("early", [False, True])
def test_visitors_take_turns_step_by_step(queue, early):
    """Also where the second visitor comes while the first one's step is under way."""
    gate, begun, done = threading.Event(), threading.Event(), []

    def steps(name: str) -> Callable[[Job], Iterator[None]]:
        def run(job: Job) -> Iterator[None]:
            begun.set()
            gate.wait()
            for number in range(3):
                done.append(f"{name}{number}")
                yield

        return run

    jobs = [("anna", job_of(steps("a"))), ("anna", job_of(steps("A"))), ("ben", job_of(steps("b")))]
    for visitor, job in jobs:
        queue.add(visitor, job)
        assert not early or begun.wait(20)
    gate.set()
    wait_for(lambda: all(job.ended for _, job in jobs))
    assert done == ["a0", "b0", "a1", "b1", "a2", "b2", "A0", "A1", "A2"]


def test_a_full_queue_says_so():
    queue, gate = ModelQueue(limit=2), threading.Event()

    def steps(job: Job) -> Iterator[None]:
        gate.wait()
        yield

    for number in range(2):
        queue.add(str(number), job_of(steps))
    with pytest.raises(Busy, match="try again"):
        queue.add("late", job_of(steps))
    gate.set()
    queue.close()


def test_cancelling_stops_before_the_next_step(queue):
    begun, gate, done = threading.Event(), threading.Event(), []

    def steps(job: Job) -> Iterator[None]:
        for number in range(2):
            begun.set()
            gate.wait()
            done.append(number)
            yield

    job = job_of(steps)
    queue.add("anna", job)
    begun.wait()
    job.cancel()
    gate.set()
    wait_for(lambda: job.ended)
    assert (job.state, done) == ("cancelled", [0])
    assert job.events[-1] == ("end", {"state": "cancelled", "error": ""})


@pytest.mark.parametrize(
    ("error", "sentence"), [(TargetError("got class 9"), "got class 9"), (ZeroDivisionError("secret"), "ZeroDivision")]
)
def test_a_job_that_fails_leaves_the_queue_running(queue, error, sentence):
    def fails(job: Job) -> Iterator[None]:
        raise error
        yield

    def works(job: Job) -> Iterator[None]:
        yield

    jobs = [job_of(fails), job_of(works)]
    for job in jobs:
        queue.add("anna", job)
    wait_for(lambda: jobs[1].ended)
    assert [job.state for job in jobs] == ["failed", "done"]
    assert sentence in jobs[0].error
    assert "secret" not in jobs[0].error


def test_the_time_left_follows_the_declared_cost(monkeypatch):
    now = iter([0.0, 2.0, 10.0, 12.0])
    monkeypatch.setattr(time, "perf_counter", lambda: next(now))
    clock = Clock(total=8.0)
    clock.start()
    assert clock.stop(2.0) == {"done": 0.25, "seconds_left": 6.0}
    clock.start()
    assert clock.stop(2.0) == {"done": 0.5, "seconds_left": 4.0}  # another's turn in between does not count


def test_the_cache_forgets_what_was_not_asked_for_longest():
    class Kept:
        nbytes = 40

    cache, maps = MapCache(limit=100), [Kept() for _ in range(3)]
    for number, kept in enumerate(maps[:2]):
        cache.keep((str(number),), kept)  # type: ignore[arg-type]
    cache.find(("0",))
    cache.keep(("2",), maps[2])  # type: ignore[arg-type]
    assert cache.find(("1",)) is None
    assert cache.find(("0",)) is maps[0]
    assert cache.nbytes == 80


def test_a_visitor_cannot_fill_the_queue(cnn):
    application = create_app({CNN: cnn}, limits=Limits(unfinished=2))
    gate = threading.Event()
    with TestClient(application, base_url="http://localhost") as client:
        block(application, gate)
        for _ in range(2):
            ask(client, recipes=["random"])
        answer = client.post("/api/jobs", json={"model": CNN, "picture": "ring"})
        gate.set()
    assert answer.status_code == 503
    assert answer.headers["retry-after"]


def test_a_job_that_nobody_follows_any_more_is_cancelled(cnn):
    application = create_app({CNN: cnn}, limits=Limits(grace=0.0))
    gate = threading.Event()
    with TestClient(application, base_url="http://localhost") as client:
        block(application, gate)
        job = ask(client, recipes=["random"])["id"]
        server = application.state.server
        (visitor,) = server.visitors._known.values()

        async def leave() -> None:
            task = asyncio.ensure_future(anext(_events(visitor.jobs[job], 0, 0.0)))
            await asyncio.sleep(0.1)
            task.cancel()
            await asyncio.sleep(0.1)

        client.portal.call(leave)
        gate.set()
        wait_for(lambda: visitor.jobs[job].ended)
        assert visitor.jobs[job].state == "cancelled"


def block(application: Any, gate: threading.Event) -> None:
    """Keep the model busy until the gate opens."""

    def steps(job: Job) -> Iterator[None]:
        gate.wait()
        yield

    application.state.server.queues.of(CNN).add("somebody", job_of(steps))


def test_fifty_visitors_each_get_their_own_maps(cnn):
    limits = replace(Limits(), visitors=60, cached_bytes=200_000)
    application = create_app({CNN: cnn}, limits=limits)
    with TestClient(application, base_url="http://localhost"):
        clients = [TestClient(application, base_url="http://localhost") for _ in range(50)]
        shown = [
            client.post("/api/pictures", content=picture(seed)).json()["id"] for seed, client in enumerate(clients)
        ]
        jobs = [
            ask(client, picture=shown[number], recipes=["input_norm"])["id"] for number, client in enumerate(clients)
        ]
        ends = [follow(client, job)[-1][1]["state"] for client, job in zip(clients, jobs, strict=True)]
        seen = {client.get(f"/api/jobs/{job}/pictures/seen").content for client, job in zip(clients, jobs, strict=True)}
    assert ends == ["done"] * 50
    assert len(seen) == 50
    server = application.state.server
    assert server.cache.nbytes <= limits.cached_bytes
    assert len(server.queues.of(CNN)) == 0


def test_a_visitor_who_was_away_longest_is_forgotten(cnn):
    application = create_app({CNN: cnn}, limits=Limits(visitors=3))
    with TestClient(application, base_url="http://localhost"):
        clients = [TestClient(application, base_url="http://localhost") for _ in range(5)]
        for client in clients:
            client.post("/api/pictures", content=picture())
        assert len(application.state.server.visitors) == 3
        assert [len(client.get("/api/pictures").json()) for client in clients] == [0, 0, 1, 1, 1]
