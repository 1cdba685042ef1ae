"""Names and metadata that assets, sensors and jobs share: asset keys, pools, run tags, partitions' days, and columns.

Dagster limits how many steps of one pool run at once, and how many runs with the same value of the tag `SLOT`. A
partition is a UTC day of arrival: deltas belong to the day on which the gateway received them. The metadata of an asset
describes the columns of the lake's tables, and where their values come from. The metadata of a materialisation has
sizes, figures of Spark's jobs, freshness and the data version.
"""

import hashlib
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta

import dagster as dg
import msgspec
from pyspark.sql import SparkSession

from lakehouse.table_definitions import SPARK_TYPES
from lakesync.model.hlc import start_of, wall_of
from lakesync.model.schema import Column, TableSchema
from resources.spark import SparkConnectResource

OWNERS = ["team:lakesync"]
"""Owners of every asset, for Dagster's pages."""
REQUESTED_BY = "lakesync/requested_by"
"""Run tag: the sensor that requested the run; absent if a person or a backfill did."""
REASON = "lakesync/reason"
"""Run tag: why the sensor requested the run."""
UPKEEP = "lakesync/upkeep"
"""Run tag of maintenance runs, of which only one runs at a time."""
SLOT = "lakesync/slot"
"""Run tag: the kind of run. Each kind has its own limit of concurrent runs, so that no kind delays another."""
FLUSH_SLOT, MOVE_SLOT, POLL_SLOT, UPKEEP_SLOT, OTHER_SLOT = "flush", "move", "poll", "upkeep", "other"
"""Values of the tag `SLOT`."""
SET_ASIDE = "lakesync/set_aside"
"""Run tag: ids of the gateways that a run could not flush, separated by commas; empty for none."""
LEFT_OUT = "lakesync/left_out"
"""Run tag: the failures in spite of which a run continued, as a JSON list of short texts. The same fault always has the
same text."""
FLUSH_SENSOR = "flush_sensor"
POLL_SENSOR = "poll_sensor"
DESTINATION_SENSOR = "destination_sensor"
MOVE_SENSOR = "move_sensor"
"""Names of sensors: values of the tag `REQUESTED_BY`. A run that a sensor requested does all that is due; a run that a
person or a backfill started does the days of its partitions."""
CONNECTOR = "lakesync/connector"
"""Run tag: `GATEWAY/NAME` of the connector that a run polls."""

DELTAS = dg.AssetKey("deltas")
"""The asset of the history."""
FLUSH_JOB, POLL_JOB, ERASURE_JOB, DESTINATIONS_JOB = "flush", "poll", "erasure", "destinations"
"""Names of jobs whose runs are requested by sensors."""
AUDIT = "audit"
"""Name of the job that runs every check."""
LOG = dg.AssetKey(["staging", "log"])
"""The external asset of the unflushed deltas in staging."""
SNAPSHOTS = dg.AssetKey("checkpoint_snapshots")
"""The asset that a flush materialises last: the tagged snapshots of the state tables."""
CHECKPOINT = dg.AssetKey("checkpoint")
"""The asset of the checkpoints from which new clients start, by gateway."""
CHECKPOINT_POOL = "lakesync_checkpoint"
"""Pool of the steps that make checkpoints."""
Metadata = dict[str, dg.MetadataValue | str | int | float]
"""Metadata of a materialisation: name → value."""


def state_key(table: str, namespace: str = "") -> dg.AssetKey:
    """Return the asset of a state table.

    Args:
        table: name of the synced table.
        namespace: namespace of its gateways; empty for the shared one.
    """
    return dg.AssetKey([f"tables_{namespace}" if namespace else "tables", table])


def check_step(key: dg.AssetKey, checks: str = "checks") -> str:
    """Return the name of the step that checks an asset. The prefix distinguishes it from the asset's own step.

    Args:
        key: the asset.
        checks: the check's name, or `checks` if the step runs several.
    """
    return "__".join([checks, *key.path])


def table_pool(table: str, namespace: str = "") -> str:
    """Return the pool of the steps that write a state table.

    Args:
        table: name of the synced table.
        namespace: namespace of its gateways; empty for the shared one.
    """
    return f"lakesync_table_{namespace}__{table}" if namespace else f"lakesync_table_{table}"


def client_key(table: str) -> dg.AssetKey:
    """Return the external asset of a table in the clients' databases."""
    return dg.AssetKey(["clients", table])


