"""The Iceberg tables of polled rows: their definition, a connector's files and marks in their metadata, and commits.

`landing` has everything that polls have read from external systems, page by page; the number of a page is the hlc (the
timestamp) of its first row. Each commit to it, of one or more pages, is a *landing*; the column `landing` has its
number among those of the connector. `known` has the rows that result from the pages up to some page. Each polled table
has a mark, a property `lakesync.read.…` of `known`: the last page that is in `known`, and the last page whose deltas
(changes of rows) the gateway (the stream of changes of one app) has. If the property is lost, the first of the two is
found in the snapshots of `known`, and the deltas after it are pushed again, which changes nothing. Another property,
`lakesync.epochs.…`, has the epochs of the staging store that got the deltas; a rebuilt store has other epochs, and may
lack deltas.

If two polls of one connector run at the same time, one of them fails, because Iceberg rejects a commit if rows have
changed since the snapshot that the caller read. If the response to a commit is lost, the commit is found by its batch
id. `lakehouse.landing.reading` and `lakehouse.landing.lake_landing` call this module.
"""

from __future__ import annotations

import json
from datetime import date, timedelta
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
from pyiceberg.expressions import And
from pyspark.errors import PySparkException
from pyspark.sql import functions as sf

from lakehouse.landing.rows import BUCKETS, NO_PAGE, LandedFile
from lakehouse.maintenance import apply_deletes
from lakehouse.spark_errors import brief
from lakehouse.table_access import BATCH_PROPERTY, open_table, overwrite
from lakehouse.table_creation import create_table
from lakehouse.table_definitions import LakeNames
from lakehouse.task_runner import column_ddl
from lakesync.analysis.catalogue import column_bounds
from lakesync.analysis.scans import condition
from lakesync.model.errors import CommitConflictError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.table import FileScanTask, Table
    from pyiceberg.table.snapshots import Snapshot
    from pyspark.sql import Column, DataFrame, SparkSession


_LANDING = """
gateway string, connector string, day date COMMENT 'UTC day of the landing', landing bigint, table_name string,
kind string COMMENT 'row, gone, whole or place', page bigint COMMENT 'the first stamp of its page',
hlc bigint COMMENT 'the stamp of the delta that it makes', row_id string,
columns string COMMENT 'the row, or the place, as JSON', name string, value string
"""
"""The columns of `landing`. Its hlcs are called stamps here, and stay so, because the comments are stored.

A row of kind `row` is a changed row, of `gone` the id of a deleted one, of `place` the position from which the next
poll continues. A row of kind `whole` is a claim: its page has all rows with the value `value` in the column `name`, so
that other known rows with this value are deleted."""
KNOWN_COLUMNS = pa.schema([(name, pa.string()) for name in ("gateway", "connector", "table_name", "row_id", "columns")])
"""The columns of `known`; `columns` has the row as JSON."""
_PROPERTIES = {
    "format-version": "2",
    "write.distribution-mode": "none",
    "write.spark.fanout.enabled": "true",
    # tasks read data files without delete files, and no file may keep an erased value
    "write.delete.mode": "copy-on-write",
    "write.update.mode": "copy-on-write",
    "write.merge.mode": "copy-on-write",
    "write.metadata.metrics.column.connector": "full",
    "write.metadata.metrics.column.table_name": "full",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "50",
    "commit.retry.num-retries": "10",
}
"""Table properties of both tables."""
EPOCH = date(1970, 1, 1)
"""Iceberg counts the days of a partition from here."""


def ensure_landing(spark: SparkSession, names: LakeNames) -> None:
    """Create `landing` and `known` if they are missing.

    Args:
        spark: an open Spark session.
        names: catalogue and namespaces of the lake's tables.
    """
    if spark.catalog.tableExists(names.known):  # the last to be created
        return
    create_table(spark, names.landing, _LANDING, "gateway, connector, day", _PROPERTIES)
    known_partitions = f"gateway, connector, table_name, bucket({BUCKETS}, row_id)"
    create_table(spark, names.known, column_ddl(KNOWN_COLUMNS), known_partitions, _PROPERTIES)


class KnownFile(NamedTuple):
    """A data file of `known`, with rows of one table in one bucket (a share of the row ids)."""

    path: str
    rows: int
    bucket: int


