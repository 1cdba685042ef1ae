"""Decides when to flush a gateway: the settings of its thresholds, statistics of its backlog, and their comparison.

A flush copies deltas from staging's log to the lake or to an adapter. The backlog is what was not flushed yet. The
settings come from `[flush]`, or from a program that embeds a gateway. The statistics by table need the pushes
themselves; each push is read once, on demand. `Flusher`, the pipeline's check whether a flush is due, and `/metrics`
call this module.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from lakesync.adapters.object_store.delta_files import FlushFormat
from lakesync.model.errors import ConfigurationError
from lakesync.model.types import RowDelta, RowKey
from lakesync.staging.log_reader import LoggedPush, LogRange, read_log
from lakesync.staging.records import Backlog
from lakesync.staging.store.pipeline import FlushStore


class AdaptiveBuffer(msgspec.Struct, frozen=True):
    """Flushes earlier while rows are wide, because wide rows cost more to write and to read back."""

    wide_column_threshold: int
    """Average columns per delta above which the byte threshold is reduced."""
    reduction_factor: float
    """Share by which the byte threshold is reduced, between 0 and 1."""

    def __post_init__(self) -> None:
        """Validate the values.

        Raises:
            ConfigurationError: a value is out of range.
        """
        if self.wide_column_threshold < 1:
            raise ConfigurationError(f"wide_column_threshold is {self.wide_column_threshold}: give 1 or more")
        if not 0 <= self.reduction_factor < 1:
            raise ConfigurationError(f"reduction_factor is {self.reduction_factor}: give 0 or more, and less than 1")


def adaptive_buffer(wide_columns: int | None, reduction: float) -> AdaptiveBuffer | None:
    """Return the adaptive buffer of `[flush]`; None if it is not configured.

    Args:
        wide_columns: average columns per delta above which to flush earlier; None to disable.
        reduction: share by which the byte threshold is reduced then, between 0 and 1.
    """
    return AdaptiveBuffer(wide_columns, reduction) if wide_columns is not None else None


class FlushSettings(msgspec.Struct, frozen=True):
    """Flush thresholds of one gateway. Bytes are stored bytes in staging, as counted for backpressure."""

    max_buffer_bytes: int = 1 << 20
    """Unflushed bytes of a gateway that make a flush due."""
    max_buffer_age_ms: int = 30_000
    """Age of the oldest unflushed delta that makes a flush due."""
    per_table_budget_bytes: int | None = None
    """Unflushed bytes of one table that make a flush due; None for no limit per table."""
    adaptive: AdaptiveBuffer | None = None
    """Reduces `max_buffer_bytes` while rows are wide; None to disable."""
    flush_format: FlushFormat = "parquet"
    """Format of new objects in an object store; databases ignore it."""
    batch_deltas: int = 50_000
    """Maximum deltas per batch, which is kept in memory; a larger push is one batch."""

    def __post_init__(self) -> None:
        """Validate the values.

        Raises:
            ConfigurationError: a value is out of range.
        """
        for name in ("max_buffer_bytes", "max_buffer_age_ms", "batch_deltas"):
            if getattr(self, name) < 1:
                raise ConfigurationError(f"{name} is {getattr(self, name)}: give 1 or more")
        if self.per_table_budget_bytes is not None and self.per_table_budget_bytes < 1:
            raise ConfigurationError(
                f"per_table_budget_bytes is {self.per_table_budget_bytes}: give 1 or more, or None"
            )
        if self.flush_format not in ("parquet", "json"):
            raise ConfigurationError(f"flush_format is {self.flush_format!r}: choose parquet or json")


class BufferStats(msgspec.Struct, frozen=True, rename="camel"):
    """Size of a gateway's backlog."""

    log_size: int
    """Number of deltas."""
    index_size: int
    """Number of distinct rows."""
    byte_size: int
    """Bytes in staging's log."""


