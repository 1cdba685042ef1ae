"""The hub of WebSocket connections."""

import asyncio

import pytest

from gateway.live.hub import Hub
from lakesync.config.sections import LimitsSection


class UnavailableOnce:
    """A store whose notices cannot be watched at the first attempt."""

    def __init__(self):
        self.attempts = 0

    def watch(self, _listener):
        self.attempts += 1
        if self.attempts == 1:
            raise OSError("too many open files")
        return lambda: None


def test_a_store_that_could_not_be_watched_is_tried_again_for_the_next_connection():
    store = UnavailableOnce()
    hub = Hub(store, LimitsSection(), lambda _: None)

    async def connect_three_times():
        with pytest.raises(OSError, match="too many open files"):
            await hub.start()
        await hub.start()
        await hub.start()

    asyncio.run(connect_three_times())
    assert store.attempts == 2
