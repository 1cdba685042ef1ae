"""L1, L3 to L8, R1 to R6 over a gateway whose tables belong to shards: every client ends with its rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
from hypothesis import example, given, settings

from lakesync.engine import Engine, EngineLimits, SyncGateway
from lakesync.engine.sharding.gateway import ShardedGateway
from lakesync.rules.model import SyncRules
from lakesync.staging import open_staging
from lakesync.staging.records import Checkpoint, StoredRow
from lakesync.staging.sharded import ShardedStore
from lakesync.staging.shards import ShardMap
from tests.property import test_feed_oracle
from tests.property.feed_history import History, play
from tests.property.feed_steps import RULES, histories, late_skews, skews, with_erased_clients

SHARDS = ShardMap({"orders": "shard-orders", "products": "shard-products"}, "shard-default")
TABLES = {"r2": "orders", "r3": "products"}


class _PatientEngine(Engine):
    """Reindexes no rows by itself, so that a history decides when."""

    def _create_gateway(self, gateway_id: str) -> SyncGateway:
        gateway = super()._create_gateway(gateway_id)
        assert isinstance(gateway, ShardedGateway)
        for part in gateway._shards.values():
            part.continue_reindex = lambda: None  # type: ignore[method-assign]
            part._reindexer.start = lambda _last=None: None  # type: ignore[method-assign]
        return gateway


class NewestCuts(dict[int, tuple[dict[str, dict[str, Any]], list[StoredRow]]]):
    """The rows of a checkpoint's frames: of each shard's newest one, whatever the common cursor is."""

    def __init__(self) -> None:
        super().__init__()
        self.newest: dict[str, tuple[dict[str, dict[str, Any]], list[StoredRow]]] = {}

    def __missing__(self, cursor: int) -> tuple[dict[str, dict[str, Any]], list[StoredRow]]:
        parts = self.newest.values()
        values = {row_id: row for own, _ in parts for row_id, row in own.items()}
        return values, [row for _, rows in parts for row in rows]


class ShardedHistory(History):
    """A history in which each row's table belongs to another shard."""

    def __init__(self, folder: Path, skews: Sequence[int] = (0, 0, 0), rules: int = 0) -> None:
        super().__init__(folder, skews, rules)
        self.cuts: NewestCuts = NewestCuts()
        clients: tuple[Any, ...] = (*self.clients, self.core)
        for client in clients:
            client.tables = TABLES

    def _open(self) -> Engine:
        store = open_staging(f"sqlite://{self.folder}", SHARDS, lambda: self.now + self.ahead)
        engine = _PatientEngine(store, lambda: self.now + 60, EngineLimits(reindex_rows=1, write_scope="any"))
        engine.open()
        engine.gateway("g")
        return engine

    def _parts(self) -> Iterable[SyncGateway]:
        gateway = self.world.gateway
        assert isinstance(gateway, ShardedGateway)
        return gateway._shards.values()

    def _set_rules(self, rules: SyncRules, *, whole: bool = True) -> None:
        self.world.gateway.set_rules(rules)
        if whole:
            self._reindex(1000)
        self.world.rules = rules
        self.world.look()

    def _reindex(self, rows: int) -> None:
        """Reindex this number of rows, shard by shard, so that some shards are done before others."""
        for part in self._parts():
            done = None
            while rows and not (done is not None and done.done):
                done = part._reindexer.submit(done).result()
                rows -= 1

    def _flush(self) -> None:
        store = self.world.engine.store
        assert isinstance(store, ShardedStore)
        for waiting in store.backlog():
            for day in store.stores[waiting.shard].ledger("g"):  # a batch has deltas of one day
                if day.count > day.flushed_count:
                    batch = store.plan("g", waiting.shard, 10**9)
                    assert batch is not None
                    sums = (day.id_sum - day.flushed_id_sum) % 2**64
                    store.confirm(batch.batch_id, day.count - day.flushed_count, sums)
            store.trim("g", waiting.shard)

    def _cut(self) -> None:
        """Publish a checkpoint in each shard of its present rows, at unrelated arrivals."""
        store = self.world.engine.store
        assert isinstance(store, ShardedStore)
        for name, each in store.stores.items():
            epoch, arrival, rules = each.read("g", lambda v: (v.epoch, v.arrival, v.config.rules_version)).result()
            if arrival and each.publish_checkpoint(Checkpoint("g", epoch, arrival, rules, (), self.now)):
                rows = each.submit("g", lambda commit: commit.scan_rows(None, 100)).result()
                values = self.world.rows()
                own = {row.row_id: values[row.row_id] for row in rows if row.row_id in values}
                self.cuts.newest[name] = own, rows


@settings(deadline=None, max_examples=100)
@given(history=histories, skews=skews, rules=st.integers(0, len(RULES) - 1))
def test_every_client_of_a_sharded_gateway_ends_with_its_rows(
    history: list[tuple[Any, ...]], skews: tuple[int, ...], rules: int
) -> None:
    play(history, skews, rules, ShardedHistory)


@settings(deadline=None, max_examples=50)
@given(history=with_erased_clients(), skews=late_skews, rules=st.integers(0, len(RULES) - 1))
@example(  # a shard never saw the client, whose earlier edit of a row there is pushed after the erasure
    history=[
        ("edit", 1, "UPDATE", "r3", {"group": "b"}),
        ("reindex", 2, 1),  # so that the shard of the pull's record is not empty
        ("pull", 1, 2, "answer lost"),
        ("erase client", 1, 0),
    ],
    skews=(0, 0, 0),
    rules=0,
)
def test_nothing_of_an_erased_client_returns_in_any_shard(
    history: list[tuple[Any, ...]], skews: tuple[int, ...], rules: int
) -> None:
    play(history, skews, rules, ShardedHistory)


def test_former_failures_of_the_feed_end_with_the_right_rows_over_shards() -> None:
    """The failures that the search over one store found."""
    oracle: Any = test_feed_oracle.test_every_client_ends_with_its_rows
    examples = oracle.hypothesis_explicit_examples
    assert examples
    for each in examples:
        play(**each.kwargs, kind=ShardedHistory)
