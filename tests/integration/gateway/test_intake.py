"""The pipeline's connections to gateways: `lakehouse.gateway_connections`."""

from __future__ import annotations

import threading
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import psycopg
import pytest

from lakehouse.gateway_connections import RemoteIntake, open_intake, pipeline_store
from lakesync.config import Config
from lakesync.model.hlc import OffsetClock
from lakesync.model.schema import Column, TableSchema
from lakesync.staging import open_store, remote
from lakesync.staging.postgres.connection import APPLICATION
from tests.conformance.book import Book
from tests.integration.gateway_support import SERVICE, until


class _SlowOnce(BaseHTTPRequestHandler):
    """Gives no response to the first request."""

    paths: ClassVar[list[str]]
    ended: threading.Event

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.paths.append(self.path)
        if len(self.paths) == 1:
            self.ended.wait(60)
            return
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        """Log nothing."""


def test_a_push_that_timed_out_is_repeated(monkeypatch):
    monkeypatch.setattr(remote, "_MARGIN_SECONDS", 0)

    class Handler(_SlowOnce):
        paths: ClassVar[list[str]] = []
        ended = threading.Event()

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            url = f"http://127.0.0.1:{server.server_port}"
            with closing(RemoteIntake(url, "token", timeout=1, retry_seconds=0)) as intake:
                intake.push("g", b"{}")
        finally:
            Handler.ended.set()
            server.shutdown()
            thread.join()
    assert Handler.paths == ["/internal/push/g"] * 2


def test_the_pipeline_calls_its_gateway_directly_in_spite_of_a_proxy(monkeypatch, served):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with closing(remote.RemoteStore(served.url, SERVICE, retry_seconds=0)) as store:
        store.marks()
    with closing(RemoteIntake(served.url, SERVICE, retry_seconds=0)) as intake:
        intake.push("g", b'{"clientId": "importer", "deltas": [], "lastSeenHlc": 0}')


@pytest.mark.parametrize("opened", [open_intake, pipeline_store])
def test_no_connection_is_left_when_an_engine_cannot_open(own_database, tmp_path, opened):
    store = open_store(own_database, OffsetClock().now_ms)
    store.open(Book())
    store.ensure_gateway("g")
    schema = TableSchema("notes", (Column("x", "number"),))
    store.submit("g", lambda commit: commit.put_schema(schema)).result()
    store.close()
    with psycopg.connect(own_database, autocommit=True) as connection:
        connection.execute("UPDATE lakesync.table_schema SET body = 'damaged'")
        config = Config(data_dir=tmp_path, staging={"url": own_database})
        with pytest.raises(Exception, match="JSON") as failure, opened(config):
            pass
        assert failure.type.__module__  # keep the failed engine, so that the collector does not close it
        query = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = %s"
        until(lambda: connection.execute(query, (APPLICATION,)).fetchone() == (0,), "the connections to end")
