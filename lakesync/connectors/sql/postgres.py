"""Reads a Postgres database for the polls of a connector: the `Reader` and `Snapshot` that `SqlSource` uses.

Each read is one transaction, with one server-side cursor per statement. The connection string comes from a tenant, so
it must not reach hosts that are not allowed, nor make libpq send credentials of this machine.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from lakesync.connectors.base import ConnectorConfig
from lakesync.connectors.host_policy import HostPolicy
from lakesync.connectors.sql.reader import ROWS_PER_PAGE, Column, ResultPage, TransactionHorizon, format_placeholders
from lakesync.model.errors import AdapterError, AuthError, ConfigurationError, ForbiddenError, LakeSyncError, extra
from lakesync.model.schema import ColumnType
from lakesync.wire.malformed import replace_lone_surrogates

if TYPE_CHECKING:
    import psycopg
    from psycopg.abc import AdaptContext, Buffer
    from psycopg.adapt import Loader

_CONNECT_SECONDS = 10
"""Seconds to wait for a connection."""
_RESPONSE_SECONDS = 600.0
"""Seconds without a byte from the server after which a poll fails. A query may sort a large table before its first row.
"""
_PORT = 5432
_NOWHERE = "/nonexistent/lakesync"
"""A path without a file, in place of libpq's default files."""
_PARAMETERS = frozenset(
    {"host", "port", "user", "password", "dbname", "sslmode", "channel_binding", "target_session_attrs"}
    | {"application_name", "options", "keepalives", "keepalives_idle", "keepalives_interval", "keepalives_count"}
    | {"tcp_user_timeout", "client_encoding", "load_balance_hosts"}
)
"""Allowed connection parameters. None refers to a file, service, socket or identity of this machine."""
_NO_SERVER_CREDENTIALS = {
    "passfile": _NOWHERE,
    "sslcert": _NOWHERE,
    "sslkey": _NOWHERE,
    "gssencmode": "disable",
    "require_auth": "password,md5,scram-sha-256,none",
    "connect_timeout": _CONNECT_SECONDS,
}
"""Keeps libpq from sending this machine's passwords, certificates and Kerberos tickets to a tenant's host."""
_TYPES: dict[str, ColumnType] = {
    "bool": "boolean",
    **dict.fromkeys(("int2", "int4", "int8", "oid", "float4", "float8", "numeric"), "number"),
    **dict.fromkeys(("json", "jsonb"), "json"),
}
"""Postgres' type → the schema's; other types become strings."""
_TIME_TYPES = ("date", "time", "timetz", "timestamp", "timestamptz")
"""The types with values that Python's types cannot represent, such as `infinity`."""


def reader(config: ConnectorConfig) -> PostgresReader:
    """Return the reader of a connector's database; `built_in.py` makes an `SqlSource` of this function."""
    return PostgresReader(config.settings["connectionString"], config.hosts)


class PostgresReader:
    """`Reader` of a database. Each snapshot has a connection and a transaction of its own."""

    def __init__(self, uri: str, hosts: HostPolicy) -> None:
        """Parse a connection string; connects to nothing yet.

        Args:
            uri: `postgresql://USER:PASSWORD@HOST:PORT/DATABASE`, as libpq reads it.
            hosts: the hosts that connectors may call.

        Raises:
            ConfigurationError: the driver is not installed, or the string has no host or a parameter that is not
                allowed.
        """
        with extra("postgres", "Postgres needs its driver"):
            import psycopg
            from psycopg.conninfo import conninfo_to_dict

            from lakesync.wire import postgres
        self._driver, self._wire = psycopg, postgres
        self._hosts = hosts
        try:
            self._parameters: dict[str, Any] = {name: str(value) for name, value in conninfo_to_dict(uri).items()}
        except psycopg.Error:  # its message may contain a part of the password
            raise ConfigurationError(
                "connectionString cannot be read: write postgresql://USER:PASSWORD@HOST:PORT/DATABASE"
            ) from None
        also_allowed = {"sslrootcert"} if self._parameters.get("sslrootcert") == "system" else set()
        if forbidden := sorted(self._parameters.keys() - _PARAMETERS - also_allowed):
            raise ConfigurationError(
                f"connectionString has {', '.join(forbidden)}, which a connector must not set: remove it"
            )
        names, ports = self._parameters.get("host", "").split(","), self._parameters.get("port", "").split(",")
        if not all(host and host[0] not in "/@" for host in names):
            raise ConfigurationError(
                "connectionString names no host: write postgresql://USER:PASSWORD@HOST:PORT/DATABASE"
            )
        try:
            pairs = zip(names, ports if len(ports) > 1 else ports * len(names), strict=True)
            self._hosts_and_ports = [(host, int(port or _PORT)) for host, port in pairs]
        except ValueError:
            raise ConfigurationError(
                "connectionString has ports that do not match its hosts: give one number for each host"
            ) from None
        addresses = ",".join(f"{host}:{port}" for host, port in self._hosts_and_ports)
        self.database = f"{addresses}/{self._parameters.get('dbname', '')}"

    @contextmanager
    def snapshot(self) -> Iterator[PostgresSnapshot]:
        """Yield a read-only transaction with a consistent snapshot.

        Raises:
            AuthError, ForbiddenError, ConfigurationError: the database rejects the login or the query; a person must
                correct the connector.
            AdapterError: the database cannot be reached; retry.
        """
        try:
            with self._wire.BoundedConnection.connect(**self._pinned_parameters()) as connection:
                connection.response_seconds = _RESPONSE_SECONDS
                connection.read_only = True
                connection.isolation_level = self._driver.IsolationLevel.REPEATABLE_READ
                connection.execute("SET TIME ZONE 'UTC'")
                _register_loaders(connection)
                yield PostgresSnapshot(connection)
        except self._driver.Error as error:
            raise _map_error(error) from error

    def quoted(self, name: str) -> str:
        """Quote a name with double quotes."""
        return '"' + name.replace('"', '""') + '"'

    def text(self, expression: str) -> str:
        """Return an expression for a value as text."""
        return f"CAST({expression} AS text)"

    def close(self) -> None:
        """Do nothing: each snapshot closes its connection."""

    def _pinned_parameters(self) -> dict[str, Any]:
        """Return connection parameters with the hosts' addresses, which are checked against the allowed hosts.

        libpq connects to these addresses, so that a second DNS lookup cannot lead elsewhere. TLS still verifies the
        hosts' names.
        """
        try:
            addresses = [self._hosts.resolve(host, port) for host, port in self._hosts_and_ports]
        except OSError as error:
            raise AdapterError(f"Postgres' host cannot be resolved: {error}") from error
        # in the encoding of a database with SQL_ASCII, psycopg would return texts as bytes
        given = {"password": "", "client_encoding": "UTF8", **self._wire.KEEPALIVE, **self._parameters}
        return {**given, **_NO_SERVER_CREDENTIALS, "hostaddr": ",".join(addresses)}


