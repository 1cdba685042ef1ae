"""Loads, creates and saves heads: each gateway's counters and configuration, in the transactions of the store.

A *gateway* is one app's stream of changes.

`store` and `administration` call the functions, and pass each `PostgresCommit` the state of its `Transaction`. A head
also has the gateway's *epoch*: the time at which the gateway was created in this store, which changes with a rebuild
from the lake. A *shard* is a store for some of a gateway's tables.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from lakesync.model.errors import ConfigurationError, NotFoundError
from lakesync.staging.head import MAIN_SHARD, Head
from lakesync.staging.notices import Announcement
from lakesync.staging.postgres.connection import Connection
from lakesync.staging.records import GatewayConfig
from lakesync.staging.table_values import decode_config

_HEAD = (
    "SELECT epoch, config_version, rules_version, arrival, shard, last_seq, last_arrival, flushed_seq, trimmed_seq,"
    " deltas, bytes, flush_requested_ms, flush_requested_seq"
    " FROM gateway JOIN shard ON shard.gateway = gateway.id WHERE gateway.id = %s"
)
"""SQL: the fields of a gateway's `Head`, with the versions of its configuration."""


class ConfigCache:
    """Caches configurations by gateway.

    Another process may change a configuration, so a cached one is used only if it has the version in the gateway's row.
    """

    def __init__(self) -> None:
        self._cache: dict[str, GatewayConfig] = {}
        """Gateway → its configuration as it was read last."""

    def load(self, connection: Connection, gateway: str, version: int, rules_version: int) -> GatewayConfig:
        """Return the configuration of a committed version.

        Args:
            connection: an open connection; statements run in its current transaction.
            gateway: the gateway's id.
            version: the version of the configuration.
            rules_version: the version of its rules.
        """
        cached = self._cache.get(gateway)
        if cached is not None and cached.version == version:
            return cached
        found = _one(connection, "SELECT rules, write_scope FROM gateway WHERE id = %s", gateway)
        rules, write_scope = found or (None, None)
        rows = connection.execute(
            "SELECT table_name, version, body FROM table_schema WHERE gateway = %s", (gateway,)
        ).fetchall()
        config = decode_config(version, rules, rules_version, write_scope, rows)
        self._cache[gateway] = config
        return config


def load_head(connection: Connection, gateway: str, configs: ConfigCache, *, lock: bool) -> Head:
    """Return a gateway's head (its counters and configuration).

    With `lock`, no other transaction commits to the gateway until this one ends. The lock is a separate statement,
    because a statement that waits for a lock reads other rows as they were before the wait.

    Args:
        connection: an open connection; statements run in its current transaction.
        gateway: the gateway's id.
        configs: the cache of gateways' configurations.
        lock: whether to lock the gateway's row.

    Raises:
        NotFoundError: there is no such gateway.
    """
    if lock:
        connection.execute("SELECT 1 FROM gateway WHERE id = %s FOR UPDATE", (gateway,))
    found = _one(connection, _HEAD, gateway)
    if found is None:
        raise NotFoundError(f"no gateway {gateway!r} in this store: make it with ensure_gateway first")
    epoch, version, rules_version, *counters = found
    return Head(gateway, epoch, configs.load(connection, gateway, version, rules_version), *counters)


def ensure_gateway(connection: Connection, gateway: str, epoch: int, shard: str = MAIN_SHARD) -> None:
    """Create a gateway, unless it exists.

    Args:
        connection: an open connection; statements run in its current transaction.
        gateway: the gateway's id.
        epoch: the epoch of a new gateway; at least 1 is stored, because the record of an erased client has epoch 0.
        shard: name of the shard that the store serves, for a new gateway.

    Raises:
        ConfigurationError: the gateway belongs to another shard, so two shards have this database.
    """
    connection.execute(
        "INSERT INTO gateway (id, epoch, arrival, config_version, rules_version) VALUES (%s, %s, 0, 0, 0)"
        " ON CONFLICT DO NOTHING",
        (gateway, max(1, epoch)),
    )
    connection.execute(
        "INSERT INTO shard SELECT %s, %s, 0, 0, 0, 0, 0, 0, NULL, 0"
        " WHERE NOT EXISTS (SELECT 1 FROM shard WHERE gateway = %s) ON CONFLICT DO NOTHING",
        (gateway, shard, gateway),
    )
    if shard == MAIN_SHARD:
        return
    # a store that was `main` before the tables were sharded may become the store of a shard
    others = connection.execute(
        "SELECT shard FROM shard WHERE gateway = %s AND shard NOT IN (%s, %s)", (gateway, shard, MAIN_SHARD)
    ).fetchall()
    if others:
        raise ConfigurationError(
            f"the database of shard {shard!r} holds shard {others[0][0]!r} of gateway {gateway!r}: "
            "give each shard a database of its own"
        )


def save_head(connection: Connection, head: Head) -> None:
    """Write a head, at the end of a transaction that changed it.

    Args:
        connection: an open connection; statements run in its current transaction.
        head: the gateway's head.
    """
    connection.execute("UPDATE gateway SET arrival = %s WHERE id = %s", (head.arrival, head.gateway))
    connection.execute(
        "UPDATE shard SET last_seq = %s, last_arrival = %s, flushed_seq = %s, trimmed_seq = %s, deltas = %s,"
        " bytes = %s, flush_requested_ms = %s, flush_requested_seq = %s WHERE gateway = %s AND shard = %s",
        (*head.counters, head.gateway, head.shard),
    )


@dataclass
class Transaction:
    """The state of a transaction, which the commits of its jobs share; each changes it."""

    connection: Connection
    """An open connection; statements run in its current transaction."""
    head: Head
    """The gateway's head, loaded with its lock."""
    wall: Callable[[], int]
    """Returns the server's wall time in milliseconds since 1970."""
    announcement: Announcement = field(default_factory=Announcement)
    """The notices of the transaction."""


def _one(connection: Connection, query: str, *values: Any) -> tuple[Any, ...] | None:
    """Return the first row of a query; None if it has none."""
    return connection.execute(query, values).fetchone()
