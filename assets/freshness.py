"""Whether each day of arrival is in the lake, and in what follows it, in time, day by day."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

import dagster as dg
import msgspec

from assets.asset_metadata import CHECKPOINT, DELTAS, check_step, leaf_key, state_key
from assets.destinations import all_leaves, followers
from assets.failure_policy import failure_policy
from lakehouse.schema_snapshot import SchemaSnapshot, merged_tables
from lakesync.analysis.marks import Lag
from lakesync.config import Config
from lakesync.staging.store import PipelineStore
from resources.compat_dagster import AssetCheckEvaluationTargetMaterializationData
from resources.gateways import StagingResource

FRESH = "fresh"
_DAYS_SHOWN = 31
"""The newest days, which an evaluation lists."""


class Day(msgspec.Struct, frozen=True):
    """One UTC day of arrival, over all gateways."""

    day: str
    acknowledged: int
    flushed: int
    late: bool
    """Some of it should be in by now and is not."""


def freshness_checks(snapshot: SchemaSnapshot, config: Config) -> list[dg.AssetChecksDefinition]:
    """Return one check for each asset that has what is acknowledged. None blocks, as lateness harms nothing downstream.

    The freshness sensor reports them without a run.

    Args:
        snapshot: names the state tables.
        config: names the lake and the destinations, and after how many seconds an acknowledged delta that is not in
            an asset is late.
    """
    return [_check(key, snapshot, config) for key in fresh_assets(snapshot, config)]


def fresh_assets(snapshot: SchemaSnapshot, config: Config) -> list[dg.AssetKey]:
    """Return the assets whose days are watched: the history, its tables, the checkpoints and the destinations.

    Args:
        snapshot: names the state tables.
        config: declares the destinations.
    """
    tables = [state_key(schema.table, where) for schema, where in snapshot.states]
    return [DELTAS, *tables, CHECKPOINT, *(leaf_key(name, leaf.name) for name, _, leaf in all_leaves(config))]


def days_in_time(
    store: PipelineStore, key: dg.AssetKey, lags: Sequence[Lag], *, allowed: int, now_ms: int
) -> list[Day]:
    """Return the days of arrival that have deltas, each with whether the asset is late with it.

    Args:
        store: the staging store.
        key: one of `fresh_assets`.
        lags: what the parts of the pipeline lack.
        allowed: seconds after which an acknowledged delta that is not in the asset is late.
        now_ms: server wall time, by the gateways' clock, which stamps arrivals.
    """
    due_ms = now_ms - allowed * 1000
    history = _days_of_history(store, due_ms)
    behind = [lag.since_ms for lag in lags if _is_of(key, lag) and lag.since_ms < due_ms]
    if not behind:
        return history
    first = datetime.fromtimestamp(min(behind) / 1000, UTC).date().isoformat()
    return [msgspec.structs.replace(day, late=day.late or day.day >= first) for day in history]


def _is_of(key: dg.AssetKey, lag: Lag) -> bool:
    """Whether a lag is that of an asset."""
    if lag.part == "table":
        namespace, _, table = lag.name.rpartition(".")
        return key == state_key(table, namespace)
    if lag.part == "destination":
        return key.path == lag.name.split("/")
    return lag.part == "checkpoint" and key == CHECKPOINT


def evaluation(
    key: dg.AssetKey, days: Sequence[Day], newest: dg.EventLogRecord | None = None
) -> dg.AssetCheckEvaluation:
    """Return the evaluation of the check `fresh`.

    Args:
        key: the asset.
        days: its days.
        newest: the materialisation that is evaluated, outside a run.
    """
    late = [day.day for day in days if day.late]
    lines = "\n".join(
        f"| {day.day} | {day.acknowledged:,} | {day.flushed:,} | {'**late**' if day.late else 'in time'} |"
        for day in list(days)[-_DAYS_SHOWN:]
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


def _check(key: dg.AssetKey, snapshot: SchemaSnapshot, config: Config) -> dg.AssetChecksDefinition:
    description = "Every day of arrival is in here within `late_after_seconds` of its acknowledgement."

    @dg.multi_asset_check(
        name=check_step(key, FRESH), specs=[dg.AssetCheckSpec(FRESH, asset=key, description=description)]
    )
    def fresh(context: dg.AssetCheckExecutionContext, staging: StagingResource) -> Iterator[dg.AssetCheckResult]:
        from lakesync.analysis.lake_marks import MarkReader

        with failure_policy(context):
            store, now_ms = staging.store, staging.now_ms()
            tables = merged_tables(snapshot, config.namespaces)
            lags = MarkReader(config).lags(store.backlog(), tables, followers(config, store))
            days = days_in_time(store, key, lags, allowed=config.dagster.late_after_seconds, now_ms=now_ms)
            found = evaluation(key, days)
        yield dg.AssetCheckResult(
            passed=found.passed,
            severity=found.severity,
            description=found.description,
            metadata=found.metadata,
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
    """Return an asset's newest materialisation.

    Args:
        instance: Dagster's.
        key: the asset.
    """
    records = instance.fetch_materializations(key, limit=1).records
    return records[0] if records else None
