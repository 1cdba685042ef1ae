"""Postgres as a source, by psycopg: one transaction a reading, a cursor of the server's a statement."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from lakesync.connectors.base import ConnectorConfig
from lakesync.connectors.hosts import HostPolicy
from lakesync.connectors.sql.reader import PAGE, Column, Horizon
from lakesync.connectors.sql.source import SqlSource
from lakesync.connectors.sql.statements import marked
from lakesync.model.errors import AdapterError, AuthError, ConfigurationError, ForbiddenError, LakeSyncError
from lakesync.model.optional_imports import extra
from lakesync.model.schema import ColumnType

if TYPE_CHECKING:
    import psycopg

_CONNECT_SECONDS = 10
_PORT = 5432
_NOWHERE = "/nonexistent/lakesync"
_PARAMETERS = frozenset(
    {"host", "port", "user", "password", "dbname", "sslmode", "channel_binding", "target_session_attrs"}
    | {"application_name", "options", "keepalives", "keepalives_idle", "keepalives_interval", "keepalives_count"}
    | {"tcp_user_timeout", "client_encoding", "load_balance_hosts"}
)
"""Parameters of a connection string that name no file, service, socket or identity of this machine."""
_NOT_OF_THE_SERVER = {
    "passfile": _NOWHERE,
    "sslcert": _NOWHERE,
    "sslkey": _NOWHERE,
    "gssencmode": "disable",
    "require_auth": "password,md5,scram-sha-256,none",
    "connect_timeout": _CONNECT_SECONDS,
}
"""Keeps libpq from presenting this machine's own passwords, certificates and Kerberos tickets to a tenant's host."""
_TYPES: dict[str, ColumnType] = {
    "bool": "boolean",
    **dict.fromkeys(("int2", "int4", "int8", "oid", "float4", "float8", "numeric"), "number"),
    **dict.fromkeys(("json", "jsonb"), "json"),
}


def source(config: ConnectorConfig) -> SqlSource:
    """The source of one connector."""
    return SqlSource(reader, config)


def reader(config: ConnectorConfig) -> PostgresReader:
    """The database of one connector."""
    return PostgresReader(config.settings["connectionString"], config.hosts)


class PostgresReader:
    """A database; each reading is a transaction of its own, which sees one moment."""

    def __init__(self, uri: str, hosts: HostPolicy) -> None:
        """Read a connection string, and connect to nothing yet.

        Args:
            uri: `postgresql://USER:PASSWORD@HOST:PORT/DATABASE`, as libpq reads it.
            hosts: that connectors may call.

        Raises:
            ConfigurationError: the driver is not installed, or the string names no host or what is the server's own.
        """
        with extra("postgres", "Postgres needs its driver"):
            import psycopg
            from psycopg.conninfo import conninfo_to_dict
        self._driver = psycopg
        self._hosts = hosts
        try:
            self._given: dict[str, Any] = {name: str(value) for name, value in conninfo_to_dict(uri).items()}
        except psycopg.Error:  # whose text may show a part of the password
            raise ConfigurationError(
                "connectionString cannot be read: write postgresql://USER:PASSWORD@HOST:PORT/DATABASE"
            ) from None
        public = {"sslrootcert"} if self._given.get("sslrootcert") == "system" else set()
        if strange := sorted(self._given.keys() - _PARAMETERS - public):
            raise ConfigurationError(
                f"connectionString has {', '.join(strange)}, which a connector may not set: leave it out"
            )
        names, ports = self._given.get("host", "").split(","), self._given.get("port", "").split(",")
        if not all(host and host[0] not in "/@" for host in names):
            raise ConfigurationError(
                "connectionString names no host: write postgresql://USER:PASSWORD@HOST:PORT/DATABASE"
            )
        try:
            each = zip(names, ports if len(ports) > 1 else ports * len(names), strict=True)
            self._places = [(host, int(port or _PORT)) for host, port in each]
        except ValueError:
            raise ConfigurationError(
                "connectionString has ports that do not fit its hosts: give one number each"
            ) from None

    @contextmanager
    def reading(self) -> Iterator[PostgresReading]:
        """A transaction that reads one moment and writes nothing."""
        try:
            with self._driver.connect(**self._pinned()) as connection:
                connection.read_only = True
                connection.isolation_level = self._driver.IsolationLevel.REPEATABLE_READ
                connection.execute("SET TIME ZONE 'UTC'")
                yield PostgresReading(connection)
        except self._driver.Error as error:
            raise fault(error) from error

    def _pinned(self) -> dict[str, Any]:
        """Where to connect to: the hosts' addresses, which the policy has just checked; TLS is for their names."""
        try:
            addresses = [self._hosts.address(host, port) for host, port in self._places]
        except OSError as error:
            raise AdapterError(f"Postgres' host cannot be resolved: {error}") from error
        return {"password": "", **self._given, **_NOT_OF_THE_SERVER, "hostaddr": ",".join(addresses)}

    def quoted(self, name: str) -> str:
        """A name in double quotes."""
        return '"' + name.replace('"', '""') + '"'

    def text(self, expression: str) -> str:
        """A value as text."""
        return f"CAST({expression} AS text)"

    def close(self) -> None:
        """Nothing: each reading has closed what it opened."""


class PostgresReading:
    """One transaction."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection
        self._numbers = itertools.count()
        told = connection.execute(
            "SELECT pg_snapshot_xmin(s)::text::bigint, pg_snapshot_xmax(s)::text::bigint FROM pg_current_snapshot() s"
        ).fetchone()
        self.horizon = Horizon(*told) if told is not None else None

    def columns(self, query: str) -> list[Column]:
        """The columns of a query."""
        found = self._connection.execute(f"SELECT * FROM ({query}) polled LIMIT 0".encode())
        types = self._connection.adapters.types
        return [Column(each.name, _type(types.get(each.type_code), each.type_code)) for each in found.description or ()]

    def pages(self, statement: str, values: Sequence[Any] = ()) -> Iterator[tuple[list[str], list[tuple[Any, ...]]]]:
        """Rows by a cursor of the server's."""
        with self._connection.cursor(name=f"polled_{next(self._numbers)}") as cursor:
            cursor.execute(marked(statement).encode(), list(values))
            names = [each.name for each in cursor.description or ()]
            while rows := cursor.fetchmany(PAGE):
                yield names, rows


def _type(known: psycopg.types.TypeInfo | None, code: int) -> ColumnType:
    if known is None:
        return "string"
    return "json" if code == known.array_oid else _TYPES.get(known.name, "string")


def fault(error: psycopg.Error) -> LakeSyncError:
    """A driver's error in our tree, without the address that it was for."""
    said = str(error).strip().partition("\n")[0]
    state = error.sqlstate or ""
    if state.startswith("28") or "authentication failed" in said or "no password" in said:
        return AuthError(f"Postgres does not let the user in ({said}): check the user and the password")
    if state == "42501":
        return ForbiddenError(f"Postgres forbids it ({said}): grant the user SELECT")
    if state.startswith(("42", "22", "3D")):
        return ConfigurationError(f"Postgres refuses the query ({said}): mend the connector's query")
    return AdapterError(f"Postgres failed ({said})")
