"""Connections to Postgres that do not wait for ever for a server that sends nothing.

A server or a network can become silent while its connection stays open: a machine that is paused, a proxy or firewall
that drops packets. TCP notices that only where no proxy answers for the server, so the wait itself is bounded here too.
The staging store (the database that pushes are committed to), the readers of its log of pushes, the lake's catalogue,
the Postgres adapter and the Postgres connector open their connections by `BoundedConnection`.
"""

from __future__ import annotations

import select
from collections.abc import Iterator
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.waiting import Wait

from lakesync.model.errors import ConfigurationError
from lakesync.model.secrets import is_readable_postgres_url

if TYPE_CHECKING:
    from collections.abc import Mapping

    from psycopg.abc import PQGen

CONNECT_SECONDS = 10
"""Seconds to wait for each host while a connection is opened."""
KEEPALIVE: Mapping[str, int] = MappingProxyType(
    {"keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3, "tcp_user_timeout": 25_000}
)
"""Connection settings by which TCP detects a dead server after 25 s; by default that takes a quarter of an hour."""
RESPONSE_SECONDS = 120.0
"""Seconds without a byte from the server after which a statement fails, unless the connection has another limit."""
CHECK_SECONDS = 10.0
"""The same limit for the statement that checks whether an idle connection still works."""
MAINTENANCE_SECONDS = 3600.0
"""The same limit for statements that rewrite or read whole tables: migrations, VACUUM, a rebuild."""
_EVENTS = {Wait.R: select.POLLIN, Wait.W: select.POLLOUT, Wait.RW: select.POLLIN | select.POLLOUT}
"""What psycopg waits for → the events of `select.poll`."""


def parameters(url: str) -> dict[str, Any]:
    """Return the connection parameters of a URL, with `CONNECT_SECONDS` and `KEEPALIVE` where it sets nothing else.

    Args:
        url: the database's address, in libpq's form (`postgresql://USER@HOST/NAME`).

    Raises:
        ConfigurationError: the URL is invalid.
    """
    try:
        own = psycopg.conninfo.conninfo_to_dict(url) if is_readable_postgres_url(url) else None
    except psycopg.ProgrammingError:  # its text may contain a part of the password
        own = None
    if own is None:
        raise ConfigurationError(
            "the URL of a Postgres database cannot be read: write postgresql://USER:PASSWORD@HOST:PORT/DATABASE, with "
            "/, ?, #, %, @ and the like in the password as %2F, %3F, %23, %25, %40; check the names of its options"
        )
    return {"connect_timeout": CONNECT_SECONDS, **KEEPALIVE, **own}


class _SilentError(Exception):
    """The server sent nothing for too long."""


class BoundedConnection(psycopg.Connection[tuple[Any, ...]]):
    """A connection on which each statement fails if the server sends nothing for `response_seconds`.

    The connection is closed then, because the outcome of the statement is unknown.
    """

    response_seconds: float | None = None
    """Seconds without a byte from the server after which a statement fails; None for `RESPONSE_SECONDS`."""

    def wait(self, gen: PQGen[Any], *args: Any, **kwargs: Any) -> Any:
        """Wait as psycopg does, but not longer than the server is silent for `response_seconds`.

        Args:
            gen: psycopg's generator for the operation.
            args: psycopg passes its own time limit here when it waits for notices or cancels a statement. That limit
                then replaces `response_seconds`.
            kwargs: the same, by name.

        Raises:
            psycopg.OperationalError: the server was silent; the connection is closed.
        """
        if args or kwargs:
            return super().wait(gen, *args, **kwargs)
        seconds = RESPONSE_SECONDS if self.response_seconds is None else self.response_seconds
        try:
            return super().wait(_until_silent(gen, self.pgconn.socket, seconds))
        except _SilentError:
            self.pgconn.finish()
            raise psycopg.OperationalError(
                f"the server sent nothing for {seconds:g} s, so the connection was closed"
            ) from None

    @contextmanager
    def limited(self, seconds: float) -> Iterator[None]:
        """Use another limit in the `with` block.

        Args:
            seconds: seconds without a byte from the server after which a statement fails.
        """
        before, self.response_seconds = self.response_seconds, seconds
        try:
            yield
        finally:
            self.response_seconds = before


def check_connection(connection: BoundedConnection) -> None:
    """Check that an idle connection works. It must not be in a transaction.

    Raises:
        psycopg.Error: it does not work, or the server is silent for `CHECK_SECONDS`.
    """
    with connection.limited(CHECK_SECONDS):
        connection.execute("SELECT 1")
        if not connection.autocommit:
            connection.rollback()


def _until_silent(operation: PQGen[Any], socket: int, seconds: float) -> PQGen[Any]:
    """Run an operation of psycopg, whose socket must be ready within some seconds each time that it waits for it.

    It waits before psycopg does, because not every wait function of psycopg reports that nothing happened for a while.

    Args:
        operation: psycopg's generator, which yields the events that it waits for, and returns the result.
        socket: the connection's file descriptor.
        seconds: the limit of each wait.

    Raises:
        _SilentError: the socket was not ready.
    """
    ready = select.poll()
    try:
        events = next(operation)
        while True:
            ready.register(socket, _EVENTS[events])
            if not ready.poll(seconds * 1000):
                raise _SilentError
            events = operation.send((yield events))
    except StopIteration as done:
        return done.value
