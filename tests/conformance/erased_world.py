"""An engine over one store from which data is erased, and the rows in its clients' databases."""

from __future__ import annotations

import contextlib
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import zstandard

from lakesync.engine import Engine
from lakesync.model.types import RowDelta, SyncPull, SyncPush
from lakesync.staging import open_store
from lakesync.wire.log import decode_body
from tests.conformance.book import make_delta

SECRET = "the-erased-text"
_FRAME = b"\x28\xb5\x2f\xfd"
"""The first bytes of compressed data, by RFC 8878."""


def files_with(folder: Path, text: str) -> list[str]:
    """Return the names of the files that contain a text, also compressed, as the bodies of the log are.

    Another process reads the files: this one would end SQLite's locks on a file by closing it.
    """
    found = []
    for file in sorted(folder.iterdir()):
        content = subprocess.run(["cat", file], capture_output=True, check=True).stdout
        if text.encode() in content + _decompressed(content):
            found.append(file.name)
    return found


def _decompressed(content: bytes) -> bytes:
    """Return what the compressed frames within a file contain."""
    parts, start = [], content.find(_FRAME)
    while start >= 0:
        with contextlib.suppress(zstandard.ZstdError):  # the remains of a frame
            parts.append(zstandard.ZstdDecompressor().decompressobj().decompress(content[start:]))
        start = content.find(_FRAME, start + 1)
    return b"\n".join(parts)


class World:
    """An engine over one store, and the rows in a few clients' databases."""

    def __init__(self, url: str, clock) -> None:
        self.url = url
        self.clock = clock
        self.rows: dict[str, dict[str, dict[str, object]]] = {}
        self.cursors: dict[str, int] = {}
        self.seen: list[RowDelta] = []
        self.open()

    def open(self) -> None:
        self.engine = Engine(open_store(self.url, self.clock), self.clock)
        self.engine.open()
        self.store = self.engine.store
        self.gateway = self.engine.gateway("g")

    def close(self) -> None:
        self.engine.close()

    def push(self, client, *deltas, team="red"):
        return self.gateway.handle_push(SyncPush(client, tuple(deltas)), {"sub": client, "team": team})

    def write(self, client, row, **values):
        """Push one delta, stamped now."""
        self.clock.advance(1)
        op = "UPDATE" if values else "DELETE"
        delta = make_delta(client, self.clock.now_ms << 16, row, **values)
        self.push(client, msgspec.structs.replace(delta, op=op))
        return delta

    def pull(self, client, *, team="red", since=None):
        """Pull until nothing is left and apply the pages; like a database, fail on an INSERT of an existing row."""
        rows = self.rows.setdefault(client, {})
        cursor = self.cursors.get(client, 0) if since is None else since
        more = True
        while more:
            page = self.gateway.handle_pull(SyncPull(client, cursor, 3), {"sub": client, "team": team})
            cursor, more = page.server_hlc, page.has_more
            self.seen += page.deltas
            for delta in page.deltas:
                values = {cell.column: cell.decoded() for cell in delta.columns}
                if delta.op == "DELETE":
                    rows.pop(delta.row_id, None)
                elif delta.op == "INSERT":
                    assert delta.row_id not in rows
                    rows[delta.row_id] = values
                elif delta.row_id in rows:
                    rows[delta.row_id].update(values)
        self.cursors[client] = cursor
        return rows

    def query(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """Query the gateway's tables."""

        def answer(view: Any) -> list[tuple[Any, ...]]:
            return list(view._query(statement, *values))

        return self.store.read("g", answer).result()

    def logged(self):
        """Every delta of the log that has a body."""
        query = "SELECT body FROM log WHERE gateway = ? AND body IS NOT NULL ORDER BY seq"
        bodies = self.query(query)
        return [delta for (body,) in bodies for delta in decode_body(bytes(body))]
