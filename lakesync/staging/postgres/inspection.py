"""Reads the status of a store on Postgres and upgrades its schema, even while gateways use the store.

`staging.store_urls` calls it, for `lakesync staging status` and `lakesync staging upgrade`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from lakesync.model.errors import ConfigurationError
from lakesync.model.secrets import without_password
from lakesync.staging.migrations import HEADS, GatewayHead, Schema, Status, Upgrade, newest
from lakesync.staging.postgres.connection import Connection, migrate, unavailable
from lakesync.wire.postgres import BoundedConnection, parameters

_SIZE_SQL = (
    "SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint FROM pg_class c"
    " JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = 'lakesync' AND c.relkind = 'r'"
)


def status(url: str) -> Status:
    """Return a store's schema version, size, and the counters of each gateway.

    The counters are left out if the schema is newer than this LakeSync knows.

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


def _version(connection: Connection) -> int:
    """Return the schema version; 0 if there is no store."""
    (there,) = connection.execute("SELECT to_regclass('lakesync.migration') IS NOT NULL").fetchone() or (False,)
    if not there:
        return 0
    (version,) = connection.execute("SELECT coalesce(max(version), 0) FROM lakesync.migration").fetchone() or (0,)
    return int(version)


@contextmanager
def _connected(url: str, what: str) -> Iterator[tuple[Connection, str]]:
    """Yield a connection and the URL without its password; a driver's error becomes StagingUnavailableError."""
    address = without_password(url)
    try:
        with BoundedConnection.connect(**parameters(url)) as connection:
            yield connection, address
    except psycopg.Error as exc:
        raise unavailable(address, what, exc) from exc
