"""One asset a state table, made from the schema snapshot."""

from typing import TYPE_CHECKING

import dagster as dg

from assets.labels import DELTAS, OWNERS, column_schema, days_of, is_sensor_run, moment, state_key
from assets.outcome import outcome
from lakesync.schema import TableSchema
from resources.pipeline import Pipeline
from resources.snapshot import SchemaSnapshot

if TYPE_CHECKING:
    from resources.lake.state import MergeReport


class Merge(dg.Config):
    """How a state table is merged."""

    rebuild: bool = False
    """Make every row again from the whole history, in one commit."""


def state_tables(snapshot: SchemaSnapshot, days: dg.PartitionsDefinition) -> list[dg.AssetsDefinition]:
    """An asset for each registered table."""
    return [state_table(schema, days) for schema in snapshot.tables]


def state_table(schema: TableSchema, days: dg.PartitionsDefinition) -> dg.AssetsDefinition:
    """A table's merged state.

    A run of the flush sensor merges what lies above the table's mark; any other run merges exactly its days again,
    whatever the marks say, and `rebuild` makes the table anew.
    """

    @dg.asset(
        key=state_key(schema.table),
        deps=[DELTAS],
        partitions_def=days,
        backfill_policy=dg.BackfillPolicy.single_run(),
        pool=f"lakesync_table_{schema.table}",
        description=f"The rows of `{schema.table}`, each column at its last writer's value, deleted rows marked.",
        group_name="tables",
        kinds={"spark", "iceberg", "table"},
        owners=OWNERS,
        metadata={"dagster/column_schema": column_schema(schema)},
    )
    def state(
        context: dg.AssetExecutionContext, config: Merge, pipeline: dg.ResourceParam[Pipeline]
    ) -> dg.MaterializeResult[None]:
        from resources.lake.state import merge_table

        with outcome(context, pipeline):
            spark, names = pipeline.spark, pipeline.names
            days = None if is_sensor_run(context) else days_of(context)
            report = merge_table(
                spark, schema, pipeline.flushed_of(schema.table), days=days, rebuild=config.rebuild, names=names
            )
            return dg.MaterializeResult(metadata=merged(report, schema, pipeline.uri(names.tables, schema.table)))

    return state


def merged(report: "MergeReport", schema: TableSchema, uri: str) -> dict[str, dg.MetadataValue | str | int | float]:
    """A merge as metadata."""
    told: dict[str, dg.MetadataValue | str | int | float] = {
        "deltas_in": report.deltas_in,
        "rows_merged": report.rows_merged,
        "tombstones": report.tombstones,
        "rejected_values": report.rejected_values,
        "snapshot_id": str(report.snapshot_id),
        "seconds": round(report.seconds, 2),
        "dagster/uri": uri,
        "dagster/column_schema": dg.MetadataValue.table_schema(column_schema(schema)),
    }
    if report.marks:
        told["valid_through"] = moment(min(report.marks.values()))
    return told
