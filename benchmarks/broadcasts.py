"""The load of the benchmarks `latency` and `websocket`: many WebSocket listeners and one writer, in one process.

The writer pushes one delta at a time; the gateway sends each push to all listeners as a broadcast. Each pushed row's id
contains the push's number, so that a listener finds the push without decoding the broadcast.
"""

from __future__ import annotations

import asyncio
import os
import resource
import time

import msgspec

from benchmarks.connections import Socket
from benchmarks.load import Sample, run_on_uvloop
from benchmarks.server import GATEWAY, token
from lakesync.model.types import ColumnValue, RowDelta, SyncPull, SyncPush
from lakesync.wire import protobuf
from lakesync.wire.frames import FrameTag, encode_frame

_MAX_FILES = 16_384
"""The limit of open files that `run_load` sets, if the system allows it. Each connection is one."""
_PATH = f"/sync/{GATEWAY}/ws"
_BROADCAST = bytes((FrameTag.BROADCAST,))
"""The first byte of a broadcast's frame."""
_CURSOR = b"\x11"
"""Protobuf key of a page's cursor, a fixed64. It is the last field of the last page."""
_DELIVERY_SECONDS = 60.0
"""Longest time to wait for the last broadcasts."""


class BroadcastLoad(msgspec.Struct, frozen=True):
    """Listeners, and a writer that pushes one delta at a time at a constant rate."""

    connections: int = 200
    """Number of listeners."""
    pushes: int = 1000
    """Number of pushes, of one delta each; 0 to connect only."""
    pushes_per_second: float = 100.0
    storm: bool = False
    """Whether all listeners lose their connections at the end, and reconnect together."""
    echo: bool = False
    """Whether the server is the echo server, which forwards every message unchanged and does not know pulls."""


class BroadcastResult(msgspec.Struct):
    """The result of a `BroadcastLoad`."""

    samples: list[Sample]
    """One per delivery: seconds from the push to its arrival at another client."""
    connect_seconds: float
    """Seconds until all listeners are connected and have pulled."""
    reconnect_seconds: float
    """Seconds until all listeners have reconnected after the storm, and have pulled from their cursors."""
    pushed_seconds: float
    """Seconds from the first push to the last delivery."""


def run_load(port: int, load: BroadcastLoad) -> BroadcastResult:
    """Connect the listeners, push, and return the measurements. It raises this process's limit of open files.

    Args:
        port: the server's port on this machine.
        load: what to do.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(_MAX_FILES, most), most))
    return run_on_uvloop(_run_load(port, load))


async def _run_load(port: int, load: BroadcastLoad) -> BroadcastResult:
    """Do what `run_load` says, on the event loop."""
    listeners = _Listeners(port, load)
    begun = time.perf_counter()
    await listeners.connect()
    connect_seconds = time.perf_counter() - begun
    pushed_seconds = await listeners.push()
    begun = time.perf_counter()
    listeners.disconnect()
    if load.storm:
        await listeners.connect()
        listeners.disconnect()
    reconnect_seconds = time.perf_counter() - begun
    return BroadcastResult(
        listeners.samples, round(connect_seconds, 2), round(reconnect_seconds, 2), round(pushed_seconds, 2)
    )


class _Listeners:
    """The listeners and the writer, and the deliveries that they measure."""

    def __init__(self, port: int, load: BroadcastLoad) -> None:
        """Prepare the listeners of a load; `connect` connects them."""
        self._port = port
        self._load = load
        self._sockets: list[Socket] = []
        self._cursors = [0] * load.connections
        self._due: dict[int, tuple[float, int]] = {}
        """Number of a push → when it was sent, and the number of deliveries that are missing."""
        self._done = asyncio.Event()
        self._begun = time.perf_counter()
        self.samples: list[Sample] = []

    async def connect(self) -> None:
        """Connect all listeners, at most fifty at the same time, and let each pull from its cursor."""
        limit = asyncio.Semaphore(50)

        async def connect_one(number: int) -> Socket:
            async with limit:
                return await self._connect(number)

        self._sockets = list(await asyncio.gather(*map(connect_one, range(self._load.connections))))

    def disconnect(self) -> None:
        """Drop all connections at once."""
        for socket in self._sockets:
            socket.abort()

    async def _connect(self, number: int) -> Socket:
        """Connect the listener with this number, and wait for the response to its pull."""
        response: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def on_message(message: bytes) -> None:
            if message[:1] == _BROADCAST:
                self._record(message)
                if message[-9:-8] == _CURSOR:
                    self._cursors[number] = int.from_bytes(message[-8:], "little")
            elif not response.done():
                response.set_result(protobuf.decode_response(message).server_hlc)

        name = f"listener-{number}"
        socket = await Socket.open(self._port, _PATH, token(name), on_message)
        if not self._load.echo:
            pull = SyncPull(name, self._cursors[number], 1000)
            socket.send(encode_frame(FrameTag.PULL, protobuf.encode_pull(pull)))
            self._cursors[number] = await response
        return socket

    async def push(self) -> float:
        """Push at a constant rate, and wait until every listener has received every push. Return the seconds of both.

        Raises:
            TimeoutError: a push did not reach all listeners in time.
        """
        if not self._load.pushes:
            return 0.0
        writer = await Socket.open(self._port, _PATH, token("writer"), lambda _: None)
        self._begun = begun = time.perf_counter()
        for number in range(self._load.pushes):
            wait = begun + number / self._load.pushes_per_second - time.perf_counter()
            if wait > 0:
                await asyncio.sleep(wait)
            self._due[number] = (time.perf_counter(), self._load.connections)
            writer.send(_message(number))
        async with asyncio.timeout(_DELIVERY_SECONDS):
            await self._done.wait()
        seconds = time.perf_counter() - begun
        writer.abort()
        return seconds

    def _record(self, message: bytes) -> None:
        """Record the deliveries in a broadcast, which may contain several pushes."""
        now = time.perf_counter()
        for number in _numbers(message):
            sent, left = self._due[number]
            self.samples.append(Sample(now - self._begun, now - sent, 1))
            self._due[number] = (sent, left - 1)
            if left == 1 and number == self._load.pushes - 1:
                self._done.set()


_ROW_PREFIX = b"push-no-"
"""The ids of pushed rows begin with it; the push's number with eight digits follows."""


def _message(number: int) -> bytes:
    """Return the frame of a push with one delta, whose row id contains the push's number."""
    delta = RowDelta(
        "INSERT",
        "tasks",
        f"{_ROW_PREFIX.decode()}{number:08d}",
        "writer",
        (ColumnValue.of("title", f"Task number {number}"), ColumnValue.of("done", False)),
        time.time_ns() // 1_000_000 << 16 | number & 0xFFFF,
        os.urandom(32).hex(),
    )
    return encode_frame(FrameTag.PUSH, protobuf.encode_push(SyncPush("writer", (delta,))))


def _numbers(message: bytes) -> list[int]:
    """Return the numbers of the pushes in a broadcast without decoding it."""
    return [int(part[:8]) for part in message.split(_ROW_PREFIX)[1:]]
