"""Delivers notices of commits between processes: NOTIFY in each commit, and one listening connection per process.

A *notice* says under which bucket keys a commit changed rows; a *bucket key* names a bucket of the sync rules with the
claims (fields of a token) that may see it. A notice may also name connected clients (*presence*). It concerns one
*gateway*, an app's stream of changes. A gateway process adds a listener, to send the changes to its WebSocket clients.
`Groups` announces commits, and `PostgresStore.watch` adds listeners.
"""

from __future__ import annotations

import os
import selectors
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from itertools import count
from typing import Any, NamedTuple
from uuid import uuid4

import msgspec
import psycopg
import structlog

from lakesync.staging.notices import Notice, Notices, Presence
from lakesync.staging.postgres.connection import Connection
from lakesync.wire.postgres import CHECK_SECONDS, BoundedConnection

log = structlog.get_logger(__name__)

_CHANNEL = "lakesync_arrival"
"""The channel of NOTIFY."""
_MAX_PAYLOAD = 7_900
"""The most bytes of a payload; Postgres accepts 7,999."""
_QUIET_SECONDS = 15.0
"""Seconds without a notice after which the connection is tested."""
_WAIT_SECONDS = (0.05, 0.2, 1.0, 5.0)
"""Seconds before each further attempt to connect; the last value is repeated."""
_NAME = "lakesync notices"
"""The `application_name` of the connection."""


class _Payload(NamedTuple):
    """A notice as NOTIFY sends it, encoded as a JSON array."""

    process_id: str
    """The process that committed."""
    number: int
    """The notice's number among those of the process."""
    gateway: str
    buckets: list[str] | None
    """The bucket keys; None for any."""
    presence: tuple[Presence, ...]
    """The connected clients."""


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(_Payload).decode


