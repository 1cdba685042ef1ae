"""The Python client over a connection that becomes silent: packets are dropped, and no side closes it."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from lakesync.client import Client, UnreachableError, open_async, open_client
from lakesync.client.core import CoreLimits
from lakesync.client.sync.sync_session import CLOSE_SECONDS
from lakesync.client.transports import http
from lakesync.model.types import SyncResponse
from tests.integration.client import go_betweens
from tests.integration.gateway_support import DEADLINE, Served, delta, sign, until

TODOS = {"table": "todos", "columns": [{"name": "title", "type": "string"}]}
FOREVER = 10 * DEADLINE
"""Seconds for which a client would wait for an answer."""


@pytest.fixture
def line(served: Served) -> Iterator[tuple[str, go_betweens.Silence]]:
    with go_betweens.quiet_line(served.url) as found:
        yield found


@pytest.fixture
def client_options(served: Served, line, tmp_path) -> Callable[..., dict[str, Any]]:
    """The arguments to open alice's file, over the silent connection."""
    gateway = served.client().gateway

    def options(**changes: Any) -> dict[str, Any]:
        given = {"url": line[0], "gateway": gateway, "token": sign("alice", gateway), "schemas": [TODOS]}
        return {"path": tmp_path / "alice.db", "timeout": FOREVER, **given, **changes}

    return options


def swallowed(silence: go_betweens.Silence) -> None:
    assert silence.swallowed.wait(DEADLINE)


def closed_soon(client: Client) -> None:
    begun = time.monotonic()
    client.close()
    assert time.monotonic() - begun < DEADLINE / 3


