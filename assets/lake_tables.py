"""Creates the assets of the lake's tables: the history `deltas`, and a state table for each synced table.

A delta is a change of some columns of one row. The step of `deltas` flushes staging's log (staging is the gateways'
database): it writes the deltas that gateways have acknowledged to clients and the lake lacks. A state table has the
current rows of a synced table, merged from the history. `lakehouse.history.flush` and `lakehouse.tables.merging` do the
work. The code location (`lakesync_dagster.definitions`) calls this module.

- A *gateway* is one app's stream of deltas, an *arrival* its timestamp of a push. The *marks* of a state table are the
  arrivals, by gateway, up to which it is merged.
- A run flushes each gateway up to its *cut point*, the arrival of the newest push before the run, because the run's
  checkpoint (from which new clients start) is made there.
- Staging's *ledger* counts the acknowledged deltas of each day.
- A table's *contract* decides about columns that are registered later: `evolve`, `freeze` or `discard`.
"""

from collections.abc import Mapping, Sequence
from datetime import date
from typing import TYPE_CHECKING

import dagster as dg

from assets.asset_metadata import (
    Metadata,
    freshness_metadata,
    previous_data_version,
    report_by_day,
    size_metadata,
    table_valid_through_ms,
)
from assets.columns import delta_columns, history_lineage, state_columns, state_lineage
from assets.failure_policy import brief, defer_failure, failure_policy, is_final
from assets.names import (
    DELTAS,
    DELTAS_POOL,
    FLUSH_SENSOR,
    LOG,
    continues_on_failure,
    is_requested_by,
    state_key,
    table_pool,
)
from assets.partitions import arrivals_of, days_of, nearest_key
from lakehouse.run_state import RunState, Unmerged
from lakehouse.schema_snapshot import SchemaSnapshot
from lakesync.config import Config
from lakesync.model.errors import LakeSyncError, SchemaError, TransientError
from lakesync.model.schema import TableSchema
from lakesync.staging.ledger import day_of
from lakesync.staging.store.pipeline import FlushStore
from resources.spark import SparkConnectResource
from resources.stores import LakeResource, StagingResource, table_uri

if TYPE_CHECKING:
    from lakehouse.history.flush import FlushReport
    from lakehouse.tables.merging import MergeReport
    from lakesync.config.pipeline_sections import Contract


def history(days: dg.PartitionsDefinition, config: Config) -> dg.AssetsDefinition:
    """Create the asset `deltas`, partitioned by day of arrival.

    A run that the flush sensor requests flushes everything up to the cut points. Any other run flushes the unflushed
    deltas of its days, and compares these days between staging's ledger and the lake.

    Args:
        days: partitions by UTC day of arrival.
        config: the project's configuration, with the lake and the size of a batch.
    """

    @dg.asset(
        key=DELTAS,
        deps=[LOG],
        partitions_def=days,
        backfill_policy=dg.BackfillPolicy.single_run(),
        pool=DELTAS_POOL,
        description="Every acknowledged delta exactly once, in order of arrival, from which all tables are merged.",
        group_name="flush",
        kinds={"spark", "iceberg"},
        metadata={
            "dagster/column_schema": delta_columns(),
            "dagster/uri": table_uri(config.lake.warehouse, config.lake.system_namespace, "deltas"),
            "lineage": history_lineage(),
        },
    )
    def deltas(
        context: dg.AssetExecutionContext,
        pyspark: SparkConnectResource,
        lake: LakeResource,
        staging: StagingResource,
        run_state: dg.ResourceParam[RunState],
    ) -> dg.MaterializeResult[None]:
        from lakehouse.history.flush import MAX_DELTAS, flush_backlog, require_flushed

        days = None if is_requested_by(FLUSH_SENSOR, context.run) else days_of(context)
        with failure_policy(context, pyspark):
            if days is None:  # read before the flush, because it moves deltas up to there
                run_state.read_cut_points()
            failed: dict[str, LakeSyncError] = {}
            reports = flush_backlog(
                pyspark.spark_session,
                staging.store,
                max_deltas=config.flush.batch_deltas or MAX_DELTAS,
                names=lake.names,
                cut_points=run_state.cut_points() if days is None else None,
                within=arrivals_of(days) if days is not None else None,
                on_failed=failed.setdefault,  # keeps the first error of each gateway
            )
            if failed:
                can_continue = days is None and not failed.keys() >= set(staging.store.gateways())
                _defer_failures(context, run_state, failed, can_continue=can_continue)
            run_state.flushed(reread=True)  # for the run's later steps, which merge the tables up to there
            _report_flush_by_day(context, reports)
            if days is not None:
                _report_comparison(context, days, pyspark, lake, staging.store)
                require_flushed(staging.store, days)
            metadata = {
                **_flush_metadata(reports),
                "snapshot_ids": dg.MetadataValue.json([str(report.snapshot_id) for report in reports]),
                "seconds": round(sum(report.seconds for report in reports), 2),
                **size_metadata(pyspark.spark_session, lake.names.deltas),
                **freshness_metadata(run_state.valid_through_ms(), staging.now_ms()),
                "dagster/uri": table_uri(lake.warehouse, lake.system_namespace, "deltas"),
            }
        unchanged = None if reports else previous_data_version(context, DELTAS)
        version = unchanged or dg.DataVersion(str(reports[-1].snapshot_id) if reports else "empty")
        return dg.MaterializeResult(metadata=metadata, data_version=version)

    return deltas


