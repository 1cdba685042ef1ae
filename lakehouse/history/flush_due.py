"""Decides whether a flush is due, and why. The flush sensor calls it.

A gateway is one app's stream of deltas (changes of rows). A flush moves its backlog, the deltas that staging (the
gateways' store) has and the lake lacks, to the lake. It then updates state tables (the current rows) and checkpoints
(copies of all rows, for new clients), each of which has a mark: the newest arrival (the gateway's timestamp of a push)
that it contains. A *lag* says that such a part of the pipeline lacks deltas of one gateway, and since when. A *shard*
is a staging store for some tables. The decision depends on the backlog and the marks only, not on Dagster's runs, so
what a killed, cancelled or failed run did not do is due again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

import msgspec

from lakesync.analysis.lags import Lag, compare_marks
from lakesync.flush.thresholds import BacklogStats, FlushReason, FlushSettings, Thresholds
from lakesync.model.hlc import wall_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lakesync.config.pipeline_sections import FlushSection
    from lakesync.staging.records import Backlog
    from lakesync.staging.store.pipeline import FlushStore

Reason = FlushReason | Literal["rules", "behind"]
"""Why a flush is due.

- those of `FlushReason`: a gateway's backlog is too large or too old, or a flush was requested.
- `rules`: the sync rules, which decide what a client may see, changed after the newest checkpoint.
- `behind`: a state table or checkpoint lacks deltas that were flushed.
"""


class BacklogReader:
    """Compares the backlogs of all gateways with the thresholds.

    The thresholds by table and by width need the log. It keeps statistics of what it has read, so that it reads each
    push once. A sensor has one reader for all its ticks.
    """

    def __init__(self, limits: FlushSection) -> None:
        """Create a reader that has read nothing.

        Args:
            limits: the settings of the section `flush`.
        """
        self._settings = FlushSettings.of_section(limits)
        self._stats: dict[str, BacklogStats] = {}

    def reasons(self, store: FlushStore, backlog: Sequence[Backlog], now_ms: int) -> dict[str, FlushReason]:
        """Return gateway → why its backlog is to be flushed. Gateways without a reason are absent.

        Args:
            store: the staging store.
            backlog: its backlog, by gateway and shard.
            now_ms: server wall time in milliseconds since 1970. A push from long after it counts as old too: then the
                clock was set back after the push.

        Raises:
            StagingUnavailableError: the log cannot be read.
        """
        shards: dict[str, list[Backlog]] = {}
        for each in backlog:
            if each.deltas:
                shards.setdefault(each.gateway, []).append(each)
        found = {}
        for gateway, shards_of_gateway in shards.items():
            stats = self._stats.setdefault(gateway, BacklogStats(gateway, store))
            stats.store = store  # each tick may have another connection to it
            reason = Thresholds(stats, self._settings, lambda: now_ms).reason(shards_of_gateway)
            if reason is not None:
                found[gateway] = reason
        return found


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
    reasons: Mapping[str, FlushReason],
    behind: Sequence[Lag] = (),
) -> DueFlush | None:
    """Return the flush that is due; None if none is. It has the first of several reasons, in the order of `Reason`.

    Args:
        backlog: staging's backlog, by gateway and shard.
        now_ms: server wall time in milliseconds since 1970.
        reasons: gateway → why its backlog is to be flushed.
        behind: tables and checkpoints that lack flushed deltas.
    """
    unflushed = [shard for shard in backlog if shard.oldest_ms is not None]
    # without progress and files, the only lags are those of the history, behind staging
    due = [lag for lag in compare_marks(unflushed, progress=(), files=()) if lag.gateway in reasons]
    # gateways whose newest checkpoint was made by earlier sync rules; `name` is empty for a checkpoint
    changed_rules = [
        Lag("checkpoint", "", shard.gateway, mark=shard.checkpoint_arrival or 0, deltas=0, since_ms=now_ms)
        for shard in backlog
        if shard.rules_without_checkpoint is not None
    ]
    all_lags = [*due, *changed_rules, *behind]
    if not all_lags:
        return None
    newest = [wall_of(shard.last_arrival) for shard in unflushed]
    oldest = [shard.oldest_ms or 0 for shard in unflushed]
    return DueFlush(
        reason=min(reasons.values(), key=get_args(FlushReason).index, default="rules" if changed_rules else "behind"),
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
