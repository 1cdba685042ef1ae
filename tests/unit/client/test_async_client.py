"""The client for asyncio: what cancelling the task that awaits a call does, at each of the calls that can be long."""

from __future__ import annotations

import asyncio
import threading

import pytest

from lakesync.client import LocalTransport, UnreachableError, async_client, open_async, open_client

DEADLINE = 60.0
TODOS = {"table": "todos", "columns": [{"name": "title", "type": "string"}]}


class HeldTransport(LocalTransport):
    """Pulls wait until `release` is set, or until they are cancelled."""

    def __init__(self, gateway) -> None:
        super().__init__(gateway)
        self.release = threading.Event()
        self.pulling = threading.Event()
        self.was_cancelled = False

    def pull(self, pull):
        self.pulling.set()
        assert self.release.wait(DEADLINE)
        if self.was_cancelled:
            raise UnreachableError("the request was cancelled")
        return super().pull(pull)

    def cancel_requests(self) -> None:
        self.was_cancelled = True
        self.release.set()


@pytest.fixture
def transport(gateway) -> HeldTransport:
    return HeldTransport(gateway)


@pytest.fixture
def opened(transport, tmp_path):
    return open_async(tmp_path / "alice.db", client_id="alice", schemas=[TODOS], transport=transport)


def run(play) -> None:
    asyncio.run(asyncio.wait_for(play(), DEADLINE))


def join_workers() -> None:
    """Wait until the threads of all closed clients have ended."""
    for thread in threading.enumerate():
        if thread.name.startswith("lakesync-app"):
            thread.join(DEADLINE)


def test_cancelling_a_waiting_sync_does_not_end_that_of_another_task(opened, transport) -> None:
    async def play() -> None:
        async with opened as alice:
            first = asyncio.create_task(alice.sync())
            await asyncio.to_thread(transport.pulling.wait, DEADLINE)
            second = asyncio.create_task(alice.sync())
            await asyncio.sleep(0)  # the second task calls `sync`, which waits for the first one's
            second.cancel()
            with pytest.raises(asyncio.CancelledError):
                await second
            assert not transport.was_cancelled
            transport.release.set()
            await first

    run(play)


@pytest.mark.parametrize("call", ["sync", "verify"])
def test_cancelling_a_running_call_ends_its_requests(opened, transport, call) -> None:
    async def play() -> None:
        async with opened as alice:
            task = asyncio.create_task(getattr(alice, call)())
            await asyncio.to_thread(transport.pulling.wait, DEADLINE)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await alice.query("SELECT * FROM todos") == []
            assert transport.was_cancelled

    run(play)


def test_a_client_that_is_opened_for_a_cancelled_task_is_closed(opened, transport, tmp_path, monkeypatch) -> None:
    begun, allowed = threading.Event(), threading.Event()

    def open_slowly(*arguments, **options):
        begun.set()
        assert allowed.wait(DEADLINE)
        return open_client(*arguments, **options)

    monkeypatch.setattr(async_client, "open_client", open_slowly)
    transport.release.set()
    options = {"client_id": "alice", "schemas": [TODOS], "transport": transport, "auto_sync": True}

    async def play() -> None:
        opening = asyncio.create_task(open_async(tmp_path / "alice.db", **options).__aenter__())
        await asyncio.to_thread(begun.wait, DEADLINE)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening

    run(play)
    allowed.set()
    join_workers()
    with open_client(tmp_path / "alice.db", **options) as alice:  # the first one has released the lock of the file
        alice.sync()


def test_a_cancelled_close_ends_the_sync_and_closes_the_client(opened, transport, gateway, tmp_path) -> None:
    async def play() -> None:
        alice = await opened.__aenter__()
        sync = asyncio.create_task(alice.sync())
        await asyncio.to_thread(transport.pulling.wait, DEADLINE)
        closing = asyncio.create_task(alice.close())
        await asyncio.sleep(0)  # the task begins to wait for the synchronisation
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        with pytest.raises(UnreachableError):
            await sync

    run(play)
    join_workers()
    with open_client(tmp_path / "alice.db", client_id="alice", transport=LocalTransport(gateway)) as alice:
        alice.sync()


def test_a_token_is_replaced_while_a_sync_waits_for_the_earlier_one(tmp_path) -> None:
    called, answer, ended = threading.Event(), threading.Event(), threading.Event()

    def provider() -> str:
        called.set()
        answer.wait(DEADLINE)
        ended.set()
        return "late"

    async def play() -> None:
        options = {"url": "http://127.0.0.1:9", "gateway": "g", "token": provider, "client_id": "alice"}
        async with open_async(tmp_path / "alice.db", schemas=[TODOS], **options) as db:
            syncing = asyncio.create_task(db.sync())
            await asyncio.to_thread(called.wait, DEADLINE)
            await db.set_token("new")
            with pytest.raises(UnreachableError, match="no gateway answers"):
                await syncing
            assert not ended.is_set()
            answer.set()

    asyncio.run(play())


def test_a_function_that_raises_stop_iteration_ends(opened) -> None:
    async def play() -> None:
        async with opened as alice:
            with pytest.raises(RuntimeError, match="StopIteration"):
                await alice.run(lambda _: next(iter(())))

    run(play)
