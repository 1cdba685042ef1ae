"""A stretch of the feed in one statement, which works without the interpreter's lock."""

from __future__ import annotations

import sqlite3
from typing import NamedTuple

import msgspec

from lakesync.staging.stretch import Reader, Stretch
from lakesync.types import RowKey

_MOST_DELTAS = 1000
"""Of a row in a stretch: a character says how many."""
_OTHER = chr(_MOST_DELTAS + 1)
"""In place of a number: the entry is neither whole nor nothing to the reader."""

_KIND = f"""
CASE
WHEN e.inside AND NOT (e.since <= :base OR (e.first <= :base AND e.left_at > :base)) AND r.spelled IS NOT NULL
    AND r.deltas <= {_MOST_DELTAS} AND r.writers_floor <= :known_from AND instr(r.writers, :writer) = 0 THEN r.deltas
WHEN NOT e.inside AND NOT (e.first > 0 AND e.first <= :base AND e.left_at > :base)
    AND instr(r.writers, :writer) = 0 THEN 0
ELSE {_MOST_DELTAS + 1} END"""
_STRETCH = f"""
SELECT max(changed), group_concat(char(kind), ''), cast(group_concat(iif(kind, spelled, NULL), x'00') AS BLOB){{keys}}
FROM (
    SELECT e.table_name, e.row_id, e.changed, r.spelled, {_KIND} AS kind
    FROM entry e LEFT JOIN row_state r ON r.gateway = :gateway AND r.table_name = e.table_name AND r.row_id = e.row_id
    WHERE e.bucket = :bucket AND e.changed > :since AND e.changed <= :until
    ORDER BY e.changed, e.table_name, e.row_id LIMIT :limit
)"""
_WITH_KEYS = _STRETCH.format(keys=", json_group_array(json_array(table_name, row_id))")
_WITHOUT_KEYS = _STRETCH.format(keys="")
_decode_keys = msgspec.json.Decoder(list[RowKey]).decode


class Found(NamedTuple):
    """What a statement found."""

    stretch: Stretch | None
    """None where an entry is something else to the reader, or where there is no entry."""
    keys: list[RowKey]
    """Of all entries, where they were asked for."""


def read_stretch(
    sql: sqlite3.Connection,
    gateway: str,
    bucket: int,
    since: int,
    until: int,
    limit: int,
    reader: Reader,
    *,
    with_keys: bool,
) -> Found:
    """Entries with `since < changed <= until`, at most `limit`, as far as the file knows."""
    values = {
        "gateway": gateway,
        "bucket": bucket,
        "since": since,
        "until": until,
        "limit": limit,
        **reader._asdict(),
    }
    last, kinds, joined, *keys = sql.execute(_WITH_KEYS if with_keys else _WITHOUT_KEYS, values).fetchone()
    stretch = None if last is None or _OTHER in kinds else Stretch(joined or b"", kinds, last)
    return Found(stretch, _decode_keys(keys[0]) if keys else [])
