"""Simulates a phone's network in a process of its own: it delays bytes and limits their bandwidth.

Bytes arrive half a round trip after they were sent, or later if others are queued; a new connection costs one more
round trip. TCP slow start and packet loss are not simulated.
"""

from __future__ import annotations

import asyncio
import os
import socket
from contextlib import closing, suppress

import msgspec
import uvloop

_CHUNK = 8192
_AHEAD = 0.05
"""Seconds of bytes that are queued before the relay stops reading."""


class _Way:
    """One direction, shared by all connections."""

    def __init__(self, delay: float, bytes_per_second: float) -> None:
        self.delay = delay
        self._rate = bytes_per_second
        self._free = 0.0

    def take(self, size: int, now: float) -> float:
        """Return when the last of these bytes is sent."""
        self._free = max(self._free, now) + size / self._rate
        return self._free


async def _carry(source: asyncio.StreamReader, target: asyncio.StreamWriter, way: _Way) -> None:
    clock = asyncio.get_running_loop().time
    under_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

    async def deliver() -> None:
        while True:
            due, data = await under_way.get()
            await asyncio.sleep(max(0.0, due - clock()))
            if not data:
                target.close()
                return
            target.write(data)
            await target.drain()

    with suppress(ConnectionError):
        async with asyncio.TaskGroup() as tasks:
            delivery = tasks.create_task(deliver())
            while not delivery.done():
                data = await source.read(_CHUNK)
                sent = way.take(len(data), clock())
                under_way.put_nowait((sent + way.delay, data))
                if not data:
                    break
                await asyncio.sleep(max(0.0, sent - _AHEAD - clock()))


async def _serve(port: int, delay: float, bytes_per_second: float) -> None:
    there, back = _Way(delay, bytes_per_second), _Way(delay, bytes_per_second)

    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(2 * delay)
        with closing(writer), suppress(ConnectionError):
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)
            with closing(far_writer), suppress(ExceptionGroup):
                await asyncio.gather(_carry(reader, far_writer, there), _carry(far_reader, writer, back))

    server = await asyncio.start_server(one, "127.0.0.1", 0, family=socket.AF_INET)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    print(msgspec.json.encode({"event": "listening", "url": url}).decode(), flush=True)
    async with server:
        await server.serve_forever()


def main() -> None:
    """Serve until stopped. `BENCH_TO` is the target port, `BENCH_MS` the round trip, `BENCH_MBIT` the bandwidth."""
    port, ms, mbit = int(os.environ["BENCH_TO"]), float(os.environ["BENCH_MS"]), float(os.environ["BENCH_MBIT"])
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(port, ms / 2000, mbit * 1e6 / 8))


if __name__ == "__main__":
    main()
