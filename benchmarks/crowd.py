"""Many WebSocket clients and one writer, in a process of their own."""

from __future__ import annotations

import asyncio
import os
import resource
import time

import msgspec

from benchmarks.connections import Socket
from benchmarks.load import Sample, looped
from benchmarks.server import GATEWAY, token
from lakesync.model.types import ColumnValue, RowDelta, SyncPull, SyncPush
from lakesync.wire import protobuf
from lakesync.wire.frames import FrameTag, encode_frame

FILES = 16_384
_PATH = f"/sync/{GATEWAY}/ws"
_BROADCAST = bytes((FrameTag.BROADCAST,))
_CURSOR = b"\x11"
"""Protobuf key of a page's cursor, a fixed64. It is the last field of the last page."""
_ENOUGH_SECONDS = 60.0


class Crowd(msgspec.Struct, frozen=True):
    """Listeners, and a writer that pushes one delta at a time at a constant rate."""

    connections: int = 200
    pushes: int = 1000
    pushes_per_second: float = 100.0
    storm: bool = False
    """Drop all connections at the end, and reconnect."""
    echo: bool = False
    """The server is the plain fan-out, which forwards every message unchanged."""


class Held(msgspec.Struct):
    """The result."""

    samples: list[Sample]
    """One per delivery: seconds from the push to its arrival at another client."""
    connect_seconds: float
    """Until all listeners are connected and have pulled."""
    reconnect_seconds: float
    """Until all listeners are back after losing their connections together, and have pulled from their cursors."""
    pushed_seconds: float


def hold(port: int, crowd: Crowd) -> Held:
    """Hold the connections and push."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(FILES, most), most))
    return looped(_hold(port, crowd))


async def _hold(port: int, crowd: Crowd) -> Held:
    room = _Room(port, crowd)
    begun = time.perf_counter()
    await room.fill()
    connected = time.perf_counter() - begun
    pushed = await room.push()
    begun = time.perf_counter()
    room.empty()
    if crowd.storm:
        await room.fill()
        room.empty()
    back = time.perf_counter() - begun
    return Held(room.samples, round(connected, 2), round(back, 2), round(pushed, 2))


class _Room:
    def __init__(self, port: int, crowd: Crowd) -> None:
        self._port = port
        self._crowd = crowd
        self._sockets: list[Socket] = []
        self._cursors = [0] * crowd.connections
        self._due: dict[int, tuple[float, int]] = {}
        """Number of a push → when it was sent, deliveries still to come."""
        self._done = asyncio.Event()
        self._begun = time.perf_counter()
        self.samples: list[Sample] = []

    async def fill(self) -> None:
        """Connect all listeners, fifty at a time, and let each pull."""
        gate = asyncio.Semaphore(50)

        async def enter(place: int) -> Socket:
            async with gate:
                return await self._enter(place)

        self._sockets = list(await asyncio.gather(*map(enter, range(self._crowd.connections))))

    def empty(self) -> None:
        """Drop all connections at once."""
        for socket in self._sockets:
            socket.abort()

    async def _enter(self, place: int) -> Socket:
        answered: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def take(message: bytes) -> None:
            if message[:1] == _BROADCAST:
                self._heard(message)
                if message[-9:-8] == _CURSOR:
                    self._cursors[place] = int.from_bytes(message[-8:], "little")
            elif not answered.done():
                answered.set_result(protobuf.decode_response(message).server_hlc)

        name = f"listener-{place}"
        socket = await Socket.open(self._port, _PATH, token(name), take)
        if not self._crowd.echo:
            pull = SyncPull(name, self._cursors[place], 1000)
            socket.send(encode_frame(FrameTag.PULL, protobuf.encode_pull(pull)))
            self._cursors[place] = await answered
        return socket

    async def push(self) -> float:
        """Push at a constant rate, and wait until everyone has received everything. Returns the seconds in total."""
        if not self._crowd.pushes:
            return 0.0
        writer = await Socket.open(self._port, _PATH, token("writer"), lambda _: None)
        self._begun = begun = time.perf_counter()
        for number in range(self._crowd.pushes):
            wait = begun + number / self._crowd.pushes_per_second - time.perf_counter()
            if wait > 0:
                await asyncio.sleep(wait)
            self._due[number] = (time.perf_counter(), self._crowd.connections)
            writer.send(_message(number))
        async with asyncio.timeout(_ENOUGH_SECONDS):
            await self._done.wait()
        seconds = time.perf_counter() - begun
        writer.abort()
        return seconds

    def _heard(self, message: bytes) -> None:
        now = time.perf_counter()
        for number in _numbers(message):
            sent, left = self._due[number]
            self.samples.append(Sample(now - self._begun, now - sent, 1))
            self._due[number] = (sent, left - 1)
            if left == 1 and number == self._crowd.pushes - 1:
                self._done.set()


_MARK = b"push-no-"


def _message(number: int) -> bytes:
    """Return a push of one delta whose row has its number."""
    delta = RowDelta(
        "INSERT",
        "tasks",
        f"{_MARK.decode()}{number:08d}",
        "writer",
        (ColumnValue.of("title", f"Task number {number}"), ColumnValue.of("done", False)),
        time.time_ns() // 1_000_000 << 16 | number & 0xFFFF,
        os.urandom(32).hex(),
    )
    return encode_frame(FrameTag.PUSH, protobuf.encode_push(SyncPush("writer", (delta,))))


def _numbers(message: bytes) -> list[int]:
    """Return the numbers of the pushes in a broadcast without decoding it."""
    return [int(part[:8]) for part in message.split(_MARK)[1:]]
