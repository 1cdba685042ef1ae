"""The codes and reasons with which a WebSocket is closed."""

from __future__ import annotations

import random
import signal
import threading
from collections.abc import Callable
from contextlib import suppress

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.frames import Close, Frame, Opcode

from gateway import admission
from gateway.server import GatewayServer, create_app, listen
from gateway.settings import GatewaySettings
from lakesync.config.sections import LimitsSection
from lakesync.engine import Engine, EngineLimits
from lakesync.model.types import SyncPull, SyncPush
from lakesync.staging import open_store
from lakesync.wire import protobuf
from lakesync.wire.frames import FrameTag
from tests.integration.gateway_support import DEADLINE, SECRET, Client, delta, until, wall_ms
from tests.integration.live.live_support import Live, decoded

PUSH, PULL, BROADCAST = (bytes((tag,)) for tag in FrameTag)


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\x00",
        b"\x04rest",
        BROADCAST + protobuf.encode_pull(SyncPull("client-1", 0)),
        PUSH + b"\xff\xff\xff",
        PULL + b"\x0a\xff",
        PUSH + protobuf.encode_pull(SyncPull("client-1", 7)) + b"\x12\x01\xff",
        "text",
        '{"clientId": "client-1"}',
    ],
    ids=repr,
)
def test_an_invalid_frame_closes_the_connection_with_1002(served, frame):
    with Live(served.client()) as live:
        live.socket.send(frame)
        code, reason = live.closed()
    assert (code, reason.partition(":")[0]) == (1002, "VALIDATION_ERROR")
    assert len(reason) > 25


@pytest.mark.parametrize("frames", [[b"\xff"], ["Å".encode()[:1], "Å".encode()[1:]], [b"a", b"\xff"]], ids=repr)
def test_text_closes_the_connection_with_1002_even_if_it_is_not_utf8(served, frames, caplog):
    with Live(served.client()) as live:
        live.socket.send(frames, text=True)
        assert live.closed()[0] == 1002
    assert not [entry for entry in caplog.records if entry.levelname == "ERROR"]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"client": "somebody-else"}, "FORBIDDEN"),
        ({"table": "no table"}, "VALIDATION_ERROR"),
        ({"hlc": (wall_ms() + 3_600_000) << 16}, "CLOCK_DRIFT"),
    ],
)
def test_a_rejected_push_closes_with_1008_and_stores_nothing(served, changes, expected):
    client = served.client()
    with Live(client) as live:
        message = SyncPush(client.client_id, decoded([delta("t1", {"n": 1}, **changes)]))
        live.send(FrameTag.PUSH, protobuf.encode_push(message))
        code, reason = live.closed()
    assert (code, reason.partition(":")[0]) == (1008, expected)
    assert client.pull().json()["deltas"] == []


def test_a_push_that_does_not_fit_its_schema_is_rejected(served):
    client = served.client()
    schema = {"table": "todos", "columns": [{"name": "title", "type": "string"}]}
    assert client.admin().call("POST", "/admin/schema/{gw}", json=schema).status_code == 200
    with Live(client) as live:
        message = SyncPush(client.client_id, decoded([delta("t1", {"title": 1})]))
        live.send(FrameTag.PUSH, protobuf.encode_push(message))
        assert live.closed()[1].startswith("SCHEMA_ERROR")


def test_a_full_gateway_rejects_a_push_with_its_code(serve):
    client = serve(limits=EngineLimits(max_backpressure_bytes=1)).client()
    with Live(client) as live:
        live.push(delta("t1", {"n": 1}))
        live.send(FrameTag.PUSH, protobuf.encode_push(SyncPush("client-1", decoded([delta("t2", {"n": 1})]))))
        code, reason = live.closed()
    assert (code, reason.partition(":")[0]) == (1008, "BACKPRESSURE_ERROR")


@pytest.mark.parametrize(
    ("pull", "code"),
    [
        (SyncPull("client-1", 0, 10_001), "VALIDATION_ERROR"),
        (SyncPull("another", 0), "FORBIDDEN"),
        (SyncPull("client-1", 0, 10, "nowhere"), "NOT_FOUND"),
    ],
)
def test_a_rejected_pull_closes_with_1008(served, pull, code):
    with Live(served.client()) as live:
        live.send(FrameTag.PULL, protobuf.encode_pull(pull))
        found, reason = live.closed()
    assert (found, reason.partition(":")[0]) == (1008, code)


