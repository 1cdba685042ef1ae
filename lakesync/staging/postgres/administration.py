"""Reads the status of a store on Postgres, upgrades its schema, and replaces it by a new one, without opening it.

`staging.store_urls` calls it, for `lakesync staging status`, `migrate` and `rebuild`. `status` and `upgrade` work even
while gateways use the store. `engine.rebuild` fills a replacement from the lake (Iceberg tables), in one transaction
that also renames the schema of the store in use. A crash rolls the transaction back, and the old store stays. A
*gateway* is one app's stream of changes; a store has many.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import psycopg
from psycopg import sql

from lakesync.model.errors import ConfigurationError, StagingUnavailableError
from lakesync.model.secrets import without_password
from lakesync.staging.migrations import HEADS, GatewayHead, Schema, Status, Upgrade, newest
from lakesync.staging.postgres.commit import PostgresCommit
from lakesync.staging.postgres.connection import (
    Connection,
    Database,
    configure_session,
    lock_migrations,
    migrate,
    unavailable,
)
from lakesync.staging.postgres.heads import ConfigCache, Transaction, ensure_gateway, load_head, save_head
from lakesync.staging.rebuild_commit import RebuildCommit
from lakesync.wire.postgres import BoundedConnection, parameters

_SIZE_SQL = (
    "SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint FROM pg_class c"
    " JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = 'lakesync' AND c.relkind = 'r'"
)
"""SQL: the size of the store's tables, in bytes."""
T = TypeVar("T")

_USERS = (
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'lakesync %'"
    " AND pid <> pg_backend_pid()"
)
"""SQL: the number of other connections that use the store; each has `lakesync …` as its application name."""


def status(url: str) -> Status:
    """Return a store's schema version, size, and the counters of each gateway.

    An older schema has the counters too. They are left out if the schema is newer than this LakeSync knows.

    Args:
        url: the database's address, in libpq's form.

    Raises:
        ConfigurationError: there is no store.
        StagingUnavailableError: Postgres cannot be reached.
    """
    with _connected(url, "reading the status") as (connection, address):
        version = _version(connection)
        if version == 0:
            raise ConfigurationError(f"there is no staging store in Postgres at {address}: start a gateway on it first")
        schema = Schema(connection.info.dbname, version, newest("postgres"))
        heads: tuple[GatewayHead, ...] = ()
        if version <= schema.newest:
            connection.execute("SET search_path = lakesync")
            heads = tuple(GatewayHead(*row) for row in connection.execute(HEADS).fetchall())
        (size,) = connection.execute(_SIZE_SQL).fetchone() or (0,)
    return Status(without_password(url), (schema,), size, heads)


def upgrade(url: str) -> list[Upgrade]:
    """Apply missing migrations in one transaction. It locks the store, so running gateways wait until it ends.

    Args:
        url: the database's address, in libpq's form.

    Returns:
        One upgrade, with equal versions if nothing was missing.

    Raises:
        StagingVersionError: a newer LakeSync wrote the schema; nothing was changed.
        StagingUnavailableError: Postgres cannot be reached, or rejects a statement.
    """
    with _connected(url, "upgrading the schema") as (connection, address):
        before = _version(connection)
        migrate(connection, address)
        return [Upgrade(connection.info.dbname, before, _version(connection))]


class _ReplacementSchema:
    """A new store in an uncommitted transaction; it implements `rebuild_commit.ReplacementStore`."""

    def __init__(self, connection: Connection, wall: Callable[[], int], shard: str) -> None:
        self._connection = connection
        self._shard = shard
        self._wall = wall
        self._configs = ConfigCache()

    def ensure_gateway(self, gateway: str) -> None:
        ensure_gateway(self._connection, gateway, self._wall(), self._shard)

    def run(self, gateway: str, job: Callable[[RebuildCommit], T]) -> T:
        """Run `job` in the transaction, and store the gateway's head (its counters) after it."""
        head = load_head(self._connection, gateway, self._configs, lock=True)
        transaction = Transaction(self._connection, head, self._wall)
        result = job(PostgresCommit(transaction))
        save_head(self._connection, transaction.head)
        return result


@contextmanager
def replacement_schema(shard: str, url: str, wall: Callable[[], int], *, replace: bool) -> Iterator[_ReplacementSchema]:
    """Yield a new store in the URL's database; it is committed when the `with` block ends without an error.

    `staging.store_urls.replacement_stores` calls this.

    Args:
        shard: name of the shard (a store for some tables); `main` without sharding.
        url: the database's address, in libpq's form (`postgresql://USER@HOST/NAME`).
        wall: returns the server's wall time in milliseconds since 1970.
        replace: whether an existing store may be replaced: its schema is renamed, with the time in the new name.

    Raises:
        ConfigurationError: a store exists and `replace` is false.
        StagingUnavailableError: gateways or pipelines use the store, or the database cannot be reached.
    """
    address = Database(url).address
    try:
        with BoundedConnection.connect(**parameters(url)) as connection:
            lock_migrations(connection)  # a gateway that starts from here on waits until the new store is committed
            _rename_existing(connection, wall, address, replace=replace)
            migrate(connection, address)
            configure_session(connection)
            connection.execute("SET idle_in_transaction_session_timeout = 0")  # reading the lake takes long
            yield _ReplacementSchema(connection, wall, shard)
    except psycopg.Error as exc:
        raise unavailable(address, "making the store again", exc) from exc


def _version(connection: Connection) -> int:
    """Return the schema version; 0 if there is no store."""
    (there,) = connection.execute("SELECT to_regclass('lakesync.migration') IS NOT NULL").fetchone() or (False,)
    if not there:
        return 0
    (version,) = connection.execute("SELECT coalesce(max(version), 0) FROM lakesync.migration").fetchone() or (0,)
    return int(version)


@contextmanager
def _connected(url: str, what: str) -> Iterator[tuple[Connection, str]]:
    """Yield a connection and the URL without its password; a driver's error becomes StagingUnavailableError.

    Args:
        url: the database's address, in libpq's form.
        what: the operation, for the message, such as `reading the status`.
    """
    address = without_password(url)
    try:
        with BoundedConnection.connect(**parameters(url)) as connection:
            yield connection, address
    except psycopg.Error as exc:
        raise unavailable(address, what, exc) from exc


def _rename_existing(connection: Connection, wall: Callable[[], int], address: str, *, replace: bool) -> None:
    """Rename the schema of an existing store, if there is one; raises as `replacement_schema`."""
    (exists,) = connection.execute("SELECT to_regnamespace('lakesync') IS NOT NULL").fetchone() or (False,)
    if not exists:
        return
    if not replace:
        raise ConfigurationError(
            f"there is a staging store in Postgres at {address}: add --replace, which sets it aside"
        )
    (users,) = connection.execute(_USERS).fetchone() or (0,)
    if users:
        raise StagingUnavailableError(f"{users} connections of gateways or pipelines to {address} are open: stop them")
    connection.execute(sql.SQL(f"ALTER SCHEMA lakesync RENAME TO lakesync_replaced_{wall()}"))
