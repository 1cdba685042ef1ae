"""A connection is closed as a slow reader if its client reads less than 64 KiB in the time of the setting."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from gateway.live.connection import LiveConnection
from gateway.request_log import RequestRecord
from lakesync.config.sections import LimitsSection
from lakesync.engine.subscribers import Subscriber, SubscriptionState

KIB_64 = 65_536
LIMITS = LimitsSection(websocket_slow_reader_seconds=0.01)
SERVICES = SimpleNamespace(settings=SimpleNamespace(limits=LIMITS))


class Wire:
    """A connection with the given numbers of queued bytes, one after another; the last one stays."""

    is_open, is_writable = True, False

    def __init__(self, *queued: int) -> None:
        self.queued = list(queued)
        self.closed = asyncio.get_running_loop().create_future()

    @property
    def queued_bytes(self) -> int:
        return self.queued.pop(0) if len(self.queued) > 1 else self.queued[0]

    def close(self, code: int, reason: str) -> None:
        self.closed.set_result((code, reason.partition(":")[0]))


def closed_after(*queued):
    """Return the code with which the connection is closed, and how many of the numbers are left then."""

    async def watch():
        wire = Wire(*queued)
        connection = LiveConnection(SERVICES, wire, None, RequestRecord("opening"), knows_resync=False)
        connection.subscriber = Subscriber("ann", {}, SubscriptionState(1, 100))
        assert not connection.check_ready()
        async with asyncio.timeout(60):
            return await wire.closed, len(wire.queued)

    return asyncio.run(watch())


def test_w4_a_client_that_reads_steadily_stays_connected():
    closed, left = closed_after(*range(9_000_000, 4_000_000, -KIB_64))
    assert closed == (1013, "SLOW_READER")
    assert left == 1, "it was closed while it read"


@pytest.mark.parametrize("read", [0, 1, KIB_64 - 1])
def test_w4_a_client_that_reads_too_little_is_closed_at_the_first_check(read):
    closed, left = closed_after(900_000, 900_000 - read, *[0] * 9)
    assert closed == (1013, "SLOW_READER")
    assert left > 1
