"""Decides whether a flush is due, and why. The flush sensor calls it.

A gateway is one app's stream of deltas (changes of rows). A flush moves its backlog, the deltas that staging (the
gateways' store) has and the lake lacks, to the lake. It then updates state tables (the current rows) and checkpoints
(copies of all rows, for new clients), each of which has a mark: the newest arrival (the gateway's timestamp of a push)
that it contains. A *lag* says that such a part of the pipeline lacks deltas of one gateway, and since when. A *shard*
is a staging store for some tables. The decision depends on the backlog and the marks only, not on Dagster's runs, so
what a killed, cancelled or failed run did not do is due again.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Literal

import msgspec

from lakesync.analysis.lags import Lag, compare_marks
from lakesync.flush.thresholds import BacklogStats, FlushSettings, Thresholds
from lakesync.model.hlc import wall_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lakesync.config.sections import FlushSection
    from lakesync.staging.records import Backlog
    from lakesync.staging.store.pipeline import FlushStore

Reason = Literal["request", "bytes", "wide", "table", "age", "rules", "behind"]
"""Why a flush is due.

- `request`: it was requested.
- `bytes`: a gateway's unflushed bytes exceed the bound.
- `wide`: they exceed the lower bound for deltas with many columns.
- `table`: the unflushed bytes of one table exceed their bound.
- `age`: the oldest unflushed delta is too old.
- `rules`: the sync rules, which decide what a client may see, changed after the newest checkpoint.
- `behind`: a state table or checkpoint lacks deltas that were flushed.
"""


class ExceededBounds(msgspec.Struct, frozen=True):
    """Gateways whose backlog exceeds a bound that can be checked only by reading the log."""

    table: frozenset[str] = frozenset()
    """Gateways with too many unflushed bytes of one table."""
    wide: frozenset[str] = frozenset()
    """Gateways whose unflushed deltas have many columns, and exceed the lower bound in bytes for such deltas."""


_NONE_EXCEEDED = ExceededBounds()


class BacklogReader:
    """Reads the log to check the bounds by table and by width.

    It keeps statistics of what it has read, so that it reads each push once. A sensor has one reader for all its ticks.
    """

    def __init__(self, limits: FlushSection) -> None:
        """Create a reader that has read nothing.

        Args:
            limits: the settings of the section `flush`.
        """
        self._settings = FlushSettings.of_section(limits)
        self._stats: dict[str, BacklogStats] = {}

    def exceeded(self, store: FlushStore, backlog: Sequence[Backlog]) -> ExceededBounds:
        """Return the gateways whose backlog exceeds the bounds by table or by width.

        The log is read only if the settings have such bounds.

        Args:
            store: the staging store.
            backlog: its backlog, by gateway and shard.

        Raises:
            StagingUnavailableError: the log cannot be read.
        """
        settings = self._settings
        if settings.per_table_budget_bytes is None and settings.wide_rows is None:
            return _NONE_EXCEEDED
        shards: dict[str, list[Backlog]] = {}
        for each in backlog:
            if each.deltas:
                shards.setdefault(each.gateway, []).append(each)
        table, wide = set(), set()
        for gateway, shards_of_gateway in shards.items():
            stats = self._stats.setdefault(gateway, BacklogStats(gateway, store))
            stats.store = store  # each tick may have another connection to it
            oldest = min(each.oldest_ms or 0 for each in shards_of_gateway)
            # `Thresholds` also checks the oldest push's age, which is the task of `due_flush`. By this clock it is 0.
            thresholds = Thresholds(stats, settings, partial(int, oldest))
            if thresholds.tables_exceeding_budget():
                table.add(gateway)
            if thresholds.exceeded(shards_of_gateway):
                wide.add(gateway)
        return ExceededBounds(frozenset(table), frozenset(wide))


class DueFlush(msgspec.Struct, frozen=True):
    """A flush that is due. Its run flushes everything, then merges every table and makes every checkpoint."""

    reason: Reason
    lags: tuple[Lag, ...]
    """The parts of the pipeline that lack deltas."""
    first_ms: int
    last_ms: int
    """Oldest and newest arrival of the missing deltas, as server wall times in milliseconds since 1970."""

    @property
    def gateways(self) -> list[str]:
        """The gateways whose deltas are missing."""
        return sorted({lag.gateway for lag in self.lags})


def due_flush(
    backlog: Sequence[Backlog],
    now_ms: int,
    limits: FlushSection,
    exceeded: ExceededBounds = _NONE_EXCEEDED,
    behind: Sequence[Lag] = (),
) -> DueFlush | None:
    """Return the flush that is due; None if none is. It has the first of several reasons, in the order of `Reason`.

    Args:
        backlog: staging's backlog, by gateway and shard.
        now_ms: server wall time in milliseconds since 1970. A push from long after it counts as old too: then the clock
            was set back after the push.
        limits: the settings of the section `flush`.
        exceeded: gateways that exceed the bounds by table or width.
        behind: tables and checkpoints that lack flushed deltas.
    """
    unflushed = [shard for shard in backlog if shard.oldest_ms is not None]
    age_ms = limits.max_age_seconds * 1000
    gateway_bytes: dict[str, int] = {}
    for shard in unflushed:
        gateway_bytes[shard.gateway] = gateway_bytes.get(shard.gateway, 0) + shard.bytes
    gateways_by_reason: dict[Reason, set[str]] = {
        "request": {shard.gateway for shard in unflushed if shard.flush_requested_ms is not None},
        "bytes": {gateway for gateway, size in gateway_bytes.items() if size >= limits.max_bytes},
        "wide": set(exceeded.wide),
        "table": set(exceeded.table),
        "age": {shard.gateway for shard in unflushed if abs(now_ms - (shard.oldest_ms or 0)) >= age_ms},
    }
    gateways = set().union(*gateways_by_reason.values())
    # without progress and files, the only lags are those of the history, behind staging
    due = [lag for lag in compare_marks(unflushed, progress=(), files=()) if lag.gateway in gateways]
    # gateways whose newest checkpoint was made by earlier sync rules; `name` is empty for a checkpoint
    changed_rules = [
        Lag("checkpoint", "", shard.gateway, mark=shard.checkpoint_arrival or 0, deltas=0, since_ms=now_ms)
        for shard in backlog
        if shard.rules_without_checkpoint is not None
    ]
    all_lags = [*due, *changed_rules, *behind]
    if not all_lags:
        return None
    reasons = [reason for reason, of_reason in gateways_by_reason.items() if of_reason]
    reasons += ["rules"] if changed_rules else []
    newest = [wall_of(shard.last_arrival) for shard in unflushed]
    oldest = [shard.oldest_ms or 0 for shard in unflushed]
    return DueFlush(
        reason=reasons[0] if reasons else "behind",
        lags=tuple(all_lags),
        # `newest` too: an arrival is assigned before its commit, and may be earlier than the commit's time `oldest_ms`
        first_ms=min([*oldest, *newest, *(lag.since_ms for lag in behind)], default=now_ms),
        # the newest arrival of what `behind` lacks is unknown, but not later than now
        last_ms=max(newest, default=now_ms) if not behind else max([*newest, now_ms]),
    )


def describe_backlog(backlog: Sequence[Backlog], now_ms: int, limits: FlushSection) -> str:
    """Describe the unflushed deltas and the bounds at which they are flushed, as the reason of a skipped tick.

    Args:
        backlog: staging's backlog, by gateway and shard.
        now_ms: server wall time in milliseconds since 1970.
        limits: the settings of the section `flush`.
    """
    unflushed = [shard for shard in backlog if shard.oldest_ms is not None]
    if not unflushed:
        return "nothing waits"
    deltas, size = (sum(getattr(shard, name) for shard in unflushed) for name in ("deltas", "bytes"))
    age = max(abs(now_ms - (shard.oldest_ms or 0)) for shard in unflushed) / 1000
    return (
        f"{deltas:,} deltas wait, {size:,} bytes, the oldest for {age:.0f} s; a gateway's are flushed from "
        f"{limits.max_bytes:,} bytes or {limits.max_age_seconds:.0f} s on"
    )
