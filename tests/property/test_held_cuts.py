"""K1: checkpoints that are published long after their cut point, and new clients that start from them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import example, given, settings

from lakesync.staging.records import Checkpoint, CutPoint, StoredRow
from lakesync.staging.sharded import ShardedStore
from tests.property.feed_history import History, play
from tests.property.feed_model import Row, StockClient
from tests.property.feed_steps import GROUPS, RULES, cycle, edit, limits, people, rules
from tests.property.test_sharded_oracle import ShardedHistory

_between = st.lists(
    st.one_of(
        edit, edit, cycle, cycle, rules, st.tuples(st.sampled_from(["flush", "erase", "crash", "idle"]), people, limits)
    ),
    max_size=5,
)


@st.composite
def _cut_late(draw: st.DrawFn) -> list[tuple[Any, ...]]:
    """Two cut points, and a new client after each checkpoint, with other steps between."""
    history: list[tuple[Any, ...]] = draw(_between)
    for kind in ["hold", "late cut", "newcomer"] * 2:
        step = (kind, draw(people), draw(limits))
        moved = [("rules begin", 0, draw(st.integers(0, len(RULES) - 1))), step, ("reindex", 0, 10)]
        history += [*draw(st.sampled_from([moved, [step], [step]])), *draw(_between)]
    return history


_OUT_OF_LINE = [
    ("edit", 0, "INSERT", "r1", {"group": "a", "x": 1}),
    ("push", 0, "whole"),
    ("rules begin", 0, 1),
    ("hold", 0, 1),
    ("reindex", 0, 10),
    ("late cut", 0, 1),
    ("newcomer", 0, 1),
]
"""A checkpoint here would have a row that is reindexed later, and then sent again to clients that started from it."""


class _HeldHistory(History):
    """A history whose checkpoints are made like the pipeline's."""

    histories = _cut_late()

    def __init__(self, folder: Path, skews: Sequence[int] = (0, 0, 0), rules: int = 0) -> None:
        super().__init__(folder, skews, rules)
        self.held: tuple[CutPoint, dict[str, Row], list[StoredRow]] | None = None
        self.first_syncs = 0

    def _do(self, kind: str, client: StockClient, *detail: Any) -> None:
        match kind:
            case "hold":
                hold = self.world.engine.store.cut_point("g")
                self.held = hold, self.world.rows(), self._scanned()
            case "late cut":
                self._publish()
            case "newcomer":
                self._come(GROUPS[detail[0] - 1])
            case _:
                super()._do(kind, client, *detail)

    def _scanned(self) -> list[StoredRow]:
        return self.world.engine.store.submit("g", lambda commit: commit.scan_rows(None, 100)).result()

    def _publish(self) -> None:
        """Publish the last cut point, if the rules of its rows are known."""
        if self.held is None:
            return
        hold, values, rows = self.held
        if hold.rules_version is None or not hold.arrival:
            return
        cut = Checkpoint("g", hold.epoch, hold.arrival, hold.rules_version, (), self.now, hold.shards)
        if self.world.engine.store.publish_checkpoint(cut):
            self._keep(hold.arrival, values, rows)

    def _keep(self, arrival: int, values: dict[str, Row], rows: list[StoredRow]) -> None:
        self.cuts[arrival] = values, rows

    def _come(self, groups: list[str]) -> None:
        """A new client starts from the newest checkpoint, or from nothing, and pulls once."""
        newcomer = StockClient(f"n{len(self.clients)}", groups, 0)
        self.clients.append(newcomer)
        self.world.ever_visible[newcomer.name] = set()
        self.world.clients = [*self.world.clients, newcomer]
        self.world.look()
        self._first_sync(newcomer, lost=False)
        self.first_syncs += newcomer.cursor > 0
        self._pull(newcomer, 2, "whole")


class _HeldShards(_HeldHistory, ShardedHistory):
    """The same over shards, whose cut points have one arrival."""

    def _scanned(self) -> list[StoredRow]:
        store = self.world.engine.store
        assert isinstance(store, ShardedStore)
        scans = [each.submit("g", lambda commit: commit.scan_rows(None, 100)) for each in store.stores.values()]
        return [row for scan in scans for row in scan.result()]

    def _keep(self, arrival: int, values: dict[str, Row], rows: list[StoredRow]) -> None:
        super()._keep(arrival, values, rows)
        self.cuts.newest = {"all": (values, rows)}  # the gateway generates a client's cursor


@pytest.mark.parametrize(("kind", "examples"), [(_HeldHistory, 20), (_HeldShards, 8)], ids=["one store", "shards"])
def test_k1_new_clients_start_from_a_checkpoint_published_late(kind: type[_HeldHistory], examples: int) -> None:
    @settings(deadline=None, max_examples=examples)
    @given(history=kind.histories, skews=st.just((0, 0, 0)), rules=st.integers(0, len(RULES) - 1))
    @example(history=_OUT_OF_LINE, skews=(0, 0, 0), rules=0)
    def every_history(history: list[tuple[Any, ...]], skews: tuple[int, ...], rules: int) -> None:
        play(history, skews, rules, kind)

    every_history()
