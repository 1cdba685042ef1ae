"""Maintains one table by Iceberg's procedures: compacts files, rewrites manifests, expires snapshots, removes orphans.

The tables are the history of all deltas (changes of rows), which flushes write batch by batch, and the state tables,
which are merged from it. Maintenance is safe beside a flush or merge: Iceberg rejects a commit if another one has
changed the same files, and only files older than any run count as orphans.

A *gateway* is one app's stream of deltas, which clients push. *Staging* is the database in which gateways store pushes;
a *shard* is a staging database with some of the tables. A *flush* copies a batch of pushes to the history, and staging
confirms it. The *backlog* is the pushes that staging has not confirmed yet. Until then the flush may be repeated, which
replaces the files of its batch. So a file may get a second batch only once both are confirmed: maintenance compacts the
history up to the first unconfirmed *arrival* (the gateway's timestamp of a push). A file also has deltas of one gateway
and shard only.

The asset `maintenance` calls `maintain` and `trim_log`; erasures and polls of connectors call single procedures.
`section` is the configuration's section `maintenance`.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import msgspec
from pyspark.errors import PySparkException
from pyspark.sql import functions as sf

from lakehouse.spark_errors import brief, lake_errors
from lakehouse.table_access import read_version, version_if_there
from lakesync.model.errors import CommitConflictError
from lakesync.model.hlc import start_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Row, SparkSession

    from lakehouse.table_definitions import LakeNames
    from lakesync.config.pipeline_sections import MaintenanceSection
    from lakesync.staging.records import Backlog
    from lakesync.staging.store.pipeline import FlushStore


_REJECTED = (
    "Cannot commit rewrite because of",
    "org.apache.iceberg.exceptions.ValidationException",
    "org.apache.iceberg.exceptions.CommitFailedException",
)
"""Error texts of Iceberg if another commit has changed the same files."""


class FileCounts(msgspec.Struct, frozen=True):
    """Counts of a table's files and of their rows."""

    data_files: int = 0
    small_files: int = 0
    """Number of data files that are small enough to be compacted."""
    delete_files: int = 0
    """Number of files that mark rows of data files as deleted."""
    bytes: int = 0
    rows: int = 0
    """Number of rows in data files, deleted ones included."""
    manifests: int = 0
    snapshots: int = 0


class MaintenanceReport(msgspec.Struct, frozen=True):
    """What one maintenance of a table did."""

    before: FileCounts = FileCounts()
    after: FileCounts = FileCounts()
    compacted: int = 0
    """Number of data files that were rewritten into larger ones, or without deleted rows."""
    manifests: int = 0
    """Number of rewritten manifests."""
    expired: int = 0
    """Number of files that were deleted with expired snapshots."""
    orphans: int = 0
    """Number of deleted files that no snapshot referenced."""
    snapshot_id: int | None = None
    """Id of the table's newest snapshot afterwards; None for an empty table."""


@lake_errors
def maintain(
    spark: SparkSession,
    names: LakeNames,
    name: str,
    section: MaintenanceSection,
    backlog: Sequence[Backlog] = (),
) -> MaintenanceReport:
    """Maintain a table of the lake. It may be repeated.

    With the history it also expires the snapshots and removes the orphans of the table `rejected` (values that do not
    fit their columns).

    Args:
        spark: an open Spark session.
        names: catalogue and namespaces of the lake's tables.
        name: the table's full, quoted name.
        section: the thresholds, and for how long old snapshots and files are kept.
        backlog: for the history, staging's backlog, read before the call. Later deltas are not compacted.

    Raises:
        LakeUnavailableError: Spark cannot be reached.
        CommitConflictError: another run wrote the table meanwhile, so that the commit was rejected.
    """
    is_history = name == names.deltas
    version = version_if_there(spark, name)
    if version is None or version.snapshot_id is None:
        return MaintenanceReport()
    before = count_files(spark, name, section)
    if is_history:
        ranges = _compactable_ranges(spark, name, section, backlog)
        compacted = sum(_rewrite(spark, names, name, section, where) for where in ranges)
    else:
        compacted = _rewrite(spark, names, name, section) if before.small_files or before.delete_files else 0
    manifests = rewrite_manifests(spark, names, name) if before.manifests > section.max_manifests else 0
    with_rejected = is_history and spark.catalog.tableExists(names.rejected)
    cleaned = (name, names.rejected) if with_rejected else (name,)
    older_than = datetime.now(UTC) - timedelta(hours=section.snapshot_retention_hours)
    expired = sum(expire_snapshots(spark, names, each, older_than) for each in cleaned)
    orphans = sum(_remove_orphans(spark, names, each, section) for each in cleaned)
    after, snapshot_id = count_files(spark, name, section), read_version(spark, name).snapshot_id
    return MaintenanceReport(before, after, compacted, manifests, expired, orphans, snapshot_id)


