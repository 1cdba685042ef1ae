"""When to flush: too much waits, or for too long, or of one table, or somebody asked."""

from __future__ import annotations

from collections.abc import Callable

from lakesync.flush.settings import FlushSettings
from lakesync.flush.waiting import Waiting
from lakesync.staging.records import Backlog


class Thresholds:
    """Looks at what waits of one gateway. Safe between threads."""

    def __init__(self, waiting: Waiting, settings: FlushSettings, wall: Callable[[], int]) -> None:
        """Args: wall: the server's clock in milliseconds."""
        self._waiting = waiting
        self._settings = settings
        self._wall = wall

    def exceeded(self, backlog: list[Backlog] | None = None) -> bool:
        """Whether what waits is too much or too old.

        Args:
            backlog: what waits of this gateway, where the caller knows it already.
        """
        shards = self._waiting.backlog() if backlog is None else backlog
        waiting = sum(shard.bytes for shard in shards)
        oldest = min((shard.oldest_ms for shard in shards if shard.oldest_ms is not None), default=None)
        if oldest is None:
            return False
        age = abs(self._wall() - oldest)  # below zero where the clock was put back since
        return waiting >= self._bytes(waiting) or age >= self._settings.max_buffer_age_ms

    def due(self, backlog: list[Backlog]) -> bool:
        """Whether to flush now: too much, too old, a table above its budget, or asked for."""
        if any(shard.flush_requested_ms is not None for shard in backlog) or self.exceeded(backlog):
            return True
        return any(shard.deltas for shard in backlog) and bool(self.tables_exceeding_budget())

    def tables_exceeding_budget(self) -> list[str]:
        """The tables of which more waits than one may hold; none without a budget."""
        budget = self._settings.per_table_budget_bytes
        if budget is None:
            return []
        return [stats.table for stats in self._waiting.table_stats() if stats.byte_size > budget]

    def _bytes(self, waiting: int) -> int:
        """The byte threshold, reduced while what waits is wide."""
        whole, adaptive = self._settings.max_buffer_bytes, self._settings.adaptive
        if adaptive is None:
            return whole
        reduced = int(whole * (1 - adaptive.reduction_factor))
        if not reduced <= waiting < whole:
            return whole  # the width cannot change the answer, so it is not looked at
        return reduced if self._waiting.columns_a_delta() > adaptive.wide_column_threshold else whole
