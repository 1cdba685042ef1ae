"""The pipeline's calls over a real HTTP server; errors keep their class."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import msgspec
import pytest
import requests
import stamina

from lakesync.model.errors import (
    IntegrityError,
    LakeSyncError,
    NotFoundError,
    StagingUnavailableError,
    ValidationError,
)
from lakesync.model.schema import Column, TableSchema
from lakesync.model.types import StoredConnector
from lakesync.staging import remote as remote_module
from lakesync.staging.records import Checkpoint, CheckpointTable
from lakesync.staging.remote import RemoteStore, dispatch
from tests.conformance.book import id_sum, make_delta

TOKEN = "a-service-token"
SHORT = 0.2


class Server(ThreadingHTTPServer):
    """Calls `dispatch` as the gateway's internal route does; drops, truncates or delays responses on request."""

    def __init__(self, store) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.store = store
        self.drop = 0
        self.halve = 0
        self.late = 0
        self.mute = False
        self.calls = 0
        self.closing = threading.Event()


class Handler(BaseHTTPRequestHandler):
    """`POST /internal/staging/{method}`."""

    server: Server

    def do_POST(self):
        """Handle one call."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.calls += 1
        if self.server.mute:
            self.server.closing.wait()
        status, answer, retry_after = self._answer(body)
        if self.server.late:  # like a gateway whose request timed out
            self.server.late -= 1
            self.server.closing.wait(2 * SHORT)
            status, answer, retry_after = 503, _error("not done in time", "STAGING_UNAVAILABLE"), None
        if self.server.drop:
            self.server.drop -= 1
            self.close_connection = True
            return
        self.send_response(status)
        self.send_header("Content-Length", str(len(answer)))
        if retry_after is not None:
            self.send_header("Retry-After", retry_after)
        self.end_headers()
        if self.server.halve:
            self.server.halve -= 1
            self.close_connection = True
            answer = answer[: len(answer) // 2]
        self.wfile.write(answer)

    def _answer(self, body):
        if self.headers["Authorization"] != f"Bearer {TOKEN}":
            return 401, _error("no", "AUTH_ERROR"), None
        try:
            return 200, dispatch(self.server.store, self.path.rpartition("/")[2], body), None
        except StagingUnavailableError as exc:
            return 503, _error(str(exc), exc.code), "7"
        except LakeSyncError as exc:
            return 400, _error(str(exc), exc.code), None

    def log_message(self, *_):
        """Log nothing."""


def _error(message, code):
    return msgspec.json.encode({"error": message, "code": code, "requestId": "r"})


@pytest.fixture(autouse=True)
def without_waits():
    """Retry without stamina's wait of up to a second."""
    with stamina.set_testing(True, attempts=10):
        yield


@pytest.fixture
def server(store):
    """The store behind HTTP."""
    with Server(store) as listening:
        thread = threading.Thread(target=listening.serve_forever, args=(0.05,))
        thread.start()
        yield listening
        listening.closing.set()
        listening.shutdown()
        thread.join()


@pytest.fixture
def remote(server):
    """The pipeline's client of the store."""
    client = RemoteStore(f"http://127.0.0.1:{server.server_port}/", TOKEN, retry_seconds=60)
    yield client
    client.close()


