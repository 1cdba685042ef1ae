"""Erases requested data from the lake's tables, and deletes the snapshots that still have it.

A request *covers* the values of one row, or those that one client wrote, up to a time. The time is an `hlc`, a
timestamp by the clock of the client that wrote; an `hlc` and the client's id are a *stamp*. The request belongs to one
gateway, an app's stream of changes. It is carried out in these tables:

- The history `deltas`: a covered delta (a change of a row) loses its contents.
- State tables, the current rows that are merged from the history: rows are merged again. Values that did not fit a
  column are removed from the table `rejected`.
- `landing`, which has what connectors have read at external systems, their sources: a row loses its columns, and
  becomes a report by the source that the row was deleted. If an operator replays the poll that landed the row, the
  replay pushes a DELETE instead of the erased values.
- `known`, with whose rows the next poll is compared: a row is deleted, so that the source's next version counts as new.

The steps of the asset `erasure`, and `lakehouse.erasure.requests`, call this module while no poll and no other run
writes these tables.
"""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import chain
from operator import or_
from typing import TYPE_CHECKING

import msgspec
from pyspark.sql import functions as sf

from lakehouse.erasure.coverage import delete_files, deltas_of, polled_rows_of, requests_of_table, unreferenced_files
from lakehouse.landing.rows import DELETED_ROW, ROW
from lakehouse.maintenance import apply_deletes, expire_snapshots, location_of, rewrite_manifests
from lakehouse.spark_errors import lake_errors
from lakehouse.table_access import at_snapshot, overwrite, read_version
from lakehouse.table_creation import StateTable, typed_columns
from lakehouse.tables.merge_job import merged_frames
from lakehouse.tables.writes import replace_rejected
from lakesync.analysis.catalogue import merge_marks
from lakesync.analysis.expression_trees import combine
from lakesync.model.crash_points import crash_point

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import Column, SparkSession

    from lakehouse.erasure.coverage import Condition
    from lakehouse.table_definitions import LakeNames
    from lakesync.staging.records import Erasure


MAX_ARRIVAL = (1 << 63) - 1
"""Greater than every arrival (a gateway's timestamp of a push)."""
_HAS_CONTENT = "(op = 'INSERT' OR width > 0 OR size(columns) > 0)"
"""Condition for deltas that an erasure has not emptied. An emptied one has no columns, 0 as their number (`width`), and
is no INSERT, which would make its row visible even without columns."""


class RewriteReport(msgspec.Struct, frozen=True):
    """What an erasure rewrote in a table."""

    rows: int = 0
    """Number of deltas or rows that had erased values; 0 in a repeat after a crash, if the first run rewrote them."""
    files: tuple[str, ...] = ()
    """The data files that had these values. The table's newest snapshot has none of them."""


@lake_errors
def redact_history(spark: SparkSession, requests: Sequence[Erasure], names: LakeNames) -> RewriteReport:
    """Empty the deltas of the history that one gateway's requests cover.

    An emptied delta becomes an UPDATE without columns, which has no effect in a merge. As an INSERT it would still
    make its row visible. A DELETE has no content and stays as it is, because it deletes older values of other clients.

    Args:
        spark: an open Spark session.
        requests: one gateway's requests, at least one.
        names: catalogue and namespaces of the lake's tables.

    Raises:
        LakeUnavailableError: Spark cannot be reached.
    """
    covered = deltas_of(requests).narrowed(_HAS_CONTENT)
    # number of covered deltas by shard (a staging store with some of the tables) and data file
    counts = covered.select(spark, names.deltas, "shard, _file").groupBy("shard", "_file").count().collect()
    for shard in sorted({row["shard"] for row in counts}):
        # One statement for each shard, because an UPDATE may write the rows of several shards into one file. A flush
        # writes the deltas of one shard as a batch, and its repeat replaces the files of that batch as a whole.
        emptied = "op = 'UPDATE', width = 0, columns = cast(map() AS map<string, string>)"
        covered.narrowed("shard = {}", shard).execute(spark, f"UPDATE {names.deltas} SET {emptied}")
    crash_point("erasure.history")  # tests kill the process here
    return RewriteReport(sum(row["count"] for row in counts), tuple(sorted({row["_file"] for row in counts})))


