"""A random history of clients with LakeSync's core and a gateway in this process, and the expected rows at the end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from lakesync.client.core import Broadcast, CoreLimits, ErrorResponse, NoResponse
from lakesync.client.core.messages import Request, Response
from lakesync.engine import Engine, EngineLimits, SyncGateway
from lakesync.feed import render
from lakesync.model.hlc import MAX_DRIFT_MS
from lakesync.model.schema import parse_schema
from lakesync.model.types import Claims, ColumnValue, PushResult, RowDelta, SyncPull, SyncPush, SyncResponse
from lakesync.rules.model import SyncRules, matches, parse_rules
from lakesync.staging.records import Checkpoint, StoredRow
from lakesync.staging.sqlite import SqliteStore
from lakesync.staging.store import Commit
from tests.property.core_client import TABLE, CoreClient, Row
from tests.property.merge_oracle import merged

START = 1_700_000_000_000
ROWS = ["r1", "r2", "r3"]
GROUPS = ["a", "b"]
PEOPLE = [("c1", "a"), ("c2", "b"), ("c3", "a")]


def _rules(*filters: dict[str, str]) -> SyncRules:
    return parse_rules({"version": 1, "buckets": [{"name": "b", "tables": [], "filters": list(filters)}]})


RULES = [
    SyncRules(1, ()),
    _rules({"column": "group", "op": "eq", "value": "jwt:group"}),
    _rules({"column": "x", "op": "eq", "value": "1"}),
]
SCHEMA = {
    "table": TABLE,
    "columns": [{"name": "group", "type": "string"}, *({"name": c, "type": "number"} for c in "xy")],
}


class Player:
    """A client, and its requests in progress."""

    def __init__(self, client: CoreClient) -> None:
        self.client = client
        self.asked: Request | None = None
        self.answers: list[Response] | None = None
        self.old: list[SyncPush] = []
        self.connection: int | None = None
        """The cursor of the last page sent on the open connection; 0 before its first pull; None: closed."""
        self.mail: list[SyncResponse] = []

    def forget(self) -> None:
        """Lose the requests in progress."""
        self.asked = self.answers = self.connection = None
        self.mail = []


class History:
    """One history with a fresh gateway; the expected rows of each client are computed from scratch."""

    def __init__(
        self, folder: Path, skews: tuple[int, ...], page: int, make: Callable[..., CoreClient] = CoreClient
    ) -> None:
        """Args: make: creates a client from its name, group and clock skew."""
        self.folder = folder
        self.now = START
        self.engine = self._open()
        limits = CoreLimits(push_deltas=2, pull_deltas=page)
        self.players = [
            Player(make(name, group, skew, limits=limits)) for (name, group), skew in zip(PEOPLE, skews, strict=True)
        ]
        self.log: dict[str, RowDelta] = {}
        self.rules = RULES[0]
        self.cuts: dict[int, list[tuple[Row, list[RowDelta]]]] = {}
        self.ever_visible: dict[str, set[str]] = {name: set() for name, _ in PEOPLE}

    @property
    def gateway(self) -> SyncGateway:
        """The gateway."""
        return self.engine.gateway("g")

    def play(self, steps: list[tuple[Any, ...]]) -> None:
        """Run every step, let every client finish, and compare."""
        for kind, *detail in steps:
            self._tick(1)
            if kind in ("server", "schema", "cut", "pass", "rules"):
                getattr(self, f"_do_{kind}")(*detail)
            else:
                getattr(self, f"_do_{kind}")(self.players[detail[0]], *detail[1:])
        self._settle()
        self._compare()

    def close(self) -> None:
        """Release the store."""
        self.engine.close()

    # Steps of a client

    def _do_edit(self, player: Player, op: str, row_id: str, values: Row) -> None:
        player.client.edit("DELETE" if op == "DELETE" else "UPDATE", row_id, values, self.now)

    def _do_start(self, player: Player) -> None:
        if player.asked is None:
            player.client.core.request_pull()
            player.asked = player.client.start()

    def _do_execute(self, player: Player) -> None:
        if player.asked is not None:
            answers = self._execute(player, player.asked)
            player.answers = answers if player.answers is None else player.answers

    def _do_answer(self, player: Player) -> None:
        if player.answers is not None:
            if not isinstance(player.asked, SyncPush):
                self._do_deliver(player)  # a connection keeps the order of pages
            answers, player.asked, player.answers = player.answers, None, None
            player.client.finish(answers)

    def _do_lose(self, player: Player) -> None:
        if player.asked is None:
            return
        if player.connection is not None:
            self._do_disconnect(player)
            return
        frames = (player.answers or [])[:-1]
        player.asked = player.answers = None
        player.client.finish([*frames, NoResponse("no answer")])

    def _do_go(self, player: Player) -> None:
        self._do_start(player)
        self._do_execute(player)
        self._do_answer(player)

    def _do_again(self, player: Player) -> None:
        """The network delivers an old push once more; the answer is lost."""
        if player.old:
            self._push(player, player.old[-1])

    def _do_restart(self, player: Player) -> None:
        player.forget()
        player.client.restart()

    def _do_busy(self, player: Player) -> None:
        """The gateway rejects a push by backpressure, and stores nothing of it."""
        if isinstance(player.asked, SyncPush) and player.answers is None:
            player.asked = None
            player.client.finish([ErrorResponse("BACKPRESSURE_ERROR", "the log is full")])

    def _do_drop(self, player: Player) -> None:
        """Drop edits that the gateway cannot have: refused ones, and those never sent or always rejected."""
        edits = [edit for edit in player.client.store.edits() if edit.status != "sent"]
        player.client.dropped += len(edits)
        player.client.core.drop({edit.number for edit in edits})

    def _do_retry(self, player: Player) -> None:
        player.client.core.retry({edit.number for edit in player.client.store.edits("refused")})

    def _do_connect(self, player: Player) -> None:
        if player.connection is None and player.asked is None:
            player.client.core.connection_opened()
            player.connection = 0

    def _do_disconnect(self, player: Player) -> None:
        if player.connection is not None:
            player.forget()
            player.client.core.connection_closed()

    def _do_broadcast(self, player: Player) -> None:
        """The gateway sends the connection's missing rows; they may arrive after the answer to a later push."""
        if player.connection:
            client = player.client
            page = self.gateway.handle_pull(SyncPull(client.name, player.connection, 2), client.claims)
            if page.deltas:
                player.connection = page.server_hlc
                player.mail.append(page)

    def _do_deliver(self, player: Player) -> None:
        mail, player.mail = player.mail, []
        player.client.finish([Broadcast(page) for page in mail])

    def _do_skew(self, player: Player, skew: int) -> None:
        player.client.skew = skew

    def _do_claims(self, player: Player, group: str) -> None:
        if player.connection is None and player.asked is None:
            player.client.claims = {**player.client.claims, "group": group}
            self._note_visible()

    def _do_forget_client(self, player: Player) -> None:
        """The gateway loses the client's cursors, as after a restore of its store."""
        self._do_disconnect(player)

        def work(commit: Commit) -> None:
            record = commit.client(player.client.name)
            if record is not None:
                commit.put_client(msgspec.structs.replace(record, epoch=record.epoch + 1, pages=()))

        self.engine.store.submit("g", work).result()

    # Steps of the operator

    def _do_rules(self, which: int) -> None:
        self.rules = RULES[which]
        self.gateway.set_rules(self.rules)
        self._note_visible()

    def _do_server(self) -> None:
        for player in self.players:
            if player.connection is not None:
                self._do_disconnect(player)
        self.engine.close()
        self.engine = self._open()

    def _do_schema(self) -> None:
        self.gateway.register_schema(parse_schema(SCHEMA))

    def _do_pass(self) -> None:
        self._tick(30_000)

    def _do_cut(self) -> None:
        def work(commit: Commit) -> tuple[int, int, int, list[StoredRow]]:
            rows = [row for row in commit.scan_rows(None, 100) if row.state.visible]
            return commit.epoch, commit.arrival, commit.config.rules_version, rows

        epoch, arrival, version, rows = self.engine.store.submit("g", work).result()
        self.cuts[arrival] = [(_decoded(row.state.values()), render.insert(row)) for row in rows]
        self.engine.store.publish_checkpoint(Checkpoint("g", epoch, arrival, version, (), self.now))

    # Requests between a client and the gateway

    def _execute(self, player: Player, asked: Request) -> list[Response]:
        if isinstance(asked, SyncPush):
            player.old.append(asked)
            return [self._push(player, asked)]
        answers = list(player.client.execute(self.gateway, asked, self._frames))
        last = answers[-1]
        if player.connection is not None and isinstance(last, SyncResponse):
            player.connection = 0 if last.has_more else last.server_hlc
        return answers

    def _push(self, player: Player, push: SyncPush) -> Response:
        (answer,) = player.client.execute(self.gateway, push)
        if isinstance(answer, PushResult):
            self.log.update({delta.delta_id: delta for delta in push.deltas})
            self._note_visible()
        return answer

    def _frames(self, arrival: int, claims: Claims) -> list[SyncResponse]:
        return [
            SyncResponse(tuple(deltas), arrival)
            for values, deltas in self.cuts[arrival]
            if matches(self.rules, TABLE, values, claims)
        ]

    # The end

    def _settle(self) -> None:
        for player in self.players:
            self._do_disconnect(player)
            self._do_lose(player)
            player.client.skew = 0
        self._tick(MAX_DRIFT_MS)
        for _ in range(100):
            before = (len(self.log), *(player.client.cursor for player in self.players))
            for player in self.players:
                self._tick(1)
                player.client.core.request_pull()
                while (asked := player.client.start()) is not None:
                    player.client.finish(self._execute(player, asked))
            if before == (len(self.log), *(player.client.cursor for player in self.players)):
                return
        raise AssertionError("the clients do not reach a stable state")

    def _compare(self) -> None:
        assert sum(day.count for day in self.engine.store.ledger("g")) == len(self.log), "a repeat has an effect"
        for player in self.players:
            client = player.client
            refused = client.store.edits()
            assert {edit.status for edit in refused} <= {"refused"}, client.name
            taken = [delta for delta in self.log.values() if delta.client_id == client.name]
            made = client.store.position().edit_count
            assert len(taken) == made - len(refused) - client.dropped, f"{client.name} lost an edit"
            leaked = client.sent_ids - client.named - self.ever_visible[client.name]
            assert not leaked, f"{client.name} was sent ids of {leaked}"
            visible = client.readable(self._visible_to(client.claims))
            edits = [edit.delta for edit in refused]
            # which it may know, or not know after a full pull
            deaths = [delta for delta in taken if delta.op == "DELETE"]
            with_edits, outlived = (
                client.readable(self._visible_to(client.claims, own)) for own in (edits, [*edits, *deaths])
            )
            rows = client.rows
            assert all(rows.get(row_id) in (row, outlived[row_id]) for row_id, row in with_edits.items()), client.name
            client.core.drop({edit.number for edit in refused})
            assert client.rows == visible, client.name
            known = client.store.known({(TABLE, row_id) for row_id in ROWS})
            assert known.keys() == {(TABLE, row_id) for row_id in visible}, "no record of a missing row is kept"

    def _visible_to(self, claims: Claims, edits: list[RowDelta] | None = None) -> dict[str, Row]:
        """The rows that a client must have, merged from every accepted delta and its edits."""
        found: dict[str, Row] = {}
        for row_id in ROWS:
            state = merged([delta for delta in self.log.values() if delta.row_id == row_id])
            row = _values(state)
            if not state["visible"] or not matches(self.rules, TABLE, row, claims):
                continue
            own = [delta for delta in edits or () if delta.row_id == row_id]
            found[row_id] = _values(merged([*_parts(row_id, state), *own]))
        return found

    def _note_visible(self) -> None:
        for player in self.players:
            self.ever_visible[player.client.name] |= self._visible_to(player.client.claims).keys()

    def _tick(self, ms: int) -> None:
        self.now += ms
        for player in getattr(self, "players", ()):
            player.client.now = self.now

    def _open(self) -> Engine:
        engine = Engine(SqliteStore(self.folder, lambda: self.now), lambda: self.now, EngineLimits(write_scope="any"))
        engine.open()
        engine.gateway("g")
        return engine


def _values(state: dict[str, Any]) -> Row:
    return {column: msgspec.json.decode(cell["value"]) for column, cell in state["cells"].items()}


def _decoded(values: dict[str, msgspec.Raw]) -> Row:
    return {column: msgspec.json.decode(value) for column, value in values.items()}


def _parts(row_id: str, state: dict[str, Any]) -> list[RowDelta]:
    """Split a merged row into deltas, one for each column."""
    return [
        RowDelta(
            "INSERT",
            TABLE,
            row_id,
            cell["clientId"],
            (ColumnValue(column, msgspec.Raw(cell["value"].encode())),),
            int(cell["hlc"]),
            f"{column} as merged",
        )
        for column, cell in state["cells"].items()
    ]
