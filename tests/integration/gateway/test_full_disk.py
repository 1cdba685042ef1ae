"""A disk that really fills up: pushes are rejected with a reason, and no acknowledged push is lost."""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from lakesync.cli.up.process import accepts, free_ports
from tests.forked import Forked, gateway
from tests.integration.gateway_support import DEADLINE, SECRET, Client, delta, until
from tests.small_disk import mounted


@pytest.fixture
def small_disk(tmp_path) -> Iterator[Path]:
    """A separate file system of 8 MiB."""
    with mounted(tmp_path / "small", 8) as folder:
        yield folder


def ready(url: str) -> str:
    return requests.get(url + "/ready", timeout=DEADLINE).json().get("error", "ready").partition(":")[0]


def test_a_full_disk_rejects_pushes_until_there_is_space_and_loses_no_acknowledged_one(spawn, small_disk):
    settings = {
        "LAKESYNC_STAGING_URL": f"sqlite://{small_disk}/staging",
        "LAKESYNC_LIMITS_MIN_FREE_DISK_BYTES": "500000",
    }
    server = spawn(**settings)
    alice = server.client("alice")
    assert ready(server.url) == "ready"
    noise = random.Random(1)
    acknowledged = set()
    refused = None
    for n in range(2000):
        row = f"t{n}"
        answer = alice.push(delta(row, {"text": noise.randbytes(20_000).hex()}, client="alice"))
        if answer.status_code != 200:
            refused = answer
            break
        acknowledged.add(row)
    assert refused is not None
    assert (refused.status_code, refused.json()["code"]) == (503, "STAGING_UNAVAILABLE")
    assert str(small_disk) not in refused.text
    reasons = [line["error"] for line in server.lines() if line["event"] == "request failed"]
    assert str(small_disk) in reasons[0]
    assert int(refused.headers["retry-after"]) > 0
    assert len(acknowledged) > 20
    assert ready(server.url) in ("disk", "store")
    assert requests.get(server.url + "/health", timeout=DEADLINE).status_code == 200

    subprocess.run(["mount", "-o", "remount,size=64m", str(small_disk)], check=True)
    until(lambda: ready(server.url) == "ready", "the room to be found")
    until(lambda: alice.push(delta("last", {"n": 1}, client="alice")).status_code == 200, "a push to be taken")
    server.process.kill()
    server.process.wait(DEADLINE)
    bob = spawn(**settings).client("bob")
    seen: set[str] = set()
    cursor, more = "0", True
    while more:  # a page has at most 4 MiB
        page = bob.pull(cursor, limit=10_000).json()
        seen |= {each["rowId"] for each in page["deltas"]}
        cursor, more = page["serverHlc"], page["hasMore"]
    assert seen >= acknowledged | {"last"}


def test_requests_succeed_while_the_log_file_cannot_be_written(tmp_path):
    """As on a full disk, or after the reader of a pipe has ended."""
    (port,) = free_ports(1)
    settings = {
        "LAKESYNC_CONFIG": "",
        "LAKESYNC_DATA_DIR": str(tmp_path),
        "LAKESYNC_GATEWAY_PORT": str(port),
        "LAKESYNC_JWT_SECRET": SECRET,
    }
    server = Forked(gateway, environment=os.environ | settings, log=Path("/dev/full"))
    url = f"http://127.0.0.1:{port}"
    until(lambda: server.poll() is not None or (accepts(port) and ready(url) == "ready"), "the server")
    assert Client(url, "g", "alice").push(delta("r1", {"n": 1}, client="alice")).status_code == 200
    server.terminate()
    server.wait(DEADLINE)
