"""The Postgres store's `View` and `Commit`, each within one transaction: merged rows, feed entries, and the log.

`Groups` of the same package creates them, and `administration` creates a `Commit` for a rebuild. `staging.store` says
what each method promises. A *bucket key* names a bucket of the sync rules with the claims (fields of a token) that may
see it. A *feed entry* is a row's history under one bucket key: when it joined the bucket, left it, and last changed in
it (`records.Entry`). A *move* is a change of an entry. An *arrival* is the gateway's own timestamp of a commit, an
*hlc* the timestamp that a client gave its write. A *head* has the counters of a gateway, one app's stream of changes.
The *log* has one row for each push; a delta's *dedup key* is 8 bytes of the hash of its id, by which the log shows that
a push is repeated.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import msgspec
from psycopg import sql

from lakesync.model.types import Claims, RowKey
from lakesync.model.validation import MAX_HLC
from lakesync.staging.head import Head
from lakesync.staging.moves import ENTRY_UPSERT, MoveSums, add_moves, newest_of, take_changes
from lakesync.staging.postgres.connection import Connection
from lakesync.staging.postgres.heads import Transaction
from lakesync.staging.rebuild_commit import ANYONE, SqlLogCommit
from lakesync.staging.records import ClientRecord, Entry, LogEntry, Move, StoredRow, decode_row, encode_row
from lakesync.staging.side_tables import SideQueries, SideStatements
from lakesync.staging.table_values import decode_client, next_entry, size_of
from lakesync.wire.log import PackedDeltas, unpack_ids

_ROWS = (
    # LATERAL with LIMIT searches each key once; with a JOIN, the planner may read the whole gateway
    "SELECT s.body FROM unnest(%s::text[], %s::text[]) AS k (table_name, row_id) CROSS JOIN LATERAL (SELECT body"
    " FROM row_state WHERE gateway = %s AND table_name = k.table_name AND row_id = k.row_id LIMIT 1) s"
)
"""SQL: the encoded rows with some keys."""
_PUT_ROWS = (
    "INSERT INTO row_state SELECT %s, * FROM unnest(%s::text[], %s::text[], %b::bytea[])"
    " ON CONFLICT (gateway, table_name, row_id) DO UPDATE SET body = excluded.body"
)
"""SQL: write encoded rows."""
_SCAN = (
    "SELECT body FROM row_state WHERE gateway = %s AND (table_name, row_id) > (%s, %s)"
    " ORDER BY table_name, row_id LIMIT %s"
)
"""SQL: the next encoded rows in key order."""
_PUT_ENTRIES = (
    "INSERT INTO entry SELECT * FROM unnest(%s::bigint[], %s::text[], %s::text[], %s::bigint[], %s::bigint[],"
    " %s::bigint[], %s::bigint[], %s::boolean[]) ON CONFLICT (bucket, table_name, row_id) DO UPDATE SET"
    f" {ENTRY_UPSERT}"
)
"""SQL: apply changes of feed entries."""
_ENTRY = "b.name, e.table_name, e.row_id, e.first, e.since, e.left_at, e.changed, e.inside"
"""SQL: the columns of a feed entry, in the order of the fields of `Entry`. `left_at` is `Entry.left_before`; the
property `Entry.left` is computed."""
_ENTRIES_AFTER = (
    f"SELECT {_ENTRY} FROM bucket b CROSS JOIN LATERAL (SELECT * FROM entry WHERE bucket = b.id AND changed > %s"
    " AND changed <= %s ORDER BY changed, table_name, row_id LIMIT %s) e"
    " WHERE b.gateway = %s AND b.name = ANY(%s) ORDER BY e.changed, e.table_name, e.row_id, b.name LIMIT %s"
)
"""SQL: entries of some bucket keys in the order of the feed; of each key, no more than the limit is read."""
_ENTRIES_OF = (
    f"SELECT {_ENTRY} FROM bucket b CROSS JOIN unnest(%s::text[], %s::text[]) AS k (table_name, row_id)"
    " CROSS JOIN LATERAL (SELECT * FROM entry WHERE bucket = b.id AND table_name = k.table_name"
    " AND row_id = k.row_id LIMIT 1) e"
    " WHERE b.gateway = %s AND b.name = ANY(%s)"
)
"""SQL: the entries of some rows under some bucket keys."""
_CHANGED_AFTER = (
    "SELECT EXISTS (SELECT 1 FROM bucket b CROSS JOIN LATERAL"
    " (SELECT 1 FROM entry WHERE bucket = b.id AND changed > %s LIMIT 1) e WHERE b.gateway = %s AND b.name = ANY(%s))"
)
"""SQL: whether an entry under some bucket keys changed after an arrival."""
_BUCKET_NUMBERS = "SELECT name, id FROM bucket WHERE gateway = %s AND name = ANY(%s)"
"""SQL: the numbers of some bucket keys."""
_NEW_BUCKETS = "INSERT INTO bucket (gateway, name) SELECT %s, unnest(%s::text[]) RETURNING name, id"
"""SQL: give bucket keys numbers."""
_BUCKETS_WITH = "SELECT name FROM bucket WHERE gateway = %s AND name ^@ %s ORDER BY name"
"""SQL: the bucket keys that begin with a prefix."""
_CHANGED_AMONG = (
    "SELECT b.name FROM bucket b WHERE b.gateway = %s AND b.name = ANY(%s)"
    " AND EXISTS (SELECT 1 FROM entry WHERE bucket = b.id AND changed > %s)"
)
"""SQL: those of some bucket keys under which an entry changed after an arrival."""
_CLIENT = "SELECT record FROM client WHERE gateway = %s AND client_id = ANY(%s) ORDER BY client_id DESC LIMIT 1"
"""SQL: a client's record, or the one of `ANYONE`, whose id is the lowest."""
_CLIENTS = "SELECT record FROM client WHERE gateway = %s AND client_id = ANY(%s)"
"""SQL: the records of some clients."""
_PUT_CLIENT = (
    "INSERT INTO client VALUES (%s, %s, %b) ON CONFLICT (gateway, client_id) DO UPDATE SET record = excluded.record"
)
"""SQL: write a client's record."""
_WRITER = "SELECT hlc_high, widest FROM writer WHERE gateway = ? AND client_id = ?"
"""SQL: a client's highest accepted hlc, and the greatest difference of hlcs within one of its pushes."""
_KNOWN = "SELECT ids FROM log WHERE gateway = ? AND client_id = ? AND hlc_high BETWEEN ? AND ? AND hlc_low <= ?"
"""SQL: the ids in a client's log rows that may contain hlcs of a range; see `PostgresCommit.known_ids`."""


