"""A response's head is sent together with what follows it, after at most one turn of the event loop."""

from __future__ import annotations

import asyncio

import pytest

from gateway import write_coalescing
from gateway.compat_uvicorn import LimitedHttpProtocol
from gateway.write_coalescing import WriteCoalescingTransport

HEAD = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n"


class Line(asyncio.Transport):
    """Records each write to the socket."""

    def __init__(self):
        super().__init__()
        self.sent = []
        self.gone = False
        self.queued = []

    def is_closing(self):
        return self.gone

    def write(self, data):
        self.sent.append(bytes(data))

    def writelines(self, parts):
        self.sent.append(b"".join(parts))

    def write_eof(self):
        self.sent.append("eof")

    def get_write_buffer_size(self):
        return self.queued.pop(0) if self.queued else 0

    def close(self):
        self.sent.append("closed")

    def abort(self):
        self.sent.append("aborted")


def sent(*steps):
    """The writes that reach the socket for calls on a joined transport; None is a turn of the event loop."""

    async def run():
        line = Line()
        joined = WriteCoalescingTransport(line, asyncio.get_running_loop())
        for step in steps:
            if step is None:
                await asyncio.sleep(0)
            else:
                step(joined)
        await asyncio.sleep(0)
        return line.sent

    return asyncio.run(run())


def write(data):
    return lambda joined: joined.write(data)


def test_response_head_and_body_are_one_write():
    assert sent(write(HEAD), write(b"{}"), write(HEAD), write(b"[]")) == [HEAD + b"{}", HEAD + b"[]"]


def test_a_head_without_a_body_is_sent():
    assert sent(write(HEAD), write(b"")) == [HEAD]
    assert sent(write(HEAD)) == [HEAD]


def test_a_response_head_waits_for_one_turn_of_the_loop_at_most():
    assert sent(write(HEAD), None, write(b"{}"), write(b"more")) == [HEAD, b"{}", b"more"]


def test_a_response_head_is_dropped_if_the_client_disconnected():
    assert sent(write(HEAD), lambda joined: setattr(joined.inner, "gone", True)) == []


def test_closing_the_connection_follows_the_response_head():
    assert sent(write(HEAD), WriteCoalescingTransport.close) == [HEAD, "closed"]
    assert sent(write(HEAD), WriteCoalescingTransport.write_eof) == [HEAD, "eof"]
    assert sent(write(HEAD), WriteCoalescingTransport.abort) == ["aborted"]


@pytest.mark.parametrize(
    ("queued", "end"), [([9, 4, 4, 0, 0], "closed"), ([9, 9], "aborted")], ids=["reads slowly", "reads nothing"]
)
def test_only_a_peer_that_reads_nothing_is_aborted(monkeypatch, queued, end):
    """`queued` are the queued bytes that the transport reports, one value for each query."""
    monkeypatch.setattr(write_coalescing, "READER_SECONDS", 0.0)

    def close(joined):
        joined.inner.queued = queued
        joined.close()

    assert sent(write(b"x" * 9), close, None, None, None, None)[-1] == end
    assert queued == []


def test_a_peer_that_sends_nothing_more_and_reads_nothing_is_aborted(monkeypatch):
    """The event loop then closes the inner transport, which waits until the peer reads."""
    monkeypatch.setattr(write_coalescing, "READER_SECONDS", 0.0)
    protocol = object.__new__(LimitedHttpProtocol)

    def end(joined):
        protocol._output, joined.inner.queued = joined, [9, 9]
        protocol.eof_received()

    assert sent(write(b"x" * 9), end, None, None)[-1] == "aborted"


def test_an_upgraded_connection_is_not_checked_for_http_responses(monkeypatch):
    monkeypatch.setattr(write_coalescing, "READER_SECONDS", 0.0)

    def checked(joined):
        joined.inner.queued = [9]
        joined.check_reader()
        joined.stop_checking()

    assert "aborted" not in sent(write(b"x" * 9), checked, None, None)