class TrimReport(msgspec.Struct, frozen=True):
    """What a trim of staging's log did."""

    bytes_freed: int
    """Bytes of the deleted deltas."""
    bytes_waiting: int
    """Bytes of unflushed deltas, which stay in the log."""
    deltas_waiting: int
    """Number of unflushed deltas."""


def trim_log(store: FlushStore, backlog: Sequence[Backlog]) -> TrimReport:
    """Delete flushed deltas from staging's log, if a flush was killed between confirming them and deleting them.

    Args:
        store: the staging store.
        backlog: the store's backlog, by gateway and shard.

    Raises:
        StagingUnavailableError: the store cannot be reached.
    """
    freed = sum(store.trim(shard.gateway, shard.shard) for shard in backlog)
    unflushed = store.backlog()
    return TrimReport(freed, sum(shard.bytes for shard in unflushed), sum(shard.deltas for shard in unflushed))


@lake_errors
def count_files(spark: SparkSession, name: str, section: MaintenanceSection) -> FileCounts:
    """Count a table's files.

    Args:
        spark: an open Spark session.
        name: the table's full, quoted name.
        section: the thresholds, which say which files are small.
    """
    row = spark.sql(
        "SELECT count_if(content = 0) AS data, "
        f"count_if(content = 0 AND file_size_in_bytes < {_small_bytes(section)}) AS small, "
        "count_if(content <> 0) AS deletes, coalesce(sum(file_size_in_bytes), 0) AS size, "
        "coalesce(sum(if(content = 0, record_count, 0)), 0) AS rows, "
        f"(SELECT count(*) FROM {name}.manifests) AS manifests, (SELECT count(*) FROM {name}.snapshots) AS snapshots "
        f"FROM {name}.files"
    ).collect()[0]
    return FileCounts(
        row["data"], row["small"], row["deletes"], row["size"], row["rows"], row["manifests"], row["snapshots"]
    )


@lake_errors
def apply_deletes(spark: SparkSession, names: LakeNames, name: str) -> int:
    """Rewrite every data file with deleted rows without these, and return the number of rewritten files.

    Args:
        spark: an open Spark session.
        names: catalogue and namespaces of the lake's tables.
        name: the table's full, quoted name.
    """
    # by these options a file with a delete file is rewritten, and small files are not, however many
    options = "'delete-file-threshold', '1', 'min-input-files', '1000000', 'remove-dangling-deletes', 'true'"
    row = _call(spark, names, "rewrite_data_files", f"table => '{_unquoted(name)}', options => map({options})")
    return int(row["rewritten_data_files_count"])


@lake_errors
def rewrite_manifests(spark: SparkSession, names: LakeNames, name: str) -> int:
    """Rewrite the manifests of the newest snapshot, and return the number of rewritten ones.

    Args:
        spark: an open Spark session.
        names: catalogue and namespaces of the lake's tables.
        name: the table's full, quoted name.
    """
    row = _call(spark, names, "rewrite_manifests", f"table => '{_unquoted(name)}', use_caching => false")
    return int(row["rewritten_manifests_count"])


@lake_errors
def expire_snapshots(spark: SparkSession, names: LakeNames, name: str, older_than: datetime) -> int:
    """Expire old snapshots that have no tag and are not the newest, and return the number of deleted files.

    Args:
        spark: an open Spark session.
        names: catalogue and namespaces of the lake's tables.
        name: the table's full, quoted name.
        older_than: the time before which a snapshot is old.
    """
    arguments = f"table => '{_unquoted(name)}', older_than => TIMESTAMP '{_timestamp(older_than)}', retain_last => 1"
    row = _call(spark, names, "expire_snapshots", arguments)  # with a count for each kind of file
    return sum(int(count or 0) for column, count in row.asDict().items() if column.startswith("deleted_"))


@lake_errors
def location_of(spark: SparkSession, name: str) -> str:
    """Return the URI of a table's folder.

    Args:
        spark: an open Spark session.
        name: the table's full, quoted name.
    """
    described = spark.sql(f"DESCRIBE TABLE EXTENDED {name}").where("col_name = 'Location'").collect()
    return str(described[0]["data_type"])


