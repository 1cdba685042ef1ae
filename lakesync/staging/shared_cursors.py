"""What the default shard knows of cursors that a sharded gateway handed out, the same statements in every store."""

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
"""Cursors up to this one stand for no row."""

_decode = msgspec.json.Decoder(dict[str, int]).decode


class SharedCursorView(Asking):
    """The part of a `View` that knows them."""

    def shared_cursor(self, cursor: int) -> dict[str, int] | None:
        """Shard → cursor there, of a cursor that was kept; None where it was not, or is forgotten."""
        rows = self._ask(_GET, cursor)
        return _decode(rows[0][0]) if rows else None

    def newest_shared_cursor(self) -> int:
        """The highest that was kept; 0 where none was."""
        rows = self._ask(_NEWEST)
        return int(rows[0][0]) if rows else 0

    def told_of_shard(self, shard: str) -> bool:
        """Whether anybody's cursor stands for a place of a shard, behind rows; it goes through all clients."""
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
    """The part of a `Commit` that keeps them."""

    def put_shared_cursor(self, cursor: int, parts: Mapping[str, int], *, forget_below: int) -> None:
        """Keep what a new one stands for, and forget those below another."""
        self._ask(_FORGET, forget_below)
        self._ask(_PUT, cursor, msgspec.json.encode(dict(parts)).decode())
