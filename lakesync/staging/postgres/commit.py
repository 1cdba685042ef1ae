"""The Postgres store's `View` and `Commit`, each within one transaction.

`Groups` creates them; the engine and the feed call their methods. `staging.store` says what each method promises and
defines the terms (arrival, feed entry, bucket key, move).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from psycopg import sql

from lakesync.model.schema import TableSchema
from lakesync.model.types import Claims, RowKey
from lakesync.staging.encoded_feed import FullRow, full_rows
from lakesync.staging.head import ConfigWriter, Head, HeadView
from lakesync.staging.moves import newest_of
from lakesync.staging.notices import Presence
from lakesync.staging.postgres import feed
from lakesync.staging.postgres.connection import Connection
from lakesync.staging.postgres.journal import Journal, client, clients
from lakesync.staging.records import ClientRecord, Entry, GatewayConfig, LogEntry, Move, StoredRow
from lakesync.staging.restored_log import RestoringCommit
from lakesync.staging.side_tables import SideQueries, SideStatements
from lakesync.wire.log import PackedDeltas


class PostgresView(HeadView, SideQueries):
    """A `View` of one gateway: the snapshot of a read-only transaction."""

    def __init__(self, connection: Connection, head: Head) -> None:
        """Create the view.

        Args:
            connection: an open connection; statements run in its current transaction.
            head: the gateway's head, loaded in this transaction.
        """
        self._connection = connection
        self._read_head = head

    @property
    def _head(self) -> Head:
        return self._read_head

    def rows(self, keys: Collection[RowKey]) -> dict[RowKey, StoredRow]:
        """Return the stored rows among `keys`."""
        return feed.rows(self._connection, self.gateway, keys)

    def entries_after(self, buckets: Collection[str], since: int, limit: int) -> list[Entry]:
        """Return entries with `since < changed <= arrival`; see `View.entries_after`."""
        return feed.entries_after(self._connection, self.gateway, buckets, since, self.arrival, limit)

    def full_rows(self, bucket: str, since: int, limit: int) -> list[FullRow]:
        """Return entries of one bucket with their rows; see `View.full_rows`."""
        entries = self.entries_after((bucket,), since, limit)
        return full_rows(entries, self.rows({entry.key for entry in entries}))

    def read_range(self, *_: object) -> None:
        """Return None, so that the caller reads the entries one by one: rows are not stored as they are sent."""
        return

    def entries_of(self, keys: Collection[RowKey], buckets: Collection[str]) -> list[Entry]:
        """Return every entry of these rows under these bucket keys."""
        return feed.entries_of(self._connection, self.gateway, keys, buckets)

    def changed_after(self, buckets: Collection[str], since: int) -> bool:
        """Return whether any entry under these bucket keys has `changed > since`."""
        return feed.changed_after(self._connection, self.gateway, buckets, since)

    def unnotified(self, buckets: Collection[str], since: int) -> Collection[str]:
        """Return all changed buckets: a snapshot shows commits whose notice has not arrived yet."""
        return feed.changed_among(self._connection, self.gateway, buckets, since)

    def unnotified_clients(self, client_ids: Collection[str]) -> list[ClientRecord]:
        """Return the records of all these clients: a snapshot shows commits whose notice has not arrived yet."""
        return clients(self._connection, self.gateway, client_ids)

    def buckets(self, prefix: str) -> list[str]:
        """Return the bucket keys in use that start with `prefix`."""
        return feed.buckets_with(self._connection, self.gateway, prefix)

    def client(self, client_id: str) -> ClientRecord | None:
        """Return a client's record."""
        return client(self._connection, self.gateway, client_id)

    def _query(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        cursor = self._connection.execute(sql.SQL(statement.replace("?", "%s")), (self.gateway, *values))
        return cursor.fetchall() if cursor.description else []


class PostgresCommit(PostgresView, RestoringCommit, ConfigWriter, SideStatements):
    """A `Commit` of one gateway, in a transaction that has locked the gateway's row."""

    def __init__(self, journal: Journal) -> None:
        """Create the commit.

        Args:
            journal: the gateway's log in this transaction.
        """
        super().__init__(journal.connection, journal.head)
        self._journal = journal

    @property
    def _head(self) -> Head:
        return self._journal.head

    def _move_head(self, head: Head) -> None:
        self._journal.head = head

    def restore_config(self, config: GatewayConfig) -> None:
        """Set schemas and rules with their earlier versions."""
        for table, known in config.schemas.items():
            self._journal.put_schema(table, known.version, known.schema)
        for table, version in config.retired.items():
            self._journal.put_schema(table, version, None)
        self._journal.put_config(config)

    def known_ids(self, client_id: str, low: int, high: int) -> set[tuple[int, bytes]]:
        """Return `(hlc, id digest)` of the client's accepted deltas with `low <= hlc <= high`."""
        return self._journal.known_ids(client_id, low, high)

    def highest_hlc(self, client_id: str) -> int:
        """Return the client's highest accepted hlc; -1 if it has none."""
        return self._journal.writer(client_id)[0]

    def next_arrivals(self, count: int) -> range:
        """Return `count` new arrivals, above all earlier ones."""
        self._journal.head, arrivals = self._head.next_arrivals(count, self._journal.wall())
        return arrivals

    def append(self, client_id: str, deltas: PackedDeltas, arrival: int, claims: Claims) -> LogEntry:
        """Add a log row; see `Commit.append`."""
        return self._journal.append(client_id, deltas, arrival, claims)

    def announce_presence(self, presence: Collection[Presence]) -> None:
        """Notify all processes which clients are connected."""
        self._journal.announcement.announce_presence(self.gateway, presence)

    def unfolded_rows(self, keys: Collection[RowKey]) -> dict[RowKey, StoredRow]:
        """Return the stored rows among `keys`."""
        return self.rows(keys)

    def put_rows(self, rows: Collection[StoredRow], moves: Collection[Move] = ()) -> None:
        """Store rows and feed entries; see `Commit.put_rows`."""
        if rows or moves:
            self._journal.announcement.moved(self.gateway, newest_of(rows, moves))
            feed.put_rows(self._connection, self.gateway, rows)
            feed.put_entries(self._connection, self.gateway, rows, moves)

    def put_moves(self, moves: Collection[Move]) -> None:
        """Store changes of feed entries."""
        self.put_rows((), moves)

    def put_client(self, record: ClientRecord) -> None:
        """Store a client's record."""
        self._journal.put_client(record)

    def run_alone(self) -> None:
        """Do nothing: rows and log are in one transaction, so no replay of the log is ever needed."""

    def _write_schema(self, table: str, version: int, schema: TableSchema | None) -> None:
        self._journal.put_schema(table, version, schema)

    def _write_config(self, config: GatewayConfig) -> None:
        self._journal.put_config(config)

    def _announce_everything(self) -> None:
        self._journal.announcement.everything(self.gateway)

    def scan_rows(self, after: RowKey | None, limit: int) -> list[StoredRow]:
        """Return rows in key order, after a key."""
        return feed.scan_rows(self._connection, self.gateway, after, limit)
