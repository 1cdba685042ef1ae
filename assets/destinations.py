"""Creates an asset and a check for each adapter of each destination.

A delta is a change that a client pushed to a gateway, which is one app's stream of deltas. The lake's history, the
asset `deltas`, has all of them, and a destination receives copies of them. It consists of adapters, each of which
writes to one database or object store, and has a mark of its own: the newest delta that it has of each stream (one
gateway's deltas in one staging store). A table that cannot be written there is *suspended*: left out and retried
later, so that other tables are not delayed. A value that the database rejects is a *dead letter*. A *follower*
describes one adapter for the Spark tasks that write to it. `lakehouse.backends.destinations` does the work. The code
location (`lakesync_dagster.definitions`) calls `destinations` and `lake_comparisons`.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import dagster as dg
import msgspec

from assets.asset_metadata import Metadata, content_version, freshness_metadata, report_by_day
from assets.external import kind_of, target_metadata
from assets.failure_policy import brief, failure_policy
from assets.names import AUDIT, DELTAS, DESTINATION_SENSOR, check_step, is_requested_by, target_key, target_pool
from assets.partitions import arrivals_of, days_of
from lakehouse.backends.declared import DestinationTarget, destination_targets, follower_of
from lakehouse.marks import audit_mark
from lakehouse.run_state import RunState
from lakesync.adapters.backend_config import WriteTarget
from lakesync.analysis.marks import FollowerMark, Visit, destination_state
from lakesync.config import Config
from lakesync.model.errors import LakeSyncError
from lakesync.model.hlc import wall_of
from lakesync.model.secrets import without_password
from resources.spark import SparkConnectResource
from resources.stores import LakeResource, StagingResource

if TYPE_CHECKING:
    from lakehouse.backends.comparison import Comparison
    from lakehouse.backends.destinations import FollowReport

EQUALS_LAKE = "equals_lake"
"""Name of the check."""
_MAX_LISTED = 20
"""Number of differences, and of days, in a check's description, at most."""


class Follow(dg.Config):
    """The run configuration of a destination's asset."""

    rebuild: bool = False
    """Also write the selected days again from the lake, to repair missing, altered and surplus deltas and rows."""


def destinations(config: Config, days: dg.PartitionsDefinition) -> list[dg.AssetsDefinition]:
    """Create an asset for each adapter of each destination, whose step writes the deltas that the adapter lacks.

    A run that the destination sensor requests writes all of them. Any other run writes those up to the end of its days.
    A failed step is not retried within its run: the sensor requests another run, after a growing pause.

    Args:
        config: the project's configuration, which declares the destinations.
        days: partitions by the UTC day on which gateways received the deltas.

    Raises:
        ConfigurationError: a destination reaches one adapter in two ways.
    """
    return [_destination_asset(each, days) for each in destination_targets(config)]


def lake_comparisons(config: Config) -> list[dg.AssetChecksDefinition]:
    """Create a check for each adapter of each destination: up to its mark, it has what the lake has.

    The audit, a nightly job, runs these checks. No flush does, because a comparison reads all of the destination.

    Args:
        config: the project's configuration, which declares the destinations.
    """
    return [_lake_comparison(each) for each in destination_targets(config)]


def _destination_asset(destination: DestinationTarget, days: dg.PartitionsDefinition) -> dg.AssetsDefinition:
    """Create the asset of one adapter of a destination."""
    name, target = destination.destination, destination.target

    @dg.asset(
        key=target_key(name, target.name),
        deps=[DELTAS],
        partitions_def=days,
        backfill_policy=dg.BackfillPolicy.single_run(),
        pool=target_pool(name, target.name),
        description=f"{_tables(target)} of the history at `{target.name}`, each delta once, for the destination "
        f"`{name}`.",
        group_name="destinations",
        kinds={"spark", kind_of(target.uri)},
        metadata=target_metadata([target.uri]),
    )
    def followed(
        context: dg.AssetExecutionContext,
        config: Follow,
        pyspark: SparkConnectResource,
        lake: LakeResource,
        staging: StagingResource,
        run_state: dg.ResourceParam[RunState],
    ) -> dg.MaterializeResult[None]:
        from lakehouse.backends.day_rebuild import rebuild_days
        from lakehouse.backends.destinations import follow

        # the last arrival (the gateway's timestamp of a push) to write; None for all
        until = None if is_requested_by(DESTINATION_SENSOR, context.run) else arrivals_of(days_of(context))[1]
        with failure_policy(context, pyspark, retried=False):
            valid_through_ms = run_state.valid_through_ms()
            follower = follower_of(staging.store, destination)
            report = follow(pyspark.spark_session, follower, lake.names, until)
            report_by_day(context, ["deltas_in"], ((day, "deltas_in", deltas) for day, deltas in report.days.items()))
            if config.rebuild:
                for day, deltas in rebuild_days(pyspark.spark_session, follower, days_of(context), lake.names).items():
                    context.add_asset_metadata({"deltas_rewritten": deltas}, partition_key=day.isoformat())
            mark = _mark(destination, report, staging.now_ms())
            staging.store.put_mark(destination.mark_name, msgspec.json.encode(mark).decode())
            metadata = {
                **_metadata(report),
                **freshness_metadata(valid_through_ms, staging.now_ms()),
                "dagster/uri": without_password(target.uri),
            }
        progress = report.progress
        return dg.MaterializeResult(
            metadata=metadata,
            # `id_sum`, a checksum of the ids of the deltas there: a run that writes nothing keeps the version
            data_version=content_version([progress.selection, progress.deltas, str(progress.id_sum)]),
        )

    return followed