@lake_errors
def drop_old_snapshots(spark: SparkSession, name: str, names: LakeNames) -> None:
    """Delete a table's tags, branches and all snapshots but the newest, with the files that only these use.

    Data files with deleted rows are first rewritten without them. Manifests are rewritten too: those of the newest
    snapshot still list the files that it removed, with the least and greatest value of each column.

    Args:
        spark: an open Spark session.
        name: the table's full, quoted name.
        names: catalogue and namespaces of the lake's tables.

    Raises:
        LakeUnavailableError: Spark cannot be reached.
    """
    if read_version(spark, name).snapshot_id is None:
        return
    apply_deletes(spark, names, name)
    for ref in spark.table(f"{name}.refs").where("name <> 'main'").select("name", "type").collect():
        quoted = "`" + ref["name"].replace("`", "``") + "`"
        spark.sql(f"ALTER TABLE {name} DROP {ref['type']} IF EXISTS {quoted}")
    rewrite_manifests(spark, names, name)
    crash_point("erasure.rewritten")
    expire_snapshots(spark, names, name, datetime.now(UTC))
    crash_point("erasure.expired")


@lake_errors
def erase_state_table(
    spark: SparkSession, table: str, requests: Sequence[Erasure], names: LakeNames
) -> RewriteReport | None:
    """Erase what one gateway's requests cover from a state table, its old snapshots and its rejected values.

    Args:
        spark: an open Spark session.
        table: the state table's name.
        requests: one gateway's requests, at least one. The history must be redacted already.
        names: catalogue and namespaces of the lake's tables.

    Returns:
        What was rewritten; None if the requests do not concern the table.

    Raises:
        LakeUnavailableError: Spark cannot be reached.
    """
    if not spark.catalog.tableExists(names.state(table)):
        return None
    covered_deltas = deltas_of(requests).select(spark, names.deltas).where(sf.col("table_name") == table)
    shards = {row["shard"] for row in covered_deltas.select("shard").distinct().collect()}
    if not shards:
        return None
    report = _merge_covered_rows(spark, table, requests_of_table(requests, table, shards), names)
    if report.rows or has_old_snapshots(spark, names.state(table)):  # a run may have crashed after it rewrote the rows
        drop_old_snapshots(spark, names.state(table), names)
    _erase_rejected_values(spark, table, names)
    return report


@lake_errors
def reject_older_merges(spark: SparkSession, name: str, names: LakeNames) -> None:
    """Make Iceberg reject merges that have read a state table before, such as that of a killed run, which may go on.

    Their deltas may have erased values, and without a commit in between nothing would reject them. An empty commit does
    not conflict with a merge, but Iceberg must know all commits since the snapshot that the merge has read. After two
    empty commits it no longer knows the first.

    Args:
        spark: an open Spark session.
        name: the state table's full, quoted name.
        names: catalogue and namespaces of the lake's tables.

    Raises:
        LakeUnavailableError: Spark cannot be reached.
    """
    for _ in range(2):
        spark.sql(f"INSERT INTO {name} SELECT * FROM {name} WHERE false")
    expire_snapshots(spark, names, name, datetime.now(UTC))


def has_old_snapshots(spark: SparkSession, name: str) -> bool:
    """Return whether a table has snapshots besides the newest.

    Args:
        spark: an open Spark session.
        name: the table's full, quoted name.
    """
    return spark.table(f"{name}.snapshots").count() > 1


class ErasedLandings(msgspec.Struct, frozen=True):
    """Number of rows that one call erased in `landing` and in `known`. A repeat after a crash counts only the rest."""

    landed: int = 0
    known: int = 0


@lake_errors
def erase_landed(
    spark: SparkSession, requests: Mapping[str, Sequence[Erasure]], names: LakeNames, connector: str | None = None
) -> ErasedLandings:
    """Erase the rows that requests cover in `landing` and `known`.

    Args:
        spark: an open Spark session.
        requests: gateway → its requests. The erasure of the client `connector:NAME` covers that connector's rows.
        names: catalogue and namespaces of the lake's tables.
        connector: name of the connector whose rows are erased; None for all, also those that were removed.

    Raises:
        LakeUnavailableError: Spark cannot be reached.
    """
    landed = known = 0
    # `known` may have been deleted; until the next poll creates it again, there is only `landing`
    has_landing, has_known = map(spark.catalog.tableExists, (names.landing, names.known))
    for each in chain.from_iterable(requests.values()):
        covered = polled_rows_of(each, connector)
        if covered is None:
            continue
        if has_landing:
            in_landing = covered.narrowed("kind = {} AND hlc <= {}", ROW, each.hlc)
            update = f"UPDATE {names.landing} SET kind = '{DELETED_ROW}', columns = NULL"
            landed += _execute(spark, in_landing, names.landing, update)
        crash_point("erasure.landing")
        if has_known:
            known += _execute(spark, covered, names.known, f"DELETE FROM {names.known}")
    return ErasedLandings(landed, known)


@lake_errors
def drop_old_landings(spark: SparkSession, name: str, names: LakeNames) -> bool:
    """Delete all snapshots of `landing` or `known` except the newest, and return whether there were others.

    Args:
        spark: an open Spark session.
        name: the full, quoted name of `landing` or `known`. The table may be missing.
        names: catalogue and namespaces of the lake's tables.

    Raises:
        LakeUnavailableError: Spark cannot be reached.
    """
    if not spark.catalog.tableExists(name) or not has_old_snapshots(spark, name):
        return False
    drop_old_snapshots(spark, name, names)
    return True


