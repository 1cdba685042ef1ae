"""A world of clients around one gateway, and what each must hold in the end, computed from scratch."""

from __future__ import annotations

import json
from typing import Any

from lakesync import hlc
from lakesync.delta import delta_id
from lakesync.engine import Engine, SyncGateway
from lakesync.types import Claims, ColumnValue, Op, RowDelta, SyncPull, SyncPush, SyncResponse

TABLE = "notes"
Row = dict[str, Any]


class WedgedError(AssertionError):
    """An INSERT met a row that the client has: a client that applies plain SQL is stuck for ever."""


class PlainClient:
    """Applies pages as plain SQL does, keeps its cursor in memory, and has no unsent edits when it pulls."""

    def __init__(self, name: str, group: str, skew: int) -> None:
        self.name = name
        self.skew = skew
        self.outbox: list[RowDelta] = []
        self.claims: Claims = {"sub": name, "group": group}
        self.rows: dict[str, Row] = {}
        self.cursor = 0
        self.named: set[str] = set()
        self.told: set[str] = set()

    def edit(self, op: Op, row_id: str, values: Row, now: int) -> None:
        """Change the local row, as far as plain SQL can, and queue the delta; its clock is `skew` ms off."""
        self.named.add(row_id)
        if op == "INSERT" and row_id in self.rows:
            op = "UPDATE"
        if op == "DELETE":
            self.rows.pop(row_id, None)
            values = {}
        elif op == "INSERT":
            self.rows[row_id] = dict(values)
        elif row_id in self.rows:
            self.rows[row_id].update(values)
        columns = tuple(ColumnValue.of(column, value) for column, value in values.items())
        stamp = hlc.encode(now + self.skew, 0)
        identity = delta_id(client_id=self.name, hlc=stamp, table=TABLE, row_id=row_id, columns=columns)
        self.outbox.append(RowDelta(op, TABLE, row_id, self.name, columns, stamp, identity))

    def push(self, gateway: SyncGateway) -> tuple[RowDelta, ...]:
        """Push the outbox and take the answer's cursor, as the reference's client does."""
        sent, self.outbox = tuple(self.outbox), []
        if sent:
            self.send(gateway, sent)
        return sent

    def send(self, gateway: SyncGateway, deltas: tuple[RowDelta, ...]) -> None:
        """One push request."""
        self.cursor = gateway.handle_push(SyncPush(self.name, deltas), self.claims).server_hlc
        assert self.cursor > 0, "L8: a client with cursor 0 asks for a checkpoint again"

    def ask(self, gateway: SyncGateway, limit: int) -> SyncResponse:
        """A page, not applied."""
        page = gateway.handle_pull(SyncPull(self.name, self.cursor, limit), self.claims)
        self.told |= {delta.row_id for delta in page.deltas}
        return page

    def take(self, page: SyncResponse) -> None:
        """Apply a page and its cursor; an empty one leaves the cursor."""
        for delta in page.deltas:
            values = {part.column: part.decoded() for part in delta.columns}
            if delta.op == "INSERT":
                if delta.row_id in self.rows:
                    raise WedgedError(f"{self.name} was sent INSERT of {delta.row_id}, which it has")
                self.rows[delta.row_id] = values
            elif delta.op == "DELETE":
                self.rows.pop(delta.row_id, None)
            elif delta.row_id in self.rows:
                self.rows[delta.row_id].update(values)
        if page.deltas:
            self.cursor = page.server_hlc

    def catch_up(self, gateway: SyncGateway, limit: int) -> None:
        """Pull until nothing is left."""
        for _ in range(1000):
            page = self.ask(gateway, limit)
            self.take(page)
            if not page.has_more:
                return
            self.cursor = page.server_hlc
        raise AssertionError("paging does not end")

    def reload(self) -> None:
        """The cursor is lost, the database is kept."""
        self.cursor = 0


class World:
    """Everything that was ever pushed, and what follows from it."""

    def __init__(self, engine: Engine, filtered: bool) -> None:
        self.engine = engine
        self.filtered = filtered
        self.log: list[RowDelta] = []
        self.ever_visible: dict[str, set[str]] = {}

    @property
    def gateway(self) -> SyncGateway:
        """The one gateway."""
        return self.engine.gateway("g")

    def pushed(self, deltas: tuple[RowDelta, ...], clients: list[PlainClient]) -> None:
        """Note deltas that the gateway has, and who may see what now."""
        self.log += deltas
        for client in clients:
            self.ever_visible.setdefault(client.name, set()).update(self.visible_to(client))

    def rows(self) -> dict[str, Row]:
        """The merge of everything, by the letter of M1 to M3."""
        merged: dict[str, Row] = {}
        for row_id in {delta.row_id for delta in self.log}:
            deltas = [delta for delta in self.log if delta.row_id == row_id]
            deaths = [delta.stamp for delta in deltas if delta.op == "DELETE"]
            dead = max(deaths, default=(-1, ""))
            inserts = [delta.stamp for delta in deltas if delta.op == "INSERT" and delta.stamp > dead]
            cells: dict[str, tuple[tuple[int, str], str]] = {}
            for delta in deltas:
                for part in delta.columns:
                    candidate = (delta.stamp, json.dumps(part.decoded()))
                    if delta.stamp > dead and candidate > cells.get(part.column, ((-1, ""), "")):
                        cells[part.column] = candidate
            if cells or inserts:
                merged[row_id] = {column: json.loads(text) for column, (_, text) in cells.items()}
        return merged

    def visible_to(self, client: PlainClient) -> dict[str, Row]:
        """The rows that the client must hold in the end."""
        return {
            row_id: row
            for row_id, row in self.rows().items()
            if not self.filtered or row.get("group") == client.claims["group"]
        }
