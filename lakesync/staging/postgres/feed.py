"""The statements that read and write merged rows and feed entries, within one transaction.

`PostgresView` and `PostgresCommit` call them. A *bucket key* names a bucket of the sync rules with the claims that may
see it. A *feed entry* is a row's history under one bucket key: when it joined the bucket, left it, and last changed in
it (`records.Entry`). An *arrival* is the gateway's own timestamp of a commit.
"""

from __future__ import annotations

from collections.abc import Collection

from lakesync.model.types import RowKey
from lakesync.staging.moves import ENTRY_UPSERT, MoveSums, add_moves, changes_of
from lakesync.staging.postgres.connection import Connection
from lakesync.staging.records import Entry, Move, StoredRow, decode_row, encode_row

_ROWS = (
    # LATERAL with LIMIT searches each key once; with a JOIN, the planner may read the whole gateway
    "SELECT s.body FROM unnest(%s::text[], %s::text[]) AS k (table_name, row_id) CROSS JOIN LATERAL (SELECT body"
    " FROM row_state WHERE gateway = %s AND table_name = k.table_name AND row_id = k.row_id LIMIT 1) s"
)
_PUT_ROWS = (
    "INSERT INTO row_state SELECT %s, * FROM unnest(%s::text[], %s::text[], %b::bytea[])"
    " ON CONFLICT (gateway, table_name, row_id) DO UPDATE SET body = excluded.body"
)
_SCAN = (
    "SELECT body FROM row_state WHERE gateway = %s AND (table_name, row_id) > (%s, %s)"
    " ORDER BY table_name, row_id LIMIT %s"
)
_PUT_ENTRIES = (
    "INSERT INTO entry SELECT * FROM unnest(%s::bigint[], %s::text[], %s::text[], %s::bigint[], %s::bigint[],"
    " %s::bigint[], %s::bigint[], %s::boolean[]) ON CONFLICT (bucket, table_name, row_id) DO UPDATE SET"
    f" {ENTRY_UPSERT}"
)
_ENTRY = "b.name, e.table_name, e.row_id, e.first, e.since, e.left_at, e.changed, e.inside"
_ENTRIES_AFTER = (
    f"SELECT {_ENTRY} FROM bucket b CROSS JOIN LATERAL (SELECT * FROM entry WHERE bucket = b.id AND changed > %s"
    " AND changed <= %s ORDER BY changed, table_name, row_id LIMIT %s) e"
    " WHERE b.gateway = %s AND b.name = ANY(%s) ORDER BY e.changed, e.table_name, e.row_id, b.name LIMIT %s"
)
_ENTRIES_OF = (
    f"SELECT {_ENTRY} FROM bucket b CROSS JOIN unnest(%s::text[], %s::text[]) AS k (table_name, row_id)"
    " CROSS JOIN LATERAL (SELECT * FROM entry WHERE bucket = b.id AND table_name = k.table_name"
    " AND row_id = k.row_id LIMIT 1) e"
    " WHERE b.gateway = %s AND b.name = ANY(%s)"
)
_CHANGED_AFTER = (
    "SELECT EXISTS (SELECT 1 FROM bucket b CROSS JOIN LATERAL"
    " (SELECT 1 FROM entry WHERE bucket = b.id AND changed > %s LIMIT 1) e WHERE b.gateway = %s AND b.name = ANY(%s))"
)
_CHANGED_AMONG = (
    "SELECT b.name FROM bucket b WHERE b.gateway = %s AND b.name = ANY(%s)"
    " AND EXISTS (SELECT 1 FROM entry WHERE bucket = b.id AND changed > %s)"
)


def rows(connection: Connection, gateway: str, keys: Collection[RowKey]) -> dict[RowKey, StoredRow]:
    """Return the stored rows among `keys`.

    Args:
        connection: an open connection; statements run in its current transaction.
        gateway: the gateway's id.
        keys: the rows' keys.
    """
    tables, ids = [table for table, _ in keys], [row_id for _, row_id in keys]
    bodies = connection.execute(_ROWS, (tables, ids, gateway)).fetchall()
    stored = (decode_row(body) for (body,) in bodies)
    return {row.key: row for row in stored}


def put_rows(connection: Connection, gateway: str, rows: Collection[StoredRow]) -> None:
    """Write rows, each key once.

    Args:
        connection: an open connection; statements run in its current transaction.
        gateway: the gateway's id.
        rows: the rows.
    """
    if rows:
        tables, ids = [row.table for row in rows], [row.row_id for row in rows]
        connection.execute(_PUT_ROWS, (gateway, tables, ids, [encode_row(row.fold()) for row in rows]))