def test_a_flush_works_over_the_remote_store(remote, store, book):
    schema = TableSchema("notes", (Column("x", "number"),))
    store.submit("g", lambda commit: commit.put_schema(schema)).result()
    deltas = [make_delta("c", hlc, f"r{hlc}", x=hlc) for hlc in range(1, 30)]
    entry = store.submit("g", book.push(deltas)).result()
    assert remote.gateways() == ["g"]
    assert remote.gateway_config("g") == store.gateway_config("g")
    assert remote.log_source() == store.log_source()
    remote.request_flush("g")
    assert remote.backlog() == store.backlog()
    assert remote.backlog()[0].flush_requested_ms is not None
    batch = remote.plan("g", "main", 100)
    assert batch == store.plan("g", "main", 100)
    total = id_sum(deltas)
    assert remote.confirm(batch.batch_id, 29, total) is None
    assert remote.plan("g", "main", 100) is None
    assert remote.ledger("g") == store.ledger("g")
    assert remote.ledger("g")[0].flushed_id_sum == total
    assert remote.trim("g", "main") == len(entry.body)
    connector = StoredConnector("jira", "jira", {"apiToken": {"sealed": "x"}})
    store.submit("g", lambda commit: commit.put_connector(connector)).result()
    assert remote.connectors("g") == [connector]
    assert remote.newest_checkpoint("g") is None
    assert remote.cut_point("g") == store.cut_point("g")
    checkpoint = Checkpoint(
        "g", batch.epoch, entry.arrival, 0, (CheckpointTable("notes", 1, 29, ("file:///f",), 9),), 5
    )
    assert remote.publish_checkpoint(checkpoint) is True
    assert remote.publish_checkpoint(checkpoint) is False
    assert remote.newest_checkpoint("g") == checkpoint


def test_errors_keep_their_class(remote, store, book):
    with pytest.raises(NotFoundError, match="nowhere"):
        remote.plan("nowhere", "main", 1)
    store.submit("g", book.push([make_delta("c", 1, "r", x=1)])).result()
    batch = remote.plan("g", "main", 1)
    with pytest.raises(IntegrityError, match=batch.batch_id):
        remote.confirm(batch.batch_id, 7, 7)


def test_a_call_with_a_lost_answer_is_retried(remote, server, store, book):
    store.submit("g", book.push([make_delta("c", 1, "r", x=1)])).result()
    server.drop, server.halve = 2, 1
    batch = remote.plan("g", "main", 1)
    assert batch == store.plan("g", "main", 1)
    assert server.calls == 4


def test_a_call_that_uses_the_whole_time_limit_is_repeated_once(server, store):
    client = RemoteStore(f"http://127.0.0.1:{server.server_port}", TOKEN, retry_seconds=SHORT)
    server.late = 1
    assert client.gateways() == ["g"]
    assert server.calls == 2
    server.late = 9
    with pytest.raises(StagingUnavailableError, match="not done in time"):
        client.gateways()
    assert server.calls == 4
    client.close()


def test_a_gateway_that_never_answers_is_an_error(server, monkeypatch):
    monkeypatch.setattr(remote_module, "_MARGIN_SECONDS", SHORT)
    client = RemoteStore(f"http://127.0.0.1:{server.server_port}", TOKEN, timeout=SHORT, retry_seconds=SHORT)
    server.mute = True
    with pytest.raises(StagingUnavailableError, match="did not answer"):
        client.gateways()
    client.close()


def test_an_unreachable_gateway_is_an_error_with_its_address(server):
    gone = RemoteStore("http://127.0.0.1:1", TOKEN, retry_seconds=0.5)
    with pytest.raises(StagingUnavailableError, match=r"127\.0\.0\.1:1"):
        gone.backlog()
    gone.close()
    stranger = RemoteStore(f"http://127.0.0.1:{server.server_port}", "another token")
    with pytest.raises(LakeSyncError) as refused:
        stranger.backlog()
    assert refused.value.code == "AUTH_ERROR"
    stranger.close()


def test_an_answer_of_a_proxy_is_quoted_in_the_error(server):
    answer = requests.Response()
    answer.status_code, answer._content, answer.url = 502, b"<html>Bad Gateway</html>", "http://x/"
    from lakesync.staging.remote import error_of

    assert "Bad Gateway" in str(error_of(answer))


def test_values_out_of_range_are_rejected(store):
    with pytest.raises(NotFoundError, match="no method 'submit'"):
        dispatch(store, "submit", b"{}")
    for body in (b"{}", b'{"gateway": 1}', b'{"gateway": "g", "more": 1}', b"not json"):
        with pytest.raises(ValidationError, match="ledger"):
            dispatch(store, "ledger", body)
    assert dispatch(store, "gateways", b"") == b'["g"]'