class TableStats(msgspec.Struct, frozen=True, rename="camel"):
    """Size of one table's backlog."""

    table: str
    byte_size: int
    """Its share of the bytes in staging's log, by the estimated length of its deltas."""
    delta_count: int
    """Number of deltas."""


class _Push(NamedTuple):
    """Summary of an unflushed push."""

    seq: int
    """Sequence number in the log."""
    deltas: int
    """Number of deltas."""
    bytes: int
    """Stored bytes in the log."""
    columns: int
    """Number of columns of all deltas together."""
    tables: dict[str, TableStats]
    rows: Counter[RowKey]
    """Row → number of its deltas."""


class _Shard:
    """The unflushed pushes of one shard (a staging store for some tables), oldest first, as far as they were read."""

    def __init__(self, epoch: int, last_read: int) -> None:
        self.epoch = epoch
        """Epoch of the log, which changes if the staging store is rebuilt: then everything is read again."""
        self.last_read = last_read
        """Sequence number of the last push that was read."""
        self.pushes: deque[_Push] = deque()


class BacklogStats:
    """The backlog of one gateway in detail. Safe to use from several threads."""

    def __init__(self, gateway: str, store: FlushStore) -> None:
        """Create the statistics of a gateway.

        Args:
            gateway: the gateway id.
            store: the staging store.
        """
        self._gateway = gateway
        self.store = store
        """The staging store; can be replaced by another connection to the same store."""
        self._shards: dict[str, _Shard] = {}
        self._lock = threading.Lock()

    def backlog(self) -> list[Backlog]:
        """Return the backlog by shard, as the store reports it."""
        return [shard for shard in self.store.backlog() if shard.gateway == self._gateway]

    def buffer_stats(self) -> BufferStats:
        """Return the sizes over all tables."""
        pushes = self._refreshed()
        rows = {key for push in pushes for key in push.rows}
        return BufferStats(sum(push.deltas for push in pushes), len(rows), sum(push.bytes for push in pushes))

    def table_stats(self) -> list[TableStats]:
        """Return the sizes by table, ordered by name. Their bytes add up to those of `buffer_stats`."""
        totals: dict[str, TableStats] = {}
        for push in self._refreshed():
            for table, stats in push.tables.items():
                total = totals.get(table, TableStats(table, 0, 0))
                totals[table] = TableStats(
                    table, total.byte_size + stats.byte_size, total.delta_count + stats.delta_count
                )
        return [totals[table] for table in sorted(totals)]

    def columns_per_delta(self) -> float:
        """Return the average number of columns per delta; 0 without backlog."""
        pushes = self._refreshed()
        deltas = sum(push.deltas for push in pushes)
        return sum(push.columns for push in pushes) / deltas if deltas else 0.0

    def deltas_up_to(self, table: str) -> dict[str, int]:
        """Return shard → number of unflushed deltas up to the last push that contains a table, to flush that table."""
        with self._lock:
            self._refresh()
            found = {}
            for name, shard in self._shards.items():
                last = max((push.seq for push in shard.pushes if table in push.tables), default=0)
                if last:
                    found[name] = sum(push.deltas for push in shard.pushes if push.seq <= last)
            return found

    def _refreshed(self) -> list[_Push]:
        """Return the unflushed pushes of all shards."""
        with self._lock:
            self._refresh()
            return [push for shard in self._shards.values() for push in shard.pushes]

    def _refresh(self) -> None:
        """Drop pushes that were flushed, and read new ones."""
        for backlog in self.backlog():
            shard = self._shards.get(backlog.shard)
            if shard is None or shard.epoch != backlog.epoch:
                shard = self._shards[backlog.shard] = _Shard(backlog.epoch, backlog.flushed_seq)
            while shard.pushes and shard.pushes[0].seq <= backlog.flushed_seq:
                shard.pushes.popleft()
            first = max(shard.last_read, backlog.flushed_seq) + 1
            if first <= backlog.last_seq:
                log_range = LogRange(self._gateway, backlog.shard, backlog.epoch, first, backlog.last_seq)
                source = self.store.log_source(backlog.shard)
                shard.pushes.extend(_summary(push) for push in read_log(source, log_range))
            shard.last_read = max(shard.last_read, backlog.last_seq)


