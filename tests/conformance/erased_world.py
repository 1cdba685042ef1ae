"""An engine over one store from which data is erased, and the rows in its clients' databases."""

from __future__ import annotations

from typing import Any

import msgspec

from lakesync.engine import Engine
from lakesync.model.types import RowDelta, SyncPull, SyncPush
from lakesync.staging import open_store
from lakesync.wire.log import decode_body
from tests.conformance.book import make_delta

SECRET = "the-erased-text"


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
