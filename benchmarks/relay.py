"""A relay that simulates a phone's network: it delays bytes and limits the bandwidth.

Bytes arrive half a round trip after they were sent, or later if others are queued. A new connection takes one more
round trip. TCP slow start and packet loss are not simulated. `server.slow_network` starts it.
"""

from __future__ import annotations

import asyncio
import os
import socket
from contextlib import closing, suppress

import msgspec
import uvloop

_CHUNK = 8192
"""The most bytes that are forwarded together."""
_MAX_QUEUED_SECONDS = 0.05
"""The relay stops reading while it has queued what it sends in this time."""


class _Direction:
    """One direction of the network, whose bandwidth all connections share."""

    def __init__(self, delay: float, bytes_per_second: float) -> None:
        self.delay = delay
        """Seconds that a byte travels."""
        self._bytes_per_second = bytes_per_second
        self._free_at = 0.0

    def send(self, size: int, now: float) -> float:
        """Queue some bytes, and return the time at which the last of them is sent."""
        self._free_at = max(self._free_at, now) + size / self._bytes_per_second
        return self._free_at


async def _forward(source: asyncio.StreamReader, target: asyncio.StreamWriter, direction: _Direction) -> None:
    """Forward the bytes of a connection in one direction until it is closed."""
    clock = asyncio.get_running_loop().time
    travelling: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

    async def deliver() -> None:
        while True:
            due, data = await travelling.get()
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
                sent_at = direction.send(len(data), clock())
                travelling.put_nowait((sent_at + direction.delay, data))
                if not data:
                    break
                await asyncio.sleep(max(0.0, sent_at - _MAX_QUEUED_SECONDS - clock()))


async def _serve(port: int, delay: float, bytes_per_second: float) -> None:
    """Forward connections to a port until the process is stopped, and print the relay's URL.

    Args:
        port: the port to forward to.
        delay: seconds that a byte travels in one direction.
        bytes_per_second: bandwidth of each direction.
    """
    up, down = _Direction(delay, bytes_per_second), _Direction(delay, bytes_per_second)

    async def on_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(2 * delay)  # the round trip of the TCP handshake
        with closing(writer), suppress(ConnectionError):
            server_reader, server_writer = await asyncio.open_connection("127.0.0.1", port)
            with closing(server_writer), suppress(ExceptionGroup):
                await asyncio.gather(_forward(reader, server_writer, up), _forward(server_reader, writer, down))

    server = await asyncio.start_server(on_connection, "127.0.0.1", 0, family=socket.AF_INET)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    print(msgspec.json.encode({"event": "listening", "url": url}).decode(), flush=True)
    async with server:
        await server.serve_forever()


def main() -> None:
    """Serve until stopped.

    Variables: `BENCH_TO` is the port to forward to, `BENCH_MS` the milliseconds of a round trip, `BENCH_MBIT` the
    megabits per second in each direction.
    """
    port, ms, mbit = int(os.environ["BENCH_TO"]), float(os.environ["BENCH_MS"]), float(os.environ["BENCH_MBIT"])
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(port, ms / 2000, mbit * 1e6 / 8))


if __name__ == "__main__":
    main()
