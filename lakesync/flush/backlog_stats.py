"""Statistics of the unflushed log by table. Each push is read once, on demand.

`Flusher`, the pipeline's check whether a flush is due, and `/metrics` call it.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from typing import NamedTuple

import msgspec

from lakesync.model.types import RowDelta, RowKey
from lakesync.staging.log_reader import LoggedPush, LogRange, read_log
from lakesync.staging.records import Backlog
from lakesync.staging.store.pipeline import FlushStore


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
    columns: int
    """Number of columns of all deltas together."""
    tables: dict[str, TableStats]
    rows: Counter[RowKey]
    """Row → number of its deltas."""


class _Shard:
    """The unflushed pushes of one shard, oldest first."""

    def __init__(self, epoch: int, seq: int) -> None:
        self.epoch = epoch
        self.last_read = seq
        """The last sequence number that was read."""
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
        """Return shard → number of unflushed deltas up to the last push that contains a table."""
        with self._lock:
            self._refresh()
            found = {}
            for name, shard in self._shards.items():
                last = max((push.seq for push in shard.pushes if table in push.tables), default=0)
                if last:
                    found[name] = sum(push.deltas for push in shard.pushes if push.seq <= last)
            return found

    def _refreshed(self) -> list[_Push]:
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
