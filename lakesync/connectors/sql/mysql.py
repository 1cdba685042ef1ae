"""MySQL as a source, by pymysql: one consistent snapshot a reading, rows as the server sends them."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import msgspec

from lakesync.connectors.base import ConnectorConfig
from lakesync.connectors.hosts import HostPolicy
from lakesync.connectors.sql.reader import PAGE, Column, Unseen
from lakesync.connectors.sql.source import SqlSource
from lakesync.connectors.sql.statements import marked
from lakesync.model.errors import AdapterError, AuthError, ConfigurationError, ForbiddenError, LakeSyncError
from lakesync.model.optional_imports import extra
from lakesync.model.schema import ColumnType

if TYPE_CHECKING:
    import pymysql

_CONNECT_SECONDS = 10
_READ_SECONDS = 300
_JSON = 245
_FORBIDDEN = (1044, 1142, 1143, 1227)

_OLDEST = """
SELECT MAX(TIMESTAMPDIFF(SECOND, trx_started, CONVERT_TZ(UTC_TIMESTAMP(), '+00:00', 'SYSTEM')))
FROM information_schema.innodb_trx WHERE trx_is_read_only = 0 AND trx_mysql_thread_id <> CONNECTION_ID()
"""
"""Begins of transactions are told in the time zone of the server's machine."""

_INEXACT_SECONDS = 2.0
"""They are whole seconds, as they were known a tenth of a second ago."""
_TYPES: dict[int, ColumnType] = {
    **dict.fromkeys((0, 1, 2, 3, 4, 5, 8, 9, 13, 246), "number"),
    _JSON: "json",
}
"""By the number of a field's type in the protocol; every other is text."""


def source(config: ConnectorConfig) -> SqlSource:
    """The source of one connector."""
    return SqlSource(reader, config)


def reader(config: ConnectorConfig) -> MySqlReader:
    """The database of one connector."""
    return MySqlReader(config.settings["connectionString"], config.hosts)


class MySqlReader:
    """A database; each reading has a connection of its own."""

    def __init__(self, uri: str, hosts: HostPolicy) -> None:
        """Read a connection string, and connect to nothing yet.

        Args:
            uri: `mysql://USER:PASSWORD@HOST:PORT/DATABASE`.
            hosts: that connectors may call.

        Raises:
            ConfigurationError: the driver is not installed, or the address is none.
        """
        with extra("mysql", "MySQL needs its driver"):
            import pymysql
            import pymysql.cursors
        self._driver = pymysql
        self._hosts = hosts
        try:
            parts = urlsplit(uri)
            host, port = parts.hostname, parts.port or 3306
        except ValueError:  # whose text may show a part of the password
            host = None
        if not host or not parts.path.strip("/"):
            raise ConfigurationError("connectionString must be mysql://USER:PASSWORD@HOST:PORT/DATABASE")
        self._place: dict[str, Any] = {
            "host": host,
            "port": port,
            "user": unquote(parts.username or "root"),
            "password": unquote(parts.password or ""),
            "database": unquote(parts.path.strip("/")),
        }

    @contextmanager
    def reading(self) -> Iterator[MySqlReading]:
        """A transaction that reads one moment and writes nothing."""
        try:
            with closing(self._connected()) as connection:
                with connection.cursor() as cursor:
                    asked = time.monotonic()
                    oldest = self._oldest_seconds(cursor)
                    cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                    cursor.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY")
                    since = time.monotonic() - asked
                yield MySqlReading(connection, None if oldest is None else Unseen(oldest + since + _INEXACT_SECONDS))
        except self._driver.Error as error:
            raise fault(error) from error

    def _connected(self) -> pymysql.connections.Connection[Any]:
        """A connection to the address that the policy has checked; TLS is for the host's name."""
        connection = self._driver.connect(
            **self._place,
            charset="utf8mb4",
            read_timeout=_READ_SECONDS,
            cursorclass=self._driver.cursors.SSCursor,
            init_command="SET time_zone = '+00:00'",
            defer_connect=True,
        )
        port = self._place["port"]
        try:
            address = self._hosts.address(self._place["host"], port)
            line = socket.create_connection((address, port), _CONNECT_SECONDS)
        except OSError as error:
            raise AdapterError(f"MySQL cannot be reached: {error}") from error
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.connect(line)
        return connection

    def quoted(self, name: str) -> str:
        """A name in backquotes."""
        return "`" + name.replace("`", "``") + "`"

    def text(self, expression: str) -> str:
        """A value as text."""
        return f"CAST({expression} AS CHAR)"

    def close(self) -> None:
        """Nothing: each reading has closed what it opened."""

    def _oldest_seconds(self, cursor: pymysql.cursors.Cursor) -> float | None:
        """For how long the oldest transaction that may write has been open; None where the user may not know."""
        try:
            cursor.execute(_OLDEST)
            ((seconds,),) = cursor.fetchall()
        except self._driver.Error as error:
            if error.args and error.args[0] in _FORBIDDEN:
                return None
            raise
        return max(0.0, float(seconds or 0))


class MySqlReading:
    """One connection."""

    def __init__(self, connection: pymysql.connections.Connection[Any], horizon: Unseen | None) -> None:
        self._connection = connection
        self.horizon = horizon

    def columns(self, query: str) -> list[Column]:
        """The columns of a query."""
        with self._connection.cursor() as cursor:
            cursor.execute(f"SELECT * FROM ({query}) polled LIMIT 0")
            return [Column(each[0], _TYPES.get(each[1], "string")) for each in cursor.description or ()]

    def pages(self, statement: str, values: Sequence[Any] = ()) -> Iterator[tuple[list[str], list[tuple[Any, ...]]]]:
        """Rows as they come."""
        with self._connection.cursor() as cursor:
            given = [_naive(value) for value in values]
            cursor.execute(marked(statement) if given else statement, given or None)
            described = cursor.description or ()
            names = [each[0] for each in described]
            documents = [place for place, each in enumerate(described) if each[1] == _JSON]
            while rows := cursor.fetchmany(PAGE):
                yield names, [_decoded(row, documents) for row in rows]


def fault(error: pymysql.Error) -> LakeSyncError:
    """A driver's error in our tree."""
    number = error.args[0] if error.args else None
    said = str(error.args[1] if len(error.args) > 1 else error)
    if number in (1045, 1698):
        return AuthError(f"MySQL does not let the user in ({said}): check the user and the password")
    if number in _FORBIDDEN:
        return ForbiddenError(f"MySQL forbids it ({said}): grant the user SELECT")
    if number in (1049, 1054, 1060, 1064, 1146, 1248):
        return ConfigurationError(f"MySQL refuses the query ({said}): mend the connector's query")
    return AdapterError(f"MySQL failed ({said})")


def _naive(value: Any) -> Any:
    """A moment without the zone, which the session has: UTC."""
    return value.replace(tzinfo=None) if hasattr(value, "tzinfo") else value


def _decoded(row: Sequence[Any], documents: Sequence[int]) -> tuple[Any, ...]:
    values = list(row)
    for place in documents:
        values[place] = None if values[place] is None else msgspec.json.decode(values[place])
    return tuple(values)