class Merge(dg.Config):
    """The run configuration of a state table's asset."""

    rebuild: bool = False
    """Recompute every row from the whole history, in one commit."""


def state_tables(
    snapshot: SchemaSnapshot, days: dg.PartitionsDefinition, settings: Config
) -> list[dg.AssetsDefinition]:
    """Create an asset for each registered table.

    A run that the flush sensor requests merges the deltas after the table's marks. Any other run merges the deltas of
    its days again, whatever the marks say, and with `rebuild` the whole history. A run of the sensor continues without
    a table that cannot be merged, and without gateways whose new columns a table with the contract `freeze` rejects.

    Args:
        snapshot: the registered tables, each with the namespace of its gateways; an empty one is shared.
        days: partitions by UTC day of arrival.
        settings: the project's configuration, with the contracts of tables.
    """
    return [_state_table(schema, namespace, days, settings) for schema, namespace in snapshot.states]


def _defer_failures(
    context: dg.AssetExecutionContext,
    run_state: RunState,
    failed: Mapping[str, LakeSyncError],
    *,
    can_continue: bool,
) -> None:
    """Defer the failures of gateways that could not be flushed, so that the run continues without them.

    Args:
        context: the step's context.
        run_state: the run's state.
        failed: gateway → its error.
        can_continue: whether the run continues. False if it is for chosen days, or if no gateway was flushed.

    Raises:
        ExceptionGroup: the step fails. After a transient error it is first retried once.
    """
    is_first_attempt = context.op_execution_context.retry_number == 0
    will_retry = is_first_attempt and any(isinstance(error, TransientError) for error in failed.values())
    if will_retry or not can_continue:
        raise ExceptionGroup("gateways could not be flushed", list(failed.values()))
    for gateway, error in failed.items():
        defer_failure(context, run_state, error, f"gateway {gateway} was not flushed", gateway)
        run_state.drop_cut_point(gateway)


def _report_flush_by_day(context: dg.AssetExecutionContext, reports: "Sequence[FlushReport]") -> None:
    """Add to each partition what was flushed of its day. A batch (one commit) counts for the day of its first delta."""
    keys = context.partition_keys
    by_day: dict[str, list[FlushReport]] = {key: [] for key in keys}
    for report in reports:
        by_day[nearest_key(day_of(report.arrival_low), keys)].append(report)
    for key, reports_of_day in by_day.items():
        context.add_asset_metadata(_flush_metadata(reports_of_day), DELTAS, key)


def _report_comparison(
    context: dg.AssetExecutionContext,
    days: Sequence[date],
    pyspark: SparkConnectResource,
    lake: LakeResource,
    store: FlushStore,
) -> None:
    """Add to each partition how many of its day's deltas staging's ledger and the lake have."""
    from lakehouse.checks import days_against_lake

    for day in days_against_lake(pyspark.spark_session, store, days, lake.names):
        compared: Metadata = {
            "acknowledged": day.acknowledged,
            "unflushed": day.unflushed,
            "dagster/partition_row_count": day.in_lake,
            "ledger_equals_lake": not day.differing,
        }
        if day.differing:
            compared["gateways_that_differ"] = ", ".join(day.differing)
        context.add_asset_metadata(compared, DELTAS, day.day)


def _flush_metadata(reports: "Sequence[FlushReport]") -> Metadata:
    """Return the metadata of the flushed batches of a run or of one partition."""
    return {
        "deltas_in": sum(report.deltas for report in reports if not report.already_there),
        "duplicates": sum(report.deltas for report in reports if report.already_there),
        "batches": dg.MetadataValue.md(
            "\n".join(f"- `{report.batch_id}`: {report.deltas:,} deltas" for report in reports)
        ),
        "gateways": ", ".join(sorted({report.gateway for report in reports})),
    }


