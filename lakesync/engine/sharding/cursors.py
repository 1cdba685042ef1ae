"""A client's one cursor stands for a cursor in each shard.

Each shard is a feed complete by itself (L1), so a client's place is a vector of places. Outer cursors are numbers of a
clock of the client's own, shaped like arrivals and above all that it was handed before; what the newest few stand for
is kept in its record in the default shard. A page that is made for many followers has one cursor for all of them, kept
in a table of its own. A cursor that is known in neither is one that cannot be served (L11).
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from lakesync.model.hlc import start_of
from lakesync.staging.records import ARRIVAL_STEP
from lakesync.staging.shard_records import Handed, Vector

KEPT = 32
"""Cursors of one client of which it is known what they stand for."""

SHARED = 128
"""What the cursors that many are told are above a number of the clock, so that they are no one's own."""

SHARED_FOR = (24 * 3_600_000) << 16
"""How long it is known what they stand for: a day. A client that sends one back makes it its own."""

NOWHERE = (1 << 40) + 1
"""A cursor that no shard ever hands out: below any arrival, above the marks of a client that begins."""


def find(handed: Handed | None, cursor: int) -> Vector | None:
    """What a cursor stands for; None where that is not known."""
    if cursor == 0:
        return Vector(0, ())
    known = handed.vectors if handed is not None else ()
    return next((vector for vector in reversed(known) if vector.cursor == cursor), None)


def used(handed: Handed | None, cursor: int) -> Handed | None:
    """After the client sent this cursor, or surely has it: it is kept longest."""
    if handed is None or (handed.seen == cursor and handed.vectors[-1:] and handed.vectors[-1].cursor == cursor):
        return handed
    here = [vector for vector in handed.vectors if vector.cursor == cursor]
    others = [vector for vector in handed.vectors if vector.cursor != cursor]
    return replace(handed, seen=cursor, vectors=(*others, *here)) if here else handed


def hand_out(
    handed: Handed | None, parts: Mapping[str, int], turn: str, now_ms: int, above: int = 0
) -> tuple[Handed, int]:
    """With a cursor that stands for these; the cursor.

    The highest one is handed out again where it stands for the same. One of places that are not all complete is a page
    mark itself.

    Args:
        handed: what the client was handed.
        parts: shard → cursor there.
        turn: the shard at which its next page begins.
        now_ms: server wall time.
        above: a cursor that it has, which may be one that many were told.
    """
    known = handed or Handed(0)
    wanted = tuple(sorted(parts.items()))
    for vector in known.vectors:
        if vector.cursor == known.last >= above and (vector.parts, vector.turn) == (wanted, turn):
            return known, vector.cursor
    cursor = next_above(max(known.last, above), now_ms)
    if any(place % ARRIVAL_STEP for place in parts.values()):
        cursor += 1
    return _with(replace(known, last=cursor), Vector(cursor, wanted, turn)), cursor


def adopted(handed: Handed | None, vector: Vector) -> Handed:
    """After the client sent a cursor that many were told: it is its own from here on."""
    known = handed or Handed(0)
    return _with(replace(known, last=max(known.last, vector.cursor), seen=vector.cursor), vector)


def next_above(cursor: int, now_ms: int) -> int:
    """The next number of the clock of outer cursors, above one that was handed out."""
    return max(cursor // ARRIVAL_STEP * ARRIVAL_STEP + ARRIVAL_STEP, start_of(now_ms))


def _with(handed: Handed, vector: Vector) -> Handed:
    vectors = [*handed.vectors, vector]
    surplus = len(vectors) - KEPT
    if surplus > 0:
        needless = [kept.cursor for kept in vectors if kept.cursor != handed.seen][:surplus]
        vectors = [kept for kept in vectors if kept.cursor not in needless]
    return replace(handed, vectors=tuple(vectors))