class PostgresNotices:
    """Delivers notices to this process's listeners: of its own commits immediately, of others' through Postgres.

    Postgres sends the notices of own commits too; these are dropped. If it is unknown whether a commit of this process
    happened, its notice is delivered immediately, and again if Postgres sends it. After a lost connection, notices of
    this process from before may be repeated, which does no harm.
    """

    def __init__(self, info: Mapping[str, Any], address: str) -> None:
        """Create it; the first `watch` connects.

        Args:
            info: connection parameters, with libpq's names.
            address: host and database, for the log.
        """
        self._listeners = Notices()
        self._info = {**info, "application_name": _NAME}
        self._address = address
        self._process_id = uuid4().hex
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._ended = threading.Event()
        """Set by `close`."""
        self._wake: int | None = None
        """The writing end of a pipe on which the thread waits; closing it wakes the thread. None without a thread."""
        self._numbers = count(1)
        """Numbers the notices of this process."""
        self._own: set[int] = set()
        """Numbers of notices of this process that are delivered immediately, so that Postgres' copy is dropped."""
        self._tried = threading.Event()
        """Set once the first attempt to listen has ended."""

    def watch(self, listener: Callable[[Notice], None]) -> Callable[[], None]:
        """Add a listener, and return a function that removes it.

        The first listener starts the listening connection, and waits until Postgres accepted or refused it.
        """
        remove = self._listeners.watch(listener)
        with self._lock:
            if self._thread is None and not self._ended.is_set():
                # the thread waits for the connection and for this pipe, which `close` closes
                wake_reader, self._wake = os.pipe()
                self._thread = threading.Thread(
                    target=self._run, args=(wake_reader,), name="staging notices", daemon=True
                )
                self._thread.start()
        if self._thread is not None:
            self._tried.wait()
        return remove

    def announce(self, connection: Connection, notice: Notice) -> int:
        """Let Postgres notify the other processes when the transaction commits.

        A notice that is too long for Postgres is replaced by one for all bucket keys.

        Args:
            connection: an open connection; statements run in its current transaction.
            notice: the transaction's notice.

        Returns:
            The notice's number, for `accept_copy`.
        """
        number = next(self._numbers)
        if self._thread is not None:
            self._own.add(number)
        buckets = None if notice.buckets is None else sorted(notice.buckets)
        payload = _Payload(self._process_id, number, notice.gateway, buckets, notice.presence)
        encoded = _encode(payload)
        if len(encoded) > _MAX_PAYLOAD:
            encoded = _encode(payload._replace(buckets=None, presence=()))
        connection.execute("SELECT pg_notify(%s, %s)", (_CHANNEL, encoded.decode()))
        return number

    def deliver(self, notices: Iterable[Notice]) -> None:
        """Call every listener of this process with each notice. A listener's error is logged, and the others called."""
        self._listeners.deliver(notices)

    def accept_copy(self, number: int) -> None:
        """Deliver a notice if Postgres sends it, although it is of this process.

        Call it if it is unknown whether the notice's transaction was committed.

        Args:
            number: the number that `announce` returned.
        """
        self._own.discard(number)

    def close(self) -> None:
        """End the thread and its connection."""
        self._ended.set()
        self._tried.set()  # the thread may end before its first attempt
        with self._lock:
            thread, wake, self._wake = self._thread, self._wake, None
        if thread is not None and wake is not None:
            os.close(wake)
            thread.join()

    def _run(self, wake_reader: int) -> None:
        """Listen until `close`, and connect again whenever the connection is lost; the thread's function."""
        failures = 0
        with selectors.DefaultSelector() as selector, open(wake_reader, "rb", buffering=0) as wake_file:
            selector.register(wake_file, selectors.EVENT_READ)
            while not self._ended.is_set():
                try:
                    try:
                        opened = self._listen()
                    finally:
                        self._tried.set()  # whatever happened: listeners wait for it
                    with closing(opened) as connection:
                        failures = 0
                        self._deliver(connection, selector)
                except (psycopg.Error, msgspec.MsgspecError) as error:
                    # notices may be missed from now on, for which `_listen` makes up when it connects again
                    wait = _WAIT_SECONDS[min(failures, len(_WAIT_SECONDS) - 1)]
                    failures += 1
                    self._own.clear()  # Postgres sends no copies of notices from before the next connection
                    log.warning(
                        "no notices from Postgres", where=self._address, error=str(error).strip(), again_in=wait
                    )
                    self._ended.wait(wait)

    def _listen(self) -> BoundedConnection:
        """Connect, and deliver a notice for every gateway, because commits may have been missed before.

        They may have been before the first connection too: a listener may have waited for it.

        Raises:
            psycopg.Error: the database cannot be reached.
        """
        connection = BoundedConnection.connect(**self._info, autocommit=True)
        connection.response_seconds = CHECK_SECONDS
        try:
            connection.execute(f"LISTEN {_CHANNEL}")
            gateways = connection.execute("SELECT id FROM lakesync.gateway").fetchall()
        except BaseException:
            connection.close()
            raise
        self.deliver(Notice(gateway, None, after_loss=True) for (gateway,) in gateways)
        return connection

    def _deliver(self, connection: BoundedConnection, selector: selectors.BaseSelector) -> None:
        """Deliver notices from Postgres until the store is closed.

        Raises:
            psycopg.Error: the connection is lost.
        """
        socket = connection.fileno()
        selector.register(socket, selectors.EVENT_READ)
        try:
            while not self._ended.is_set():
                for notification in connection.notifies(timeout=0):
                    self._deliver_payload(notification.payload)
                if not selector.select(_QUIET_SECONDS):
                    connection.execute("SELECT 1")
        finally:
            selector.unregister(socket)

    def _deliver_payload(self, encoded: str) -> None:
        """Deliver a notice to the listeners, unless it is of this process and was delivered already."""
        payload = _decode(encoded)
        if payload.process_id == self._process_id and payload.number in self._own:
            self._own.discard(payload.number)
        else:
            buckets = None if payload.buckets is None else frozenset(payload.buckets)
            self.deliver([Notice(payload.gateway, buckets, payload.presence)])
