"""Stock clients of one gateway, and the rows that each must have at the end, computed from scratch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol

from lakesync.engine import Engine, SyncGateway
from lakesync.engine.pushing import PushRequest
from lakesync.model import hlc
from lakesync.model.delta import delta_id
from lakesync.model.types import Claims, ColumnValue, Op, RowDelta, Stamp, SyncPull, SyncPush, SyncResponse
from lakesync.rules.model import SyncRules, matches
from lakesync.staging.records import StoredRow

TABLE = "notes"
Row = dict[str, Any]


class WedgedError(AssertionError):
    """The client got an INSERT of an existing row: a client that applies plain SQL can never continue."""


def apply_page(rows: dict[str, Row], page: SyncResponse, name: str) -> None:
    """Apply a page as the reference's client does, whose plain INSERT fails on an existing row.

    Raises:
        WedgedError: an INSERT failed.
    """
    for delta in page.deltas:
        values = {part.column: part.decoded() for part in delta.columns}
        if delta.op == "DELETE":
            rows.pop(delta.row_id, None)
        elif delta.op == "INSERT":
            if delta.row_id in rows:
                raise WedgedError(f"{name} was sent INSERT of {delta.row_id}, which it has")
            rows[delta.row_id] = values
        elif delta.row_id in rows:
            rows[delta.row_id].update(values)


class StockClient:
    """Applies pages as plain SQL does and keeps its cursor in memory.

    A page that names a row with an unacknowledged edit is dropped, as if it had been lost.
    """

    def __init__(self, name: str, groups: list[str], skew: int) -> None:
        self.name = name
        self.skew = skew
        self.outbox: list[RowDelta] = []
        self.tables: dict[str, str] = {}
        """The tables of rows that are not in TABLE, by row id."""
        self.claims: Claims = {"sub": name, "group": groups, "level": "1"}
        self.rows: dict[str, Row] = {}
        self.cursor = 0
        self.pulled = True
        """Whether it has pulled since its rows were lost."""
        self.connection: int | None = None
        """The cursor of the last page sent on the open connection; None without a connection."""
        self.mail: list[SyncResponse] = []
        """Broadcasts in transit."""
        self.named: set[str] = set()
        self.sent_ids: set[str] = set()
        self.asked: list[SyncPull] = []
        """Pull requests that were sent; the network may repeat them."""
        self.pushed: list[SyncPush] = []

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
        table = self.tables.get(row_id, TABLE)
        identity = delta_id(client_id=self.name, hlc=stamp, table=table, row_id=row_id, columns=columns)
        self.outbox.append(RowDelta(op, table, row_id, self.name, columns, stamp, identity))

    def push(self, gateway: SyncGateway, *, answered: bool = True) -> tuple[RowDelta, ...]:
        """Push the outbox and take the answer's cursor; if the answer is lost, the same push is repeated later."""
        sent = tuple(self.outbox)
        if not sent:
            return ()
        request = SyncPush(self.name, sent)
        self.pushed.append(request)
        cursor = gateway.submit_push(partial(PushRequest, request, self.claims)).result().server_hlc
        if answered:
            self._pushed(cursor)
        return sent

    def push_connected(self, gateway: SyncGateway, *, answered: bool = True) -> tuple[RowDelta, ...]:
        """Push on the open connection: earlier frames of it arrive before the answer, or are lost with it."""
        sent = tuple(self.outbox)
        if not sent or self.connection is None:
            return ()
        request = SyncPush(self.name, sent)
        self.pushed.append(request)
        receive = partial(PushRequest, request, self.claims, known_cursor=self.connection)
        cursor = gateway.submit_push(receive).result().server_hlc
        if not answered:
            self.disconnect()
            return sent
        while self.mail:
            if not self.deliver():
                return sent
        self._pushed(cursor)
        self.connection = max(self.connection, cursor)
        return sent

    def _pushed(self, cursor: int) -> None:
        self.outbox = []
        self.cursor = cursor
        assert cursor > 0, "L8: a client with cursor 0 asks for a checkpoint again"

    def ask(self, gateway: SyncGateway, limit: int) -> SyncResponse:
        """Return a page without applying it."""
        self.pulled = True
        request = SyncPull(self.name, self.cursor, limit)
        self.asked.append(request)
        return self._noted(gateway.submit_pull(request, self.claims).result().decoded())

    def take(self, page: SyncResponse) -> bool:
        """Apply a page and its cursor (an empty page leaves the cursor); return False if it was dropped."""
        if self._apply(page):
            self.cursor = page.server_hlc
            return True
        return not page.deltas

    def _apply(self, page: SyncResponse) -> bool:
        pending = {delta.row_id for delta in self.outbox}
        if not page.deltas or pending & {delta.row_id for delta in page.deltas}:
            return False
        apply_page(self.rows, page, self.name)
        return True

    def _noted(self, page: SyncResponse) -> SyncResponse:
        self.sent_ids |= {delta.row_id for delta in page.deltas}
        return page

    def catch_up(self, gateway: SyncGateway, limit: int) -> None:
        """Pull until nothing is left."""
        for _ in range(1000):
            page = self.ask(gateway, limit)
            self.take(page)
            if not page.deltas and not page.has_more:
                return
        raise AssertionError(f"paging does not end: {page}")

    def reload(self, *, wiped: bool) -> None:
        """Lose the cursor; keep the database and the outbox, or lose them too."""
        self.disconnect()
        self.cursor = 0
        self.pulled = self.pulled and not wiped
        if wiped:
            self.rows = {}
            self.outbox = []

    def connect(self, page: SyncResponse) -> None:
        """Subscribe from a page that was pulled on the connection."""
        self.mail = []
        self.connection = page.server_hlc if page.deltas else self.cursor

    def disconnect(self) -> None:
        """Lose the frames in transit."""
        self.connection = None
        self.mail = []

    def broadcast(self, gateway: SyncGateway, limit: int) -> None:
        """The gateway sends a page by itself."""
        if self.connection is not None:
            pull = SyncPull(self.name, self.connection, limit)
            page = self._noted(gateway.submit_pull(pull, self.claims, confirmed=False).result().decoded())
            self.connection = page.server_hlc
            if page.deltas:
                self.mail.append(page)

    def deliver(self) -> bool:
        """The oldest broadcast in transit arrives; if it cannot be applied, the connection breaks."""
        if self.mail:
            page = self.mail.pop(0)
            if not self._apply(page):
                self.disconnect()
                return False
            self.cursor = max(self.cursor, page.server_hlc)
        return True