class PostgresSnapshot:
    """A transaction in which a poll reads. All of its statements see the same snapshot."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        """Read the transaction's horizon: which other transactions had ended when it began.

        Args:
            connection: an open connection, in a transaction.
        """
        self._connection = connection
        self._numbers = itertools.count()
        bounds = connection.execute(
            "SELECT pg_snapshot_xmin(s)::text::bigint, pg_snapshot_xmax(s)::text::bigint FROM pg_current_snapshot() s"
        ).fetchone()
        self.horizon = TransactionHorizon(*bounds) if bounds is not None else None

    def columns(self, query: str) -> list[Column]:
        """Return the columns of a query."""
        found = self._connection.execute(f"SELECT * FROM ({query}) polled LIMIT 0".encode())
        types = self._connection.adapters.types
        return [Column(each.name, _type(types.get(each.type_code), each.type_code)) for each in found.description or ()]

    def query_pages(self, statement: str, values: Sequence[Any] = ()) -> Iterator[ResultPage]:
        """Yield the pages of a statement's result, from a server-side cursor."""
        with self._connection.cursor(name=f"polled_{next(self._numbers)}") as cursor:
            cursor.execute(format_placeholders(statement).encode(), list(values))
            names = [each.name for each in cursor.description or ()]
            while rows := cursor.fetchmany(ROWS_PER_PAGE):
                yield ResultPage(names, rows)


def _register_loaders(connection: psycopg.Connection[Any]) -> None:
    """Make a connection load every time and JSON text: no value may stop its table."""
    from psycopg.types.json import set_json_loads
    from psycopg.types.string import TextLoader

    for name in _TIME_TYPES:
        connection.adapters.register_loader(name, _time_loader())
    connection.adapters.register_loader("interval", TextLoader)  # a `timedelta` would have 30 days for a month
    set_json_loads(_json_decoder(connection.info.encoding), connection)


@cache
def _json_decoder(encoding: str) -> partial[Any]:
    """Return `_decode_json` for an encoding: always the same object, because psycopg keeps classes for each."""
    return partial(_decode_json, encoding)


def _decode_json(encoding: str, data: str | bytes) -> Any:
    """Decode JSON as `HttpApi` does: lone surrogates, which the type `json` may have, become U+FFFD.

    Args:
        encoding: the connection's encoding, in which psycopg passes JSON on.
        data: the JSON text.
    """
    text = data if isinstance(data, str) else data.decode(encoding)
    return json.loads(replace_lone_surrogates(text.encode()))


@cache
def _time_loader() -> type[Loader]:
    """Return a loader of times that keeps those as text that Python's types cannot represent, such as `infinity`."""
    from psycopg import DataError, adapters
    from psycopg.adapt import Loader
    from psycopg.pq import Format

    class TimeLoader(Loader):
        def __init__(self, oid: int, context: AdaptContext | None = None) -> None:
            super().__init__(oid, context)
            usual = adapters.get_loader(oid, Format.TEXT)
            assert usual is not None, "psycopg loads all of these types"
            self._usual = usual(oid, context)

        def load(self, data: Buffer) -> Any:
            try:
                return self._usual.load(data)
            except DataError:
                return bytes(data).decode()

    return TimeLoader


def _type(known: psycopg.types.TypeInfo | None, code: int) -> ColumnType:
    """Return the column type for a Postgres type; arrays are JSON, and unknown types are text."""
    if known is None:
        return "string"
    return "json" if code == known.array_oid else _TYPES.get(known.name, "string")


def _map_error(error: psycopg.Error) -> LakeSyncError:
    """Return LakeSync's error for an error of the driver, by its SQLSTATE: see `PostgresReader.snapshot`."""
    reason = str(error).strip().partition("\n")[0]
    state = error.sqlstate or ""
    if state.startswith("28") or "authentication failed" in reason or "no password" in reason:
        return AuthError(f"Postgres rejects the login ({reason}): check the user and the password")
    if state == "42501":
        return ForbiddenError(f"Postgres denies permission ({reason}): grant the user SELECT")
    if state == "22021":  # in a database with SQL_ASCII
        return ConfigurationError(
            f"Postgres cannot send a text as UTF-8 ({reason}): set its encoding in connectionString, such as "
            "?client_encoding=LATIN1"
        )
    if state.startswith(("42", "22", "3D")):
        return ConfigurationError(f"Postgres rejects the query ({reason}): correct the connector's query")
    return AdapterError(f"Postgres failed ({reason})")
