"""WebSocket clients of one gateway, with events in the order of a history.

The channels, connections and engine are the real ones. Time is simulated: the store's jobs, their answers, its notices
and the frames of the connections wait until the history releases them.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, TypeVar, cast

from starlette.types import Message

from gateway.admission import RequestGate
from gateway.compat_uvicorn import LiveWebSocketProtocol
from gateway.dependencies import Caller, Services
from gateway.live.connection import LiveConnection
from gateway.live.hub import Hub
from gateway.request_log import RequestRecord
from gateway.server import create_app
from gateway.settings import GatewaySettings
from lakesync.config.sections import LimitsSection
from lakesync.engine import Engine, EngineLimits, SyncGateway
from lakesync.engine.pushing import PushRequest
from lakesync.model.types import PushResult, SyncPage, SyncPull, SyncPush
from lakesync.staging.shards import ShardMap
from tests.property.held_store import Event, HeldShards, HeldStore
from tests.property.live_client import Frames, LiveClient

T = TypeVar("T")

START = 1_700_000_000_000
_TURNS = 16
"""Turns of the event loop after which nothing changes."""
_AGES = 1e9


class Line:
    """The server's side of a connection, in place of a `LiveWebSocketProtocol`."""

    is_open = True
    is_writable = True
    queued_bytes = 0
    on_writable: Callable[[], None] | None = None

    def __init__(self) -> None:
        self.frames = Frames()
        self._messages: asyncio.Queue[Message] = asyncio.Queue()
        self.code: int | None = None

    @property
    def has_closed(self) -> bool:
        return self.code is not None

    async def wait_writable(self) -> None:
        """The client always reads."""

    def write_frame(self, frame: bytes) -> None:
        """Send a frame to the client."""
        if self.is_open:
            self.frames.down.append(frame)

    def close(self, code: int, reason: str) -> None:
        """The server closes the connection."""
        if self.is_open:
            self.code = code
            self.frames.reason = f"{code} {reason}"
            self.gone()

    def gone(self) -> None:
        """The server notices the end of the connection."""
        self.is_open = False
        self._messages.put_nowait({"type": "websocket.disconnect", "code": 1006})

    def arrive(self) -> None:
        """The client's oldest frame in transit arrives at the server."""
        self._messages.put_nowait({"type": "websocket.receive", "bytes": self.frames.up.popleft()})

    async def receive(self) -> Message:
        """As an ASGI server's method."""
        return await self._messages.get()


@dataclass
class _Connected:
    client: LiveClient
    line: Line
    task: asyncio.Task[None]


class _Requested(NamedTuple):
    """An HTTP request that has arrived at the server."""

    client: LiveClient
    message: SyncPull | SyncPush
    answer: Future[SyncPage] | Future[PushResult]


class Loop(asyncio.SelectorEventLoop):
    """An event loop whose time is advanced by the test."""

    now = 0.0

    def time(self) -> float:
        """The time in seconds."""
        return self.now


class UnrestError(AssertionError):
    """Further events are possible."""


