"""The table of broadcast cursors of a sharded gateway, for both stores. `side_tables` includes it.

A broadcast to many clients has one cursor. The default shard stores which cursor in each shard it stands for.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from lakesync.staging.asking import Asking
from lakesync.staging.decoding import decode_client

_GET = "SELECT parts FROM shared_cursor WHERE gateway = ? AND cursor = ?"
_NEWEST = "SELECT cursor FROM shared_cursor WHERE gateway = ? ORDER BY cursor DESC LIMIT 1"
_PUT = "INSERT INTO shared_cursor (gateway, cursor, parts) VALUES (?, ?, ?)"
_FORGET = "DELETE FROM shared_cursor WHERE gateway = ? AND cursor < ?"

_CLIENTS = "SELECT record FROM client WHERE gateway = ?"
_NOTHING_YET = 1
"""Cursors up to this one do not stand for any row."""

_decode = msgspec.json.Decoder(dict[str, int]).decode


class SharedCursorView(Asking):
    """The methods of a `View` that read broadcast cursors."""

    def shared_cursor(self, cursor: int) -> dict[str, int] | None:
        """Return the cursors by shard of a broadcast cursor; None if it is unknown or was deleted."""
        rows = self._ask(_GET, cursor)
        return _decode(rows[0][0]) if rows else None

    def newest_shared_cursor(self) -> int:
        """Return the highest stored broadcast cursor; 0 if there is none."""
        rows = self._ask(_NEWEST)
        return int(rows[0][0]) if rows else 0

    def told_of_shard(self, shard: str) -> bool:
        """Return whether any client has a cursor that stands for rows of a shard. It reads all client records."""
        parts = self.shared_cursor(self.newest_shared_cursor()) or {}
        if parts.get(shard, 0) > _NOTHING_YET:
            return True
        told = (decode_client(record).handed for (record,) in self._ask(_CLIENTS))
        return any(
            name == shard and cursor > _NOTHING_YET
            for handed in told
            if handed is not None
            for vector in handed.vectors
            for name, cursor in vector.parts
        )


class SharedCursorCommit(SharedCursorView):
    """The method of a `Commit` that stores broadcast cursors."""

    def put_shared_cursor(self, cursor: int, parts: Mapping[str, int], *, forget_below: int) -> None:
        """Store a broadcast cursor.

        Args:
            cursor: the cursor.
            parts: cursor by shard.
            forget_below: stored cursors below this are deleted.
        """
        self._ask(_FORGET, forget_below)
        self._ask(_PUT, cursor, msgspec.json.encode(dict(parts)).decode())
