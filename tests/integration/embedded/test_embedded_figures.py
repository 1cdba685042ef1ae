"""An embedded gateway's figures of unflushed deltas, and the times at which it requests a flush."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakesync.flush import BufferStats, FlushSettings, TableStats, WideRowThreshold, thresholds
from lakesync.model.errors import StagingUnavailableError
from lakesync.staging.log_reader import read_log
from lakesync.testing import ManualClock
from tests.integration.embedded.embedded_support import KINDS, Author, gateway_over


def test_figures_follow_pushes_and_flushes(clock, tmp_path):
    author = Author("a", clock)
    with gateway_over(clock, KINDS["sqlite"](tmp_path)) as gateway:
        assert gateway.buffer_stats() == BufferStats(0, 0, 0)
        assert gateway.table_stats() == []
        author.push(gateway, author.delta("r1", {"x": 1}), author.delta("r1", {"x": 2}), author.delta("r2", {"x": 3}))
        author.push(gateway, author.delta("r1", {"x": "long" * 50}, table="wide"))
        stats = gateway.buffer_stats()
        assert (stats.log_size, stats.index_size, stats.byte_size) == (4, 3, gateway.stats().byte_size)
        notes, wide = gateway.table_stats()
        assert (notes.table, notes.delta_count, wide.table, wide.delta_count) == ("notes", 3, "wide", 1)
        assert notes.byte_size + wide.byte_size == stats.byte_size
        gateway.flush()
        assert gateway.table_stats() == []


def test_the_backlog_figures_survive_a_restart(clock, tmp_path):
    author, staging = Author("a", clock), f"sqlite://{tmp_path / 'staging'}"
    with gateway_over(clock, KINDS["sqlite"](tmp_path), staging=staging) as gateway:
        author.push(gateway, author.delta("r1", {"x": 1}))
        before = gateway.buffer_stats(), gateway.table_stats()
    with gateway_over(clock, KINDS["sqlite"](tmp_path), staging=staging) as gateway:
        assert (gateway.buffer_stats(), gateway.table_stats()) == before


def test_pushes_that_were_read_before_a_failure_are_counted_once(clock, tmp_path, monkeypatch):
    author, staging = Author("a", clock), f"sqlite://{tmp_path / 'staging'}"

    def interrupted(source, log_range):
        yield next(read_log(source, log_range))
        raise StagingUnavailableError("the connection was lost")

    with gateway_over(clock, KINDS["sqlite"](tmp_path), staging=staging) as gateway:
        author.push(gateway, author.delta("r1", {"x": 1}))
        author.push(gateway, author.delta("r2", {"x": 2}))
        monkeypatch.setattr(thresholds, "read_log", interrupted)
        with pytest.raises(StagingUnavailableError):
            gateway.buffer_stats()
        monkeypatch.undo()
        stats = gateway.buffer_stats()
        assert (stats.log_size, stats.byte_size) == (2, gateway.stats().byte_size)


def test_a_flush_is_due_by_age(clock):
    author = Author("a", clock)
    with gateway_over(clock, settings=FlushSettings()) as gateway:
        clock.advance(100_000)
        assert not gateway.should_flush()
        author.push(gateway, author.delta("r1", {"x": 1}))
        clock.advance(29_999)
        assert not gateway.should_flush()
        clock.advance(1)
        assert gateway.should_flush()
        clock.advance(-3_600_000)
        assert gateway.should_flush(), "the clock was set back, so the age is unknown"


def filled(gateway, author, columns, stop):
    """Push rows of some width until this number of bytes is unflushed."""
    number = 0
    while gateway.buffer_stats().byte_size < stop:
        number += 1
        author.push(gateway, author.delta(f"r{number}", {f"c{n}": n for n in range(columns)}))


@pytest.mark.parametrize(("columns", "early"), [(20, True), (2, False)])
def test_a_flush_is_due_by_bytes_and_earlier_for_wide_rows(clock, tmp_path, columns, early):
    author = Author("a", clock)
    thresholds = FlushSettings(max_buffer_bytes=4000, wide_rows=WideRowThreshold(10, 0.5))
    with gateway_over(clock, KINDS["sqlite"](tmp_path), settings=thresholds) as gateway:
        filled(gateway, author, columns, 1500)
        assert gateway.buffer_stats().byte_size < 2000
        assert not gateway.should_flush()
        filled(gateway, author, columns, 2000)
        assert gateway.buffer_stats().byte_size < 4000
        assert gateway.should_flush() is early
        filled(gateway, author, columns, 4000)
        assert gateway.should_flush()


def test_tables_above_their_budget_are_listed(clock, tmp_path):
    author, budget = Author("a", clock), FlushSettings(per_table_budget_bytes=600)
    with gateway_over(clock, KINDS["sqlite"](tmp_path), settings=budget) as gateway:
        author.push(gateway, author.delta("r", {"x": 1}, table="small"))
        assert gateway.get_tables_exceeding_budget() == []
        for number in range(10):
            author.push(gateway, author.delta(f"r{number}", {"x": number}, table="large"))
        assert gateway.get_tables_exceeding_budget() == ["large"]
        assert gateway.flusher.thresholds.reason(gateway.flusher.backlog_stats.backlog())
        gateway.flush_table("large")
        assert gateway.get_tables_exceeding_budget() == []
        assert not gateway.flusher.thresholds.reason(gateway.flusher.backlog_stats.backlog())


pushes = st.lists(
    st.lists(st.tuples(st.sampled_from(["t", "u", "v"]), st.sampled_from(["r1", "r2"]), st.integers(0, 3)), min_size=1),
    max_size=5,
)


@settings(max_examples=25, deadline=None)
@given(history=pushes, flush_after=st.integers(0, 5))
def test_figures_of_tables_add_up_to_those_of_the_gateway(tmp_path_factory, history, flush_after):
    clock = ManualClock()
    author = Author("a", clock)
    with gateway_over(clock, KINDS["sqlite"](tmp_path_factory.mktemp("sums"))) as gateway:
        waiting = []
        for number, edits in enumerate(history):
            clock.advance(1)
            some = [author.delta(row, {f"c{n}": n for n in range(width)}, table=table) for table, row, width in edits]
            waiting += author.push(gateway, *some)
            if number == flush_after:
                gateway.flush()
                waiting = []
            whole, tables = gateway.buffer_stats(), gateway.table_stats()
            assert whole == BufferStats(len(waiting), len({d.key for d in waiting}), gateway.stats().byte_size)
            assert sum(stats.byte_size for stats in tables) == whole.byte_size
            counts = {stats.table: stats.delta_count for stats in tables}
            assert counts == {table: sum(d.table == table for d in waiting) for table in counts}
            assert [stats.table for stats in tables] == sorted({d.table for d in waiting})
            assert all(isinstance(stats, TableStats) and stats.byte_size >= 0 for stats in tables)