class Mark(NamedTuple):
    """How far the landed pages of a polled table are processed; `NO_PAGE` (-1) before the first page."""

    known: int = NO_PAGE
    """The last page that is in `known`."""
    delivered: int = NO_PAGE
    """The last page whose deltas the gateway has."""

    def text(self) -> str:
        """Return the mark as the value of the table property."""
        return f"{self.known} {self.delivered}"

    def max_with(self, other: Mark) -> Mark:
        """Return a mark whose fields are the later pages of both marks. Pages in `known` are always delivered."""
        known = max(self.known, other.known)
        return Mark(known, max(self.delivered, other.delivered, known))


class ConnectorTables(NamedTuple):
    """One connector's rows in `landing` and `known`: their files, conditions, and the marks of the polled tables."""

    spark: SparkSession
    names: LakeNames
    gateway: str
    connector: str

    def landed_files(self, landing: Table) -> list[LandedFile]:
        """Return the connector's files of `landing`, in order of their first page."""
        files = []
        for scan_task in self._planned(landing, self.names.landing):
            file = scan_task.file
            (lowest, number), (first, last), (_, highest_hlc) = (
                column_bounds(landing, file, column) for column in ("landing", "page", "hlc")
            )
            files.append(
                LandedFile(
                    file.file_path,
                    file.record_count,
                    file.file_size_in_bytes,
                    EPOCH + timedelta(days=file.partition[2]),  # the partition's fields: gateway, connector, day
                    first_landing=_int(lowest),
                    landing=_int(number),
                    first_page=_int(first),
                    last_page=_int(last),
                    highest_hlc=_int(highest_hlc),
                    has_claims=column_bounds(landing, file, "name")[0] is not None,
                    tables=_texts(column_bounds(landing, file, "table_name")),
                )
            )
        return sorted(files, key=lambda each: each.first_page)

    def known_files(self, known: Table) -> dict[str, list[KnownFile]]:
        """Return polled table → its files of `known`."""
        by_table: dict[str, list[KnownFile]] = {}
        for scan_task in self._planned(known, self.names.known):
            file = scan_task.file
            table, bucket = file.partition[2], file.partition[3]
            by_table.setdefault(table, []).append(KnownFile(file.file_path, file.record_count, bucket))
        return by_table

    def marks(self, known: Table, tables: Iterable[str]) -> dict[str, Mark]:
        """Return polled table → its mark.

        Args:
            known: the Iceberg table `known`, whose properties and snapshots have the marks.
            tables: names of the connector's tables.
        """
        in_snapshots = self._marks_in_snapshots(known)
        texts = {table: known.properties.get(self.mark_property(table)) for table in tables}
        stored = {table: Mark(*map(int, text.split())) if text else Mark() for table, text in texts.items()}
        return {table: mark.max_with(in_snapshots.get(table, Mark())) for table, mark in stored.items()}

    def condition(self, **more: str | int) -> Column:
        """Return the condition for the connector's rows in `landing` or `known` with certain values.

        Args:
            more: column → value.
        """
        values = {"gateway": self.gateway, "connector": self.connector, **more}
        return reduce(and_, (sf.col(name) == sf.lit(value) for name, value in values.items()))

    def mark_property(self, table: str) -> str:
        """Return the name of the property of `known` that has a polled table's mark."""
        return f"lakesync.read.{self.gateway}.{self.connector}.{table}"

    def epochs_property(self, table: str) -> str:
        """Return the name of the property of `known` that has the epochs of the store that got a table's deltas."""
        return f"lakesync.epochs.{self.gateway}.{self.connector}.{table}"

    def _marks_in_snapshots(self, known: Table) -> dict[str, Mark]:
        """Return polled table → the mark that follows from the commits to `known`."""
        marks: dict[str, Mark] = {}
        for batch in filter(None, map(batch_of, known.metadata.snapshots)):  # `batch_of` lists the parts of an id
            if batch[:3] == ["known", self.gateway, self.connector]:
                table, last_page = batch[3], int(batch[4])
                marks[table] = marks.get(table, Mark()).max_with(Mark(known=last_page, delivered=last_page))
        return marks

    def _planned(self, table: Table, name: str) -> list[FileScanTask]:
        """Return the connector's data files, as scan tasks of pyiceberg. Files with deleted rows are rewritten first.

        LakeSync writes no delete files here, but earlier versions did, and other engines may.
        """
        planned = list(table.scan(self._of_connector()).plan_files())
        if any(scan_task.delete_files for scan_task in planned):
            apply_deletes(self.spark, self.names, name)
            table.refresh()
            planned = list(table.scan(self._of_connector()).plan_files())
        return planned

    def _of_connector(self) -> BooleanExpression:
        """Return the filter for the rows of this connector."""
        return And(condition("gateway", "=", self.gateway), condition("connector", "=", self.connector))