def literal(text: str) -> str:
    """Return a text as a string literal of Spark's SQL, for a condition that a procedure takes as text."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _rewrite(
    spark: SparkSession, names: LakeNames, name: str, section: MaintenanceSection, where: str | None = None
) -> int:
    """Compact the files of a table, or those with rows that meet `where`, a condition in Spark's SQL.

    Returns:
        The number of rewritten files.
    """
    options = {
        "target-file-size-bytes": section.target_file_bytes,
        "min-input-files": section.min_input_files,
        "delete-ratio-threshold": section.delete_ratio_threshold,
        # the history, whose files are selected by a condition, has no delete files: it is updated by copy-on-write
        "remove-dangling-deletes": "true" if where is None else "false",
    }
    given = ", ".join(f"'{key}', '{value}'" for key, value in options.items())
    arguments = f"table => '{_unquoted(name)}', options => map({given})"
    if where is None:
        row = _call(spark, names, "rewrite_data_files", arguments)
    else:
        row = _call(spark, names, "rewrite_data_files", f"{arguments}, where => :where", where=where)
    return int(row["rewritten_data_files_count"])


def _compactable_ranges(
    spark: SparkSession, name: str, section: MaintenanceSection, backlog: Sequence[Backlog]
) -> list[str]:
    """Return conditions, in Spark's SQL, for the parts of the history to compact.

    Each is a gateway's day in one shard that has enough small files, before the oldest unconfirmed arrival.
    """
    bounds = sf.col("readable_metrics")  # the least and greatest values of each column in a file
    low, high = (sf.struct(bounds["gateway"][end], bounds["shard"][end]) for end in ("lower_bound", "upper_bound"))
    small = sf.col("file_size_in_bytes") < _small_bytes(section)
    days_with_small_files = (
        spark.table(f"{name}.files")
        .where((low == high) & small)  # files of one gateway and shard
        .groupBy(
            bounds["gateway"]["lower_bound"].alias("gateway"),
            bounds["shard"]["lower_bound"].alias("shard"),
            sf.col("partition.day").alias("day"),
        )
        .agg(sf.count(sf.lit(1)).alias("files"))
        .where(sf.col("files") >= section.min_input_files)
        .orderBy("day", "gateway", "shard")
    ).collect()
    # arrival before which all deltas of a gateway and shard are flushed and confirmed
    confirmed = {
        (each.gateway, each.shard): each.last_arrival + 1 if each.oldest_ms is None else start_of(each.oldest_ms)
        for each in backlog
    }
    return [
        f"gateway = {literal(row['gateway'])} AND shard = {literal(row['shard'])}"
        f" AND day = DATE '{row['day'].isoformat()}'"
        f" AND arrival < {confirmed[row['gateway'], row['shard']]}"
        for row in days_with_small_files
        if (row["gateway"], row["shard"]) in confirmed
    ]


def _remove_orphans(spark: SparkSession, names: LakeNames, name: str, section: MaintenanceSection) -> int:
    """Delete files that no snapshot references, and return their number."""
    hours = max(section.orphan_retention_hours, 24.1)  # Iceberg rejects less than a day
    older_than = datetime.now(UTC) - timedelta(hours=hours)
    arguments = f"table => '{_unquoted(name)}', older_than => TIMESTAMP '{_timestamp(older_than)}'"
    listing = ", prefix_listing => true" if location_of(spark, name).startswith("s3") else ""
    return len(spark.sql(f"CALL `{names.catalogue}`.system.remove_orphan_files({arguments}{listing})").collect())


def _call(spark: SparkSession, names: LakeNames, procedure: str, arguments: str, **values: str) -> Row:
    """Call a procedure of Iceberg and return its result."""
    try:
        row: Row = spark.sql(f"CALL `{names.catalogue}`.system.{procedure}({arguments})", args=values).collect()[0]
    except PySparkException as error:
        if not any(text in str(error) for text in _REJECTED):
            raise
        raise CommitConflictError(
            f"{procedure} of {arguments.partition(',')[0]} was rejected ({brief(error)}): another run wrote the table "
            "meanwhile; repeat it, which is safe"
        ) from error
    return row


def _unquoted(name: str) -> str:
    """Return a table's full, quoted name as procedures take it: without the catalogue and the quotes."""
    return name.replace("`", "").partition(".")[2]


def _small_bytes(section: MaintenanceSection) -> int:
    """Return the size in bytes below which a file is small: three quarters of that of compacted files."""
    return section.target_file_bytes * 3 // 4


def _timestamp(moment: datetime) -> str:
    """Return a time as the text of a TIMESTAMP literal, in UTC."""
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S.%f}"