def scan_rows(connection: Connection, gateway: str, after: RowKey | None, limit: int) -> list[StoredRow]:
    """Return rows in key order, after a key.

    Args:
        connection: an open connection; statements run in its current transaction.
        gateway: the gateway's id.
        after: the row key after which to continue; None for the beginning.
        limit: the most rows to return.
    """
    found = connection.execute(_SCAN, (gateway, *(after or ("", "")), limit)).fetchall()
    return [decode_row(body) for (body,) in found]


def put_entries(connection: Connection, gateway: str, rows: Collection[StoredRow], moves: Collection[Move]) -> None:
    """Write the changes of entries that follow from rows, and explicit ones.

    Args:
        connection: an open connection; statements run in its current transaction.
        gateway: the gateway's id.
        rows: the changed rows: their entries under their bucket keys change at the row's arrival.
        moves: further changes of entries.
    """
    sums: MoveSums = {}
    add_moves(sums, moves)
    changes = [(row.key, bucket, change) for row in rows for bucket, change in changes_of(row, sums)]
    changes += [(key, bucket, change) for bucket, of_rows in sums.items() for key, change in of_rows.items()]
    if not changes:
        return
    numbers = _bucket_numbers(connection, gateway, {bucket for _, bucket, _ in changes})
    values = [
        (numbers[bucket], *key, change.first, change.since, change.left, change.changed, bool(change.inside))
        for key, bucket, change in changes
    ]
    connection.execute(_PUT_ENTRIES, [list(column) for column in zip(*values, strict=True)])


def _bucket_numbers(connection: Connection, gateway: str, names: Collection[str]) -> dict[str, int]:
    """Return each bucket key's number in table `bucket`; create missing ones.

    The transaction holds the gateway's lock, so no other one creates the same number twice.
    """
    query = "SELECT name, id FROM bucket WHERE gateway = %s AND name = ANY(%s)"
    known: dict[str, int] = dict(connection.execute(query, (gateway, list(names))).fetchall())
    missing = sorted(name for name in names if name not in known)
    if missing:
        insertion = "INSERT INTO bucket (gateway, name) SELECT %s, unnest(%s::text[]) RETURNING name, id"
        known.update(connection.execute(insertion, (gateway, missing)).fetchall())
    return known


def entries_after(
    connection: Connection, gateway: str, buckets: Collection[str], since: int, until: int, limit: int
) -> list[Entry]:
    """Return entries ordered by `changed`: one index range per bucket, read only as far as needed.

    Args:
        connection: an open connection; statements run in its current transaction.
        gateway: the gateway's id.
        buckets: the bucket keys whose entries are read.
        since: the arrival after which entries changed.
        until: the arrival up to which entries changed.
        limit: the most entries to return.
    """
    found = connection.execute(_ENTRIES_AFTER, (since, until, limit, gateway, list(buckets), limit)).fetchall()
    return [Entry(*entry) for entry in found]


def entries_of(connection: Connection, gateway: str, keys: Collection[RowKey], buckets: Collection[str]) -> list[Entry]:
    """Return every entry of these rows under these buckets.

    Args:
        connection: an open connection; statements run in its current transaction.
        gateway: the gateway's id.
        keys: the rows' keys.
        buckets: the bucket keys whose entries are read.
    """
    tables, ids = [table for table, _ in keys], [row_id for _, row_id in keys]
    found = connection.execute(_ENTRIES_OF, (tables, ids, gateway, list(buckets))).fetchall()
    return [Entry(*entry) for entry in found]


def changed_after(connection: Connection, gateway: str, buckets: Collection[str], since: int) -> bool:
    """Return whether any entry under `buckets` has `changed > since`.

    Args:
        connection: an open connection; statements run in its current transaction.
        gateway: the gateway's id.
        buckets: the bucket keys whose entries are read.
        since: the arrival after which an entry changed.
    """
    found = connection.execute(_CHANGED_AFTER, (since, gateway, list(buckets))).fetchone()
    return bool(found and found[0])


def changed_among(connection: Connection, gateway: str, buckets: Collection[str], since: int) -> list[str]:
    """Return those of `buckets` that have an entry with `changed > since`.

    Args:
        connection: an open connection; statements run in its current transaction.
        gateway: the gateway's id.
        buckets: the bucket keys whose entries are read.
        since: the arrival after which an entry changed.
    """
    return [name for (name,) in connection.execute(_CHANGED_AMONG, (gateway, list(buckets), since)).fetchall()]


def buckets_with(connection: Connection, gateway: str, prefix: str) -> list[str]:
    """Return the bucket keys in use that start with `prefix`.

    Args:
        connection: an open connection; statements run in its current transaction.
        gateway: the gateway's id.
        prefix: the beginning of the keys; empty for all.
    """
    query = "SELECT name FROM bucket WHERE gateway = %s AND name ^@ %s ORDER BY name"
    return [name for (name,) in connection.execute(query, (gateway, prefix)).fetchall()]