def polled_key(gateway: str, connector: str, table: str) -> dg.AssetKey:
    """Return the asset of the rows that a connector polls into a table.

    Args:
        gateway: id of the connector's gateway.
        connector: the connector's name.
        table: the table's name.
    """
    return dg.AssetKey(["ingest", gateway, connector, table])


def target_key(destination: str, adapter: str) -> dg.AssetKey:
    """Return the asset of one adapter of a destination.

    Args:
        destination: the destination's name in `lakesync.toml`.
        adapter: the adapter's name.
    """
    return dg.AssetKey(["destinations", destination, adapter])


def target_pool(destination: str, adapter: str) -> str:
    """Return the pool of the steps that write to one adapter of a destination.

    Args:
        destination: the destination's name in `lakesync.toml`.
        adapter: the adapter's name.
    """
    return f"lakesync_destination_{destination}__{adapter}"


def range_tags(first: str, last: str) -> dict[str, str]:
    """Return the run tags that select a range of partitions.

    Args:
        first: key of the first partition.
        last: key of the last partition.
    """
    return {"dagster/asset_partition_range_start": first, "dagster/asset_partition_range_end": last}


def is_requested_by(sensor: str, context: dg.AssetExecutionContext) -> bool:
    """Return whether a sensor requested this run, rather than a person or a backfill.

    Args:
        sensor: the sensor's name.
        context: the step's context.
    """
    return context.run.tags.get(REQUESTED_BY) == sensor


def continues_on_failure(run: dg.DagsterRun) -> bool:
    """Return whether a run continues if a part of it fails, and fails only in its last step.

    Runs that the flush sensor requests do, if they include the last step, `checkpoint_snapshots`.
    """
    selected = run.asset_selection
    return run.tags.get(REQUESTED_BY) == FLUSH_SENSOR and (not selected or SNAPSHOTS in selected)


def days_of(context: dg.AssetExecutionContext) -> list[date]:
    """Return the run's partitions as UTC days of arrival."""
    return [day_of_key(key) for key in context.partition_keys]


def days_in_tags(tags: Mapping[str, str]) -> list[date] | None:
    """Return the UTC days of the partitions that a run's tags select; None if they select none."""
    single = tags.get("dagster/partition")
    first = tags.get("dagster/asset_partition_range_start", single)
    last = tags.get("dagster/asset_partition_range_end", single)
    if first is None or last is None:
        return None
    start, end = day_of_key(first), day_of_key(last)
    return [start + timedelta(days=number) for number in range((end - start).days + 1)]


def nearest_key(day: str, keys: Sequence[str]) -> str:
    """Return the key of a day's partition; for a day before the first or after the last partition, the nearest one.

    Args:
        day: the day, `YYYY-MM-DD`.
        keys: keys of the partitions, ascending; at least one.
    """
    return min(max(day, keys[0]), keys[-1])


def nearest_day(days: dg.TimeWindowPartitionsDefinition, ms: int) -> str:
    """Return the key of a time's partition, or the nearest one, as `nearest_key`.

    Args:
        days: partitions by UTC day.
        ms: the time in milliseconds since 1970.
    """
    return nearest_key(f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d}", days.get_partition_keys())


def ms_of_days(days: Sequence[date]) -> tuple[int, int]:
    """Return the first millisecond of a range of UTC days, and the first one after it, both since 1970."""
    first, after = min(days), max(days) + timedelta(days=1)
    start, end = (int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp() * 1000) for day in (first, after))
    return start, end


def arrivals_of(days: Sequence[date]) -> tuple[int, int]:
    """Return the first and the last arrival that a range of UTC days can contain."""
    first_ms, end_ms = ms_of_days(days)
    return start_of(first_ms), start_of(end_ms) - 1


def day_of_key(key: str) -> date:
    """Return the day of a daily partition's key, `YYYY-MM-DD`."""
    return datetime.strptime(key, "%Y-%m-%d").replace(tzinfo=UTC).date()


