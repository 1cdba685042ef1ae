"""The part of a client's record that a sharded gateway uses: its cursors, and what they mean in each shard.

`engine.sharding.cursors` creates and reads it.
"""

from __future__ import annotations

import msgspec


class Vector(msgspec.Struct, frozen=True, array_like=True):
    """A client's cursor and the cursor in each shard that it stands for."""

    cursor: int
    parts: tuple[tuple[str, int], ...]
    """Shard and cursor there, ordered by shard. For a shard that is missing, because it was added later, the cursor is
    0."""
    turn: str = ""
    """The shard at which the next page begins, so that a busy shard does not delay the others; empty for any."""


class Handed(msgspec.Struct, frozen=True, array_like=True):
    """The newest cursors that a client was sent."""

    last: int
    """The highest cursor that it was ever sent."""
    seen: int = 0
    """The cursor of its latest request; its vector is never removed."""
    vectors: tuple[Vector, ...] = ()
    """The most recently used or sent cursor is last."""