def test_an_invalid_cursor_closes_only_connections_of_clients_that_can_resync(served):
    client = served.client()
    client.push(delta("t1", {"n": 1}))
    cursor = wall_ms() + 10_000_000 << 16
    with Live(client) as live:
        assert [each.op for each in live.pull(cursor).deltas] == ["DELETE", "INSERT"]
    headers = {"Authorization": f"Bearer {client.token}", "X-LakeSync-Client": "python"}
    with Live(client, additional_headers=headers) as live:
        live.send(FrameTag.PULL, protobuf.encode_pull(SyncPull("client-1", cursor)))
        assert live.closed()[1].startswith("RESYNC_REQUIRED")


@pytest.mark.parametrize("size", [1001, 16 << 20], ids=["one byte above", "still arriving"])
def test_a_frame_above_the_limit_ends_with_1009(serve, size):
    client = serve(http_limits={"max_body_bytes": 1000}).client()
    with Live(client) as live:
        with suppress(ConnectionClosed):
            live.socket.send(PUSH + b"\0" * size)
        assert live.closed()[0] == 1009


def test_a_frame_at_the_limit_is_served(serve):
    whole = SyncPush("client-1", decoded([delta("t1", {"n": "x" * 500})]))
    message = protobuf.encode_push(whole)
    client = serve(http_limits={"max_body_bytes": len(message)}).client()
    with Live(client) as live:
        live.send(FrameTag.PUSH, message)
        assert live.answer().server_hlc > 0


def test_a_push_before_the_close_frame_of_its_client_is_stored(served):
    """The JavaScript client never repeats a push that was on its way when its tab was closed."""
    client = served.client()
    other = served.client("other", client.gateway)
    push = SyncPush(client.client_id, decoded([delta("t1", {"n": 1})]))
    message = Frame(Opcode.BINARY, PUSH + protobuf.encode_push(push)).serialize(mask=True)
    with Live(client) as live:
        live.socket.socket.sendall(message + Frame(Opcode.CLOSE, Close(1000, "").serialize()).serialize(mask=True))
        until(lambda: other.pull().json()["deltas"], "the push")


def test_a_push_after_a_rejected_message_is_not_stored_either_if_its_client_closes(spawn):
    """Without the close frame, the gateway's own close would have preceded the push."""
    server = spawn()
    client = server.client("alice")
    messages = [
        PULL + protobuf.encode_pull(SyncPull("another", 0)),
        PUSH + protobuf.encode_push(SyncPush("alice", decoded([delta("t1", {"n": 1}, client="alice")]))),
    ]
    frames = [*(Frame(Opcode.BINARY, each) for each in messages), Frame(Opcode.CLOSE, Close(1000, "").serialize())]
    with Live(client) as live:
        live.socket.socket.sendall(b"".join(frame.serialize(mask=True) for frame in frames))
        until(lambda: [line for line in server.lines() if line["event"] == "disconnected"], "the end")
    requests = [line for line in server.lines() if line["event"] == "request" and line["route"].endswith("/ws")]
    assert [(line["method"], line["status"]) for line in requests] == [("GET", 101), ("PULL", 403)]
    assert server.client("bob").pull().json()["deltas"] == []


def test_messages_above_the_rate_limit_close_with_1008(serve, monkeypatch):
    monkeypatch.setattr(admission, "_WINDOW_SECONDS", 600)  # the window does not end before the rejection
    client = serve(http_limits={"websocket_messages_per_second": 10 / 600}).client()
    with Live(client) as live:
        for _ in range(10):
            live.pull()
        live.send(FrameTag.PULL, protobuf.encode_pull(SyncPull("client-1", 0)))
        code, reason = live.closed()
    assert (code, reason.partition(":")[0]) == (1008, "RATE_LIMITED")


def test_shutdown_closes_connections_and_finishes_pushes(spawn):
    server = spawn()
    alice, bob = server.client("alice"), server.client("bob")
    with Live(alice) as writer, Live(bob) as reader:
        writer.pull()
        reader.pull()
        writer.push(delta("t1", {"n": 1}, client="alice"))
        assert len(reader.broadcast().deltas) == 1
        server.process.send_signal(signal.SIGTERM)
        assert writer.closed()[0] == 1001
        assert reader.closed()[0] == 1001
    assert server.process.wait(DEADLINE) == 0
    ends = [line for line in server.lines() if line["event"] == "disconnected"]
    assert {(line["client"], line["code"]) for line in ends} == {("alice", 1001), ("bob", 1001)}
    assert "token" not in server.log.read_text()


