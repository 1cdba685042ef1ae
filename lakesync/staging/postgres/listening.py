"""Delivers notices between processes: NOTIFY in each commit, and one listening connection per process."""

from __future__ import annotations

import os
import selectors
import threading
from collections.abc import Callable, Mapping
from contextlib import closing
from itertools import count
from uuid import uuid4

import msgspec
import psycopg
import structlog

from lakesync.staging.notices import Notice, Notices, Presence
from lakesync.staging.postgres.connection import Connection

log = structlog.get_logger(__name__)

_CHANNEL = "lakesync_arrival"
_MAX_PAYLOAD = 7_900
"""Bytes; Postgres takes 7,999."""
_QUIET_SECONDS = 15.0
"""A connection that was silent for so long is tested."""
_WAIT_SECONDS = (0.05, 0.2, 1.0, 5.0)
"""Before each further attempt to connect."""
_NAME = "lakesync notices"

_Told = tuple[str, int, str, list[str] | None, tuple[Presence, ...]]
"""Process that committed, number of the commit there, gateway, bucket keys, connected clients."""
_decode = msgspec.json.Decoder(_Told).decode


class Listening:
    """Delivers notices to this process's listeners: of its own commits at once, of others through Postgres.

    If the outcome of a commit of this process is unknown, its notice is delivered at once, and again if Postgres sends
    it.
    """

    def __init__(self, info: Mapping[str, object], where: str) -> None:
        """Create it; the first `watch` connects.

        Args:
            info: connection parameters, with libpq's names.
            where: host and database, for the log.
        """
        self.notices = Notices()
        self._info = {**info, "application_name": _NAME}
        self._where = where
        self._me = uuid4().hex
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._ended = threading.Event()
        self._wake: int | None = None
        self._numbers = count(1)
        self._own: set[int] = set()
        """Commits of this process whose notices are delivered without Postgres."""

    def watch(self, listener: Callable[[Notice], None]) -> Callable[[], None]:
        """Add a listener, and return a function that removes it; the first one starts the listening connection."""
        end = self.notices.watch(listener)
        with self._lock:
            if self._thread is None and not self._ended.is_set():
                waked, self._wake = os.pipe()
                self._thread = threading.Thread(target=self._run, args=(waked,), name="staging notices", daemon=True)
                self._thread.start()
        return end

    def announce(self, connection: Connection, notice: Notice) -> int:
        """Let Postgres notify the other processes when the transaction commits; return the commit's number.

        Args:
            connection: an open connection; statements run in its current transaction.
            notice: of the commit.
        """
        number = next(self._numbers)
        if self._thread is not None:
            self._own.add(number)
        buckets = None if notice.buckets is None else sorted(notice.buckets)
        payload = msgspec.json.encode((self._me, number, notice.gateway, buckets, notice.presence))
        if len(payload) > _MAX_PAYLOAD:
            payload = msgspec.json.encode((self._me, number, notice.gateway, None, ()))
        connection.execute("SELECT pg_notify(%s, %s)", (_CHANNEL, payload.decode()))
        return number

    def doubt(self, number: int) -> None:
        """Deliver the notice of this commit again if Postgres sends it."""
        self._own.discard(number)

    def close(self) -> None:
        """End the thread and its connection."""
        self._ended.set()
        with self._lock:
            thread, wake, self._wake = self._thread, self._wake, None
        if thread is not None and wake is not None:
            os.close(wake)
            thread.join()

    def _run(self, waked: int) -> None:
        failures = 0
        with selectors.DefaultSelector() as selector, open(waked, "rb", buffering=0) as closed:
            selector.register(closed, selectors.EVENT_READ)
            while not self._ended.is_set():
                try:
                    with closing(self._listen()) as connection:
                        failures = 0
                        self._follow(connection, selector)
                except (psycopg.Error, msgspec.MsgspecError) as error:  # a valid notice may be missing
                    wait = _WAIT_SECONDS[min(failures, len(_WAIT_SECONDS) - 1)]
                    failures += 1
                    log.warning("no notices from Postgres", where=self._where, error=str(error).strip(), again_in=wait)
                    self._ended.wait(wait)

    def _listen(self) -> psycopg.Connection[tuple[str]]:
        """Connect, and notify of every gateway, because commits may have been missed."""
        connection: psycopg.Connection[tuple[str]] = psycopg.connect(**self._info, autocommit=True)  # type: ignore[arg-type]
        try:
            connection.execute(f"LISTEN {_CHANNEL}")
            self._own.clear()
            gateways = connection.execute("SELECT id FROM lakesync.gateway").fetchall()
        except BaseException:
            connection.close()
            raise
        self.notices.tell(Notice(gateway, None) for (gateway,) in gateways)
        return connection

    def _follow(self, connection: psycopg.Connection[tuple[str]], selector: selectors.BaseSelector) -> None:
        """Deliver notices until the store is closed.

        Raises:
            psycopg.Error: the connection is lost.
        """
        socket = connection.fileno()
        selector.register(socket, selectors.EVENT_READ)
        try:
            while not self._ended.is_set():
                for told in connection.notifies(timeout=0):
                    self._pass_on(told.payload)
                if not selector.select(_QUIET_SECONDS):
                    connection.execute("SELECT 1")
        finally:
            selector.unregister(socket)

    def _pass_on(self, payload: str) -> None:
        process, number, gateway, buckets, presence = _decode(payload)
        if process == self._me and number in self._own:
            self._own.discard(number)
        else:
            self.notices.tell([Notice(gateway, None if buckets is None else frozenset(buckets), presence)])
