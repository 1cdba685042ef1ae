"""Histories over shards, each on a separate disk that may be full at any write.

A push that one shard rejects may be stored in part, and rules may be active in part, until they are sent again.
"""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st

from lakesync.model.delta import dedup_key
from lakesync.model.errors import StagingUnavailableError
from lakesync.rules.model import SyncRules
from lakesync.staging.sharded import ShardedStore
from lakesync.staging.store import StagingStore
from tests.property.feed_model import StockClient
from tests.property.feed_steps import people, troubled
from tests.property.test_full_disk import ROOM, FullDiskHistory, room
from tests.property.test_sharded_oracle import ShardedHistory

SHARDS = (".", "shard-orders", "shard-products")
FILES = [f"{shard}/{name}" for shard in SHARDS for name in ("log.db-wal", "state.db-wal")]


class FullShardsHistory(FullDiskHistory, ShardedHistory):
    """A history that checks the stored part of rejected requests in each shard."""

    histories = troubled(
        st.one_of(*[st.tuples(st.just("full"), people, st.sampled_from(FILES), st.sampled_from(ROOM))] * 2, room)
    )
    owed: SyncRules | None = None
    """Rules that some shards lack; they are set again when there is space."""

    def _make_room(self) -> None:
        super()._make_room()
        if self.owed is not None:
            self._set_rules(self.owed)

    def _set_rules(self, rules: SyncRules, *, whole: bool = True) -> None:
        self.owed = rules
        before = self.world.rules
        try:
            super()._set_rules(rules, whole=whole)
        except StagingUnavailableError:
            self.world.rules = rules
            self.world.look()  # the new rules may already apply to some shards
            self.world.rules = before
            raise
        self.owed = None

    def _do(self, kind: str, client: StockClient, *detail: Any) -> None:
        was_full = self.full
        super()._do(kind, client, *detail)
        if was_full:
            self._find_out()

    def _do_core(self, kind: str, place: int, *detail: Any) -> None:
        super()._do_core(kind, place, *detail)
        if self.full:
            self._find_out()

    def _find_out(self) -> None:
        """Find the stored part of a rejected request, and the erased values."""
        store = self.world.engine.store
        assert isinstance(store, ShardedStore)
        sent = [delta for client in self.clients for push in client.pushed for delta in push.deltas]
        for delta in (*sent, *self.core.outbox):
            place = (delta.hlc, dedup_key(delta.delta_id))
            if any(place in _known(each, delta.client_id) for each in store.stores.values()):
                self.world.pushed((delta,))
        for erasure in store.erasures("g"):
            assert erasure.row_id is not None
            self.world.erase(erasure.row_id, erasure.hlc)


def _known(store: StagingStore, client_id: str) -> set[tuple[int, bytes]]:
    """The ids of a client that a shard knows; unlike a commit, a read needs no space."""
    try:
        return store.submit("g", lambda commit: commit.known_ids(client_id, 0, 1 << 62)).result()
    except StagingUnavailableError:
        return set()