def _state_table(
    schema: TableSchema, namespace: str, days: dg.PartitionsDefinition, settings: Config
) -> dg.AssetsDefinition:
    """Create the asset of a state table. `schema` is joined from those of all gateways of the namespace."""
    key = state_key(schema.table, namespace)
    qualified = f"{namespace}.{schema.table}" if namespace else schema.table

    @dg.asset(
        key=key,
        deps=[DELTAS],
        partitions_def=days,
        backfill_policy=dg.BackfillPolicy.single_run(),
        pool=table_pool(schema.table, namespace),
        description=f"The rows of `{qualified}`, each column at its last writer's value, deleted rows marked.",
        group_name="tables",
        kinds={"spark", "iceberg", "table"},
        metadata={
            "dagster/column_schema": state_columns(schema),
            "dagster/uri": table_uri(settings.lake.warehouse, namespace or settings.lake.namespace, schema.table),
            "lineage": state_lineage(schema),
        },
    )
    def state(
        context: dg.AssetExecutionContext,
        config: Merge,
        pyspark: SparkConnectResource,
        lake: LakeResource,
        staging: StagingResource,
        run_state: dg.ResourceParam[RunState],
    ) -> dg.MaterializeResult[None]:
        from lakehouse.tables.merging import gateways_with_new_columns, merge_table, merged_by_day

        with failure_policy(context, pyspark):
            spark, names = pyspark.spark_session, lake.names_in(namespace)
            flushed = run_state.flushed_of(schema.table, namespace)
            days = None if is_requested_by(FLUSH_SENSOR, context.run) else days_of(context)
            contract = settings.contracts.get(schema.table, "evolve")

            def merge(upto: Mapping[str, int], contract: "Contract") -> "MergeReport":
                """Merge the deltas up to some arrivals, given by gateway."""
                return merge_table(
                    spark, schema, upto, days=days, rebuild=config.rebuild, names=names, contract=contract
                )

            left_out: Metadata = {}
            try:
                report = merge(flushed, contract)
            except Exception as error:
                if not (continues_on_failure(context.run) and is_final(context, error)):
                    raise
                rejected: frozenset[str] | None = None  # gateways whose new columns the frozen table rejects
                if contract == "freeze" and isinstance(error, SchemaError):
                    rejected = gateways_with_new_columns(spark, staging.store, flushed, schema.table, names)
                run_state.unmerged[namespace, schema.table] = Unmerged(brief(error), rejected)
                who = f" for {', '.join(sorted(rejected))}" if rejected is not None else ""
                defer_failure(context, run_state, error, f"table {qualified} was not merged{who}")
                left_out = {"left_out": f"{brief(error)}{who}"}
                if rejected is None:
                    return dg.MaterializeResult(metadata=left_out, data_version=previous_data_version(context, key))
                # for the other gateways; `discard`, because the joined schema still has the rejected columns
                report = merge({name: mark for name, mark in flushed.items() if name not in rejected}, "discard")
            run_state.merged[namespace, schema.table] = report
            by_day = days is not None or len(context.partition_keys) > 1
            if by_day:
                ranges = {name: (report.since.get(name, 0), arrival) for name, arrival in flushed.items()}
                by_days = merged_by_day(spark, schema.table, ranges, days, names) if report.deltas_in else {}
                counts = [(day, "deltas_in", merged.deltas) for day, merged in by_days.items()]
                counts += [(day, "rows_merged", merged.rows) for day, merged in by_days.items()]
                report_by_day(context, ["deltas_in", "rows_merged"], counts)
            valid_through_ms = table_valid_through_ms(report.marks, flushed, run_state.valid_through_ms())
            metadata = {
                **_merge_metadata(report, by_day=by_day),
                **left_out,
                **size_metadata(spark, names.state(schema.table)),
                **freshness_metadata(valid_through_ms, staging.now_ms()),
                "dagster/uri": table_uri(lake.warehouse, names.tables, schema.table),
                "dagster/column_schema": state_columns(schema),
            }
        unchanged = previous_data_version(context, key) if not report.rows_merged else None
        version = unchanged or dg.DataVersion(str(report.snapshot_id))
        return dg.MaterializeResult(metadata=metadata, data_version=version)

    return state


def _merge_metadata(report: "MergeReport", *, by_day: bool) -> Metadata:
    """Return a merge's metadata; with `by_day`, when each partition has figures of its own, the run's are `of_run`."""
    figures: Metadata = {
        "deltas_in": report.deltas_in,
        "rows_merged": report.rows_merged,
        "tombstones": report.tombstones,
        "rejected_values": report.rejected_values,
    }
    return {
        **({"of_run": dg.MetadataValue.json(figures)} if by_day else figures),
        "snapshot_id": str(report.snapshot_id),
        "seconds": round(report.seconds, 2),
    }