def _slow_to_enter(monkeypatch, engine: Engine, url: str) -> Callable[[], int]:
    """Open a connection that waits for its admission; return a function that admits it and returns its close code."""
    comes, enters, codes = threading.Event(), threading.Event(), []
    found = engine.gateway

    def gateway(name: str):
        comes.set()
        assert enters.wait(DEADLINE)
        return found(name)

    def connect() -> None:
        with Live(Client(url, "other", "carol")) as live:
            codes.append(live.closed()[0])

    monkeypatch.setattr(engine, "known_gateway", lambda _: None)  # it is looked up as a gateway that is not open yet
    monkeypatch.setattr(engine, "gateway", gateway)
    thread = threading.Thread(target=connect)
    thread.start()
    assert comes.wait(DEADLINE)

    def let() -> int:
        enters.set()
        thread.join(DEADLINE)
        return codes[0]

    return let


def test_a_push_in_progress_at_shutdown_is_answered_first(tmp_path, monkeypatch):
    """A connection that is being opened is closed like the others."""
    settings = GatewaySettings(secrets=(SECRET,), limits=LimitsSection(request_timeout_seconds=10 * DEADLINE))
    engine = Engine(open_store(f"sqlite://{tmp_path}", wall_ms), wall_ms)
    engine.open()
    engine.gateway("other")
    with listen("127.0.0.1", 0) as bound:
        server = GatewayServer(create_app(settings, engine), settings)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{bound.getsockname()[1]}"
        held, holds = threading.Event(), threading.Event()
        with Live(Client(url, "gw")) as writer, Live(Client(url, "gw", "bob")) as idle:
            idle.pull()
            engine.store.submit("gw", lambda _: holds.set() or held.wait(DEADLINE))
            assert holds.wait(DEADLINE)
            writer.send(FrameTag.PUSH, protobuf.encode_push(SyncPush("client-1", decoded([delta("t1", {"n": 1})]))))
            until(lambda: server._gate.in_flight == 1, "the push")
            entering = _slow_to_enter(monkeypatch, engine, url)
            server.handle_exit(signal.SIGTERM, None)
            assert idle.closed()[0] == 1001
            assert entering() == 1001
            with pytest.raises(InvalidStatus) as late:
                Live(Client(url, "gw", "late"))
            assert (late.value.response.status_code, late.value.response.headers["retry-after"]) == (503, "1")
            held.set()
            assert writer.answer().server_hlc > 0
            assert writer.closed()[0] == 1001
        thread.join(DEADLINE)
        assert not thread.is_alive()
    engine.close()


def test_a_connection_is_logged_with_its_counts(spawn):
    server = spawn()
    client = server.client("alice")
    with Live(client, query=f"?token={client.token}", additional_headers={}) as live:
        live.push(delta("t1", {"n": 1}, client="alice"))
        live.pull()
    end = until(lambda: [line for line in server.lines() if line["event"] == "disconnected"], "the end")[0]
    assert (end["messages"], end["client"], end["gateway"]) == (2, "alice", "gw")
    requests = [line for line in server.lines() if line["event"] == "request" and line["route"].endswith("/ws")]
    assert [(line["method"], line["status"]) for line in requests] == [("GET", 101), ("PUSH", 200), ("PULL", 200)]
    assert requests[1]["deltas"] == 1
    assert requests[1]["request_id"].startswith(requests[0]["request_id"])
    assert client.token not in server.log.read_text()


def test_no_frame_breaks_the_server(served):
    client = served.client()
    chance = random.Random(7)
    good = protobuf.encode_push(SyncPush("client-1", decoded([delta("t1", {"n": 1})])))
    codes = set()
    for _ in range(150):
        body = bytearray(good)
        for _ in range(chance.randrange(1, 6)):
            body[chance.randrange(len(body))] = chance.randrange(256)
        frame = bytes((chance.choice((1, 1, 1, 2, 3, 9)),)) + bytes(body[: chance.randrange(len(body) + 1)])
        with Live(Client(served.url, client.gateway)) as live:
            live.socket.send(frame)
            with suppress(ConnectionClosed):  # the first one may have closed it
                live.socket.send(chance.randbytes(20))
            codes.add(live.closed()[0])
    assert codes <= {1002, 1008}
    assert 1002 in codes
    with Live(client) as live:
        live.push(delta("t9", {"n": 1}))