_STAMP = "struct<hlc, client_id>"
"""Type of a stamp: the writer's clock and client id, by which writes are ordered."""
_DELTAS = (  # name, type and description of each column of the history
    ("gateway", "string", "the tenant whose delta it is"),
    ("shard", "string", "the staging store that it was pushed to; `main` where tables are not sharded"),
    ("epoch", "bigint", "when that store was created; a rebuilt one has a greater number"),
    ("batch_id", "string", "the flush that wrote it"),
    ("seq", "bigint", "number of its push in the shard"),
    ("ordinal", "int", "its position in its push"),
    (
        "arrival",
        "bigint",
        "the gateway's clock at its commit: wall ms << 16, plus a counter; cursors and marks are arrivals",
    ),
    ("day", "date", "UTC day of the arrival"),
    ("table_name", "string", "the synced table"),
    ("row_id", "string", "the row in it"),
    ("op", "string", "INSERT, UPDATE or DELETE"),
    ("client_id", "string", "who wrote it"),
    ("hlc", "bigint", "the writer's hybrid logical clock; with the client id its stamp"),
    ("delta_id", "string", "SHA-256 of its content"),
    ("width", "int", "number of its columns when it was pushed"),
    ("columns", "map<string, string>", "each column's value as canonical JSON; empty for a DELETE"),
)
_STATE = (  # name, type and description of each column that every state table has
    ("_gateway", "string", "the tenant whose row it is"),
    ("_row", "string", "the row's id"),
    ("_cells", "map<string, struct>", "each live column with its stamp, delta id and JSON text, whatever its type"),
    ("_tombstone", _STAMP, "the newest deletion"),
    ("_inserted", _STAMP, "the newest INSERT above the tombstone"),
    ("_gone", "boolean", "the row is deleted; it is kept for its tombstone"),
    ("_arrival", "bigint", "the newest arrival merged into the row"),
)


def client_columns(schema: TableSchema) -> dg.TableSchema:
    """Return the columns of a synced table, as registered."""
    return dg.TableSchema(
        [dg.TableColumn(column.name, str(column.type), _description(schema, column)) for column in schema.columns]
    )


def delta_columns() -> dg.TableSchema:
    """Return the columns of the history."""
    return dg.TableSchema([dg.TableColumn(*column) for column in _DELTAS])


def followed_columns() -> dg.TableSchema:
    """Return the columns of the deltas at a destination."""
    kept = {"gateway", "arrival", "table_name", "row_id", "op", "client_id", "hlc", "delta_id", "columns"}
    return dg.TableSchema([dg.TableColumn(*column) for column in _DELTAS if column[0] in kept])


def state_columns(schema: TableSchema) -> dg.TableSchema:
    """Return the columns of a state table: the system columns, then the typed ones."""
    system_columns = [dg.TableColumn(*column) for column in _STATE]
    typed = [
        dg.TableColumn(column.name, SPARK_TYPES[column.type], _description(schema, column)) for column in schema.columns
    ]
    return dg.TableSchema([*system_columns, *typed])


def history_lineage() -> dg.MarkdownMetadataValue:
    """Return the source of each column of the history, as a Markdown table."""
    return dg.MetadataValue.md(
        "One row for each acknowledged delta of `staging/log`, decoded from the body of its push.\n\n"
        "| column | from |\n|---|---|\n"
        "| `gateway`, `shard`, `epoch`, `seq`, `arrival` | the log row |\n"
        "| `batch_id` | the flush |\n"
        "| `day` | `arrival`, as a UTC day |\n"
        "| `ordinal` | the delta's position in the push |\n"
        "| all others | the delta, as the client signed it with its id |\n"
    )


def state_lineage(schema: TableSchema) -> dg.MarkdownMetadataValue:
    """Return the source of each column of a state table, as a Markdown table."""
    table = schema.table
    typed = "".join(
        f"| `{column.name}` | `clients/{table}.{column.name}` → `deltas.columns['{column.name}']` → "
        f"`_cells['{column.name}'].value` as {SPARK_TYPES[column.type]} |\n"
        for column in schema.columns
    )
    return dg.MetadataValue.md(
        f"The merge of `deltas` where `table_name = '{table}'`, by gateway and row.\n\n"
        "| column | from |\n|---|---|\n"
        f"{typed}"
        "| `_cells` | each column's greatest `(hlc, client_id)` above the tombstone |\n"
        "| `_tombstone`, `_inserted` | the greatest stamp of a DELETE, of an INSERT |\n"
        "| `_arrival` | the greatest `deltas.arrival` |\n"
    )


def _description(schema: TableSchema, column: Column) -> str | None:
    """Describe a column by its role in the schema; None if it has none."""
    parts = []
    if column.name in (schema.primary_key or ()):
        parts.append("part of the primary key")
    if column.name == schema.external_id_column:
        parts.append("the row's id in the external system")
    if column.references is not None:
        parts.append(f"refers to {column.references}")
    return "; ".join(parts) or None


