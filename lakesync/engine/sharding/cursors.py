"""The cursors of a sharded gateway: one integer that means a *vector*, a cursor in each shard.

A *shard* is a staging store with some of the gateway's tables, and has a feed of its own. So a client's position is a
vector. The client's cursor is an integer in the format of arrivals (milliseconds since 1970, shifted by 16 bits),
higher than its earlier ones. The client's record in the default shard maps its newest cursors to their vectors. A
*broadcast* (a page that the server sends to many clients without a request) has one cursor for all of them; its vector
is in a table of its own. A cursor that is in neither is unknown: the client has to start again.

The functions are pure; `vectors` calls them and stores the results. `docs/sharding.md` explains the promises.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from lakesync.model.hlc import start_of
from lakesync.staging.records import ARRIVAL_STEP
from lakesync.staging.records.clients import CursorVector, SentCursors

MAX_VECTORS = 32
"""The most cursors of one client whose vectors are stored; the least recently used are removed."""

BROADCAST_OFFSET = 128
"""Broadcast cursors are a multiple of `ARRIVAL_STEP` plus this. A client's own cursors are a multiple, or one above."""

BROADCAST_RETENTION = (24 * 3_600_000) << 16
"""How long the vectors of broadcast cursors are stored: a day, as a difference of arrivals. The vector of a cursor that
a client sends is copied to the client's record."""

UNKNOWN_CURSOR = (1 << 40) + 1
"""The cursor that is passed to each shard for a client whose own cursor is unknown. It is below every arrival, and no
shard returns it, so that each shard treats the client as one that may have any row. It is above `NEVER_PULLED` (1)."""


def find_vector(sent_cursors: SentCursors | None, cursor: int) -> CursorVector | None:
    """Return the vector of a cursor; None if it is not known. Cursor 0 is the start of every shard's feed.

    Args:
        sent_cursors: the client's stored cursors; None if it has none.
        cursor: the cursor that the client sent.
    """
    if cursor == 0:
        return CursorVector(0, ())
    known = sent_cursors.vectors if sent_cursors is not None else ()
    return next((vector for vector in reversed(known) if vector.cursor == cursor), None)


def confirm(sent_cursors: SentCursors | None, cursor: int) -> SentCursors | None:
    """Record that the client sent a cursor, so that its vector is not removed until it sends another one.

    Args:
        sent_cursors: the client's stored cursors; None if it has none.
        cursor: the cursor that the client sent; an unknown one changes nothing.
    """
    if sent_cursors is None or (
        sent_cursors.confirmed == cursor and sent_cursors.vectors[-1:] and sent_cursors.vectors[-1].cursor == cursor
    ):
        return sent_cursors
    matching = [vector for vector in sent_cursors.vectors if vector.cursor == cursor]
    others = [vector for vector in sent_cursors.vectors if vector.cursor != cursor]
    return replace(sent_cursors, confirmed=cursor, vectors=(*others, *matching)) if matching else sent_cursors


def issue(
    sent_cursors: SentCursors | None, parts: Mapping[str, int], next_shard: str, now_ms: int, above: int = 0
) -> tuple[SentCursors, int]:
    """Create a cursor, or reuse the client's highest one if it has the same vector.

    A cursor in the middle of a client's pages is no multiple of `ARRIVAL_STEP`. If that is so in any shard, the new
    cursor is one above a multiple.

    Args:
        sent_cursors: the client's stored cursors; None if it has none.
        parts: the vector: the cursor in each shard, by shard name.
        next_shard: the shard at which the client's next page begins; empty for any.
        now_ms: server wall time in milliseconds since 1970.
        above: a cursor that the client has, which may be a broadcast one; the new one is higher. 0 for none.

    Returns:
        The updated cursors, and the new one.
    """
    known = sent_cursors or SentCursors(0)
    wanted = tuple(sorted(parts.items()))
    for vector in known.vectors:
        if vector.cursor == known.highest >= above and (vector.parts, vector.next_shard) == (wanted, next_shard):
            return known, vector.cursor
    cursor = next_above(max(known.highest, above), now_ms)
    if any(part % ARRIVAL_STEP for part in parts.values()):
        cursor += 1
    return _with(replace(known, highest=cursor), CursorVector(cursor, wanted, next_shard)), cursor


def adopt(sent_cursors: SentCursors | None, vector: CursorVector) -> SentCursors:
    """Add the vector of a broadcast cursor to the client's own, because the client sent that cursor.

    Args:
        sent_cursors: the client's stored cursors; None if it has none.
        vector: the broadcast cursor and its vector.
    """
    known = sent_cursors or SentCursors(0)
    return _with(replace(known, highest=max(known.highest, vector.cursor), confirmed=vector.cursor), vector)


def next_above(cursor: int, now_ms: int) -> int:
    """Return the next multiple of `ARRIVAL_STEP` above an earlier cursor, and not below the wall time `now_ms`.

    Args:
        cursor: the earlier cursor; 0 for none.
        now_ms: server wall time in milliseconds since 1970.
    """
    return max(cursor // ARRIVAL_STEP * ARRIVAL_STEP + ARRIVAL_STEP, start_of(now_ms))


def _with(sent_cursors: SentCursors, vector: CursorVector) -> SentCursors:
    """Add a vector; above `MAX_VECTORS` the oldest are removed, but not the one that the client confirmed."""
    vectors = [*sent_cursors.vectors, vector]
    surplus = len(vectors) - MAX_VECTORS
    if surplus > 0:
        removed = [each.cursor for each in vectors if each.cursor != sent_cursors.confirmed][:surplus]
        vectors = [each for each in vectors if each.cursor not in removed]
    return replace(sent_cursors, vectors=tuple(vectors))
