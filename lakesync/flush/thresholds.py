"""Decides when to flush a gateway: compares the size and age of its backlog with thresholds.

A gateway is an app's stream of pushes, and a push is one client's request with deltas (changes of rows). Staging, the
store that pushes are committed to, keeps them in a log. A flush copies deltas from the log to the lake (Iceberg
tables), or to an adapter (a database or an object store). The backlog is what was not flushed yet.

`Flusher`, which flushes without a pipeline, and the pipeline's flush sensor compare the backlog with `FlushSettings`.
The gateway's `/admin/metrics` shows the statistics of the backlog.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple, Self

import msgspec

from lakesync.adapters.object_store.delta_files import FlushFormat
from lakesync.model.errors import ConfigurationError
from lakesync.model.types import RowDelta, RowKey
from lakesync.staging.log_reader import LoggedPush, LogRange, read_log
from lakesync.staging.records import Backlog
from lakesync.staging.store.pipeline import FlushStore

if TYPE_CHECKING:
    from lakesync.config.pipeline_sections import FlushSection

FlushReason = Literal["request", "bytes", "wide", "table", "age"]
"""Why a gateway's backlog is to be flushed.

- `request`: it was requested.
- `bytes`: the unflushed bytes exceed the bound.
- `wide`: they exceed the lower bound for deltas with many columns.
- `table`: the unflushed bytes of one table exceed their bound.
- `age`: the oldest unflushed delta is too old.
"""
_SERVER_BATCH_DELTAS = 250_000
"""`batch_deltas` of a gateway server, unless `[flush] batch_deltas` is set."""


class WideRowThreshold(msgspec.Struct, frozen=True):
    """Reduces `max_buffer_bytes` while deltas have many columns, because they cost more to write and to read back.

    The TypeScript gateway calls it `adaptiveBufferConfig`.
    """

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


class FlushSettings(msgspec.Struct, frozen=True):
    """When and how to flush a gateway, from `[flush]` of `lakesync.toml` or from a program that embeds a gateway.

    Bytes are those that staging stores for the deltas.
    """

    max_buffer_bytes: int = 4 << 20
    """Unflushed bytes of a gateway that make a flush due."""
    max_buffer_age_ms: int = 30_000
    """Age of the oldest unflushed delta that makes a flush due."""
    per_table_budget_bytes: int | None = None
    """A flush is due when one table has more unflushed bytes than this; None for no limit per table."""
    wide_rows: WideRowThreshold | None = None
    """Reduces `max_buffer_bytes` while deltas have many columns; None to disable."""
    flush_format: FlushFormat = "parquet"
    """Format of new objects in an object store; databases ignore it."""
    batch_deltas: int = 50_000
    """Deltas that are read into memory and written together (a batch), at most; a larger push is one batch."""

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

    @classmethod
    def of_section(cls, section: FlushSection) -> Self:
        """Return the settings that the section `[flush]` of the configuration has."""
        columns = section.wide_row_columns
        return cls(
            max_buffer_bytes=section.max_bytes,
            max_buffer_age_ms=round(section.max_age_seconds * 1000),
            per_table_budget_bytes=section.max_table_bytes,
            wide_rows=None if columns is None else WideRowThreshold(columns, section.wide_row_reduction),
            flush_format=section.format,
            batch_deltas=section.batch_deltas or _SERVER_BATCH_DELTAS,
        )


class BufferStats(msgspec.Struct, frozen=True, rename="camel"):
    """Size of a gateway's backlog, with the names of the TypeScript gateway."""

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
    """Its share of the bytes in staging's log, estimated from the lengths of its deltas."""
    delta_count: int
    """Number of deltas."""