@pytest.fixture
def own_interrupts() -> Iterator[None]:
    """Restore Python's own handler of Ctrl-C, whatever ran in this process before."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("own_interrupts")
def test_ctrl_c_ends_a_pull_on_a_silent_connection(served: Served, line, client_options) -> None:
    silence = line[1]
    writer = served.client("writer", client_options()["gateway"])
    writer.push(*(delta(f"t{number}", {"title": "x"}, client="writer") for number in range(100)))
    begun: list[float] = []

    def interrupt() -> None:
        assert silence.lost.wait(DEADLINE)
        begun.append(time.monotonic())
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    with open_client(**client_options(limits=CoreLimits(pull_deltas=5))) as alice:
        alice.on("onChange", lambda *_: None)
        receive = alice.coordinator.replica.receive

        def falling(answer):  # the first page has arrived; at most three of the prefetched ones can have
            if isinstance(answer, SyncResponse):
                silence.fall()
            return receive(answer)

        alice.coordinator.replica.receive = falling  # type: ignore[method-assign]
        threading.Thread(target=interrupt, daemon=True).start()
        with pytest.raises(KeyboardInterrupt):
            alice.sync()
        assert time.monotonic() - begun[0] < DEADLINE / 3
        silence.lift()
        alice.coordinator.replica.receive = receive  # type: ignore[method-assign]
        alice.sync()
        assert len(alice["todos"]) == 100


@pytest.mark.parametrize("realtime", [False, True])
def test_closing_does_not_wait_for_a_silent_connection_and_loses_nothing(line, client_options, realtime: bool) -> None:
    silence = line[1]
    with open_client(**client_options(realtime=realtime, auto_sync=True)) as alice:
        errors: list[Any] = []
        alice.on("onError", errors.append)
        until(lambda: alice.status.last_sync and alice.status.live == realtime, "the first sync")
        silence.fall()
        alice["todos"].insert(title="into the silence")
        swallowed(silence)
        closed_soon(alice)
        assert errors == [], "closing reports no failure"
    silence.lift()
    with open_client(**client_options()) as alice:
        assert alice.sync().pushed == 1
        assert alice.pending() == []


def test_closing_does_not_wait_for_a_pull_on_a_silent_websocket(line, client_options) -> None:
    silence = line[1]
    alice = open_client(**client_options(realtime=True, auto_sync=False))
    connect = alice.transport.connect  # type: ignore[attr-defined]

    def falling():
        opened = connect()
        silence.fall()
        return opened

    alice.transport.connect = falling  # type: ignore[attr-defined]
    alice.coordinator.start_auto_sync()
    swallowed(silence)
    closed_soon(alice)


def test_closing_does_not_wait_for_a_websocket_that_is_being_opened(line, client_options) -> None:
    silence = line[1]
    silence.fall()
    alice = open_client(**client_options(realtime=True, auto_sync=True))
    swallowed(silence)
    closed_soon(alice)


def in_a_thread(work: Callable[[], object]) -> tuple[threading.Thread, list[BaseException]]:
    """Run a function in a thread; return the thread and the list of its errors."""
    raised: list[BaseException] = []

    def do() -> None:
        try:
            work()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=do, daemon=True)
    thread.start()
    return thread, raised


@pytest.mark.parametrize("what", ["sync", "describe_actions"])
def test_closing_cancels_a_request_of_another_thread(line, client_options, what: str) -> None:
    silence = line[1]
    silence.fall()
    alice = open_client(**client_options())
    work = {"sync": alice.sync, "describe_actions": alice.coordinator.describe_actions}[what]
    thread, raised = in_a_thread(work)
    swallowed(silence)
    closed_soon(alice)
    thread.join(DEADLINE)
    assert isinstance(raised[0], UnreachableError)
    assert "cancelled" in str(raised[0])


@pytest.mark.parametrize("closing", [False, True])
def test_stopping_auto_sync_waits_for_the_apps_sync_and_closing_cancels_it(line, client_options, closing: bool) -> None:
    silence, entered = line[1], threading.Event()
    alice = open_client(**client_options(interval=0.05))
    coordinator = alice.coordinator
    background = coordinator._auto_sync
    cycle = background._cycle

    def noted() -> float:
        entered.set()
        return cycle()

    background._cycle = noted  # type: ignore[method-assign]
    alice.sync()
    silence.fall()
    sync, raised = in_a_thread(alice.sync)
    swallowed(silence)
    coordinator.start_auto_sync()
    assert entered.wait(DEADLINE)
    if not closing:
        stop, _ = in_a_thread(coordinator.stop_auto_sync)
        stop.join(2.5 * CLOSE_SECONDS)
        assert sync.is_alive()
        silence.cut()
        stop.join(DEADLINE)
    closed_soon(alice)
    sync.join(DEADLINE)
    assert ("cancelled" in str(raised[0])) == closing


def test_a_broken_websocket_is_opened_again_immediately(line, client_options) -> None:
    silence = line[1]
    with open_client(**client_options(realtime=True, auto_sync=False, interval=FOREVER)) as alice:
        alice.coordinator._auto_sync._heartbeat = FOREVER
        opened: list[Any] = []
        connect = alice.transport.connect  # type: ignore[attr-defined]
        alice.transport.connect = lambda: opened.append(1) or connect()  # type: ignore[attr-defined]
        alice.coordinator.start_auto_sync()
        for times in (1, 2):
            until(lambda times=times: len(opened) == times and alice.status.live, "a line")  # type: ignore[misc]
            silence.cut()
        until(lambda: len(opened) == 3 and alice.status.live and alice.status.connected, "another line")


def test_a_client_catches_up_over_http_before_it_opens_a_websocket(served: Served, line, client_options) -> None:
    writer = served.client("writer", client_options()["gateway"])
    writer.push(*(delta(f"t{number}", {"title": "x"}, client="writer") for number in range(20)))
    with open_client(**client_options(realtime=True, auto_sync=False, limits=CoreLimits(pull_deltas=5))) as alice:
        connect, there = alice.transport.connect, []  # type: ignore[attr-defined]

        def counting():
            there.append(len(alice["todos"]))
            return connect()

        alice.transport.connect = counting  # type: ignore[attr-defined]
        alice.coordinator.start_auto_sync()
        until(lambda: alice.status.live, "a line")
        assert there == [20]


def test_a_websocket_is_opened_again_after_the_machine_slept(line, client_options) -> None:
    with open_client(**client_options(realtime=True, auto_sync=False)) as alice:
        slept = [0.0]
        looked: list[float] = []

        def wall() -> float:
            looked.append(time.time() + slept[0])
            return looked[-1]

        alice.coordinator._auto_sync._wall = wall
        opened: list[Any] = []
        connect = alice.transport.connect  # type: ignore[attr-defined]
        alice.transport.connect = lambda: opened.append(1) or connect()  # type: ignore[attr-defined]
        alice.coordinator.start_auto_sync()
        until(lambda: alice.status.live and looked, "a line, and a look at the clock after it was opened")
        slept[0] = 3600.0
        until(lambda: len(opened) == 2 and alice.status.live and alice.status.connected, "another line")


def test_a_connection_that_was_idle_for_long_is_not_used_again(line, client_options, monkeypatch) -> None:
    silence, ahead = line[1], [0.0]
    monkeypatch.setattr(http, "time", SimpleNamespace(time=lambda: time.time() + ahead[0]))
    with open_client(**client_options()) as alice:
        alice.sync()
        alice.sync()
        assert silence.connections == 1
        silence.fall()
        silence.lift()
        ahead[0] = 3600.0
        alice.sync()
        assert silence.connections == 2


def test_closing_does_not_wait_for_a_stalled_checkpoint(client_options, line, served: Served, tmp_path) -> None:
    from tests.integration.gateway.test_checkpoint import publish, rows

    silence = line[1]
    writer = served.client("writer", client_options()["gateway"])
    deltas = [delta(f"t{number}", {"title": "x" * 1000}, client="writer") for number in range(3000)]
    writer.push(*deltas[:400])
    publish(served, writer, tmp_path, [rows(*deltas[start : start + 300]) for start in range(0, 3000, 300)])
    alice = open_client(**client_options())
    alice.on("onProgress", lambda _: silence.fall())
    alice.coordinator.start_auto_sync()
    until(lambda: silence.connections, "a request")
    closed_soon(alice)
    assert len(list(tmp_path.glob("*lakesync-first*"))) == 0


def test_cancelling_an_async_sync_ends_it_and_the_client_closes(line, client_options) -> None:
    silence = line[1]

    async def play() -> None:
        async with open_async(**client_options()) as alice:
            await alice["todos"].insert(title="into the silence")
            silence.fall()
            sync = asyncio.create_task(alice.sync())
            await asyncio.to_thread(swallowed, silence)
            sync.cancel()
            with pytest.raises(asyncio.CancelledError):
                await sync
            assert len(await alice.query("SELECT * FROM todos")) == 1
            silence.swallowed.clear()
            other = asyncio.create_task(alice.sync())
            await asyncio.to_thread(swallowed, silence)
        with pytest.raises(UnreachableError):
            await other

    asyncio.run(asyncio.wait_for(play(), DEADLINE))
