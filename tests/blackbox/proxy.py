"""A proxy between gateway processes and Postgres that delays or drops Postgres' notices to them.

`Server` starts it, in a process of its own: `python -m tests.blackbox.proxy ADDRESS COUNT`. It listens on a port for
each gateway process and reads commands, one a line: `hold 0`, `release 0`, `deafen 0`, `restore 0`.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

_CHUNK = 65_536
_RETURN = 20.0
"""Seconds in which a process must listen again after its connection was lost."""


class Proxy:
    """The proxy's process; threads may share it."""

    def __init__(self, address: str, processes: int) -> None:
        """Start it.

        Args:
            address: of the database, in libpq's format.
            processes: the number of gateway processes.
        """
        self._lock = threading.Lock()
        self._deaf = [threading.Lock() for _ in range(processes)]
        """The caller that deafened a process must restore it before another caller deafens it."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, address, str(processes)],
            cwd=Path(__file__).parents[2],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        parts = urlsplit(address)
        user = parts.netloc.rpartition("@")[0] or "postgres:"
        self.addresses = [
            parts._replace(netloc=f"{user}@127.0.0.1:{port}", query="").geturl() for port in json.loads(self._read())
        ]
        """The database's address for each gateway process."""

    def hold(self, process: int) -> None:
        """Hold back notices to a process."""
        self._command("hold", process)

    def release(self, process: int) -> None:
        """Deliver the notices that were held back, and later ones immediately."""
        self._command("release", process)

    def deafen(self, process: int) -> None:
        """Close a process's listening connection, and each later one."""
        self._deaf[process].acquire()
        self._command("deafen", process)

    def restore(self, process: int) -> None:
        """Let a process listen again; if it tried to, wait until it does."""
        try:
            self._command("restore", process)
        finally:
            self._deaf[process].release()

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.communicate()

    def _command(self, word: str, process: int) -> None:
        with self._lock:
            assert self._process.stdin is not None
            self._process.stdin.write(f"{word} {process}\n")
            self._process.stdin.flush()
            answer = self._read()
        if answer != "done\n":
            raise RuntimeError(f"the proxy answers {word!r} with {answer!r}")

    def _read(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()


class _Connection:
    """One connection of a gateway process."""

    def __init__(self, gate: _Gate, process: asyncio.StreamWriter, postgres: asyncio.StreamWriter) -> None:
        self._gate = gate
        self._process = process
        self._postgres = postgres
        self._listens = self._asked = self._is_heard = False
        self.is_lost = False

    async def up(self, reader: asyncio.StreamReader) -> None:
        """Forward the process's data."""
        while data := await reader.read(_CHUNK):
            if b"LISTEN" in data:
                self._listens = True
                if not self._gate.admits(self):
                    return
            elif self._listens and b"SELECT" in data:
                self._asked = True
            self._postgres.write(data)
            await self._postgres.drain()

    async def down(self, reader: asyncio.StreamReader) -> None:
        """Forward Postgres' data; notices are dropped while they are held back."""
        while data := await reader.read(_CHUNK):
            if self._is_heard:
                await self._gate.is_open.wait()
            if self.is_lost:
                return
            self._process.write(data)
            await self._process.drain()
            if self._asked and not self._is_heard:  # the process has read the commits that it missed
                self._is_heard = True
                self._gate.has_listener.set()

    def lose(self) -> None:
        """Close it."""
        self.is_lost = True
        self._process.close()
        self._postgres.close()


class _Gate:
    """The state of the notices to one gateway process."""

    def __init__(self) -> None:
        self.is_open = asyncio.Event()
        self.is_open.set()
        self.has_listener = asyncio.Event()
        self._listening: _Connection | None = None
        self._is_deaf = self._has_tried = False

    def admits(self, connection: _Connection) -> bool:
        """Record that a connection listens; return whether it may."""
        self._listening = connection
        self._has_tried = True
        return not self._is_deaf

    def forget(self, connection: _Connection) -> None:
        """Record the end of a connection."""
        if self._listening is connection:
            self._listening = None

    async def do(self, word: str) -> None:
        """Execute a command."""
        if word == "hold":
            self.is_open.clear()
        elif word == "release":
            self.is_open.set()
        elif word == "deafen":
            self._is_deaf, self._has_tried = True, self._listening is not None
            self.has_listener.clear()
            if self._listening is not None:
                self._listening.lose()
            self.is_open.set()
        else:
            self._is_deaf = False
            if self._has_tried:
                await asyncio.wait_for(self.has_listener.wait(), _RETURN)


async def _run(address: str, processes: int) -> None:
    parts = urlsplit(address)
    folder = parse_qs(parts.query).get("host", [""])[0]

    async def serve(gate: _Gate, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if folder:
            from_postgres, to_postgres = await asyncio.open_unix_connection(f"{folder}/.s.PGSQL.{parts.port or 5432}")
        else:
            from_postgres, to_postgres = await asyncio.open_connection(parts.hostname, parts.port)
        connection = _Connection(gate, writer, to_postgres)
        pumps = [asyncio.ensure_future(each) for each in (connection.up(reader), connection.down(from_postgres))]
        await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        for pump in pumps:
            pump.cancel()
        for side in (writer, to_postgres):
            side.close()
        await asyncio.gather(*pumps, return_exceptions=True)  # either side may be gone
        gate.forget(connection)

    gates = [_Gate() for _ in range(processes)]
    servers = [
        await asyncio.start_server(lambda reader, writer, gate=gate: serve(gate, reader, writer), "127.0.0.1", 0)
        for gate in gates
    ]
    print(json.dumps([server.sockets[0].getsockname()[1] for server in servers]), flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        word, _, process = line.partition(" ")
        try:
            await gates[int(process)].do(word)
        except TimeoutError:
            print(f"the process does not listen again within {_RETURN} s", flush=True)
        else:
            print("done", flush=True)


if __name__ == "__main__":
    asyncio.run(_run(sys.argv[1], int(sys.argv[2])))
