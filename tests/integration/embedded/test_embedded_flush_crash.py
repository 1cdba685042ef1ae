"""B1 without a pipeline: a gateway that is killed at any step of its flush writes every acknowledged delta once."""

from __future__ import annotations

import pytest

from lakesync.adapters import LocalDisk
from lakesync.flush import ObjectFlushQueue
from lakesync.testing import ManualClock
from tests.forked import run_until_killed
from tests.integration.embedded import crashing
from tests.integration.embedded.crashing import opened
from tests.integration.embedded.embedded_support import KINDS, ids, kept


def acknowledged_until_killed(folder, kind, crash_at) -> list[str]:
    """Push and flush until the process dies; return the acknowledged deltas."""
    return run_until_killed(crashing.main, folder, kind, crash_at=crash_at).split()


STEPS = ["flush.after_plan", "flush.after_write", "flush.after_publish", "flush.after_confirm", "staging.before_trim"]


@pytest.mark.parametrize("crash_at", [*STEPS, "local.before_place", "local.after_place"])
def test_a_killed_flush_is_completed_by_the_next(tmp_path, crash_at):
    check(tmp_path, "parquet", acknowledged_until_killed(tmp_path, "parquet", f"{crash_at}:3"))


@pytest.mark.parametrize("crash_at", ["flush.after_write", "flush.after_confirm"])
def test_a_killed_flush_to_a_database_is_completed_by_the_next(tmp_path, crash_at):
    check(tmp_path, "sqlite", acknowledged_until_killed(tmp_path, "sqlite", f"{crash_at}:2"))


def test_a_flush_killed_repeatedly_continues(tmp_path):
    """A later run starts with the clock and ids of the first one, so its pushes are repeats and stored once."""
    acknowledged = set()
    for crash_at in STEPS:
        acknowledged |= set(acknowledged_until_killed(tmp_path, "json", f"{crash_at}:3"))
    check(tmp_path, "json", acknowledged)


def check(folder, kind, acknowledged) -> None:
    """Check that each acknowledged delta is at the destination once, and that a job has each of its rows."""
    with opened(folder, kind, ManualClock(1_800_000_000_000)) as gateway:
        gateway.flush()
        assert gateway.buffer_stats().log_size == 0
        staged = sum(day.count for day in gateway.flusher._store.ledger("shop"))
    adapter = KINDS[kind](folder)
    found = ids(kept(adapter))
    assert set(acknowledged) <= set(found)
    assert set(found.values()) == {1}
    assert len(found) == staged
    queued = ObjectFlushQueue(LocalDisk(folder / "objects")).pending("shop", 1000)
    assert {row for job in queued for row in job.flushed.row_ids} == {stored.delta.row_id for stored in kept(adapter)}
    adapter.close()