class BacklogStats:
    """Statistics of one gateway's backlog. Safe to use from several threads.

    Those by row, table and column need the content of the pushes. Each push is read once, when a figure is asked for.
    """

    def __init__(self, gateway: str, store: FlushStore) -> None:
        """Create the statistics of a gateway.

        Args:
            gateway: the gateway id.
            store: the staging store.
        """
        self._gateway = gateway
        self.store = store
        """The staging store; a caller may replace it by another connection to the same store."""
        self._shards: dict[str, _Shard] = {}
        """The unflushed pushes by shard."""
        self._lock = threading.Lock()

    def backlog(self) -> list[Backlog]:
        """Return the backlog by shard, as the store reports it."""
        return [shard for shard in self.store.backlog() if shard.gateway == self._gateway]

    def buffer_stats(self) -> BufferStats:
        """Return the sizes over all tables."""
        pushes = self._refreshed()
        rows = {key for push in pushes for key in push.rows}
        deltas = sum(push.table_deltas.total() for push in pushes)
        return BufferStats(deltas, len(rows), sum(push.bytes for push in pushes))

    def table_stats(self) -> list[TableStats]:
        """Return the sizes by table, ordered by name. Their bytes add up to those of `buffer_stats`."""
        sizes: Counter[str] = Counter()
        counts: Counter[str] = Counter()
        for push in self._refreshed():
            sizes.update(push.table_bytes)
            counts.update(push.table_deltas)
        return [TableStats(table, sizes[table], counts[table]) for table in sorted(counts)]

    def columns_per_delta(self) -> float:
        """Return the average number of columns per delta; 0 without backlog."""
        pushes = self._refreshed()
        deltas = sum(push.table_deltas.total() for push in pushes)
        return sum(push.columns for push in pushes) / deltas if deltas else 0.0

    def deltas_up_to(self, table: str) -> dict[str, int]:
        """Return shard → how many of its oldest unflushed deltas to flush, so that all deltas of a table are flushed.

        They are the deltas up to the last push that contains the table. Shards without such a push are absent.
        """
        with self._lock:
            self._refresh()
            counts = {}
            for name, shard in self._shards.items():
                last = max((push.seq for push in shard.pushes if table in push.table_deltas), default=0)
                if last:
                    counts[name] = sum(push.table_deltas.total() for push in shard.pushes if push.seq <= last)
            return counts

    def _refreshed(self) -> list[_PushSummary]:
        """Return the unflushed pushes of all shards."""
        with self._lock:
            self._refresh()
            return [push for shard in self._shards.values() for push in shard.pushes]

    def _refresh(self) -> None:
        """Forget pushes that were flushed, and read new ones."""
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
                # A list: if the log cannot be read to its end, none of these pushes is added, and all are read again.
                shard.pushes.extend([_summary(push) for push in read_log(source, log_range)])
            shard.last_read = max(shard.last_read, backlog.last_seq)


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

    def exceeded(self) -> bool:
        """Return whether the backlog is too large or too old."""
        backlog = self._backlog_stats.backlog()
        return self._size_reason(backlog) is not None or self._is_old(backlog)

    def reason(self, backlog: Sequence[Backlog]) -> FlushReason | None:
        """Return why to flush now: the first of several reasons, in the order of `FlushReason`. None without a reason.

        Args:
            backlog: the gateway's backlog.
        """
        if any(shard.flush_requested_ms is not None for shard in backlog):
            return "request"
        if not any(shard.deltas for shard in backlog):
            return None
        if (reason := self._size_reason(backlog)) is not None:
            return reason
        if self.tables_exceeding_budget():
            return "table"
        return "age" if self._is_old(backlog) else None

    def tables_exceeding_budget(self) -> list[str]:
        """Return the tables whose backlog exceeds the budget per table."""
        budget = self._settings.per_table_budget_bytes
        if budget is None:
            return []
        return [stats.table for stats in self._backlog_stats.table_stats() if stats.byte_size > budget]

    def _size_reason(self, backlog: Sequence[Backlog]) -> Literal["bytes", "wide"] | None:
        """Return which bound the unflushed bytes exceed; None for neither."""
        unflushed_bytes = sum(shard.bytes for shard in backlog)
        full, wide_rows = self._settings.max_buffer_bytes, self._settings.wide_rows
        if unflushed_bytes >= full:
            return "bytes"
        if wide_rows is None or unflushed_bytes < int(full * (1 - wide_rows.reduction_factor)):
            return None
        return "wide" if self._backlog_stats.columns_per_delta() > wide_rows.wide_column_threshold else None

    def _is_old(self, backlog: Sequence[Backlog]) -> bool:
        """Return whether an unflushed delta is too old, or from long after now: then the clock was set back."""
        now_ms, max_age_ms = self._wall(), self._settings.max_buffer_age_ms
        oldest = [shard.oldest_ms for shard in backlog if shard.oldest_ms is not None]
        return any(abs(now_ms - oldest_ms) >= max_age_ms for oldest_ms in oldest)


class _PushSummary(NamedTuple):
    """What the statistics need of an unflushed push."""

    seq: int
    """Sequence number in the log."""
    bytes: int
    """Stored bytes in the log."""
    columns: int
    """Number of columns of all deltas together."""
    table_bytes: Mapping[str, int]
    """Table → its share of the stored bytes."""
    table_deltas: Counter[str]
    """Table → number of its deltas."""
    rows: frozenset[RowKey]
    """The rows with deltas."""


class _Shard:
    """The unflushed pushes of one shard (a staging store for some tables), oldest first, as far as they were read."""

    def __init__(self, epoch: int, last_read: int) -> None:
        self.epoch = epoch
        """Identifies the log. A rebuilt store has another epoch, and its log is read from the start."""
        self.last_read = last_read
        """Sequence number of the last push that was read."""
        self.pushes: deque[_PushSummary] = deque()


def _summary(push: LoggedPush) -> _PushSummary:
    """Summarise a push. Its stored bytes are divided among its tables by the estimated length of their deltas."""
    sizes: Counter[str] = Counter()
    for delta in push.deltas:
        sizes[delta.table] += _json_length(delta)
    return _PushSummary(
        seq=push.seq,
        bytes=push.bytes,
        columns=sum(len(delta.columns) for delta in push.deltas),
        table_bytes=_shares(push.bytes, sizes),
        table_deltas=Counter(delta.table for delta in push.deltas),
        rows=frozenset(delta.key for delta in push.deltas),
    )


def _json_length(delta: RowDelta) -> int:
    """Estimate the length of a delta as JSON: its texts and values, with 120 characters of names, and 24 per column."""
    fixed = 120 + len(delta.delta_id) + len(delta.table) + len(delta.row_id) + len(delta.client_id)
    return fixed + sum(24 + len(cell.column) + len(memoryview(cell.value)) for cell in delta.columns)


def _shares(stored_bytes: int, sizes: Counter[str]) -> dict[str, int]:
    """Divide bytes among tables in proportion to `sizes`, so that the shares add up to `stored_bytes`."""
    total_size, shares, size_so_far, allotted = sizes.total(), {}, 0, 0
    for table, size in sizes.items():
        size_so_far += size
        shares[table] = stored_bytes * size_so_far // total_size - allotted
        allotted += shares[table]
    return shares
