"""A store in a bucket: the whole life of one against a local S3 server."""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections import Counter
from contextlib import suppress

import pytest
from tests.bench.store.test_store import rows_for
from tests.bench.test_driver import CHUNKS, UNITS, FakeEngine, drive, together
from tests.bench.test_unit import manifest

from sightline.bench.store import store_files
from sightline.bench.store.claims import Claims
from sightline.bench.store.compact import compact
from sightline.bench.store.rows import encode
from sightline.bench.store.status import status_of
from sightline.bench.store.store import Store, read_maps, read_rows

moto = pytest.importorskip("moto")
s3fs = pytest.importorskip("s3fs")


@pytest.fixture(scope="module")
def server():
    """Start an S3 server on the loopback interface, and return its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    code = "from moto.server import main; import sys; main(sys.argv[1:])"
    process = subprocess.Popen(
        [sys.executable, "-c", code, "-H", "127.0.0.1", "-p", str(port)], env=environment, stderr=subprocess.DEVNULL
    )
    last = time.monotonic() + 60
    while time.monotonic() < last:
        with suppress(urllib.error.URLError, OSError):
            urllib.request.urlopen(address, timeout=1)
            break
        time.sleep(0.1)
    yield address
    process.kill()
    process.wait()


@pytest.fixture
def url(server, monkeypatch):
    """Make a bucket, and point s3:// at the server."""
    import fsspec

    for name, value in (("KEY_ID", "x"), ("SECRET_ACCESS_KEY", "x"), ("ACCESS_KEY_ID", "x"), ("ENDPOINT_URL", server)):
        monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setattr(store_files, "SETTLE", 0.0)
    bucket = f"bucket-{uuid.uuid4().hex[:12]}"
    fsspec.filesystem("s3", endpoint_url=server).mkdir(bucket)
    return f"s3://{bucket}/run"


def opened(url):
    store = Store(url)
    store.prepare()
    store.write_manifest(manifest(CHUNKS))
    return store


def test_a_bucket_holds_reports_and_compacts_a_run(url):
    store = opened(url)
    outcome = drive(url, FakeEngine(Counter(), 0.0))
    assert (outcome.computed, outcome.complete) == (UNITS, True)
    wanted = read_rows(url)
    assert len(wanted) == 2 * UNITS
    done = compact(url)
    assert (done.units, done.packs, done.left) == (UNITS, 1, 0)
    assert read_rows(url).equals(wanted)
    assert status_of(url).complete
    json.dumps(status_of(url).to_json())
    assert drive(url, FakeEngine(Counter(), 0.0)).before == UNITS
    assert store.read(wanted["unit"][0]).num_rows == 2
    assert read_maps(url, wanted["unit"][0]) == {}
    (pack,) = Store(url).packs.refresh().packs.values()
    store.files.pipe_file(store.path(pack.rows_name), b"short")
    again = drive(url, FakeEngine(Counter(), 0.0))
    assert (len(again.damaged), again.computed) == (1, UNITS)


def test_claims_in_a_bucket_have_one_owner(url):
    store = opened(url)
    with Claims(store) as one, Claims(Store(url)) as other:
        assert one.take("a")
        assert not other.take("a")
        one.release("a")
        assert other.take("a")


@pytest.mark.slow
def test_three_drivers_on_a_bucket_do_nothing_twice(url):
    opened(url)
    counted = Counter()
    together(*[lambda: drive(url, FakeEngine(counted, 0.02))] * 3)
    assert len(counted) == UNITS
    assert counted.total() <= UNITS * 1.01 + 1
    assert len(read_rows(url)) == 2 * UNITS


def test_a_damaged_unit_in_a_bucket_is_put_aside(url):
    store = opened(url)
    unit = next(manifest(CHUNKS).units())
    store.write(unit.key, encode(rows_for(unit))[:50])
    assert len(status_of(url).damaged) == 1
    assert drive(url, FakeEngine(Counter(), 0.0)).complete