@lake_errors
def _merge_covered_rows(
    spark: SparkSession, table: str, requests: Sequence[Erasure], names: LakeNames
) -> RewriteReport:
    """Recompute the rows of a state table that have covered values, from the history, which has lost these values.

    Every file of the table is rewritten, because merge on read would leave the old rows in their files.
    """
    gateway, name = requests[0].gateway, names.state(table)
    version = read_version(spark, name)
    if version.snapshot_id is None:
        return RewriteReport()
    state = at_snapshot(spark, name, version.snapshot_id)
    # rows with a value that a request covers
    stale = state.where((sf.col("_gateway") == gateway) & _covered_rows(requests))
    counts = stale.groupBy(sf.col("_file").alias("file")).count().collect()
    if counts:
        keys = stale.select("_gateway", "_row")
        named = keys.select(sf.col("_gateway").alias("gateway"), sf.col("_row").alias("row_id"))
        # The table has the gateway's deltas up to an arrival, its mark; the next merge adds later ones. Without a mark
        # (a first merge of chosen days sets none), the next merge reads all deltas, so any of them may be merged here.
        mark = merge_marks(version.properties).get(gateway, MAX_ARRIVAL)
        merged = (sf.col("gateway") == gateway) & (sf.col("table_name") == table) & (sf.col("arrival") <= mark)
        deltas = spark.table(names.deltas).where(merged).join(named, ["gateway", "row_id"], "semi")
        # None: all deltas of the rows are read, so they are not merged into the stored state
        recomputed = merged_frames(deltas, None, tuple(typed_columns(spark, name).items()))
        unchanged = state.join(keys, ["_gateway", "_row"], "anti")
        columns = spark.table(name).columns
        rows = unchanged.select(*columns).unionByName(recomputed.select(*columns))
        overwrite(rows, name, sf.lit(True), version.snapshot_id)
    crash_point("erasure.state")
    return RewriteReport(sum(row["count"] for row in counts), tuple(sorted({row["file"] for row in counts})))


@lake_errors
def _erase_rejected_values(spark: SparkSession, table: str, names: LakeNames) -> None:
    """Compute a state table's rows in the table `rejected` again, without erased values, and drop old snapshots.

    `rejected` lists the values of state tables that do not fit their columns' types. The state table's own erased
    values must be gone already.
    """
    if not spark.catalog.tableExists(names.rejected):
        return
    files_of_all_snapshots = spark.table(f"{names.rejected}.all_files")
    files_of_table = files_of_all_snapshots.where(sf.col("partition.table_name") == names.qualified_name(table))
    name = names.state(table)
    version = read_version(spark, name)
    if version.snapshot_id is None or files_of_table.isEmpty():
        return
    columns = tuple(typed_columns(spark, name).items())
    state = StateTable(table, name, columns, snapshot_id=version.snapshot_id, marks={}, has_new_columns=False)
    replace_rejected(spark, state, version.snapshot_id, names)
    drop_old_snapshots(spark, names.rejected, names)
    # a killed run may have written files that no snapshot references; no other run writes the table meanwhile
    location = location_of(spark, names.rejected)
    referenced = spark.table(f"{names.rejected}.all_files").select("file_path").collect()
    delete_files(location, unreferenced_files(location, [row["file_path"] for row in referenced]))
    crash_point("erasure.rejected")


def _covered_rows(requests: Sequence[Erasure]) -> Column:
    """Return the condition for the rows of a state table with a value or an INSERT that its requests cover."""
    conditions = [
        _has_covered(each) if each.client_id is not None else (sf.col("_row") == each.row_id) & _has_covered(each)
        for each in requests
    ]
    return combine(or_, conditions)


def _has_covered(request: Erasure) -> Column:
    """Return whether a row has a cell (a column's value) or an INSERT that a request covers by its client and time."""

    def is_covered(stamp: Column) -> Column:
        is_early = stamp["hlc"] <= request.hlc
        return is_early if request.client_id is None else is_early & (stamp["client_id"] == request.client_id)

    return sf.exists(sf.map_values("_cells"), is_covered) | is_covered(sf.col("_inserted"))


def _execute(spark: SparkSession, covered: Condition, name: str, statement: str) -> int:
    """Run an UPDATE or DELETE on the rows of a table that meet a condition, and return their number.

    Without such rows the statement is not run, because it would nevertheless create a snapshot.
    """
    rows = covered.select(spark, name).count()
    if rows:
        covered.execute(spark, statement)
    return rows
