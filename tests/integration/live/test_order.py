"""Frames that a client has not read yet when more arrive: they are valid only in the order of the connection."""

from __future__ import annotations

import asyncio
import os
import random
import socket
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from gateway.live.connection import LiveConnection
from tests.integration.gateway_support import Client, delta, until
from tests.integration.live.live_crowd import crowded
from tests.integration.live.live_model import TABLE, StockClient


@pytest.fixture
def ben(served):
    """A client that writes over HTTP."""
    return Client(served.url, served.client().gateway, "ben")


@pytest.fixture
def ann(ben):
    """Receives broadcasts on her connection."""
    return StockClient(Client(ben.url, ben.gateway, "ann"), "a", random.Random(1))


def write(ben: Client, **rows: tuple[dict[str, Any] | None, dict[str, Any] | None]) -> None:
    """Push a delta for each row, given as what it was and what it is now."""
    deltas = [delta(row, after, before=before, client="ben", table=TABLE) for row, (before, after) in rows.items()]
    assert ben.push(*deltas).status_code == 200


def unread(line: ClientConnection) -> int:
    """The number of unread bytes in the socket."""
    with socket.socket(fileno=os.dup(line.transport.get_extra_info("socket").fileno())) as peeked:
        peeked.setblocking(False)
        try:
            return len(peeked.recv(65_536, socket.MSG_PEEK))
        except BlockingIOError:
            return 0


def hold_up(line: ClientConnection, above: int = 0) -> int:
    """Block the event loop until the socket has more unread bytes than that; return their number."""
    return until(lambda: (found := unread(line)) > above and found, "a frame")


def test_a_broadcast_read_together_with_an_earlier_answer_is_applied_after_it(ben, ann, monkeypatch):
    monkeypatch.setattr(LiveConnection, "_start_resuming", lambda _: None)  # no broadcast comes before the answer

    async def run():
        write(ben, gone=(None, {"x": 1}))
        await ann.connect()
        await ann.pull()
        await ann.cut()
        write(ben, gone=({"x": 1}, None))
        await ann.connect()
        answered = asyncio.create_task(ann.pull())
        await asyncio.sleep(0)
        answer = hold_up(ann.line)
        write(ben, gone=(None, {"x": 2}))
        hold_up(ann.line, answer)
        assert [each.op for each in (await answered).deltas] == ["DELETE"]
        assert not (await ann.pull()).deltas
        assert ann.broadcasts == 1
        await ann.cut()

    crowded(run())
    assert ann.rows == {"gone": {"x": 2}}


def test_a_broadcast_after_one_that_could_not_be_applied_is_not_applied(ben, ann):
    async def run():
        write(ben, gone=(None, {"x": 1}), both=(None, {"x": 1}))
        await ann.connect()
        await ann.pull()
        ann.edit("UPDATE", "both", {"x": 7})
        write(ben, gone=({"x": 1}, None), both=({"x": 1}, {"x": 5}))
        first = hold_up(ann.line)
        write(ben, gone=(None, {"x": 2}))
        hold_up(ann.line, first)
        with pytest.raises(ConnectionClosed):
            await ann.pull()
        assert ann.broadcasts == 0
        await ann.settle()
        await ann.connect()
        await ann.catch_up()
        await ann.cut()

    crowded(run())
    assert ann.rows == {"gone": {"x": 2}, "both": {"x": 5}}
