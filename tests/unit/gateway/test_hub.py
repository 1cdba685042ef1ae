"""The hub of WebSocket connections."""

import asyncio
import threading
from types import SimpleNamespace

import pytest

from gateway.live import hub as hub_module
from gateway.live.hub import Hub
from lakesync.config.sections import LimitsSection
from lakesync.staging.notices import Notice
from tests.integration.gateway_support import DEADLINE


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


class SlowStore:
    """A store whose `watch` waits until it is released."""

    def __init__(self):
        self.entered, self.released, self.stops = threading.Event(), threading.Event(), 0

    def watch(self, _listener):
        self.entered.set()
        assert self.released.wait(DEADLINE)
        return self.stop

    def stop(self):
        self.stops += 1


def test_a_hub_that_is_closed_while_it_starts_to_watch_the_store_stops_watching_it():
    store = SlowStore()
    hub = Hub(store, LimitsSection(), lambda _: None)

    async def close_meanwhile():
        starting = asyncio.ensure_future(hub.start())
        await asyncio.to_thread(store.entered.wait, DEADLINE)
        hub.close()
        store.released.set()
        await starting

    asyncio.run(close_meanwhile())
    assert store.stops == 1


def test_a_notice_that_a_channel_cannot_handle_does_not_affect_other_gateways(monkeypatch):
    delivered = []

    class RecordingChannel:
        def __init__(self, gateway, _on_broadcast):
            self.gateway_id = gateway.gateway_id

        def subscribe(self, connection):
            pass

        def on_commit(self, notice):
            if self.gateway_id == "broken":
                raise RuntimeError("broken")
            delivered.append(notice)

    class NotifyingStore:
        def watch(self, listener):
            self.notify = listener
            return lambda: None

    monkeypatch.setattr(hub_module, "Channel", RecordingChannel)
    store = NotifyingStore()
    hub = Hub(store, LimitsSection(), lambda _: None)
    notices = [Notice(gateway, frozenset({"all"})) for gateway in ("broken", "shop")]

    async def notify_both():
        await hub.start()
        for notice in notices:
            hub.subscribe(SimpleNamespace(gateway_id=notice.gateway), None)
        for notice in notices:
            store.notify(notice)
        await asyncio.sleep(0)

    asyncio.run(notify_both())
    assert delivered == notices[1:]