def _deltas_that_make(row: StoredRow) -> list[RowDelta]:
    """Deltas whose merge is the row."""
    state = row.copy().fold().state
    stamps: list[tuple[Op, Stamp | None]] = [("DELETE", state.tombstone), ("INSERT", state.inserted)]
    parts = [(op, stamp, ()) for op, stamp in stamps if stamp is not None]
    cells = [(cell.origin.stamp, (ColumnValue(name, cell.value),)) for name, cell in state.cells.items()]
    return [
        RowDelta(op, row.table, row.row_id, client_id, columns, hlc, "")
        for op, (hlc, client_id), columns in [*parts, *(("UPDATE", stamp, column) for stamp, column in cells)]
    ]


class Client(Protocol):
    """The protocol of every client."""

    name: str
    claims: Claims


class World:
    """Every pushed delta, and the rows that follow from them."""

    def __init__(self, engine: Engine, clients: Sequence[Client]) -> None:
        self.engine = engine
        self.clients = clients
        self.rules = SyncRules(1, ())
        self.log: list[RowDelta] = []
        self.ever_visible: dict[str, set[str]] = {client.name: set() for client in clients}
        self._seen: set[str] = set()
        self._erased: dict[str, int] = {}
        self._erased_clients: dict[str, int] = {}

    @property
    def gateway(self) -> SyncGateway:
        """The gateway."""
        return self.engine.gateway("g")

    def pushed(self, deltas: tuple[RowDelta, ...]) -> None:
        """Record deltas that the gateway has."""
        new = [delta for delta in deltas if delta.delta_id not in self._seen]
        self._seen |= {delta.delta_id for delta in new}
        self.log += [delta for delta in new if not self._is_erased(delta)]
        self.look()

    def _is_erased(self, delta: RowDelta) -> bool:
        erased_up_to = max(self._erased.get(delta.row_id, -1), self._erased_clients.get(delta.client_id, -1))
        return delta.hlc <= erased_up_to

    def erase(self, row_id: str, hlc: int) -> None:
        """Erase a row's values up to this time; they have no effect if they arrive later."""
        self._erased[row_id] = hlc
        self.log = [delta for delta in self.log if delta.row_id != row_id or delta.hlc > hlc]

    def erase_client(self, name: str, hlc: int, rows: Sequence[StoredRow]) -> None:
        """Erase a client's writes up to this time; they have no effect if they arrive later.

        The gateway no longer has the values that others wrote to these columns before, so its rows are the expectation.
        """
        self._erased_clients[name] = hlc
        self.log = [delta for row in rows for delta in _deltas_that_make(row)]
        assert not any(self._is_erased(delta) for delta in self.log if delta.op != "DELETE"), name
        self.look()

    def look(self) -> None:
        """Record the rows that each client may see now."""
        for client in self.clients:
            self.ever_visible[client.name] |= self.visible_to(client.claims).keys()

    def rows(self) -> dict[str, Row]:
        """The merge of all deltas, by M1 to M3."""
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

    def visible_to(self, claims: Claims, rows: dict[str, Row] | None = None) -> dict[str, Row]:
        """The rows that a client with these claims must have at the end, optionally only among the given rows."""
        rows = self.rows() if rows is None else rows
        return {row_id: row for row_id, row in rows.items() if matches(self.rules, TABLE, row, claims)}
