"""Reads a MySQL database for the polls of a connector: the `Reader` and `Snapshot` that `SqlSource` uses.

Each read has a transaction with a consistent snapshot, from which rows are streamed. It does not see the rows of
transactions that are still open. When these commit, their rows may have times before the latest one that the poll has
read, in the column by which polls find changes. So each snapshot has an `AgeHorizon`: the next poll starts as long
before the latest time as the oldest open transaction is old.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import msgspec

from lakesync.connectors.base import ConnectorConfig
from lakesync.connectors.host_policy import HostPolicy
from lakesync.connectors.sql.reader import ROWS_PER_PAGE, AgeHorizon, Column, ResultPage, format_placeholders
from lakesync.model.errors import AdapterError, AuthError, ConfigurationError, ForbiddenError, LakeSyncError, extra
from lakesync.model.schema import ColumnType

if TYPE_CHECKING:
    import pymysql

_CONNECT_SECONDS = 10
"""Seconds to wait for a connection."""
_READ_SECONDS = 300
"""Seconds without data from the server after which a read fails."""
_JSON = 245
"""The type code of JSON in MySQL's protocol."""
_DENIED = (1044, 1142, 1143, 1227)
"""Error codes for a missing privilege."""

_AGE_SQL = """TIMESTAMPDIFF(SECOND, LEAST(
    CONVERT_TZ(trx_started, 'SYSTEM', '+00:00'),
    CONVERT_TZ(trx_started - INTERVAL 1 HOUR, 'SYSTEM', '+00:00') + INTERVAL 1 HOUR
), UTC_TIMESTAMP())"""
"""The age of a transaction in seconds. MySQL reports its start in the time zone of the server's machine, where some
times occur twice when the clock is set back. The start is converted to UTC with its own offset and with that of an hour
before it, and the earlier result is taken."""
_OLDEST_TRANSACTION_SQL = f"""
SELECT MAX({_AGE_SQL})
FROM information_schema.innodb_trx WHERE trx_is_read_only = 0 AND trx_mysql_thread_id <> CONNECTION_ID()
"""
"""The age of the oldest transaction that may write."""

_INEXACT_SECONDS = 2.0
"""Added to the age of the oldest transaction: start times are whole seconds, and MySQL's list of transactions is up to
0.1 s old."""
_TYPES: dict[int, ColumnType] = {
    **dict.fromkeys((0, 1, 2, 3, 4, 5, 8, 9, 13, 246), "number"),
    _JSON: "json",
}
"""The type code in MySQL's protocol → the schema's type; other types become strings."""


def reader(config: ConnectorConfig) -> MySqlReader:
    """Return the reader of a connector's database; `built_in.py` makes an `SqlSource` of this function."""
    return MySqlReader(config.settings["connectionString"], config.hosts)