class PostgresView(SideQueries):
    """A `View` of one gateway: the snapshot of a read-only transaction."""

    def __init__(self, connection: Connection, head: Head) -> None:
        """Create the view.

        Args:
            connection: an open connection; statements run in its current transaction.
            head: the gateway's head (its counters and configuration), loaded in this transaction.
        """
        self._connection = connection
        self._read_head = head

    @property
    def _head(self) -> Head:
        return self._read_head

    def rows(self, keys: Collection[RowKey]) -> dict[RowKey, StoredRow]:
        """Return the stored rows among `keys`."""
        tables, ids = _columns(keys)
        bodies = self._connection.execute(_ROWS, (tables, ids, self.gateway)).fetchall()
        stored = (decode_row(body) for (body,) in bodies)
        return {row.key: row for row in stored}

    def entries_after(self, buckets: Collection[str], after: int, limit: int) -> list[Entry]:
        """Return entries with `after < changed <= arrival`; see `View.entries_after`.

        Postgres reads one index range per bucket, and only as far as needed.

        Args:
            buckets: the bucket keys whose entries are read.
            after: the arrival after which entries changed.
            limit: the most entries to return.
        """
        values = (after, self.arrival, limit, self.gateway, list(buckets), limit)
        return [Entry(*entry) for entry in self._connection.execute(_ENTRIES_AFTER, values).fetchall()]

    def read_range(self, *_: object) -> None:
        """Return None, so that the caller reads the entries one by one: no row is stored in the form of a page."""
        return

    def entries_of(self, keys: Collection[RowKey], buckets: Collection[str]) -> list[Entry]:
        """Return every entry of these rows under these bucket keys."""
        tables, ids = _columns(keys)
        values = (tables, ids, self.gateway, list(buckets))
        return [Entry(*entry) for entry in self._connection.execute(_ENTRIES_OF, values).fetchall()]

    def changed_after(self, buckets: Collection[str], after: int) -> bool:
        """Return whether any entry under these bucket keys has `changed > after`."""
        found = self._connection.execute(_CHANGED_AFTER, (after, self.gateway, list(buckets))).fetchone()
        return bool(found and found[0])

    def unnotified(self, buckets: Iterable[str], after: int) -> Collection[str]:
        """Return the keys that changed later than `after`: a snapshot shows commits before their notices arrive."""
        found = self._connection.execute(_CHANGED_AMONG, (self.gateway, list(buckets), after)).fetchall()
        return [name for (name,) in found]

    def unnotified_clients(self, client_ids: Collection[str]) -> list[ClientRecord]:
        """Return the records of all these clients: a snapshot shows commits whose notice has not arrived yet."""
        records = self._connection.execute(_CLIENTS, (self.gateway, list(client_ids)))
        return [decode_client(record) for (record,) in records]

    def buckets(self, prefix: str) -> list[str]:
        """Return the bucket keys in use that start with `prefix`."""
        found = self._connection.execute(_BUCKETS_WITH, (self.gateway, prefix)).fetchall()
        return [name for (name,) in found]

    def client(self, client_id: str) -> ClientRecord | None:
        """Return a client's record; None if it has none.

        A rebuild from the lake stores one record for all clients that it cannot know, under the id `ANYONE`. A client
        without a record of its own gets a copy of that record, if there is one.
        """
        found = self._connection.execute(_CLIENT, (self.gateway, [client_id, ANYONE])).fetchone()
        return None if found is None else msgspec.structs.replace(decode_client(found[0]), client_id=client_id)

    def _query(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """Run a statement of `staging.side_tables`, with SQLite's `?` for parameters, the first being the gateway."""
        cursor = self._connection.execute(sql.SQL(statement.replace("?", "%s")), (self.gateway, *values))
        return cursor.fetchall() if cursor.description else []


class PostgresCommit(PostgresView, SqlLogCommit, SideStatements):
    """A `Commit` of one gateway, in a transaction that has locked the gateway's row.

    `PostgresView` reads rows, entries and clients. `SqlLogCommit` writes log rows (`_add_to_log`), and `SideStatements`
    the tables beside the log. Their base classes have `gateway`, `arrival` and `next_arrivals`, which read `_head`;
    `next_arrivals` replaces it by `_move_head`.
    """

    def __init__(self, transaction: Transaction) -> None:
        """Create the commit.

        Args:
            transaction: the state of the transaction, which the commit changes.
        """
        super().__init__(transaction.connection, transaction.head)
        self._transaction = transaction
        self._wall, self._announcement = transaction.wall, transaction.announcement

    @property
    def _head(self) -> Head:
        return self._transaction.head

    def _move_head(self, head: Head) -> None:
        self._transaction.head = head

    def known_ids(self, client_id: str, low: int, high: int) -> set[tuple[int, bytes]]:
        """Return pairs of hlc and dedup key of the client's accepted deltas with `low <= hlc <= high`.

        The hlcs of one push differ by at most `widest`, so this reads one bounded range of the index.
        """
        _, widest = self._writer(client_id)
        rows = self._query(_KNOWN, client_id, low, min(high + widest, MAX_HLC), high)
        return {pair for (ids,) in rows for pair in unpack_ids(ids) if low <= pair[0] <= high}

    def highest_hlc(self, client_id: str) -> int:
        """Return the client's highest accepted hlc; -1 if it has none."""
        return self._writer(client_id)[0]

    def _writer(self, client_id: str) -> tuple[int, int]:
        """Return what `_WRITER` selects; -1 and 0 for a client that never pushed."""
        hlc_high, widest = (self._query(_WRITER, client_id) or [(-1, 0)])[0]
        return hlc_high, widest

    def append(self, client_id: str, deltas: PackedDeltas, arrival: int, claims: Claims) -> LogEntry:
        """Add a log row; see `Commit.append`."""
        entry = next_entry(self._head, client_id, deltas, arrival, claims)
        self._add_to_log(entry, self._wall(), is_flushed=False)
        self._move_head(self._head.appended(arrival, entry.count, size_of(entry)))
        return entry

    def unfolded_rows(self, keys: Collection[RowKey]) -> dict[RowKey, StoredRow]:
        """Return the stored rows among `keys`. In Postgres all of their deltas are merged."""
        return self.rows(keys)

    def put_rows(self, rows: Collection[StoredRow], moves: Collection[Move] = ()) -> None:
        """Store rows and feed entries; see `Commit.put_rows`."""
        if rows or moves:
            self._announcement.rows_changed(self.gateway, newest_of(rows, moves).keys())
            self._write_rows(rows)
            self._write_entries(rows, moves)

    def put_client(self, record: ClientRecord) -> None:
        """Store a client's record."""
        values = (self.gateway, record.client_id, msgspec.json.encode(record))
        self._connection.execute(_PUT_CLIENT, values)

    def run_alone(self) -> None:
        """Do nothing: rows and log are in one transaction, so no replay is ever needed. See `RowCommit.run_alone`."""

    def scan_rows(self, after: RowKey | None, limit: int) -> list[StoredRow]:
        """Return rows in key order, after a key."""
        first = after or ("", "")  # before all rows, because no table name is empty
        found = self._connection.execute(_SCAN, (self.gateway, *first, limit)).fetchall()
        return [decode_row(body) for (body,) in found]

    def _write_rows(self, rows: Collection[StoredRow]) -> None:
        """Write rows, each key once."""
        if rows:
            tables, ids = _columns([row.key for row in rows])
            bodies = [encode_row(row.fold()) for row in rows]
            self._connection.execute(_PUT_ROWS, (self.gateway, tables, ids, bodies))

    def _write_entries(self, rows: Collection[StoredRow], moves: Collection[Move]) -> None:
        """Write the changes of feed entries.

        Args:
            rows: the changed rows: their entries under their bucket keys change at the row's arrival.
            moves: further changes of entries.
        """
        sums: MoveSums = {}
        add_moves(sums, moves)
        changes = [(row.key, bucket, change) for row in rows for bucket, change in take_changes(row, sums)]
        # what is left in `sums` are moves of other rows, or under keys that their row does not have
        changes += [(key, bucket, change) for bucket, of_rows in sums.items() for key, change in of_rows.items()]
        if not changes:
            return
        numbers = self._bucket_numbers({bucket for _, bucket, _ in changes})
        values = [
            # `ENTRY_UPSERT` computes `left_at` from `left` (the leave that the change contains) and the stored entry.
            # For `inside` None (unchanged), it keeps the stored value.
            (numbers[bucket], *key, change.first, change.since, change.left, change.changed, bool(change.inside))
            for key, bucket, change in changes
        ]
        self._connection.execute(_PUT_ENTRIES, [list(column) for column in zip(*values, strict=True)])

    def _bucket_numbers(self, names: Collection[str]) -> dict[str, int]:
        """Return each bucket key's number in table `bucket`; create missing ones.

        The transaction holds the gateway's lock, so no other one creates the same number twice.
        """
        found = self._connection.execute(_BUCKET_NUMBERS, (self.gateway, list(names))).fetchall()
        numbers: dict[str, int] = dict(found)
        missing = sorted(name for name in names if name not in numbers)
        if missing:
            numbers.update(self._connection.execute(_NEW_BUCKETS, (self.gateway, missing)).fetchall())
        return numbers


def _columns(keys: Collection[RowKey]) -> tuple[list[str], list[str]]:
    """Return the tables and the row ids of keys, as the statements take them."""
    return [table for table, _ in keys], [row_id for _, row_id in keys]
