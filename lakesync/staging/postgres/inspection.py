"""Shows and upgrades the schema of a store on Postgres, which may be in use; `staging.versions` calls it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import psycopg

from lakesync.model.errors import ConfigurationError
from lakesync.staging.migrations import HEADS, GatewayHead, Schema, Status, Upgrade, newest
from lakesync.staging.postgres.connection import Connection, migrate, unavailable

_SIZE = (
    "SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint FROM pg_class c"
    " JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = 'lakesync' AND c.relkind = 'r'"
)


def status(url: str) -> Status:
    """Read a store's status from its tables."""
    with _connected(url) as (connection, where):
        version = _version(connection)
        if version == 0:
            raise ConfigurationError(f"there is no staging store in Postgres at {where}: start a gateway on it first")
        schema = Schema(connection.info.dbname, version, newest("postgres"))
        heads: tuple[GatewayHead, ...] = ()
        if version <= schema.newest:
            connection.execute("SET search_path = lakesync")
            heads = tuple(GatewayHead(*row) for row in connection.execute(HEADS).fetchall())
        (size,) = connection.execute(_SIZE).fetchone() or (0,)
    return Status(_shown(url), (schema,), size, heads)


def upgrade(url: str) -> list[Upgrade]:
    """Apply missing migrations in one transaction; running gateways wait for it."""
    with _connected(url) as (connection, where):
        before = _version(connection)
        migrate(connection, where)
        return [Upgrade(connection.info.dbname, before, _version(connection))]


def _version(connection: Connection) -> int:
    (there,) = connection.execute("SELECT to_regclass('lakesync.migration') IS NOT NULL").fetchone() or (False,)
    if not there:
        return 0
    (version,) = connection.execute("SELECT coalesce(max(version), 0) FROM lakesync.migration").fetchone() or (0,)
    return int(version)


@contextmanager
def _connected(url: str) -> Iterator[tuple[Connection, str]]:
    where = _shown(url)
    try:
        with psycopg.connect(url) as connection:
            yield connection, where
    except psycopg.Error as exc:
        raise unavailable(where, "looking at the store", exc) from exc


def _shown(url: str) -> str:
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
