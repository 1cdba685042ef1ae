"""What waits for a flush, by table and by width, where the settings ask for that."""

from __future__ import annotations

from functools import partial

import msgspec

from lakesync.config.sections import FlushSection
from lakesync.flush.backlog_stats import BacklogStats
from lakesync.flush.flusher import Thresholds
from lakesync.flush.settings import FlushSettings, adaptive_buffer
from lakesync.staging.records import Backlog
from lakesync.staging.store import PipelineStore


class Exceeded(msgspec.Struct, frozen=True):
    """Gateways that are due for other reasons than age, request and bytes alone."""

    table: frozenset[str] = frozenset()
    """More waits of one of their tables than one may hold."""
    wide: frozenset[str] = frozenset()
    """What waits is wide, and reaches the threshold that is lower then."""


class Watcher:
    """Looks into each push that waits once, as long as its process lives: a sensor's ticks share one."""

    def __init__(self, limits: FlushSection) -> None:
        self._settings = FlushSettings(
            max_buffer_bytes=limits.max_bytes,
            max_buffer_age_ms=round(limits.max_age_seconds * 1000),
            per_table_budget_bytes=limits.max_table_bytes,
            adaptive=adaptive_buffer(limits.wide_row_columns, limits.wide_row_reduction),
        )
        self._waiting: dict[str, BacklogStats] = {}

    def exceeded(self, store: PipelineStore, backlog: list[Backlog]) -> Exceeded:
        """Return the gateways with too many bytes of one table, or too many wide rows, waiting for a flush.

        The log is read only where the settings have such bounds.

        Args:
            store: the staging store.
            backlog: what waits, by gateway and shard.

        Raises:
            StagingUnavailableError: the log cannot be read.
        """
        settings = self._settings
        if settings.per_table_budget_bytes is None and settings.adaptive is None:
            return Exceeded()
        shards: dict[str, list[Backlog]] = {}
        for each in backlog:
            if each.deltas:
                shards.setdefault(each.gateway, []).append(each)
        table, wide = set(), set()
        for gateway, own in shards.items():
            waiting = self._waiting.setdefault(gateway, BacklogStats(gateway, store))
            waiting.store = store
            oldest = min(each.oldest_ms or 0 for each in own)
            thresholds = Thresholds(waiting, settings, partial(int, oldest))  # of that moment, nothing is old
            if thresholds.tables_exceeding_budget():
                table.add(gateway)
            if thresholds.exceeded(own):
                wide.add(gateway)
        return Exceeded(frozenset(table), frozenset(wide))
