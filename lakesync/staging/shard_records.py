"""What a client's record keeps of the cursors that a sharded gateway handed out."""

from __future__ import annotations

import msgspec


class Vector(msgspec.Struct, frozen=True, array_like=True):
    """A client's one cursor, and the cursor that it stands for in each shard."""

    cursor: int
    parts: tuple[tuple[str, int], ...]
    """`(shard, cursor there)`, by shard. In a shard that is not named it stands for 0: it was not there yet."""
    turn: str = ""
    """The shard at which the next page begins, so that a busy one does not keep the others waiting; empty: any."""


class Handed(msgspec.Struct, frozen=True, array_like=True):
    """The newest cursors that a client was handed."""

    last: int
    """The highest of all that it ever was."""
    seen: int = 0
    """The one that it sent last: it is never forgotten."""
    vectors: tuple[Vector, ...] = ()
    """The one that was used or handed out last comes last."""
