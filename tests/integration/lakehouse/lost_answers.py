"""A proxy before a catalogue that interferes with the answers to commits, and catalogues to put behind it."""

from __future__ import annotations

import re
import socket
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

OF_SQL = re.compile(rb"metadata\.json.{1,2000}?metadata\.json", re.DOTALL)
"""A table's old and new location; the statement itself is prepared, so it is not sent each time."""
OF_REST = re.compile(rb"POST /v1/namespaces/\w+/tables/\w+ HTTP")


class Proxy:
    """Forwards bytes."""

    def __init__(self, host: str, port: int, commit: re.Pattern[bytes]) -> None:
        """Args: host, port: of the server; commit: bytes that only a committing request contains."""
        self._target = (host, port)
        self._commit = commit
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.delay = 0.0
        """Seconds before a commit's answer."""
        self.lost = 0
        """The number of answers to lose: the commit is executed, and the connection ends."""
        self.after = 0
        """The number of answers to forward before those."""
        self._clients: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def close(self) -> None:
        """Close every connection, and accept no more."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._threads[0].join()
        self._listener.close()
        for client in self._clients:
            with suppress(OSError):  # it has ended
                client.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        with suppress(OSError):  # the listener was closed
            while True:
                client, _ = self._listener.accept()
                self._clients.append(client)
                self._threads.append(threading.Thread(target=self._serve, args=(client,), daemon=True))
                self._threads[-1].start()

    def _serve(self, client: socket.socket) -> None:
        commits = threading.Event()
        with client, suppress(OSError), socket.create_connection(self._target) as server:
            back = threading.Thread(target=self._pass, args=(server, client, commits, False), daemon=True)
            back.start()
            self._pass(client, server, commits, True)
            back.join()

    def _pass(self, source: socket.socket, target: socket.socket, commits: threading.Event, asks: bool) -> None:
        with suppress(OSError):  # the other side may have closed the connection
            while data := source.recv(1 << 16):
                if asks and self._commit.search(data):
                    commits.set()
                if not asks and commits.is_set():
                    commits.clear()
                    time.sleep(self.delay)
                    if self.lost and self.after:
                        self.after -= 1
                    elif self.lost:
                        self.lost -= 1
                        break
                target.sendall(data)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)  # a close alone would not wake the thread that reads it


@contextmanager
def failing_after_commit(catalogue: Path) -> Iterator[None]:
    """Let commits to a catalogue on SQLite succeed, then raise an error; pyiceberg's transactions are rolled back."""
    _execute(
        catalogue,
        "CREATE TRIGGER lost AFTER UPDATE ON iceberg_tables BEGIN SELECT RAISE(FAIL, 'lost'); END",
    )
    try:
        yield
    finally:
        _execute(catalogue, "DROP TRIGGER lost")


@contextmanager
def locked(catalogue: Path) -> Iterator[None]:
    """Lock a catalogue on SQLite, like another writer."""
    held = sqlite3.connect(catalogue, isolation_level=None)
    held.execute("BEGIN EXCLUSIVE")
    try:
        yield
    finally:
        held.rollback()
        held.close()


def _execute(catalogue: Path, statement: str) -> None:
    connection = sqlite3.connect(catalogue, isolation_level=None)
    connection.execute(statement)
    connection.close()
