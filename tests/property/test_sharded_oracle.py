"""L1, L3 to L8, R1 to R6 over a gateway whose tables belong to shards: every client ends with its rows all the same."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
from hypothesis import given, settings

from lakesync.engine import Engine, EngineLimits, SyncGateway
from lakesync.engine.sharding import ShardedGateway
from lakesync.exceptions import NotFoundError
from lakesync.rules.model import SyncRules
from lakesync.staging import open_staging
from lakesync.staging.records import Cut
from lakesync.staging.sharded import ShardedStore
from lakesync.staging.shards import ShardMap
from tests.property.feed_model import StockClient
from tests.property.test_feed_oracle import FOLDER, RULES, History, histories, skews

SHARDS = ShardMap({"orders": "shard-orders", "products": "shard-products"}, "shard-default")
TABLES = {"r2": "orders", "r3": "products"}


class _PatientEngine(Engine):
    """Brings no rows in line with new rules by itself, so that a history says when."""

    def _make(self, gateway_id: str) -> SyncGateway:
        gateway = super()._make(gateway_id)
        assert isinstance(gateway, ShardedGateway)
        for part in gateway._parts.values():
            part.continue_reindex = lambda: None  # type: ignore[method-assign]
            part._reindexer.start = lambda _last=None: None  # type: ignore[method-assign]
        return gateway


class ShardedHistory(History):
    """A history in which each row's table belongs to another shard."""

    def __init__(self, folder: Path, skews: Sequence[int] = (0, 0, 0), rules: int = 0) -> None:
        super().__init__(folder, skews, rules)
        for client in self.clients:
            client.tables = TABLES

    def _open(self) -> Engine:
        store = open_staging(f"sqlite://{self.folder}", SHARDS, lambda: self.now + self.ahead)
        engine = _PatientEngine(store, lambda: self.now + 60, EngineLimits(reindex_rows=1))
        engine.open()
        engine.gateway("g")
        return engine

    def _parts(self) -> Iterable[SyncGateway]:
        gateway = self.world.gateway
        assert isinstance(gateway, ShardedGateway)
        return gateway._parts.values()

    def _set_rules(self, rules: SyncRules, *, whole: bool = True) -> None:
        self.world.gateway.set_rules(rules)
        if whole:
            self._reindex(1000)
        self.world.rules = rules
        self.world.look()

    def _reindex(self, rows: int) -> None:
        for part in self._parts():
            left, done = rows, None
            while left and not (done is not None and done.done):
                done = part._reindexer.submit(done).result()
                left -= 1

    def _flush(self) -> None:
        store = self.world.engine.store
        assert isinstance(store, ShardedStore)
        for waiting in store.backlog():
            batch = store.plan("g", waiting.shard, 10**9)
            if batch is not None:
                days = store.stores[waiting.shard].ledger("g")
                sums = sum(day.id_sum - day.flushed_id_sum for day in days) % 2**64
                store.confirm(batch.batch_id, sum(day.count - day.flushed_count for day in days), sums)
                store.trim("g", waiting.shard)

    def _cut(self) -> None:
        """A cut in each shard of what it holds now, at arrivals that have nothing to do with one another."""
        store = self.world.engine.store
        assert isinstance(store, ShardedStore)
        rows, made = self.world.rows(), 0
        for each in store.stores.values():
            epoch, arrival, rules = each.read("g", lambda v: (v.epoch, v.arrival, v.config.rules_version)).result()
            made += bool(arrival) and each.publish_cut(Cut("g", epoch, arrival, rules, (), self.now))
        if made:
            self.newest = rows if made == len(store.stores) else None

    newest: dict[str, dict[str, Any]] | None = None

    def _first_sync(self, client: StockClient, *, lost: bool) -> None:
        if client.cursor or client.outbox or self.newest is None:
            return
        client.pulled = True
        try:
            cut = self.world.gateway.submit_checkpoint(client.name, client.claims).result()
        except NotFoundError:
            return
        if not lost:
            shown = self.world.visible_to(client.claims, self.newest)
            assert not client.rows.keys() & shown.keys()
            client.rows |= {row_id: dict(row) for row_id, row in shown.items()}
            client.cursor = cut.arrival


def play(history: Sequence[tuple[Any, ...]], skews: Sequence[int] = (0, 0, 0), rules: int = 0) -> None:
    """One history against a sharded gateway of its own."""
    folder = Path(tempfile.mkdtemp(prefix="sharded-", dir=FOLDER if FOLDER.is_dir() else None))
    played = ShardedHistory(folder, skews, rules)
    try:
        played.play(history)
    finally:
        played.close()
        shutil.rmtree(folder)


@settings(deadline=None, max_examples=100)
@given(history=histories, skews=skews, rules=st.integers(0, len(RULES) - 1))
def test_every_client_of_a_sharded_gateway_ends_with_its_rows(
    history: list[tuple[Any, ...]], skews: tuple[int, ...], rules: int
) -> None:
    play(history, skews, rules)
