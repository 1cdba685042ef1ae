"""A random history of the feed with a fresh gateway, compared with a model that is recomputed from scratch."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from hypothesis.strategies import SearchStrategy

from lakesync.client.core import NoResponse
from lakesync.engine import Engine, SyncGateway
from lakesync.engine.checks import EngineLimits
from lakesync.engine.pushing import PushRequest
from lakesync.feed import render
from lakesync.model.errors import NotFoundError
from lakesync.model.types import Claims, PushResult, SyncPush, SyncResponse
from lakesync.rules.model import SyncRules
from lakesync.staging.records import Checkpoint, StoredRow
from lakesync.staging.sharded import ShardedStore
from lakesync.staging.sqlite import SqliteStore
from lakesync.staging.store import StagingStore
from tests.conformance.power_cut import copy_at_once
from tests.property.core_client import CoreClient
from tests.property.feed_model import TABLE, StockClient, World
from tests.property.feed_steps import GROUPS, ROWS, RULES, histories

START = 1_700_000_000_000
PEOPLE = ["c1", "c2", "c3"]
FOLDER = Path("/dev") / "shm"
"""The folder for stores, in memory if the system has such a folder."""


class PatientEngine(Engine):
    """Reindexes no rows by itself, so that a history decides when."""

    def _create_gateway(self, gateway_id: str) -> SyncGateway:
        gateway = super()._create_gateway(gateway_id)
        gateway.continue_reindex = lambda: None  # type: ignore[method-assign]
        gateway._reindexer.start = lambda _last=None: None  # type: ignore[method-assign]
        return gateway


class History:
    """One history with a fresh gateway, compared with the model at the end."""

    stock: type[StockClient] = StockClient
    """The class of the clients."""
    histories: SearchStrategy[list[tuple[Any, ...]]] = histories
    """The strategy for random histories."""
    limits = EngineLimits(reindex_rows=1, write_scope="any")

    def __init__(self, folder: Path, skews: Sequence[int] = (0, 0, 0), rules: int = 0) -> None:
        self.folder = folder
        self.now = START
        self.ahead = 0
        """Milliseconds by which the gateway's clock is ahead."""
        self.clients = [self.stock(*each) for each in zip(PEOPLE, [["a"], ["b"], ["a"]], skews, strict=True)]
        self.core = CoreClient("c4", "a", 0)
        self.core.claims = {"sub": "c4", "group": ["a"], "level": "1"}
        self.world = World(self._open(), [*self.clients, self.core])
        self.cuts: dict[int, tuple[dict[str, dict[str, Any]], list[StoredRow]]] = {}
        """The rows of the model and of the gateway at a checkpoint."""
        if rules:
            self._set_rules(RULES[rules])

    def play(self, steps: Sequence[tuple[Any, ...]]) -> None:
        """Run every step, then let every client push and pull until nothing is left."""
        for kind, place, *detail in steps:
            self.now += 1
            if kind.startswith("core"):
                self._do_core(kind, place, *detail)
            else:
                self._do(kind, self.clients[place], *detail)
        self._rest()

    def _rest(self) -> None:
        """Let every client push and pull until nothing is left, and check their rows."""
        for client in self.clients:
            if not client.pulled:
                self._pull(client, 10, "whole")
            self._push(client, "whole")
        self._finish_core()
        self._reindex(1000)
        self._finish_core()
        assert self.core.rows == self.world.visible_to(self.core.claims), "c4"
        self._check_leaks(self.core)
        for client in self.clients:
            client.disconnect()
            client.catch_up(self.world.gateway, 2)
            self._check_rows(client)
            self._check_leaks(client)

    def _check_rows(self, client: StockClient) -> None:
        assert client.rows == self.world.visible_to(client.claims), client.name

    def _check_leaks(self, client: StockClient | CoreClient) -> None:
        leaked = client.sent_ids - client.named - self.world.ever_visible[client.name]
        assert not leaked, f"{client.name} was sent ids of {leaked}"

    def close(self) -> None:
        """Release the store."""
        self.world.engine.close()

    def _open(self) -> Engine:
        return self._opened(PatientEngine(self._store(), lambda: self.now + 60, self.limits))

    @staticmethod
    def _opened(engine: Engine) -> Engine:
        try:
            engine.open()
            engine.gateway("g")
        except BaseException:
            engine.close()
            raise
        return engine

    def _store(self) -> StagingStore:
        return SqliteStore(self.folder, lambda: self.now + self.ahead)

    def _reindex(self, rows: int) -> None:
        """Reindex this number of rows."""
        done = None
        while rows and not (done is not None and done.done):
            done = self.world.gateway._reindexer.submit(done).result()
            rows -= 1

    def _set_rules(self, rules: SyncRules, *, whole: bool = True) -> None:
        store = self.world.engine.store
        store.submit("g", lambda commit: commit.put_rules(rules)).result()
        if whole:
            self._reindex(1000)
        self.world.rules = rules
        self.world.look()

    def _push(self, client: StockClient, way: str) -> None:
        if way != "request lost" and client.pulled:
            self.world.pushed(client.push(self.world.gateway, answered=way == "whole"))

    def _pull(self, client: StockClient, limit: int, way: str) -> None:
        if way != "request lost":
            page = client.ask(self.world.gateway, limit)
            if way == "whole":
                client.take(page)

    def _do(self, kind: str, client: StockClient, *detail: Any) -> None:
        world = self.world
        match kind:
            case "edit":
                op, row_id, values = detail
                client.edit(op, row_id, values, self.now)
            case "cycle":
                limit, pulled, pushed = detail
                self._pull(client, limit, pulled)
                self._push(client, pushed)
            case "pull":
                self._pull(client, *detail)
            case "push":
                self._push(client, *detail)
            case "connect":
                page = client.ask(world.gateway, *detail)
                if client.take(page):
                    client.connect(page)
                else:
                    client.disconnect()  # as if a broadcast could not be applied
            case "broadcast":
                client.broadcast(world.gateway, *detail)
            case "deliver":
                client.deliver()
            case "push connected" | "push cut":
                world.pushed(client.push_connected(world.gateway, answered=kind == "push connected"))
            case "disconnect":
                client.disconnect()
            case "reload" | "wipe":
                client.reload(wiped=kind == "wipe")
            case "old pull":
                for request in client.asked[-detail[0] :][:1]:
                    world.gateway.submit_pull(request, client.claims).result().decoded()
            case "old push":
                for push in client.pushed[-detail[0] :][:1]:
                    world.gateway.submit_push(partial(PushRequest, push, client.claims)).result()
                    world.pushed(push.deltas)
            case "claims":
                client.disconnect()
                client.claims = {**client.claims, "group": GROUPS[detail[0]]}
                world.look()
            case "rules" | "rules begin":
                self._set_rules(RULES[detail[0]], whole=kind == "rules")
            case "reindex":
                self._reindex(detail[0])
            case "clock":
                self.ahead += detail[0]
            case "restart":
                self.close()
                world.engine = self._open()
            case "crash":
                self._crash()
            case "idle":
                self._write_behind(self.world.engine.store)
            case "flush":
                self._flush()
            case "cut":
                self._cut()
            case "checkpoint":
                self._first_sync(client, lost=detail[0] == 1)
            case "erase":
                self._erase(ROWS[detail[0] - 1])
            case "erase client":
                self._erase_client(client.name)

    def _write_behind(self, store: StagingStore) -> None:
        """Write everything to the file, like an idle store, so that rows are read from there."""
        for each in _files(store):
            each._read(each._open.behind.write)

    def _crash(self) -> None:
        """Kill the process, so that unwritten data is lost."""
        left = self.folder.with_name(f"{self.folder.name}-")
        for each in _files(self.world.engine.store):
            copy_at_once(each, left / each.folder.relative_to(self.folder))
        self.close()
        shutil.rmtree(self.folder)
        self.folder = left
        self.world.engine = self._open()

    def _flush(self) -> None:
        store = self.world.engine.store
        for day in store.ledger("g"):  # a batch has deltas of one day
            if day.count > day.flushed_count:
                batch = store.plan("g", "main", 10**9)
                assert batch is not None
                store.confirm(batch.batch_id, day.count - day.flushed_count, (day.id_sum - day.flushed_id_sum) % 2**64)
        store.trim("g", "main")

    def _cut(self) -> None:
        """Publish a checkpoint of the gateway's present rows."""
        gateway, store = self.world.gateway, self.world.engine.store
        epoch, arrival = store.read("g", lambda view: (view.epoch, view.arrival)).result()
        if arrival and store.publish_checkpoint(
            Checkpoint("g", epoch, arrival, gateway.config().rules_version, (), self.now)
        ):
            rows = store.submit("g", lambda commit: commit.scan_rows(None, 100)).result()
            self.cuts[arrival] = self.world.rows(), rows

    def _erase(self, row_id: str) -> None:
        table = self.clients[0].tables.get(row_id, TABLE)
        try:
            erasure = self.world.engine.store.erase_row("g", table, row_id)
        except NotFoundError:
            return
        self.world.erase(row_id, erasure.hlc)

    def _erase_client(self, name: str) -> None:
        try:
            erasure = self.world.engine.store.erase_client("g", name)
        except NotFoundError:
            return
        rows = [
            row
            for each in _files(self.world.engine.store)
            for row in each.submit("g", lambda commit: commit.scan_rows(None, 100)).result()
        ]
        self.world.erase_client(name, erasure.hlc, rows)

    def _first_sync(self, client: StockClient, *, lost: bool) -> None:
        """Apply a checkpoint, if the client would request one and it exists."""
        if client.cursor or client.outbox:
            return
        client.pulled = True
        try:
            cut = self.world.gateway.submit_checkpoint(client.name, client.claims).result()
        except NotFoundError:
            return
        if not lost:
            shown = self.world.visible_to(client.claims, self.cuts[cut.arrival][0])
            assert not client.rows.keys() & shown.keys()
            client.rows |= {row_id: dict(row) for row_id, row in shown.items()}
            client.cursor = cut.arrival

    # -- the client with LakeSync's core -------------------------------------------------------------------------

    def _do_core(self, kind: str, place: int, *detail: Any) -> None:
        match kind:
            case "core edit":
                op, row_id, values = detail
                self.core.edit(op, row_id, values, self.now)
            case "core":
                self.core.core.request_pull()
                for _ in range(place):
                    self._ask_as_core(*detail)
            case "core claims":
                self.core.claims = {**self.core.claims, "group": GROUPS[detail[0]]}
                self.world.look()
            case "core restart":
                self.core.restart()

    def _ask_as_core(self, way: str) -> bool:
        """The core's next request; return whether there was one."""
        asked = self.core.start()
        if asked is None:
            return False
        answers: list[Any] = []
        if way != "request lost":
            answers = list(self.core.execute(self.world.gateway, asked, self._frames))
            if isinstance(asked, SyncPush) and isinstance(answers[0], PushResult):
                self.world.pushed(asked.deltas)
        self.core.finish(answers if way == "whole" else [NoResponse(way)])
        return True

    def _finish_core(self) -> None:
        for _ in range(4):
            self.core.core.request_pull()
            for _ in range(1000):
                if not self._ask_as_core("whole"):
                    break
            else:
                raise AssertionError("the core does not reach a stable state")
        assert not self.core.outbox

    def _frames(self, arrival: int, claims: Claims) -> list[SyncResponse]:
        shown = self.world.visible_to(claims, self.cuts[arrival][0])
        rows = [row for row in self.cuts[arrival][1] if row.row_id in shown]
        return [SyncResponse(tuple(render.insert(row)), arrival) for row in rows]


def _files(store: StagingStore) -> list[SqliteStore]:
    """The store's files, or those of its shards."""
    stores = list(store.stores.values()) if isinstance(store, ShardedStore) else [store]
    return [each for each in stores if isinstance(each, SqliteStore)]


def play(
    history: Sequence[tuple[Any, ...]], skews: Sequence[int] = (0, 0, 0), rules: int = 0, kind: type[History] = History
) -> None:
    """Play one history with a separate gateway."""
    folder = Path(tempfile.mkdtemp(prefix="feed-", dir=FOLDER if FOLDER.is_dir() else None))
    played = kind(folder, skews, rules)
    try:
        played.play(history)
    finally:
        played.close()
        shutil.rmtree(played.folder)