def batch_of(snapshot: Snapshot) -> list[str] | None:
    """Return the batch id of the commit that made a snapshot of `landing` or `known`; None if it has none.

    The id is what `commit_rows` stored: `known`, gateway, connector, polled table and last page; or `landing`, gateway,
    connector, number of the landing and a random id.
    """
    summary = snapshot.summary
    text = summary.additional_properties.get(BATCH_PROPERTY) if summary is not None else None
    return None if text is None else json.loads(text)


COMMIT_ATTEMPTS = 5
"""Attempts to commit one batch, or one property, while the catalogue is busy."""

_REJECTED = "org.apache.iceberg.exceptions.ValidationException"
"""Error text if another commit has written rows that meet the condition."""
_CATALOGUE_BUSY = ("SQLITE_BUSY", "database is locked", "org.apache.iceberg.exceptions.CommitFailedException")
"""Error texts if another commit of any table is in progress. A further attempt may succeed."""


def commit_rows(
    tables: ConnectorTables,
    table_name: str,
    rows: DataFrame,
    where: Column,
    snapshot_id: int | None,
    batch: Sequence[str],
) -> None:
    """Replace the rows that meet a condition by new ones, in one commit.

    Iceberg rejects the commit if others have written rows that meet the condition since `snapshot_id`. While the
    catalogue is busy the commit is retried. After an error the snapshots of the table are searched for `batch`: if one
    has it, only the response was lost, and the call succeeds.

    Args:
        tables: the connector's part of `landing` and `known`.
        table_name: full, quoted name of `landing` or `known`.
        rows: the new rows.
        where: condition for the rows to replace. All of `rows` must meet it.
        snapshot_id: the snapshot that the caller read; None if the table was empty.
        batch: identifies this commit, and is stored in its snapshot; `batch_of` lists its parts.

    Raises:
        CommitConflictError: another poll wrote the table meanwhile, or the catalogue was busy in all attempts. The rows
            were not committed; the next poll tries again.
        Exception: the error of Spark or the catalogue, if it is unknown whether the rows were committed.
    """
    batch_id = json.dumps(list(batch))
    for attempt in range(1, COMMIT_ATTEMPTS + 1):
        try:
            overwrite(rows, table_name, where, snapshot_id, batch_id)
        except PySparkException as error:
            with open_table(tables.spark, table_name) as table:
                if list(batch) in map(batch_of, table.metadata.snapshots):
                    return  # the response to the commit was lost
            if is_busy(error) and attempt < COMMIT_ATTEMPTS:
                continue
            if _REJECTED in str(error) or is_busy(error):
                raise CommitConflictError(
                    f"{' '.join(batch[:4])} was not written ({brief(error)}): another poll of it may be in progress; "
                    "the next one continues from the last landing"
                ) from error
            raise
        else:
            return


def is_busy(error: PySparkException) -> bool:
    """Return whether a commit failed only because others committed at the same time."""
    return any(text in str(error) for text in _CATALOGUE_BUSY)


def _texts(bounds: tuple[object, object]) -> tuple[str, str]:
    """Return the bounds of a column of texts, which the tables' properties make Iceberg store in full."""
    low, high = bounds
    assert isinstance(low, str), "these tables have column bounds for names"
    assert isinstance(high, str), "these tables have column bounds for names"
    return low, high


def _int(bound: str | int | None) -> int:
    """Return a bound of a column of numbers, which every file of these tables has."""
    assert isinstance(bound, int), "these tables have column bounds for numbers"
    return bound
