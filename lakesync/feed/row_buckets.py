"""Computes the bucket keys of a row, and the moves of its feed entries when the keys change.

`feed.apply` calls these functions for the rows of a push, `feed.astray` for a client's outdated copies, `feed.reindex`
after a change of rules, and `engine.rebuild` for rows from the lake. `feed.pull` reads the entries of `own_bucket`.

A *bucket key* names a bucket of the sync rules with the claims (fields of a client's token) that may see it. A row has
one *feed entry* for each bucket key that it ever had: when it joined the bucket, left it, and last changed in it. A
*move* is a change of an entry, at an *arrival*: the commit's timestamp by the gateway, which is one app's stream of
changes.
"""

from __future__ import annotations

from lakesync.rules.keys import EVERYTHING, BucketIndex
from lakesync.staging.records import Move, StoredRow

_EVERYTHING = (EVERYTHING,)
"""The bucket key of every row of a gateway without rules."""


def own_bucket(client_id: str) -> str:
    """Return the bucket key of changes that concern one client alone. No key of the sync rules starts with `@`."""
    return f"@{client_id}"


def owner_of(bucket: str) -> str:
    """Return the client id that a bucket key of `own_bucket` belongs to."""
    return bucket.removeprefix("@")


def own_move(row: StoredRow, client_id: str, arrival: int) -> Move:
    """Return the move after which the client's next pull reads the row, under the client's own bucket key.

    Args:
        row: the row.
        client_id: the client's id.
        arrival: the arrival at which the entry changes.
    """
    return Move(own_bucket(client_id), row.table, row.row_id, arrival, "own")


def keys_of(row: StoredRow, index: BucketIndex) -> tuple[str, ...]:
    """Return the bucket keys that a row belongs to by the rules, sorted; none if the row is deleted or empty.

    Args:
        row: the row.
        index: computes the bucket keys of a row by the active rules.
    """
    if not row.state.visible:
        return ()
    if index.shows_all_rows:
        return _EVERYTHING
    return tuple(sorted(index.row_keys(row.table, row.state.values())))


def change_keys(row: StoredRow, keys: tuple[str, ...], arrival: int, *, rejoins: bool = False) -> list[Move]:
    """Set a row's bucket keys, and return the moves out of the buckets that it leaves and into those that it joins.

    Args:
        row: the row, which is changed.
        keys: its new bucket keys.
        arrival: the arrival of the moves.
        rejoins: whether the row also leaves the buckets that it stays in, and joins them again, so that clients are
            sent DELETE and INSERT.
    """
    old, row.keys = row.keys, keys
    left = old if rejoins else [bucket for bucket in old if bucket not in keys]
    joined = keys if rejoins else [bucket for bucket in keys if bucket not in old]
    moves = [Move(bucket, row.table, row.row_id, arrival, "leave") for bucket in left]
    return moves + [Move(bucket, row.table, row.row_id, arrival, "join") for bucket in joined]
