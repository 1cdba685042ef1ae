"""Creates an asset for each state table: the current rows of a synced table, merged from the history `deltas`.

`lakehouse.tables.increments` does the work. The code location (`lakesync_dagster.definitions`) calls this module.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import dagster as dg

from assets.asset_metadata import (
    DELTAS,
    FLUSH_SENSOR,
    OWNERS,
    Metadata,
    continues_on_failure,
    days_of,
    freshness_metadata,
    is_requested_by,
    nearest_key,
    previous_data_version,
    size_metadata,
    state_columns,
    state_key,
    state_lineage,
    table_pool,
    table_valid_through_ms,
)
from assets.failure_policy import brief, failure_policy, is_final, set_aside
from lakehouse.run_state import RunState, Unmerged
from lakehouse.schema_snapshot import SchemaSnapshot
from lakesync.config import Config
from lakesync.model.errors import SchemaError
from lakesync.model.schema import TableSchema
from resources.spark import SparkConnectResource
from resources.stores import LakeResource, StagingResource, table_uri

if TYPE_CHECKING:
    from lakehouse.table_definitions import Contract
    from lakehouse.tables.increments import DayMerge, MergeReport


class Merge(dg.Config):
    """The run configuration of a state table's asset."""

    rebuild: bool = False
    """Recompute every row from the whole history, in one commit."""


def state_tables(
    snapshot: SchemaSnapshot, days: dg.PartitionsDefinition, settings: Config
) -> list[dg.AssetsDefinition]:
    """Create an asset for each registered table.

    Args:
        snapshot: names the tables.
        days: partitions by UTC day of arrival.
        settings: the project's configuration, with the contracts of tables.
    """
    return [state_table(schema, days, settings, namespace) for schema, namespace in snapshot.states]


def state_table(
    schema: TableSchema, days: dg.PartitionsDefinition, settings: Config, namespace: str = ""
) -> dg.AssetsDefinition:
    """Create the asset of a state table.

    A run that the flush sensor requests merges the deltas after the table's marks. Any other run merges the deltas of
    its days again, whatever the marks say, and with `rebuild` the whole history. A run of the sensor continues without
    a table that cannot be merged, and without gateways whose schema has columns that a frozen table lacks.

    Args:
        schema: the table's schema, joined from those of all its gateways.
        days: partitions by UTC day of arrival.
        settings: the project's configuration, with the contracts of tables.
        namespace: namespace of the table's gateways; empty for the shared one.
    """
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
        owners=OWNERS,
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
        from lakehouse.tables.increments import gateways_with_new_columns, merge_table, merged_by_day

        with failure_policy(context, pyspark):
            spark, names = pyspark.spark_session, lake.names_in(namespace)
            flushed = run_state.flushed_of(schema.table, namespace)
            days = None if is_requested_by(FLUSH_SENSOR, context) else days_of(context)
            contract = settings.contracts.get(schema.table, "evolve")

            def merge(upto: Mapping[str, int], contract: "Contract") -> "MergeReport":
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
                set_aside(context, run_state, error, f"table {qualified} was not merged{who}")
                left_out = {"left_out": f"{brief(error)}{who}"}
                if rejected is None:
                    return dg.MaterializeResult(metadata=left_out, data_version=previous_data_version(context, key))
                report = merge({name: mark for name, mark in flushed.items() if name not in rejected}, "discard")
            run_state.merged[namespace, schema.table] = report
            by_day = days is not None or len(context.partition_keys) > 1
            if by_day:
                ranges = {name: (report.since.get(name, 0), arrival) for name, arrival in flushed.items()}
                found = merged_by_day(spark, schema.table, ranges, days, names) if report.deltas_in else {}
                _report_by_day(context, found)
            valid_through_ms = table_valid_through_ms(report.marks, flushed, run_state.valid_through_ms())
            metadata = {
                **_merged(report, total=not by_day),
                **left_out,
                **size_metadata(spark, names.state(schema.table)),
                **freshness_metadata(valid_through_ms, staging.now_ms()),
                "dagster/uri": lake.uri(names.tables, schema.table),
                "dagster/column_schema": state_columns(schema),
            }
        unchanged = previous_data_version(context, key) if not report.rows_merged else None
        version = unchanged or dg.DataVersion(str(report.snapshot_id))
        return dg.MaterializeResult(metadata=metadata, data_version=version)

    return state


def _report_by_day(context: dg.AssetExecutionContext, found: "Mapping[str, DayMerge]") -> None:
    """Add to each partition what was merged of its day. Days outside the run count for the nearest partition."""
    keys = context.partition_keys
    metadata: dict[str, dict[str, int]] = {key: {"deltas_in": 0, "rows_merged": 0} for key in keys}
    for day, merged in found.items():
        mine = metadata[nearest_key(day, keys)]
        mine["deltas_in"] += merged.deltas
        mine["rows_merged"] += merged.rows
    for key, mine in metadata.items():
        context.add_asset_metadata(mine, partition_key=key)


def _merged(report: "MergeReport", *, total: bool) -> Metadata:
    """Return a merge's metadata. With `total` its figures belong to the run's only partition, otherwise to the run."""
    figures: Metadata = {
        "deltas_in": report.deltas_in,
        "rows_merged": report.rows_merged,
        "tombstones": report.tombstones,
        "rejected_values": report.rejected_values,
    }
    return {
        **(figures if total else {"of_run": dg.MetadataValue.json(figures)}),
        "snapshot_id": str(report.snapshot_id),
        "seconds": round(report.seconds, 2),
    }
