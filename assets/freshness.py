"""Whether each day of arrival is in the lake, and in the tables, in time: told day by day."""

import time
from collections.abc import Sequence
from datetime import UTC, datetime

import dagster as dg
import msgspec

from assets.labels import DELTAS, state_key
from assets.outcome import outcome
from lakesync.staging.store import PipelineStore
from resources.compat_dagster import AssetCheckEvaluationTargetMaterializationData
from resources.gateways import StagingResource
from resources.snapshot import SchemaSnapshot

FRESH = "fresh"
_TO_TELL = 31
"""Days that are told, the newest."""


class Day(msgspec.Struct, frozen=True):
    """One UTC day of arrival, over all gateways."""

    day: str
    acknowledged: int
    flushed: int
    late: bool
    """Some of it should be in by now and is not."""


def freshness_checks(snapshot: SchemaSnapshot, allowed: int) -> list[dg.AssetChecksDefinition]:
    """Return one check for the history and one for each state table. None blocks, as lateness harms nothing downstream.

    The freshness sensor reports them without a run.

    Args:
        snapshot: names the state tables.
        allowed: seconds after which an acknowledged delta that is not in an asset is late.
    """
    return [_check(key, allowed) for key in fresh_assets(snapshot)]


def fresh_assets(snapshot: SchemaSnapshot) -> list[dg.AssetKey]:
    """The assets whose days are watched."""
    return [DELTAS, *(state_key(schema.table, where) for schema, where in snapshot.states)]


def days_in_time(
    instance: dg.DagsterInstance, store: PipelineStore, key: dg.AssetKey, *, allowed: int, now_ms: int, now: float
) -> list[Day]:
    """Return the days of arrival that have deltas, each with whether the asset is late with it.

    Args:
        instance: Dagster's.
        store: the staging store.
        key: the history or a state table.
        allowed: seconds after which an acknowledged delta that is not in the asset is late.
        now_ms: server wall time, by the gateways' clock, which stamps what is unflushed.
        now: the time of Dagster's events, in seconds.
    """
    history = _days_of_history(store, now_ms - allowed * 1000)
    if key == DELTAS:
        return history
    through, behind_since = _behind(instance, key)
    if behind_since is None or now - behind_since <= allowed:
        return history
    return [msgspec.structs.replace(day, late=day.late or _end(day.day) > through) for day in history]


def evaluation(
    key: dg.AssetKey, days: Sequence[Day], newest: dg.EventLogRecord | None = None
) -> dg.AssetCheckEvaluation:
    """What is told of an asset's days; `newest` is the materialisation of which it is told outside a run."""
    late = [day.day for day in days if day.late]
    lines = "\n".join(
        f"| {day.day} | {day.acknowledged:,} | {day.flushed:,} | {'**late**' if day.late else 'in time'} |"
        for day in list(days)[-_TO_TELL:]
    )
    return dg.AssetCheckEvaluation(
        asset_key=key,
        check_name=FRESH,
        passed=not late,
        target_materialization_data=AssetCheckEvaluationTargetMaterializationData(
            storage_id=newest.storage_id, run_id=newest.run_id, timestamp=newest.timestamp
        )
        if newest is not None
        else None,
        severity=dg.AssetCheckSeverity.WARN,
        description=f"late: {', '.join(late)}" if late else None,
        metadata={
            "late_days": len(late),
            "days": dg.MetadataValue.md(f"| day | acknowledged | in the lake | |\n|---|--:|--:|---|\n{lines}"),
        },
    )


def _check(key: dg.AssetKey, allowed: int) -> dg.AssetChecksDefinition:
    @dg.asset_check(
        asset=key,
        name=FRESH,
        description="Every day of arrival is in here within `late_after_seconds` of its acknowledgement.",
    )
    def fresh(context: dg.AssetCheckExecutionContext, staging: StagingResource) -> dg.AssetCheckResult:
        with outcome(context):
            now_ms, now = staging.now_ms(), time.time()
            days = days_in_time(context.instance, staging.store, key, allowed=allowed, now_ms=now_ms, now=now)
            told = evaluation(key, days)
        return dg.AssetCheckResult(
            passed=told.passed, severity=told.severity, description=told.description, metadata=told.metadata
        )

    return fresh


def _days_of_history(store: PipelineStore, due_ms: int) -> list[Day]:
    """By staging's ledger; late where a gateway's oldest waiting push came before `due_ms`."""
    waiting = [each for each in store.backlog() if each.oldest_ms is not None and each.oldest_ms < due_ms]
    overdue = {each.gateway for each in waiting}
    found: dict[str, Day] = {}
    for gateway in store.gateways():
        for day in store.ledger(gateway):
            so_far = found.get(day.day, Day(day.day, 0, 0, late=False))
            found[day.day] = Day(
                day.day,
                so_far.acknowledged + day.count,
                so_far.flushed + day.flushed_count,
                late=so_far.late or (gateway in overdue and day.flushed_count < day.count),
            )
    return [found[day] for day in sorted(found)]


def newest_of(instance: dg.DagsterInstance, key: dg.AssetKey) -> dg.EventLogRecord | None:
    """An asset's newest materialisation."""
    records = instance.fetch_materializations(key, limit=1).records
    return records[0] if records else None


def _behind(instance: dg.DagsterInstance, key: dg.AssetKey) -> tuple[float, float | None]:
    """Up to which moment a table has everything, and since when the history has more; in seconds, None where not."""
    newest = newest_of(instance, key)
    made = newest.asset_materialization if newest is not None else None
    through = made.metadata.get("valid_through") if made is not None else None
    later = instance.fetch_materializations(
        dg.AssetRecordsFilter(DELTAS, after_timestamp=newest.timestamp if newest is not None else None),
        limit=1,
        ascending=True,
    ).records
    moment = through.value if isinstance(through, dg.TimestampMetadataValue) else 0.0
    return moment, later[0].timestamp if later else None


def _end(day: str) -> float:
    return datetime.strptime(day, "%Y-%m-%d").replace(tzinfo=UTC).timestamp() + 86_400
