"""A server with the small bundled models, and visitors of it."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from PIL import Image

import sightline
from sightline.app.limits import Limits
from sightline.app.server import create_app

CNN = "bundled/shapes-cnn"
SAMPLE = "triangle-with-watermark"


def picture(seed: int = 0, size: tuple[int, int] = (64, 64), kind: str = "PNG") -> bytes:
    """Return an image file of random pixels."""
    pixels = np.random.default_rng(seed).integers(0, 255, (*size[::-1], 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format=kind)
    return buffer.getvalue()


def follow(client: TestClient, job: str, last: int | None = None) -> list[tuple[str, dict[str, Any]]]:
    """Return the events of a job, to its end."""
    headers = {} if last is None else {"Last-Event-ID": str(last)}
    text = client.get(f"/api/jobs/{job}/events", headers=headers).text
    blocks = [block.splitlines() for block in text.split("\n\n") if block.startswith("id:")]
    return [(kind.partition(": ")[2], json.loads(data.partition(": ")[2])) for _, kind, data in blocks]


def ask(client: TestClient, **options: Any) -> dict[str, Any]:
    """Ask for maps of the sample, and return the job."""
    answer = client.post("/api/jobs", json={"model": CNN, "picture": SAMPLE, **options})
    assert answer.status_code == 202, answer.text
    return answer.json()


@pytest.fixture(scope="session")
def cnn() -> sightline.Adapter:
    return sightline.load(CNN)


@pytest.fixture
def application(cnn) -> FastAPI:
    return create_app({CNN: cnn}, limits=Limits(upload_bytes=200_000, pixels=90_000, side=100, pictures=2))


@pytest.fixture
def visitor(application) -> Iterator[Callable[[], TestClient]]:
    """Return a function that brings another visitor."""
    with TestClient(application, base_url="http://localhost"):
        yield lambda: TestClient(application, base_url="http://localhost")


@pytest.fixture
def client(visitor) -> TestClient:
    return visitor()