class MySqlReader:
    """`Reader` of a database. Each snapshot has a connection of its own."""

    def __init__(self, uri: str, hosts: HostPolicy) -> None:
        """Parse a connection string; connects to nothing yet.

        Args:
            uri: `mysql://USER:PASSWORD@HOST:PORT/DATABASE`, without options.
            hosts: the hosts that connectors may call.

        Raises:
            ConfigurationError: the driver is not installed, or the URI is invalid.
        """
        with extra("mysql", "MySQL needs its driver"):
            import pymysql
            import pymysql.converters
            import pymysql.cursors
        self._driver = pymysql
        self._hosts = hosts
        try:
            parts = urlsplit(uri)
            host, port = parts.hostname, parts.port or 3306
        except ValueError:  # its message may contain a part of the password
            host = None
        if not host or parts.scheme != "mysql" or parts.query or not parts.path.strip("/"):
            raise ConfigurationError(
                "connectionString must be mysql://USER:PASSWORD@HOST:PORT/DATABASE, without options such as ?ssl-mode"
            )
        self._address: dict[str, Any] = {
            "host": host,
            "port": port,
            "user": unquote(parts.username or "root"),
            "password": unquote(parts.password or ""),
            "database": unquote(parts.path.strip("/")),
        }
        self.database = f"{host}:{port}/{self._address['database']}"

    @contextmanager
    def snapshot(self) -> Iterator[MySqlSnapshot]:
        """Yield a read-only transaction with a consistent snapshot.

        Raises:
            AuthError, ForbiddenError, ConfigurationError, AdapterError: as `_map_error`.
            ConfigurationError: the connectors' host policy forbids the address.
            AdapterError: the server cannot be reached.
        """
        try:
            with closing(self._connect()) as connection:
                with connection.cursor() as cursor:
                    # the oldest transaction ages until the snapshot is taken
                    asked_at = time.monotonic()
                    oldest = self._oldest_transaction_seconds(cursor)
                    cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                    cursor.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY")
                    elapsed = time.monotonic() - asked_at
                yield MySqlSnapshot(
                    connection, None if oldest is None else AgeHorizon(oldest + elapsed + _INEXACT_SECONDS)
                )
        except self._driver.Error as error:
            raise _map_error(error) from error

    def quoted(self, name: str) -> str:
        """Quote a name with backticks."""
        return "`" + name.replace("`", "``") + "`"

    def text(self, expression: str) -> str:
        """Return an expression for a value as text."""
        return f"CAST({expression} AS CHAR)"

    def close(self) -> None:
        """Do nothing: each snapshot closes its connection."""

    def _connect(self) -> pymysql.connections.Connection[Any]:
        """Connect to the address that the host policy has checked, so that a second DNS look-up cannot change it.

        Raises:
            AdapterError: the server cannot be reached.
        """
        connection = self._driver.connect(
            **self._address,
            charset="utf8mb4",
            read_timeout=_READ_SECONDS,
            cursorclass=self._driver.cursors.SSCursor,
            # a TIME is read as text: it may be negative or exceed a day, and is no time of day then
            conv={**self._driver.converters.conversions, self._driver.constants.FIELD_TYPE.TIME: str},
            init_command="SET time_zone = '+00:00'",
            defer_connect=True,
        )
        port = self._address["port"]
        try:
            address = self._hosts.resolve(self._address["host"], port)
            connected = socket.create_connection((address, port), _CONNECT_SECONDS)
        except OSError as error:
            raise AdapterError(f"MySQL cannot be reached: {error}") from error
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.connect(connected)
        return connection

    def _oldest_transaction_seconds(self, cursor: pymysql.cursors.Cursor) -> float | None:
        """Return the age in seconds of the oldest transaction that may write; None if the user may not see it."""
        try:
            cursor.execute(_OLDEST_TRANSACTION_SQL)
            ((seconds,),) = cursor.fetchall()
        except self._driver.Error as error:
            if error.args and error.args[0] in _DENIED:
                return None
            raise
        return max(0.0, float(seconds or 0))


class MySqlSnapshot:
    """`Snapshot` in a read-only transaction."""

    def __init__(self, connection: pymysql.connections.Connection[Any], horizon: AgeHorizon | None) -> None:
        """Wrap a connection.

        Args:
            connection: with an open transaction.
            horizon: how old the changes may be that the transaction does not see; None if it is unknown.
        """
        self._connection = connection
        self.horizon = horizon

    def columns(self, query: str) -> list[Column]:
        """Return the columns of a query."""
        with self._connection.cursor() as cursor:
            cursor.execute(f"SELECT * FROM ({query}) polled LIMIT 0")
            return [Column(each[0], _TYPES.get(each[1], "string")) for each in cursor.description or ()]

    def query_pages(self, statement: str, values: Sequence[Any] = ()) -> Iterator[ResultPage]:
        """Yield the pages of a query's result, as the server sends them.

        Args:
            statement: the query.
            values: the values of its placeholders.
        """
        with self._connection.cursor() as cursor:
            parameters = [_without_time_zone(value) for value in values]
            cursor.execute(format_placeholders(statement) if parameters else statement, parameters or None)
            description = cursor.description or ()
            names = [each[0] for each in description]
            json_indexes = [index for index, each in enumerate(description) if each[1] == _JSON]
            while rows := cursor.fetchmany(ROWS_PER_PAGE):
                yield ResultPage(names, [_with_decoded_json(row, json_indexes) for row in rows])


def _map_error(error: pymysql.Error) -> LakeSyncError:
    """Return LakeSync's error for an error of the driver: AdapterError unless a setting or a privilege is wrong."""
    number = error.args[0] if error.args else None
    reason = str(error.args[1] if len(error.args) > 1 else error)
    if number in (1045, 1698):
        return AuthError(f"MySQL rejects the login ({reason}): check the user and the password")
    if number in _DENIED:
        return ForbiddenError(f"MySQL denies permission ({reason}): grant the user SELECT")
    if number in (1049, 1054, 1060, 1064, 1146, 1248):
        return ConfigurationError(f"MySQL rejects the query ({reason}): correct the connector's query")
    return AdapterError(f"MySQL failed ({reason})")


def _without_time_zone(value: Any) -> Any:
    """Remove the time zone of a datetime; the session's is UTC."""
    return value.replace(tzinfo=None) if hasattr(value, "tzinfo") else value


def _with_decoded_json(row: Sequence[Any], json_indexes: Sequence[int]) -> tuple[Any, ...]:
    """Return a row with the JSON texts at some indexes decoded."""
    values = list(row)
    for index in json_indexes:
        values[index] = None if values[index] is None else msgspec.json.decode(values[index])
    return tuple(values)