def _tables(target: WriteTarget) -> str:
    """Return the tables that an adapter receives, for the asset's description."""
    tables = f"The tables {', '.join(f'`{table}`' for table in target.tables)}" if target.tables else "Every table"
    return f"{tables} but {', '.join(f'`{table}`' for table in target.without)}" if target.without else tables


def _mark(destination: DestinationTarget, report: "FollowReport", now_ms: int) -> FollowerMark:
    """Return the adapter's mark after a run."""
    return FollowerMark(
        destination.selection,
        report.progress.streams,
        now_ms,
        retry_ms=min((each.retry_ms for each in report.suspended), default=None),
        suspended=tuple(each.table for each in report.suspended),
        dead_letters=report.dead_letters,
    )


def _lake_comparison(destination: DestinationTarget) -> dg.AssetChecksDefinition:
    """Create the check of one adapter of a destination."""
    key = target_key(destination.destination, destination.target.name)
    description = (
        "Compares, by table and day, what the destination holds with the lake up to the destination's mark: counts and "
        "checksums of deltas and of rows, and the cells of rows with what was written."
    )
    spec = dg.AssetCheckSpec(EQUALS_LAKE, asset=key, description=description)

    @dg.multi_asset_check(name=check_step(key, EQUALS_LAKE), specs=[spec])
    def check(
        context: dg.AssetCheckExecutionContext,
        pyspark: SparkConnectResource,
        lake: LakeResource,
        staging: StagingResource,
    ) -> Iterator[dg.AssetCheckResult]:
        from lakehouse.backends.comparison import DestinationBusyError, compare

        with failure_policy(context, pyspark, retried=False):
            store = staging.store
            # Read before the comparison, and stored if it finds no difference: the audit's mark says which state of the
            # destination was compared, and when.
            visit = Visit(destination_state(store.marks().get(destination.mark_name)), staging.now_ms())
            try:
                comparison = compare(pyspark.spark_session, follower_of(store, destination), lake.names)
                if context.run.job_name == AUDIT and comparison.is_equal:
                    store.put_mark(audit_mark(key.to_user_string()), msgspec.json.encode(visit).decode())
            except DestinationBusyError as error:
                yield dg.AssetCheckResult(passed=False, severity=dg.AssetCheckSeverity.WARN, description=str(error))
                return
            except LakeSyncError:
                raise
            except Exception as error:  # such as a missing file of the lake: the check fails, and others go on
                context.log.exception("the destination cannot be compared")
                yield dg.AssetCheckResult(passed=False, description=f"It could not be compared: {brief(error)}")
                return
        yield _check_result(comparison)

    return check


def _check_result(comparison: "Comparison") -> dg.AssetCheckResult:
    """Return the check's result: the days that differ, and what to do."""
    lines = [str(each) for each in comparison.differences[:_MAX_LISTED]]
    days = sorted({each.day for each in comparison.differences})
    if days:
        lines.append(f"Rebuild the days {', '.join(days[:_MAX_LISTED])}: materialise them with `rebuild: true`")
    lines += [f"Table {each.table} is suspended: {each.reason}" for each in comparison.suspended]
    metadata: Metadata = {
        "deltas_there": comparison.deltas_there,
        "deltas_in_lake": comparison.deltas_in_lake,
        "rows_there": comparison.rows_there,
        "rows_in_lake": comparison.rows_in_lake,
        "dead_letters": comparison.dead_letters,
        "days": dg.MetadataValue.json(days),
    }
    return dg.AssetCheckResult(passed=comparison.is_equal, description=". ".join(lines) or None, metadata=metadata)


def _metadata(report: "FollowReport") -> Metadata:
    """Return the asset's metadata after a run."""
    progress = report.progress
    marks = {stream: str(arrival) for stream, arrival in sorted(progress.streams.items())}
    suspended = {each.table: f"{each.reason} ({each.failures} attempts)" for each in report.suspended}
    return {
        "set_aside": dg.MetadataValue.json(suspended),
        "deltas_in": report.deltas,
        "transactions": report.transactions,
        "dagster/row_count": progress.deltas,
        "tables_of_rows": ", ".join(sorted(progress.row_columns)),
        "marks": dg.MetadataValue.json(marks),
        "mark": dg.MetadataValue.timestamp(wall_of(max(progress.streams.values(), default=0)) / 1000),
    }
