"""An app's connections: SQLAlchemy and pandas for its data; a proxy or a private certificate for its gateway."""

from __future__ import annotations

import sqlite3
import threading
from typing import Any

import pandas as pd
import pytest
import sqlalchemy as sa
from websockets.sync.server import ServerConnection, serve

from lakesync.client import UnreachableError, open_client
from lakesync.client.core import CoreLimits
from lakesync.client.transports.websocket import WebSocketTransport
from tests.integration.client import go_betweens
from tests.integration.gateway_support import Served, delta, sign, until

TODOS = {"table": "todos", "columns": [{"name": "title", "type": "string"}, {"name": "n", "type": "number"}]}


def test_writes_by_sqlalchemy_and_pandas_are_synchronised(served: Served, tmp_path) -> None:
    gateway = served.client().gateway
    path = tmp_path / "alice.db"
    options = {"url": served.url, "gateway": gateway, "schemas": [TODOS]}
    with open_client(path, token=sign("alice", gateway), **options) as alice:
        engine = sa.create_engine("sqlite://", creator=lambda: sqlite3.connect(path), poolclass=sa.NullPool)
        todos = sa.Table("todos", sa.MetaData(), autoload_with=engine)
        with engine.begin() as connection:
            rows = [{"row_id": f"t{n}", "title": f"task {n}", "n": n} for n in range(4)]
            connection.execute(todos.insert(), rows)
            connection.execute(todos.update().where(todos.c.n == 1).values(title="changed"))
            connection.execute(todos.delete().where(todos.c.n == 2))
        with engine.connect() as connection:
            connection.execute(todos.insert().values(row_id="undone", title="never committed"))
            connection.rollback()
        frame = pd.DataFrame({"row_id": ["p1", "p2"], "title": ["one", "two"], "n": [1.5, None]})
        frame.to_sql("todos", engine, if_exists="append", index=False)
        assert alice.sync().pushed == 5
        assert alice.pending() == []
        alice["todos"].update("t0", title="ours")
        with engine.connect() as connection:
            assert connection.scalar(sa.select(todos.c.title).where(todos.c.row_id == "t0")) == "ours"
        alice.sync()
    with open_client(tmp_path / "bob.db", token=sign("bob", gateway), **options) as bob:
        bob.sync()
        there = {row["row_id"]: (row["title"], row["n"]) for row in bob["todos"]}
        assert there == {
            "t0": ("ours", 0),
            "t1": ("changed", 1),
            "t3": ("task 3", 3),
            "p1": ("one", 1.5),
            "p2": ("two", None),
        }
        assert bob.to_arrow("todos").num_rows == 5


@pytest.mark.parametrize("realtime", [False, True])
def test_the_proxy_argument_overrides_the_environment(served: Served, tmp_path, monkeypatch, realtime: bool) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    gateway = served.client().gateway
    options = {"url": served.url, "gateway": gateway, "token": sign("alice", gateway), "schemas": [TODOS]}
    with open_client(tmp_path / "without.db", **options) as without, pytest.raises(UnreachableError):
        without.sync()
    with (
        go_betweens.proxy() as (url, seen),
        open_client(tmp_path / "alice.db", proxy=url, realtime=realtime, auto_sync=realtime, **options) as alice,
    ):
        alice["todos"].insert(title="through the proxy")
        if realtime:
            until(lambda: alice.status.live and not alice.pending(), "a line through the proxy")
        else:
            assert alice.sync().pushed == 1
        assert any(served.url in line for line in seen), seen
        assert any(line.startswith("CONNECT") for line in seen) == realtime


@pytest.mark.parametrize("realtime", [False, True])
@pytest.mark.parametrize(
    ("head", "body", "message"),
    [
        ("200 OK\r\nContent-Type: text/html", b"<html>Welcome on board: log in</html>", "login"),
        ("302 Found\r\nLocation: https://portal.example/login", b"", "portal.example"),
        ("308 Permanent Redirect\r\nLocation: https://sync.example/", b"", "https://sync.example/"),
        ("407 Proxy Authentication Required\r\nContent-Type: text/html", b"<html>who?</html>", "407"),
    ],
)
def test_an_answer_of_a_captive_portal_is_unreachable(
    tmp_path, head: str, body: bytes, message: str, realtime: bool
) -> None:
    options = {"gateway": "g", "client_id": "alice", "schemas": [TODOS], "realtime": realtime, "auto_sync": False}
    with go_betweens.answering(head, body) as url, open_client(tmp_path / "alice.db", url=url, **options) as alice:
        alice["todos"].insert(title="kept")
        errors: list[Exception] = []
        alice.on("onError", errors.append)
        alice.coordinator.start_auto_sync()
        until(lambda: errors, "what it says")
        alice.coordinator.stop_auto_sync()
        assert all(isinstance(error, UnreachableError) for error in errors)
        with pytest.raises(UnreachableError):
            alice.sync()
        with pytest.raises(UnreachableError, match=message), alice.transport.checkpoint("alice"):  # type: ignore[attr-defined]
            pass
        assert len(alice.pending()) == 1


