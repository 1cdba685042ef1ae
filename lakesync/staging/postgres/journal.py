"""The statements of a commit on the log and beside it: the gateway's head, log rows, client records, configuration.

`PostgresCommit` writes through a `Journal`; `store` and `administration` load and save heads. A *head* has a gateway's
counters and configuration, and its *epoch*: the time at which the gateway was created in this store, which changes with
a rebuild from the lake. The *log* has one row for each push. An *hlc* is the timestamp that a client gave a delta. The
*ledger* counts the accepted deltas of each UTC day, so that staging and the lake can be compared. A *shard* is a store
for some of a gateway's tables.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import msgspec

from lakesync.model.errors import ConfigurationError, NotFoundError
from lakesync.model.schema import TableSchema
from lakesync.model.types import Claims
from lakesync.staging.head import MAIN_SHARD, Head
from lakesync.staging.ledger import Tally, day_of, signed, tally_of, unsigned
from lakesync.staging.notices import Announcement
from lakesync.staging.postgres.connection import Connection
from lakesync.staging.rebuild_commit import ANYONE
from lakesync.staging.records import ClientRecord, GatewayConfig, LogEntry
from lakesync.staging.table_values import RETIRED, decode_client, decode_config, next_entry, row_of, size_of
from lakesync.wire.log import PackedDeltas, unpack_ids

_HEAD = (
    "SELECT epoch, config_version, rules_version, arrival, shard, last_seq, last_arrival, flushed_seq, trimmed_seq,"
    " deltas, bytes, flush_requested_ms, flush_requested_seq"
    " FROM gateway JOIN shard ON shard.gateway = gateway.id WHERE gateway.id = %s"
)
"""SQL: the fields of a gateway's `Head`, with the versions of its configuration."""
_COUNT = (
    "INSERT INTO ledger VALUES (%s, %s, %s, %s, 0, 0) ON CONFLICT (gateway, day) DO UPDATE"
    " SET count = excluded.count, id_sum = excluded.id_sum"
)
"""SQL: set the number and id sum of the accepted deltas of a day."""
_NOTE_WRITER = (
    "INSERT INTO writer VALUES (%s, %s, %s, %s) ON CONFLICT (gateway, client_id) DO UPDATE SET"
    " hlc_high = greatest(writer.hlc_high, excluded.hlc_high), widest = greatest(writer.widest, excluded.widest)"
)
"""SQL: raise the values that `Journal.writer` returns."""
_CLIENT = "SELECT record FROM client WHERE gateway = %s AND client_id = ANY(%s) ORDER BY client_id DESC LIMIT 1"
"""SQL: a client's record, or the one of `ANYONE`, whose id is the lowest."""
_CLIENTS = "SELECT record FROM client WHERE gateway = %s AND client_id = ANY(%s)"
"""SQL: the records of some clients."""
_KNOWN = "SELECT ids FROM log WHERE gateway = %s AND client_id = %s AND hlc_high BETWEEN %s AND %s AND hlc_low <= %s"
"""SQL: the ids in a client's log rows that may contain hlcs of a range; see `Journal.known_ids`."""


class ConfigCache:
    """Caches configurations by gateway.

    Another process may change a configuration, so a cached one is used only if it has the version in the gateway's row.
    """

    def __init__(self) -> None:
        self._known: dict[str, GatewayConfig] = {}

    def load(self, connection: Connection, gateway: str, version: int, rules_version: int) -> GatewayConfig:
        """Return the configuration of a committed version.

        Args:
            connection: an open connection; statements run in its current transaction.
            gateway: the gateway's id.
            version: the version of the configuration.
            rules_version: the version of its rules.
        """
        known = self._known.get(gateway)
        if known is not None and known.version == version:
            return known
        found = _one(connection, "SELECT rules, write_scope FROM gateway WHERE id = %s", gateway)
        rules, write_scope = found or (None, None)
        rows = connection.execute(
            "SELECT table_name, version, body FROM table_schema WHERE gateway = %s", (gateway,)
        ).fetchall()
        config = decode_config(version, rules, rules_version, write_scope, rows)
        self._known[gateway] = config
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
        epoch: the epoch of a new gateway; at least 1 is stored, because 0 means an erased record (`LOST`).
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


