"""Connections to the store's database: a pool, session settings, migrations, and the mapping of driver errors.

`PostgresStore` creates one `Database`, which the other modules of this package use. The store has the data of gateways;
a *gateway* is one app's stream of changes. On a `BoundedConnection`, a statement fails if the server sends nothing for
`response_seconds`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import quote

import psycopg
from psycopg import sql
from psycopg_pool import ConnectionPool, PoolTimeout

from lakesync.model.errors import StagingUnavailableError
from lakesync.staging.migrations import pending
from lakesync.wire.postgres import MAINTENANCE_SECONDS, BoundedConnection, check_connection, parameters

Connection = BoundedConnection

POOL_SIZE = 8
"""The most connections of a process, besides the one that listens for notices."""
_POOL_SECONDS = 10.0
"""Seconds that a transaction waits for a connection of the pool before it fails."""
APPLICATION = "lakesync staging"
"""The `application_name` of the store's connections; that of the listening one begins with `lakesync`, too.
`administration` counts connections by it before it replaces a store."""
_MIGRATION_LOCK = 0x1A4E_5F2C
"""Number of the Postgres advisory lock under which migrations run; nothing else may use it."""

_SETTINGS = (
    "SET search_path = lakesync",
    "SET synchronous_commit = on",
    # a statement after the gateway's lock sees what was committed while it waited for that (`heads.load_head`)
    "SET default_transaction_isolation = 'read committed'",
    "SET lock_timeout = '30s'",
    "SET idle_in_transaction_session_timeout = '60s'",
    # Every statement uses an index; the statistics of a small table must not make the planner prefer a scan.
    "SET enable_seqscan = off",
    "SET enable_hashjoin = off",
    "SET enable_mergejoin = off",
)
"""Settings of each connection of the pool."""


class Database:
    """A pool of connections to one store."""

    def __init__(self, url: str) -> None:
        """Create the pool; `open` connects it.

        Args:
            url: the database's address, in libpq's form (`postgresql://USER@HOST/NAME`).

        Raises:
            ConfigurationError: the URL is invalid.
        """
        self.info = {**parameters(url), "application_name": APPLICATION}
        """Connection parameters, with libpq's names."""
        self._url_parameters = psycopg.conninfo.conninfo_to_dict(url)
        """The connection parameters that the URL itself has, for `jdbc`."""
        self.address = f"{self.info.get('host', 'localhost')}/{self.info.get('dbname', '')}"
        """Host and database, for messages; without user and password."""
        self._pool = ConnectionPool(
            psycopg.conninfo.make_conninfo("", **self.info),
            connection_class=BoundedConnection,
            min_size=1,
            max_size=POOL_SIZE,
            open=False,
            configure=_configure,
            check=check_connection,
            timeout=_POOL_SECONDS,
            # The pool doubles the pause before each new attempt to connect, by default for five minutes. After a long
            # outage of the server, the gateway would wait through a pause as long as the outage. With this limit the
            # pool gives up early, and the next transaction makes a new attempt.
            reconnect_timeout=_POOL_SECONDS,
            name="staging",
        )

    def open(self) -> None:
        """Connect, and migrate the schema.

        Raises:
            StagingVersionError: a newer LakeSync wrote the schema.
            StagingUnavailableError: the database cannot be reached.
        """
        with self._mapped("opening it"), BoundedConnection.connect(**self.info) as connection:
            migrate(connection, self.address)
            # within the block, so that `administration` finds one of the two connections at any time
            self._pool.open(wait=True, timeout=_POOL_SECONDS)

    def close(self) -> None:
        """Close every connection."""
        self._pool.close()

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """Yield a connection in a transaction, which is committed at the end unless the block raises.

        Callers may repeat the transaction after an error: stored pushes are recognised by the ids of their deltas, and
        all other writes have the same result as before.

        Raises:
            StagingUnavailableError: the transaction failed and changed nothing; or COMMIT failed, so that it is unknown
                whether it happened.
        """
        with self._mapped("a transaction"), self._pool.connection() as connection:
            yield connection
            try:
                connection.commit()
            except psycopg.Error as exc:
                raise StagingUnavailableError(
                    "the staging store was lost in COMMIT: it is unknown whether it happened, a repeat is safe",
                    details=f"Postgres at {self.address}: {exc}",
                ) from exc

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Yield a connection in a read-only transaction whose statements all see the same snapshot.

        Raises:
            StagingUnavailableError: the database cannot be reached, or a statement failed.
        """
        with self._mapped("a read"), self._pool.connection() as connection:
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            yield connection

    def vacuum(self) -> None:
        """Run VACUUM on the tables with clients' values, as the last step of an erasure (a permanent deletion).

        The server may then overwrite the old versions of deleted and changed rows.

        Raises:
            StagingUnavailableError: it failed; a repeat is safe.
        """
        with self._mapped("VACUUM"), BoundedConnection.connect(**self.info, autocommit=True) as connection:
            connection.response_seconds = MAINTENANCE_SECONDS
            connection.execute("VACUUM lakesync.log, lakesync.row_state, lakesync.client, lakesync.action")

    def jdbc(self) -> tuple[str, dict[str, str]]:
        """Return the database's address for Spark's tasks, which read the log.

        A part that the configured URL lacks is missing here too, so that libpq's default applies as in the pool.

        Returns:
            The URL for a JDBC driver, and as properties the configured URL's other parameters, with libpq's names.
        """
        rest = {key: str(value) for key, value in self._url_parameters.items()}
        hosts, ports = rest.pop("host", "").split(","), rest.pop("port", "").split(",")
        if len(ports) == 1:
            ports *= len(hosts)
        servers = [_host_in_url(host) + (f":{port}" if port else "") for host, port in zip(hosts, ports, strict=True)]
        return f"jdbc:postgresql://{','.join(servers)}/{quote(rest.pop('dbname', ''), safe='')}", rest

    @contextmanager
    def _mapped(self, what: str) -> Iterator[None]:
        """Raise StagingUnavailableError for a driver's error in the `with` block.

        Args:
            what: the operation, as a noun, for the message.
        """
        try:
            yield
        except (psycopg.Error, PoolTimeout) as exc:
            raise unavailable(self.address, what, exc) from exc


def unavailable(address: str, what: str, exc: Exception) -> StagingUnavailableError:
    """Return the error that callers of the store get for a driver's error.

    Args:
        address: host and database.
        what: the operation that failed, as a noun, for example `a transaction`.
        exc: the driver's error.
    """
    return StagingUnavailableError(
        f"the staging store failed during {what}: nothing was stored, retry later",
        details=f"Postgres at {address}: {str(exc).strip()}",
    )


def lock_migrations(connection: Connection) -> None:
    """Let other processes that call this or `migrate`, as each gateway does at its start, wait for this transaction.

    Later statements on the connection may take `MAINTENANCE_SECONDS`.
    """
    connection.response_seconds = MAINTENANCE_SECONDS
    connection.execute("SELECT pg_advisory_xact_lock(%s)", (_MIGRATION_LOCK,))


def migrate(connection: Connection, address: str) -> None:
    """Migrate the schema to the newest version. `lock_migrations` lets one process at a time do it; others wait.

    Args:
        connection: an open connection; statements run in its current transaction.
        address: host and database, for messages.

    Raises:
        StagingVersionError: a newer LakeSync wrote the schema.
    """
    lock_migrations(connection)
    connection.execute("CREATE SCHEMA IF NOT EXISTS lakesync")
    connection.execute(
        "CREATE TABLE IF NOT EXISTS lakesync.migration (version integer PRIMARY KEY, name text NOT NULL)"
    )
    (version,) = connection.execute("SELECT coalesce(max(version), 0) FROM lakesync.migration").fetchone() or (0,)
    for step in pending("postgres", version, f"Postgres at {address}"):
        connection.execute(sql.SQL(step.sql))
        connection.execute("INSERT INTO lakesync.migration VALUES (%s, %s)", (step.number, step.name))


def configure_session(connection: Connection) -> None:
    """Set the session settings of a store's connection. A rollback of the current transaction would undo them."""
    for setting in _SETTINGS:
        connection.execute(sql.SQL(setting))


def _host_in_url(host: str) -> str:
    """Return a host as URLs have it: an IPv6 address in brackets, the folder of a socket percent-encoded."""
    return f"[{host}]" if ":" in host and not host.startswith("/") else quote(host, safe="")


def _configure(connection: Connection) -> None:
    """Set a new connection's session settings, and commit them; the pool calls it."""
    configure_session(connection)
    connection.commit()
