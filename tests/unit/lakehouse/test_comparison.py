"""The comparison of a destination while a run writes to it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from lakehouse.backends.comparison import DigestTask
from lakehouse.backends.destinations import Follower
from lakesync.adapters import SqliteAdapter
from lakesync.adapters.arrow_access import copy_page
from lakesync.adapters.backend_config import RoutedBackend, SingleBackend, WriteTarget, open_backend
from lakesync.adapters.deltas import DeltaQuery
from lakesync.adapters.transfer.follower import DeltaSelection, follow_history
from lakesync.model.errors import ConfigurationError
from lakesync.model.schema import parse_schema
from tests.conformance.book import make_delta
from tests.conformance.history_batches import history, pushes

PUSHES = pushes(12)


class Busy(Follower, frozen=True):
    """A destination that gets a push at each read of its digests, while pushes are left."""

    left: Iterator[int] = iter(())

    def open(self):
        adapter: Any = super().open()
        digests = adapter.digests

        def moving(scope):
            found = digests(scope)
            for end in self.left:
                list(follow_history(adapter, self.name, self.selection, history(PUSHES[:end])))
                break
            return found

        adapter.digests = moving
        return adapter


@pytest.mark.parametrize(("moves", "is_consistent"), [(0, True), (4, True), (12, False)])
def test_figures_of_a_destination_that_changed_during_the_comparison_are_discarded(tmp_path, moves, is_consistent):
    leaf = WriteTarget("copy", f"sqlite://{tmp_path / 'copy.db'}")
    follower = Busy("destinations/shop/copy", leaf, DeltaSelection(), left=iter(range(1, moves + 1)))
    (found,) = DigestTask(follower).run()
    assert found.is_consistent == is_consistent
    if is_consistent:
        assert sum(digest.deltas for digest in found.digests) == found.progress.deltas == 3 * moves


class Moving(Follower, frozen=True):
    """A destination whose deltas move to its cold tier, page by page, at each count of its own deltas."""

    pages: Iterator[int] = iter(())

    def open(self):
        adapter: Any = super().open()
        digests = adapter.digests

        def moving(scope):
            found = digests(scope)
            for _ in self.pages:
                with closing(open_backend(self.target.cold[0])) as cold:
                    deltas = adapter.query_arrow(DeltaQuery(limit=3)).deltas
                    copy_page(cold, "tier", deltas)
                    adapter.delete_deltas(deltas)
                break
            return found

        adapter.digests = moving
        return adapter


@pytest.mark.parametrize(("pages", "is_consistent"), [(0, True), (1, True), (12, False)])
def test_deltas_that_move_to_a_cold_tier_during_the_comparison_are_counted_once(tmp_path, pages, is_consistent):
    cold = SingleBackend("cold", f"sqlite://{tmp_path / 'cold.db'}")
    leaf = WriteTarget("copy", f"sqlite://{tmp_path / 'copy.db'}", cold=(cold,))
    follower = Moving("destinations/shop/copy", leaf, DeltaSelection())
    with closing(follower.open()) as adapter:
        list(follow_history(adapter, follower.name, follower.selection, history(PUSHES)))
    moving = Moving(follower.name, leaf, DeltaSelection(), pages=iter(range(pages)))
    (found,) = DigestTask(moving).run()
    assert found.is_consistent == is_consistent
    if is_consistent:
        assert sum(digest.deltas for digest in found.digests) == 3 * len(PUSHES)


def test_a_cold_tier_without_digests_is_reported_by_its_name(tmp_path):
    routed = RoutedBackend({}, SingleBackend("archive", f"sqlite://{tmp_path / 'cold.db'}"))
    leaf = WriteTarget("copy", f"sqlite://{tmp_path / 'copy.db'}", cold=(routed,))
    with pytest.raises(ConfigurationError, match="the adapter 'archive' "):
        list(DigestTask(Follower("destinations/shop/copy", leaf, DeltaSelection())).run())


def test_dead_letters_of_other_destinations_at_the_same_adapter_are_not_counted(tmp_path):
    orders, notes = (
        parse_schema({"table": table, "columns": [{"name": "n", "type": "number"}]}) for table in ("orders", "notes")
    )
    of_others = [make_delta("c", number, f"r{number}", "notes", n="one") for number in range(1, 1_002)]
    wrong = make_delta("c", 1, "r", "orders", n="one")
    made = [("g", 256, [*of_others, wrong]), ("other", 512, [wrong])]
    selection = DeltaSelection(tables=("orders",), gateways=("g",))
    with closing(SqliteAdapter(tmp_path / "copy.db")) as adapter:
        list(follow_history(adapter, "leaf", DeltaSelection(), history(made), [orders, notes]))
        assert Follower("destinations/shop/copy", WriteTarget("copy", ""), selection).dead_letters(adapter) == {"g": 1}
        everything_but = DeltaSelection(without=("orders",), gateways=("g", "other"))
        assert {each.table for each in adapter.dead_letters(2_000, everything_but)} == {"notes"}
