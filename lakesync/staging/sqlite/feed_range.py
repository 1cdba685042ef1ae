"""Reads a range of the feed with one SQL statement, which runs without the interpreter's lock.

`State` calls it. The statement decides for each row whether the client lacks all of it, needs nothing of it, or needs a
closer look; in the last case the caller reads the entries one by one.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import msgspec

from lakesync.model.types import RowKey
from lakesync.staging.encoded_feed import FeedRange, Reader

MOST_BUCKETS = 16
"""With more buckets, rows are read one by one."""
_MOST_DELTAS = 1000
"""Most deltas of a row in a range: one character encodes the number."""
_OTHER_KIND = _MOST_DELTAS + 1
_OTHER = chr(_OTHER_KIND)
"""Instead of a number of deltas: the row needs a closer look."""

# without its LIMIT, SQLite would merge the inner query into the outer one and compute `kind` twice
_JOINED = """
SELECT max(changed), group_concat(char(kind), ''), cast(group_concat(iif(kind, spelled, NULL), x'00') AS BLOB){keys}
FROM ({entries} LIMIT -1)"""
_KEYS = ", json_group_array(json_array(table_name, row_id))"
_ROW = "LEFT JOIN row_state r ON r.number = e.number"
_PART = "changed > :since AND changed <= :until ORDER BY changed, number"

_HELD = "(e.first > 0 AND iif(e.since <= :base, e.inside OR e.changed > :base, e.first <= :base AND e.left_at > :base))"
"""SQL: whether the reader may have had the row at its base, by an entry; the same as `Entry.may_be_inside_at`."""
_NOT_WRITTEN = "r.writers_floor <= :known_from AND instr(r.writers, :writer) = 0"
"""SQL: whether the reader certainly did not write to the row since its base."""
_WHOLE = f"iif(r.spelled IS NOT NULL AND r.deltas <= {_MOST_DELTAS} AND {_NOT_WRITTEN}, r.deltas, {_OTHER_KIND})"
_NOTHING = f"iif({_NOT_WRITTEN}, 0, {_OTHER_KIND})"

_OF_ONE = f"""
SELECT r.table_name, r.row_id, e.changed, r.spelled,
    CASE WHEN {_HELD} THEN {_OTHER_KIND} WHEN e.inside THEN {_WHOLE} ELSE {_NOTHING} END AS kind
FROM (SELECT * FROM entry WHERE bucket = :bucket_0 AND {_PART} LIMIT :limit) e {_ROW}"""

_LATER, _HAD, _INSIDE, _OWN = 4, 3, 2, 1
"""What an entry of a row says of it; the greatest holds."""
_OF_SEVERAL = f"""
SELECT r.table_name, r.row_id, p.changed, r.spelled,
    CASE (
        SELECT max(CASE
            WHEN e.changed > p.changed OR e.changed = p.changed AND e.bucket < p.bucket THEN {_LATER}
            WHEN e.bucket = :own THEN {_OWN}
            WHEN {_HELD} OR e.changed <= :since AND (e.inside OR e.changed > :base) THEN {_HAD}
            WHEN e.inside THEN {_INSIDE}
            ELSE 0 END)
        FROM entry e WHERE e.bucket IN ({{buckets}}) AND e.number = p.number
    ) WHEN {_LATER} THEN 0 WHEN {_INSIDE} THEN {_WHOLE} WHEN 0 THEN {_NOTHING} ELSE {_OTHER_KIND} END AS kind
FROM (SELECT * FROM entry WHERE bucket IN ({{buckets}}) AND {_PART}, bucket LIMIT -1) p {_ROW.replace("e.", "p.")}"""
_NTH = (
    "(SELECT changed FROM entry WHERE bucket = :bucket_{place} AND changed > :since AND changed <= :until"
    " ORDER BY changed LIMIT 1 OFFSET :share)"
)
_decode_keys = msgspec.json.Decoder(list[RowKey]).decode


class RangeResult(NamedTuple):
    """The result of a statement."""

    feed_range: FeedRange | None
    """None if a row needs a closer look, or if there is no entry."""
    keys: list[RowKey]
    """Keys of all entries, if they were requested."""


class RangeBuckets(NamedTuple):
    """The numbers of the bucket keys that are read."""

    shared: Sequence[int]
    """The reader may see what is inside any of these."""
    own: int | None
    """The bucket of changes that concern the reader alone, if it is in use."""


def read_file_range(
    sql: sqlite3.Connection,
    buckets: RangeBuckets,
    since: int,
    until: int,
    limit: int,
    reader: Reader,
    *,
    with_keys: bool,
) -> RangeResult:
    """Return about `limit` entries of the file with `since < changed <= until`.

    Args:
        sql: the connection.
        buckets: numbers of the bucket keys.
        since: arrival.
        until: arrival.
        limit: about how many entries.
        reader: the client.
        with_keys: whether to return the keys of all entries.
    """
    numbers = [*buckets.shared, *([] if buckets.own is None else [buckets.own])]
    wide = _width(len(numbers))
    values = {
        **reader._asdict(),
        "own": buckets.own,
        "since": since,
        "until": until,
        "limit": limit,
        **{f"bucket_{place}": numbers[min(place, len(numbers) - 1)] for place in range(wide)},
    }
    if wide > 1:
        values["share"] = limit // len(numbers)
        ends = sql.execute(_ends(wide), values).fetchone()
        values["until"] = min((end for end in ends if end is not None), default=until)
    last, kinds, joined, *keys = sql.execute(_statement(wide, with_keys=with_keys), values).fetchone()
    feed_range = None if last is None or _OTHER in kinds else FeedRange(joined or b"", kinds, last)
    return RangeResult(feed_range, _decode_keys(keys[0]) if keys else [])


def _width(buckets: int) -> int:
    """Round up the number of buckets, so that there are few different statements."""
    return next(wide for wide in (1, 2, 4, 8, MOST_BUCKETS) if wide >= buckets)


@cache
def _statement(wide: int, *, with_keys: bool) -> str:
    several = _OF_SEVERAL.format(buckets=", ".join(f":bucket_{place}" for place in range(wide)))
    return _JOINED.format(keys=_KEYS if with_keys else "", entries=several if wide > 1 else _OF_ONE)


@cache
def _ends(wide: int) -> str:
    """SQL: where each bucket alone reaches its share of the entries."""
    return f"SELECT {', '.join(_NTH.format(place=place) for place in range(wide))}"