class Crowd:
    """Clients, servers and the store; runs one event after another."""

    def __init__(
        self,
        store: HeldStore | HeldShards,
        services: Sequence[tuple[Services, Hub]],
        gateway: SyncGateway,
        clients: Sequence[LiveClient],
    ) -> None:
        self.store = store
        self.services = services
        self.gateway = gateway
        self.clients = clients
        self._connected: list[_Connected] = []
        self._requested: list[_Requested] = []

    async def play(self, order: Sequence[tuple[int, int]] = (), most: int = 5000) -> None:
        """Run all possible events in the chosen order; without a choice, the oldest event is first.

        Raises:
            UnrestError: events are left after the permitted number, `most`.
        """
        choices = iter(order)
        for _ in range(most):
            events = list(self._events())
            if not events:
                if not await self._pass_time():
                    return
                continue
            choice, turns = next(choices, (0, 0))
            if choice < 0:
                await self._pass_time()
                continue
            events[choice % len(events)].happen()
            await self._settle(turns or _TURNS)
        raise UnrestError(f"the clients do not reach a stable state in {most} events")

    async def follow(self, *names: str) -> None:
        """Run these events, one after another; `…` is any possible event except the next one named."""
        for place, name in enumerate(names):
            if name == "…":
                await self._all_but(names[place + 1] if place + 1 < len(names) else "")
                continue
            self.happen(name)
            await self._settle(_TURNS)

    def happen(self, name: str) -> None:
        """Run this event; nothing else reacts to it yet."""
        events = list(self._events())
        event = next((event for event in events if event.name == name), None)
        assert event is not None, f"{name!r} is not possible now, only {[event.name for event in events]}"
        event.happen()

    async def _all_but(self, name: str) -> None:
        while event := next((event for event in self._events() if event.name != name), None):
            event.happen()
            await self._settle(_TURNS)

    async def close(self) -> None:
        """Let every server close its connections at any point of the history, as a server does at shutdown."""
        for service, hub in self.services:
            hub.drain()
            service.gate.is_draining = True
        await self._settle(_TURNS)
        while event := next(self.store.events(), None):
            event.happen()
            await self._settle(_TURNS)
        for _, hub in self.services:
            hub.close()
        self.store.held = False
        for each in self._connected:
            assert each.task.done(), f"{each.client.name}'s connection does not end"
            each.task.result()

    def _events(self) -> Iterator[Event]:
        yield from self.store.events()
        for each in self._connected:
            frames, name = each.line.frames, each.client.name
            if frames.cut:
                if each.line.is_open:
                    yield Event(f"gone {name}", each.line.gone)
            elif frames.down or frames.reason:
                yield Event(f"take {name}", each.client.take)
            if frames.up and each.line.is_open:
                yield Event(f"arrive {name}", each.line.arrive)
        for place, asked in enumerate(self._requested):
            if asked.answer.done():
                yield Event(f"receive {asked.client.name}", partial(self._receive, place))
        for client in self.clients:
            if client.requests:
                yield Event(f"request {client.name}", partial(self._request, client))
            if client.frames is None and client.wants_line:
                for place, (services, hub) in enumerate(self.services):
                    yield Event(f"connect {client.name} {place}", partial(self._connect, client, services, hub))
            elif client.can_act:
                yield Event(f"{client.script[0][0]} {client.name}", client.act)
        self._connected = [each for each in self._connected if not each.task.done()]

    def _request(self, client: LiveClient) -> None:
        """The oldest of its requests arrives at the server."""
        message, claims = client.requests.popleft()
        if isinstance(message, SyncPush):
            self._requested.append(
                _Requested(client, message, self.gateway.submit_push(partial(PushRequest, message, claims)))
            )
        else:
            self._requested.append(_Requested(client, message, self.gateway.submit_pull(message, claims)))

    def _receive(self, place: int) -> None:
        client, message, answer = self._requested.pop(place)
        if client.awaited is message:
            client.receive(answer.result())

    def _connect(self, client: LiveClient, services: Services, hub: Hub) -> None:
        line = Line()
        caller = Caller(self.gateway, client.claims, math.inf)
        opening = RequestRecord("live", gateway=self.gateway.gateway_id, client=client.name)
        wire = cast("LiveWebSocketProtocol", line)
        connection = LiveConnection(services, wire, caller, opening, knows_resync=False)
        client.frames = line.frames

        async def live() -> None:
            hub.watch(asyncio.get_running_loop())
            channel = hub.subscribe(self.gateway, connection)
            try:
                await connection.run(line.receive, partial(channel.on_ready, connection))
            finally:
                hub.unsubscribe(self.gateway, connection)

        self._connected.append(_Connected(client, line, asyncio.create_task(live())))

    async def _pass_time(self) -> bool:
        """Advance the time; return whether anything happened."""
        loop = asyncio.get_running_loop()
        assert isinstance(loop, Loop)
        loop.now += 1
        await self._settle(_TURNS)
        return bool(self.store.waiting) or any(each.line.frames.down for each in self._connected)

    async def _settle(self, turns: int) -> None:
        for _ in range(turns):
            await asyncio.sleep(0)


class Places:
    """A store and servers that histories share, each with a separate gateway."""

    def __init__(self, shards: ShardMap | None = None) -> None:
        """Open them."""
        self._made = 0
        self._now = START
        """Constant within a history, so that arrivals are adjacent, as on a busy gateway."""
        self._store = HeldStore(lambda: self._now) if shards is None else HeldShards(shards, lambda: self._now)
        self._engine = Engine(cast("Any", self._store), lambda: self._now, EngineLimits(write_scope="any"))
        self._engine.open()
        settings = GatewaySettings(
            limits=LimitsSection(
                request_timeout_seconds=_AGES, websocket_slow_reader_seconds=_AGES, websocket_messages_per_second=_AGES
            ),
            page_wait_seconds=0.5,
        )
        self._services: Services = create_app(settings, self._engine).state.services

    def close(self) -> None:
        """Close them."""
        self._engine.close()

    def gateway(self) -> SyncGateway:
        """Create a gateway."""
        self._made += 1
        self._now += 10_000
        return self._engine.gateway(f"g{self._made}")

    def crowd(
        self,
        gateway: SyncGateway,
        clients: Sequence[LiveClient],
        processes: int = 1,
        *,
        loose: bool = False,
        away: bool = False,
    ) -> Crowd:
        """Clients of several servers.

        Args: gateway: of the clients. clients: without a connection. processes: the number of servers.
            loose: as `HeldStore.loose`.
            away: as `HeldStore.away`.
        """
        limits = LimitsSection(websocket_connections_per_client=1000)
        hubs = [Hub(cast("Any", self._store), limits, lambda _: None) for _ in range(processes)]
        services = [
            (replace(self._services, gate=RequestGate(), connected_clients=hub.connected_clients), hub) for hub in hubs
        ]
        self._store.held, self._store.loose, self._store.away = True, loose, away
        return Crowd(self._store, services, gateway, clients)


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine with simulated time."""
    with asyncio.Runner(loop_factory=Loop) as runner:
        return runner.run(work)