def _summary(push: LoggedPush) -> _Push:
    """Summarise a push. Its stored bytes are divided among its tables by the estimated length of their deltas."""
    sizes: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for delta in push.deltas:
        sizes[delta.table] += _size(delta)
        counts[delta.table] += 1
    shares = _shares(push.bytes, sizes)
    return _Push(
        push.seq,
        len(push.deltas),
        push.bytes,
        sum(len(delta.columns) for delta in push.deltas),
        {table: TableStats(table, shares[table], counts[table]) for table in counts},
        Counter(delta.key for delta in push.deltas),
    )


def _size(delta: RowDelta) -> int:
    """Estimate the length of a delta as JSON."""
    fixed = 120 + len(delta.delta_id) + len(delta.table) + len(delta.row_id) + len(delta.client_id)
    return fixed + sum(24 + len(cell.column) + len(memoryview(cell.value)) for cell in delta.columns)


def _shares(stored_bytes: int, sizes: Counter[str]) -> dict[str, int]:
    """Divide bytes among tables in proportion to `sizes`, so that the shares add up to `stored_bytes`."""
    total_size, allotted, shares = sum(sizes.values()), 0, {}
    cumulated = 0
    for table, size in sorted(sizes.items()):
        cumulated += size
        share = stored_bytes * cumulated // total_size - allotted
        shares[table] = share
        allotted += share
    return shares


class Thresholds:
    """Compares one gateway's backlog with the settings. Safe to use from several threads."""

    def __init__(self, backlog_stats: BacklogStats, settings: FlushSettings, wall: Callable[[], int]) -> None:
        """Create the thresholds.

        Args:
            backlog_stats: the gateway's backlog.
            settings: the limits.
            wall: returns the server's time, in milliseconds since 1970.
        """
        self._backlog_stats = backlog_stats
        self._settings = settings
        self._wall = wall

    def exceeded(self, backlog: list[Backlog] | None = None) -> bool:
        """Return whether the backlog is too large or too old.

        Args:
            backlog: the gateway's backlog; None to read it.
        """
        shards = self._backlog_stats.backlog() if backlog is None else backlog
        unflushed_bytes = sum(shard.bytes for shard in shards)
        oldest = min((shard.oldest_ms for shard in shards if shard.oldest_ms is not None), default=None)
        if oldest is None:
            return False
        age_ms = abs(self._wall() - oldest)  # the difference is negative if the clock was set back
        return unflushed_bytes >= self._max_bytes(unflushed_bytes) or age_ms >= self._settings.max_buffer_age_ms

    def due(self, backlog: list[Backlog]) -> bool:
        """Return whether to flush now: the backlog or a table's is too large or too old, or a flush was requested.

        Args:
            backlog: the gateway's backlog.
        """
        if any(shard.flush_requested_ms is not None for shard in backlog) or self.exceeded(backlog):
            return True
        return any(shard.deltas for shard in backlog) and bool(self.tables_exceeding_budget())

    def tables_exceeding_budget(self) -> list[str]:
        """Return the tables whose backlog exceeds the budget per table."""
        budget = self._settings.per_table_budget_bytes
        if budget is None:
            return []
        return [stats.table for stats in self._backlog_stats.table_stats() if stats.byte_size > budget]

    def _max_bytes(self, unflushed_bytes: int) -> int:
        """Return the byte threshold, reduced while rows are wide."""
        full, adaptive = self._settings.max_buffer_bytes, self._settings.adaptive
        if adaptive is None:
            return full
        reduced = int(full * (1 - adaptive.reduction_factor))
        if not reduced <= unflushed_bytes < full:
            return full  # both thresholds have the same effect, so the log need not be read for the width
        return reduced if self._backlog_stats.columns_per_delta() > adaptive.wide_column_threshold else full