def size_metadata(spark: SparkSession, name: str) -> Metadata:
    """Return the numbers of rows, files and bytes of an Iceberg table.

    Args:
        spark: an open Spark session.
        name: the table's full, quoted name.
    """
    from lakehouse.spark_errors import lake_errors
    from lakehouse.table_access import table_size

    size = lake_errors(table_size)(spark, name)
    return {
        "dagster/row_count": size.rows,
        "files": size.data_files,
        "delete_files": size.delete_files,
        "bytes": size.bytes,
    }


def spark_metadata(resource: SparkConnectResource) -> Metadata:
    """Return the figures of the Spark jobs that a step ran, by Spark's REST API.

    The entry `engine` is `none` if the step ran no job. If Spark's UI cannot be reached, there are no figures.

    Args:
        resource: the step's resource `pyspark`.
    """
    application, figures = resource.application, resource.job_figures()
    if application is None or (figures is not None and not figures.jobs):
        return {"engine": "none"}
    metadata: Metadata = {"engine": "spark", "spark/application": application}
    if figures is None or resource.ui_url is None:
        return metadata
    pages = f"{resource.ui_url.rstrip('/')}/jobs"
    metadata |= {
        "spark/jobs": len(figures.jobs),
        "spark/stages": figures.stages,
        "spark/tasks": figures.tasks,
        "spark/failed_tasks": figures.failed_tasks,
        "spark/rows_read": figures.rows_read,
        "spark/rows_written": figures.rows_written,
        "spark/bytes_read": figures.bytes_read,
        "spark/bytes_written": figures.bytes_written,
        "spark/shuffle_bytes": figures.shuffle_bytes,
        "spark/ui": dg.MetadataValue.md(
            f"[All jobs]({pages}/): " + ", ".join(f"[{job}]({pages}/job/?id={job})" for job in figures.jobs)
        ),
    }
    if not figures.complete:
        metadata["spark/incomplete"] = "Spark has forgotten older jobs of this step: raise spark.ui.retainedJobs"
    return metadata


def freshness_metadata(valid_through_ms: int | None, now_ms: int) -> Metadata:
    """Return the time up to which an asset has every acknowledged delta, and how long ago that is.

    Args:
        valid_through_ms: that time, in milliseconds of server wall time; None if it is unknown, for no metadata.
        now_ms: server wall time in milliseconds since 1970.
    """
    if valid_through_ms is None:
        return {}
    return {
        "valid_through": dg.MetadataValue.timestamp(valid_through_ms / 1000),
        "lag_seconds": round(max(now_ms - valid_through_ms, 0) / 1000, 1),
    }


def table_valid_through_ms(marks: Mapping[str, int], flushed: Mapping[str, int], valid_through_ms: int) -> int | None:
    """Return the server wall time in milliseconds up to which a state table has every acknowledged delta.

    It is that of the history, or earlier if the table is behind the history for some gateway.

    Args:
        marks: gateway → the arrival up to which the table is merged.
        flushed: gateway → the arrival up to which the history is flushed.
        valid_through_ms: the time up to which the history has every acknowledged delta.

    Returns:
        The time; None if a gateway's deltas were never merged.
    """
    # marks of the gateways whose deltas the table lacks; None if it has none of the gateway
    behind = [marks.get(gateway) for gateway, arrival in flushed.items() if marks.get(gateway, -1) < arrival]
    if None in behind:
        return None
    return min([valid_through_ms, *(wall_of(mark) for mark in behind if mark is not None)])


def content_version(content: object) -> dg.DataVersion:
    """Return a data version that is equal for equal content.

    Args:
        content: a value that msgspec can encode as JSON.
    """
    text = msgspec.json.encode(content, order="deterministic")
    return dg.DataVersion(hashlib.sha256(text).hexdigest()[:16])


def previous_data_version(context: dg.AssetExecutionContext, key: dg.AssetKey) -> dg.DataVersion | None:
    """Return the data version of an asset's newest materialisation; None if it was never materialised.

    A step that changed nothing reports it again, so that Dagster's pages show that nothing changed. No decision
    depends on it.

    Args:
        context: the step's context.
        key: the asset.
    """
    event = context.instance.get_latest_materialization_event(key)
    materialization = event.asset_materialization if event else None
    tags = (materialization.tags if materialization else None) or {}
    version = tags.get("dagster/data_version")
    return dg.DataVersion(version) if version else None