class Journal:
    """One gateway's log within one transaction."""

    def __init__(self, connection: Connection, head: Head, wall: Callable[[], int]) -> None:
        """Create the journal.

        Args:
            connection: an open connection; statements run in its current transaction.
            head: the gateway's head, loaded with its lock.
            wall: returns the server's wall time in milliseconds since 1970.
        """
        self.connection = connection
        self.head = head
        self.wall = wall
        self.announcement = Announcement()
        """The notices of the transaction."""

    def append(self, client_id: str, deltas: PackedDeltas, arrival: int, claims: Claims) -> LogEntry:
        """Add a push to the log, and its deltas to the ledger; see `PushCommit.append`."""
        head = self.head
        entry = next_entry(head, client_id, deltas, arrival, claims)
        self.connection.execute(
            "INSERT INTO log VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %b, %b, %b)",
            row_of(entry, self.wall()),
        )
        self._count(day_of(arrival), tally_of(entry.ids))
        self.connection.execute(_NOTE_WRITER, (head.gateway, client_id, entry.hlc_high, entry.hlc_high - entry.hlc_low))
        self.head = head.appended(arrival, entry.count, size_of(entry))
        return entry

    def _count(self, day: str, tally: Tally) -> None:
        """Add accepted deltas to a day of the ledger."""
        query = "SELECT count, id_sum FROM ledger WHERE gateway = %s AND day = %s"
        stored = _one(self.connection, query, self.head.gateway, day)
        if stored is not None:
            tally = tally.plus(stored[0], unsigned(stored[1]))
        self.connection.execute(_COUNT, (self.head.gateway, day, tally.deltas, signed(tally.id_sum)))

    def writer(self, client_id: str) -> tuple[int, int]:
        """Return what makes it fast to recognise a client's repeated deltas.

        Returns:
            The client's highest accepted hlc, -1 for none; and the greatest difference of hlcs within one of its
            pushes, which bounds how far the log must be searched for an hlc.
        """
        query = "SELECT hlc_high, widest FROM writer WHERE gateway = %s AND client_id = %s"
        found = _one(self.connection, query, self.head.gateway, client_id)
        return (found[0], found[1]) if found else (-1, 0)

    def known_ids(self, client_id: str, low: int, high: int) -> set[tuple[int, bytes]]:
        """Return the client's accepted deltas with `low <= hlc <= high`, as pairs of hlc and dedup key.

        The hlcs of one push differ by at most `widest`, so this reads one bounded range of the index.

        Args:
            client_id: the client's id.
            low: the lowest hlc.
            high: the highest hlc.
        """
        _, widest = self.writer(client_id)
        rows = self.connection.execute(_KNOWN, (self.head.gateway, client_id, low, high + widest, high)).fetchall()
        return {known for (ids,) in rows for known in unpack_ids(ids) if low <= known[0] <= high}

    def put_client(self, record: ClientRecord) -> None:
        """Write a client's record."""
        self.connection.execute(
            "INSERT INTO client VALUES (%s, %s, %b) ON CONFLICT (gateway, client_id) DO UPDATE"
            " SET record = excluded.record",
            (self.head.gateway, record.client_id, msgspec.json.encode(record)),
        )

    def put_schema(self, table: str, version: int, schema: TableSchema | None) -> None:
        """Write a table's schema under its new version; None if it is retired.

        Args:
            table: the table.
            version: the version, which counts the table's registrations and retirements.
            schema: the schema; None if it is retired.
        """
        self.connection.execute(
            "INSERT INTO table_schema VALUES (%s, %s, %s, %b) ON CONFLICT (gateway, table_name) DO UPDATE"
            " SET version = excluded.version, body = excluded.body",
            (self.head.gateway, table, version, msgspec.json.encode(schema) if schema is not None else RETIRED),
        )

    def put_config(self, config: GatewayConfig) -> None:
        """Write the configuration, without its schemas."""
        rules = msgspec.json.encode(config.rules) if config.rules is not None else None
        self.connection.execute(
            "UPDATE gateway SET config_version = %s, rules = %b, rules_version = %s, write_scope = %s WHERE id = %s",
            (config.version, rules, config.rules_version, config.write_scope, self.head.gateway),
        )
        self.head = msgspec.structs.replace(self.head, config=config)


def client(connection: Connection, gateway: str, client_id: str) -> ClientRecord | None:
    """Return a client's record; None if it has none.

    A rebuild from the lake stores one record for all clients that it cannot know, under the id `ANYONE`. A client
    without a record of its own gets a copy of that record, if there is one.

    Args:
        connection: an open connection; statements run in its current transaction.
        gateway: the gateway's id.
        client_id: the client's id.
    """
    row = _one(connection, _CLIENT, gateway, [client_id, ANYONE])
    if row is None:
        return None
    return msgspec.structs.replace(decode_client(row[0]), client_id=client_id)


def clients(connection: Connection, gateway: str, client_ids: Collection[str]) -> list[ClientRecord]:
    """Return the records that are stored for these clients; a client without a record is absent.

    Args:
        connection: an open connection; statements run in its current transaction.
        gateway: the gateway's id.
        client_ids: the clients' ids.
    """
    return [decode_client(record) for (record,) in connection.execute(_CLIENTS, (gateway, list(client_ids)))]


def _one(connection: Connection, query: str, *values: Any) -> tuple[Any, ...] | None:
    """Return the first row of a query; None if it has none."""
    return connection.execute(query, values).fetchone()
