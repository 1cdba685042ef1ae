"""A push leaves no reference cycles: the collector's runs would delay other pushes, and they grow with the garbage."""

from __future__ import annotations

import gc

from lakesync import open_gateway
from lakesync.model.types import ColumnValue, RowDelta, SyncPush
from lakesync.staging.sqlite.journal import Undo


def test_a_committed_push_leaves_nothing_for_the_collector(tmp_path):
    """The undo steps of each group are freed with it, without the garbage collector."""
    with open_gateway("g", staging=tmp_path / "staging") as gateway:
        gc.collect()
        gc.disable()
        try:
            for number in range(1, 6):
                columns = (ColumnValue.of("title", number),)
                delta = RowDelta("INSERT", "tasks", f"row-{number}", "ada", columns, number << 16, f"{number:064x}")
                gateway.handle_push(SyncPush("ada", (delta,)))
            undo_stacks = [each for each in gc.get_objects() if isinstance(each, Undo)]
        finally:
            gc.enable()
    assert len(undo_stacks) <= 2  # of the current group, and perhaps of one that is being committed
