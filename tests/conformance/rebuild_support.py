"""A lake in memory, clients and histories, for the tests of `lakesync staging rebuild`."""

from __future__ import annotations

import uuid

from lakesync.engine import Engine, EngineLimits
from lakesync.engine.rebuild import LakePush, rebuild
from lakesync.model.errors import ResyncRequiredError
from lakesync.model.schema import parse_schema
from lakesync.model.types import RowDelta, SyncPull, SyncPush
from lakesync.rules.model import parse_rules
from lakesync.staging import open_store
from lakesync.wire.log import decode_body
from tests.conformance.book import make_delta

RULES = parse_rules(
    {
        "version": 1,
        "buckets": [{"name": "mine", "tables": [], "filters": [{"column": "team", "op": "eq", "value": "jwt:team"}]}],
    }
)
SCHEMA = parse_schema(
    {
        "table": "notes",
        "columns": [{"name": name, "type": kind} for name, kind in (("team", "string"), ("x", "number"))],
    }
)


class Lake:
    """The content of the lake, kept in memory."""

    def __init__(self) -> None:
        self.entries = {}
        self.configs = {}
        self.registered = {}

    def carry(self, engine: Engine, entries) -> None:
        """Flush: take the pushes over."""
        for entry in entries:
            push = LakePush(entry.arrival, entry.client_id, decode_body(entry.body))
            self.entries.setdefault(entry.gateway, []).append(push)
        self.configs = {gateway: engine.store.gateway_config(gateway) for gateway in self.entries}

    def gateways(self):
        return sorted(self.entries)

    def config(self, gateway):
        return self.configs.get(gateway)

    def connectors(self, gateway):
        return self.registered.get(gateway, [])

    def pushes(self, gateway):
        return iter(self.entries[gateway])


class Client:
    """A client that applies pages as a database does: an INSERT of an existing row is an error."""

    def __init__(self, name: str, team: str) -> None:
        self.claims = {"sub": name, "team": team}
        self.name = name
        self.rows: dict[str, dict[str, object]] = {}
        self.cursor = 0

    def pull(self, engine: Engine, *, ours: bool = False, limit: int = 3) -> None:
        """Pull until nothing is left."""
        more = True
        while more:
            pull = SyncPull(self.name, self.cursor, limit)
            try:
                page = engine.gateway("g").submit_pull(pull, self.claims, knows_resync=ours).result().decoded()
            except ResyncRequiredError:
                self.rows, self.cursor = {}, 0
                continue
            for delta in page.deltas:
                self._apply(delta)
            if page.deltas:
                self.cursor = page.server_hlc
            more = page.has_more

    def _apply(self, delta: RowDelta) -> None:
        values = {cell.column: cell.decoded() for cell in delta.columns}
        if delta.op == "DELETE":
            self.rows.pop(delta.row_id, None)
        elif delta.op == "INSERT":
            assert delta.row_id not in self.rows, f"INSERT of {delta.row_id}, which {self.name} has"
            self.rows[delta.row_id] = values
        elif delta.row_id in self.rows:
            self.rows[delta.row_id].update(values)

    def push(self, engine: Engine, *deltas: RowDelta):
        return engine.gateway("g").handle_push(SyncPush(self.name, deltas), self.claims)


def opened(url, clock):
    engine = Engine(open_store(url, clock), clock, EngineLimits(write_scope="any"))
    engine.open()
    return engine


def everything(engine, team):
    reader = Client(f"reader-{uuid.uuid4().hex}", team)
    reader.pull(engine, limit=100)
    return reader.rows


def entries_of(engine):
    """The log rows, as a flush reads them."""
    return engine.store.submit("g", lambda commit: commit._query(ENTRIES)).result()


ENTRIES = "SELECT arrival, client_id, body FROM log WHERE gateway = ? ORDER BY seq"


def carry(lake, engine):
    """Flush everything to the lake."""
    lake.entries["g"] = [
        LakePush(arrival, client, decode_body(body)) for arrival, client, body in entries_of(engine) if body
    ]
    lake.configs["g"] = engine.store.gateway_config("g")
    lake.registered["g"] = engine.store.connectors("g")


def rebuilt(engine, url, clock):
    """Rebuild the store from everything in it, and open the engine again."""
    lake = Lake()
    carry(lake, engine)
    engine.close()
    rebuild(url, clock, lake, replace=True)
    return opened(url, clock)


def random_history(engine, clock):
    """Rows of two teams: changed, moved and deleted."""
    a, b = Client("a", "red"), Client("b", "blue")
    hlc = clock.now_ms << 16
    a.push(engine, *(make_delta("a", hlc + n, f"r{n}", team="red", x=n) for n in range(10)))
    b.push(engine, *(make_delta("b", hlc + n, f"b{n}", team="blue", x=n) for n in range(5)))
    clock.advance(5)
    hlc = clock.now_ms << 16
    b.push(engine, make_delta("b", hlc, "r1", team="blue", x=100), make_delta("b", hlc + 1, "r2"))
    return a, b