def test_the_ca_argument_makes_a_private_certificate_trusted(served: Served, tmp_path, monkeypatch) -> None:
    gateway = served.client().gateway
    options = {"gateway": gateway, "token": sign("alice", gateway), "schemas": [TODOS]}
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", pd.__file__)
    with go_betweens.tls(served.url, tmp_path) as (url, certificate):
        with open_client(tmp_path / "alice.db", url=url, ca=str(certificate), **options) as alice:
            alice["todos"].insert(title="in secret")
            assert alice.sync().pushed == 1
        line = WebSocketTransport(url, gateway, sign("alice", gateway), ca=str(certificate)).connect()
        line.close()
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate))
        line = WebSocketTransport(url, gateway, sign("alice", gateway)).connect()
        line.close()
        monkeypatch.delenv("REQUESTS_CA_BUNDLE")
        monkeypatch.delenv("SSL_CERT_FILE", raising=False)
        with (
            open_client(tmp_path / "bob.db", url=url, **options) as doubter,
            pytest.raises(UnreachableError, match="CERTIFICATE_VERIFY_FAILED"),
        ):
            doubter.sync()


def test_a_tls_connection_is_not_corrupted_by_concurrent_threads(tmp_path, monkeypatch) -> None:
    handshakes = 300  # it failed for about one in forty clients that read in one thread and sent in another

    def answer(connection: ServerConnection) -> None:
        for message in connection:
            connection.send(message)

    with serve(answer, "127.0.0.1", 0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        with go_betweens.tls(f"http://127.0.0.1:{server.socket.getsockname()[1]}", tmp_path) as (url, certificate):
            monkeypatch.setenv("SSL_CERT_FILE", str(certificate))  # the system's certificates take long to load
            monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path))
            transport = WebSocketTransport(url, "g", ca=str(certificate))
            for _ in range(handshakes):
                transport.connect().close()
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("realtime", [False, True])
@pytest.mark.parametrize("content", [None, "no certificate"])
def test_an_unreadable_ca_file_is_reported(tmp_path, monkeypatch, content: str | None, realtime: bool) -> None:
    bundle = tmp_path / "bundle.pem"
    if content is not None:
        bundle.write_text(content)
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(bundle))
    options = {"url": "https://127.0.0.1:9", "gateway": "g", "client_id": "a", "schemas": [TODOS]}
    with open_client(tmp_path / "a.db", realtime=realtime, auto_sync=False, **options) as alice:
        with pytest.raises(UnreachableError):
            alice.sync()
        if realtime:
            with pytest.raises(UnreachableError):
                alice.transport.connect()  # type: ignore[attr-defined]


def test_a_private_certificate_is_trusted_through_a_proxy(served: Served, tmp_path) -> None:
    gateway = served.client().gateway
    with go_betweens.tls(served.url, tmp_path) as (url, certificate), go_betweens.proxy() as (proxy, seen):
        options = {"url": url, "gateway": gateway, "token": sign("alice", gateway), "schemas": [TODOS]}
        way = {"proxy": proxy, "ca": str(certificate), "realtime": True, "auto_sync": True}
        with open_client(tmp_path / "alice.db", **options, **way) as alice:
            alice["todos"].insert(title="in secret, through the proxy")
            until(lambda: alice.status.live and not alice.pending(), "a line through the proxy")
        assert all(line.startswith("CONNECT") for line in seen)


def test_a_client_synchronises_if_no_thread_can_be_started(served: Served, tmp_path, monkeypatch) -> None:
    gateway, begin = served.client().gateway, threading.Thread.start
    writer = served.client("writer", gateway)
    writer.push(*(delta(f"t{number}", {"title": "x"}, client="writer") for number in range(20)))

    def start(thread: threading.Thread) -> None:
        if thread.name.startswith("lakesync-"):
            raise RuntimeError("can't create new thread at interpreter shutdown")
        begin(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    options: dict[str, Any] = {
        "url": served.url,
        "gateway": gateway,
        "token": sign("alice", gateway),
        "schemas": [TODOS],
    }
    with open_client(tmp_path / "alice.db", limits=CoreLimits(pull_deltas=5), **options) as alice:
        alice["todos"].insert(title="y")
        assert alice.sync().pushed == 1
        assert len(alice["todos"]) == 21
