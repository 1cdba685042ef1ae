"""Builds a new store in Postgres, in one transaction that also renames the schema of the store in use.

`staging.store_urls` calls it, for a rebuild from the lake. A crash rolls the transaction back, and the old store
stays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import psycopg
from psycopg import sql

from lakesync.model.errors import ConfigurationError, StagingUnavailableError
from lakesync.staging.postgres.commit import PostgresCommit
from lakesync.staging.postgres.connection import Connection, Database, configure_session, migrate, unavailable
from lakesync.staging.postgres.journal import ConfigCache, Journal, ensure_gateway, load_head, save_head
from lakesync.staging.restored_log import Restoring
from lakesync.wire.postgres import BoundedConnection, parameters

T = TypeVar("T")

_USERS = (
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'lakesync %'"
    " AND pid <> pg_backend_pid()"
)


class _ReplacementSchema:
    """A new store in an uncommitted transaction."""

    def __init__(self, connection: Connection, wall: Callable[[], int], shard: str) -> None:
        self._connection = connection
        self._shard = shard
        self._wall = wall
        self._configs = ConfigCache()

    def ensure_gateway(self, gateway: str) -> None:
        ensure_gateway(self._connection, gateway, self._wall(), self._shard)

    def run(self, gateway: str, job: Callable[[Restoring], T]) -> T:
        """Run `job` in the transaction, and store the gateway's head after it."""
        head = load_head(self._connection, gateway, self._configs, lock=True)
        journal = Journal(self._connection, head, self._wall)
        result = job(PostgresCommit(journal))
        save_head(self._connection, journal.head)
        return result


@contextmanager
def replacement_schema(shard: str, url: str, wall: Callable[[], int], *, replace: bool) -> Iterator[_ReplacementSchema]:
    """Yield a new store in the URL's database; it is committed when the `with` block ends without an error.

    `staging.store_urls.replacement_stores` calls this.

    Args:
        shard: the shard's name.
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
            _rename_existing(connection, wall, address, replace=replace)
            migrate(connection, address)
            configure_session(connection)
            connection.execute("SET idle_in_transaction_session_timeout = 0")  # reading the lake takes long
            yield _ReplacementSchema(connection, wall, shard)
    except psycopg.Error as exc:
        raise unavailable(address, "making the store again", exc) from exc


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
