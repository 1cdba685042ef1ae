"""The gRPC channel to a Spark server."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from lakehouse import sessions


@pytest.fixture
def port():
    """The port of a gRPC server without methods, which rejects each request as Spark does an empty one."""
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield port
    server.stop(None).wait()


def test_a_server_on_this_machine_is_reached_in_spite_of_a_proxy(port, monkeypatch):
    monkeypatch.setattr(sessions, "RETRY_SECONDS", 3.0)
    for name in ("http_proxy", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    sessions._probe("localhost", port, f"sc://localhost:{port}/")
