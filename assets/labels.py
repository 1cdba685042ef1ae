"""What every asset says about itself, and how LakeSync's values read in the catalogue."""

from datetime import UTC, date, datetime

import dagster as dg

from lakesync.hlc import wall_of
from lakesync.schema import TableSchema

OWNERS = ["team:lakesync"]
REQUESTED_BY = "lakesync/requested_by"
"""Run tag: which sensor asked for the run; absent on a run of a person or a backfill."""
REASON = "lakesync/reason"
"""Run tag: why the sensor asked."""
FLUSH_SENSOR = "flush_sensor"

DELTAS = dg.AssetKey("deltas")
LOG = dg.AssetKey(["staging", "log"])
CUT = dg.AssetKey("cut")
CHECKPOINT = dg.AssetKey("checkpoint")


def state_key(table: str) -> dg.AssetKey:
    """The asset of a state table."""
    return dg.AssetKey(["tables", table])


def client_key(table: str) -> dg.AssetKey:
    """The external asset of a table in the clients' databases."""
    return dg.AssetKey(["clients", table])


def column_schema(schema: TableSchema) -> dg.TableSchema:
    """A schema as Dagster shows it."""
    key = set(schema.primary_key or ())
    return dg.TableSchema(
        columns=[
            dg.TableColumn(
                column.name,
                str(column.type),
                description="part of the primary key" if column.name in key else None,
            )
            for column in schema.columns
        ]
    )


def moment(arrival: int) -> dg.TimestampMetadataValue:
    """An arrival as the time at which the gateway committed it."""
    return dg.MetadataValue.timestamp(wall_of(arrival) / 1000)


def is_sensor_run(context: dg.AssetExecutionContext) -> bool:
    """Whether the flush sensor asked for this run, rather than a person or a backfill."""
    return context.run.tags.get(REQUESTED_BY) == FLUSH_SENSOR


def days_of(context: dg.AssetExecutionContext) -> list[date]:
    """The run's partitions as UTC days of arrival."""
    return [datetime.strptime(key, "%Y-%m-%d").replace(tzinfo=UTC).date() for key in context.partition_keys]
