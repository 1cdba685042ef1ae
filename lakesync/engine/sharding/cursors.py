"""The cursors of a sharded gateway: each stands for a cursor in every shard.

Every shard has a complete feed of its own (L1), so a client's position is a vector of positions. A cursor is a number
of the client's own clock, shaped like an arrival and higher than its earlier cursors. The client's record in the
default shard maps its newest cursors to their vectors. A broadcast to many clients has one cursor, in a table of its
own. A cursor that neither contains cannot be served (L11).
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from lakesync.model.hlc import start_of
from lakesync.staging.records import ARRIVAL_STEP
from lakesync.staging.records.clients import CursorVector, SentCursors

KEPT = 32
"""Cursors of one client whose vectors are kept."""

SHARED = 128
"""Offset of broadcast cursors from the clock's numbers, so that they differ from every client's own cursors."""

SHARED_FOR = (24 * 3_600_000) << 16
"""How long their vectors are kept, as a difference of arrivals: a day. A client that sends one adopts it."""

NOWHERE = (1 << 40) + 1
"""A cursor that no shard returns: below any arrival, above the cursors of a client that never pulled."""


def find(sent_cursors: SentCursors | None, cursor: int) -> CursorVector | None:
    """Return the vector of a cursor; None if it is not known."""
    if cursor == 0:
        return CursorVector(0, ())
    known = sent_cursors.vectors if sent_cursors is not None else ()
    return next((vector for vector in reversed(known) if vector.cursor == cursor), None)


def used(sent_cursors: SentCursors | None, cursor: int) -> SentCursors | None:
    """Record that the client has a cursor: its vector is kept longest."""
    if sent_cursors is None or (
        sent_cursors.confirmed == cursor and sent_cursors.vectors[-1:] and sent_cursors.vectors[-1].cursor == cursor
    ):
        return sent_cursors
    here = [vector for vector in sent_cursors.vectors if vector.cursor == cursor]
    others = [vector for vector in sent_cursors.vectors if vector.cursor != cursor]
    return replace(sent_cursors, confirmed=cursor, vectors=(*others, *here)) if here else sent_cursors


def hand_out(
    sent_cursors: SentCursors | None, parts: Mapping[str, int], next_shard: str, now_ms: int, above: int = 0
) -> tuple[SentCursors, int]:
    """Create a cursor, or reuse the client's highest one if it has the same vector.

    If a shard's cursor is in the middle of its pages, so is this one.

    Args:
        sent_cursors: the client's earlier cursors.
        parts: cursor by shard.
        next_shard: shard at which the client's next page begins.
        now_ms: server wall time.
        above: a cursor that the client has; it may be a broadcast one.

    Returns:
        The updated cursors, and the new one.
    """
    known = sent_cursors or SentCursors(0)
    wanted = tuple(sorted(parts.items()))
    for vector in known.vectors:
        if vector.cursor == known.highest >= above and (vector.parts, vector.next_shard) == (wanted, next_shard):
            return known, vector.cursor
    cursor = next_above(max(known.highest, above), now_ms)
    if any(place % ARRIVAL_STEP for place in parts.values()):
        cursor += 1
    return _with(replace(known, highest=cursor), CursorVector(cursor, wanted, next_shard)), cursor


def adopted(sent_cursors: SentCursors | None, vector: CursorVector) -> SentCursors:
    """Make a broadcast cursor, which the client sent, the client's own."""
    known = sent_cursors or SentCursors(0)
    return _with(replace(known, highest=max(known.highest, vector.cursor), confirmed=vector.cursor), vector)


def next_above(cursor: int, now_ms: int) -> int:
    """Return the next number of the clock, above an earlier cursor."""
    return max(cursor // ARRIVAL_STEP * ARRIVAL_STEP + ARRIVAL_STEP, start_of(now_ms))


def _with(sent_cursors: SentCursors, vector: CursorVector) -> SentCursors:
    vectors = [*sent_cursors.vectors, vector]
    surplus = len(vectors) - KEPT
    if surplus > 0:
        needless = [kept.cursor for kept in vectors if kept.cursor != sent_cursors.confirmed][:surplus]
        vectors = [kept for kept in vectors if kept.cursor not in needless]
    return replace(sent_cursors, vectors=tuple(vectors))
