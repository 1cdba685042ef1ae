"""Computes the deltas that a gateway lacks from what a connector's polls have read, and updates the table `known`.

A connector polls an external system, page by page. A poll first appends what it read to the Iceberg table `landing`, in
one or more numbered commits; each is a landing. Each row gets an hlc, the timestamp of its delta, and the number of a
page is the hlc of its first row. The table `known` has the version of each row as of some page; the differences that
later pages make are pushed as deltas (changes of rows) to the gateway, an app's stream of changes. Each polled table
has a mark (`Mark`): the last page whose deltas the gateway has (`delivered`), and the last page that is contained in
`known` (`known`).

`LandedTables` is used by its subclass `LakeLanding` (`lakehouse.landing.lake_landing`), which adds the polls, and by
`Delivery` (`lakehouse.landing.delivery`), which pushes the deltas.
"""

from __future__ import annotations

import json
from contextlib import suppress
from functools import reduce
from operator import and_, or_
from typing import TYPE_CHECKING

import pyarrow as pa
from pyiceberg.exceptions import NoSuchTableError
from pyspark.errors import PySparkException
from pyspark.sql import functions as sf
from sqlalchemy.exc import OperationalError, ProgrammingError

from lakehouse.gateway_connections import is_rebuilt
from lakehouse.landing.known_rows import KnownRows
from lakehouse.landing.row_changes import DELTAS, PendingPages
from lakehouse.landing.rows import BUCKETS, NO_PAGE, LandedFile, LandedTable
from lakehouse.landing.tables import (
    COMMIT_ATTEMPTS,
    KNOWN_COLUMNS,
    ConnectorTables,
    KnownFile,
    Mark,
    commit_rows,
    ensure_landing,
    is_busy,
)
from lakehouse.spark_errors import lake_errors
from lakehouse.table_access import open_table
from lakehouse.table_creation import set_properties
from lakehouse.task_runner import in_tasks
from lakesync.analysis.expression_trees import combine
from lakesync.model.errors import CommitConflictError, NotFoundError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence
    from datetime import date

    from pyspark.sql import DataFrame

    from lakesync.connectors.base import Table

_ROWS_PER_TASK = 50_000
"""Number of landed rows per task, if several tasks compute the deltas."""

_ONE_TASK_ROWS = 20_000
"""Number of landed rows up to which a single task computes the deltas."""

_MISSING = (NoSuchTableError, OperationalError, ProgrammingError)
"""Errors of a catalogue without the table, and of a database that is not a catalogue yet."""

_MAX_FILES, _MIN_ROWS, _MAX_ROWS = 50, 10_000, 100_000
"""Each poll reads all landed files that `known` lacks, so they are added to `known` when there are many: `_MAX_FILES`
files, or `_MAX_ROWS` rows, or at least `_MIN_ROWS` rows and half as many as `known` has."""


class LandedTables:
    """The polled tables of one connector, as they were in `landing` and `known` when the object was created."""

    def __init__(self, connector_tables: ConnectorTables, tables: Sequence[Table], epochs: Mapping[str, int]) -> None:
        """Read the files and marks of the tables from Iceberg's metadata. Create `landing` and `known` if missing.

        Args:
            connector_tables: the connector's part of `landing` and `known`.
            tables: the connector's tables.
            epochs: the gateway's epochs in its staging store, as `store_epochs` returns them.

        Raises:
            LakeUnavailableError: Spark or the catalogue cannot be reached.
            ConfigurationError: pyiceberg does not support the catalogue.
        """
        self._lake_tables = connector_tables
        self._tables = {table.name: table for table in tables}
        self._epochs = epochs
        self._marks: dict[str, Mark] = {}
        self._rebuilt: set[str] = set()
        """Tables whose deltas went to a store that was rebuilt from the lake since."""
        self._read_metadata()
        # the last landing's number; the subclass `LakeLanding`, which adds landings, counts on from it
        self._number = max((file.landing for file in self._files), default=0)
        self._newest = max((file.highest_hlc for file in self._files), default=0)

    @property
    def client_id(self) -> str:
        """The client id in the connector's deltas. The connector pushes to the gateway as this client."""
        return f"connector:{self._lake_tables.connector}"

    def is_due(self, table: str) -> bool:
        """Return whether a table has landed pages that the gateway may lack."""
        return table in self._rebuilt or bool(self._undelivered_files(table))

    @property
    def newest(self) -> int:
        """The highest hlc in `landing`. The next poll continues after it."""
        return self._newest

    def deltas(self, table: str) -> DataFrame:
        """Return the deltas of a table that the gateway lacks, in order of page and hlc.

        The columns are `page`, `hlc`, `op` and `delta` (as JSON). The frame has one partition, so that one task can
        push all deltas in order.
        """
        if table in self._rebuilt:
            landed = self._landed_after(table, NO_PAGE)
            deltas = self._deltas_of_pages(landed, NO_PAGE, self._newest, sum(file.rows for file in landed.files))
            return deltas.where(sf.col("hlc") > self._newest_in_history(table))
        files = self._undelivered_files(table)
        # up to `_newest`: a page's number is an hlc of a row, so no page has a greater number
        return self._deltas_of_pages(
            self._landed(table), self._marks[table].delivered, self._newest, sum(file.rows for file in files)
        )

    def deltas_of_days(self, table: str, days: Collection[date]) -> DataFrame | None:
        """Return the deltas of the pages that landed on some days, whether they were pushed or not.

        A replay pushes them again; the gateway ignores the deltas that it has.

        Args:
            table: the polled table's name.
            days: UTC days on which rows landed.

        Returns:
            The deltas, as `deltas` returns them; None if nothing landed on these days.

        Raises:
            NotFoundError: the rows before these days are unknown, because landings were deleted.
        """
        files = [file for file in self._files if file.may_have(table)]
        page_ranges = [
            (min(file.first_page for file in of_day), max(file.last_page for file in of_day))
            for day in days
            if (of_day := [file for file in files if file.day == day])
        ]
        if not page_ranges:
            return None
        first, last = min(first_page for first_page, _ in page_ranges), max(last_page for _, last_page in page_ranges)
        landed = self._landed_after(table, first - 1)
        if landed.since == NO_PAGE and min(file.first_landing for file in self._files) > 1:
            raise NotFoundError(
                f"{table} cannot be replayed from {min(days)} on: landings of earlier days, with which its rows are "
                "compared, were deleted from `landing`"
            )
        wanted = combine(or_, (sf.col("page").between(first_page, last_page) for first_page, last_page in page_ranges))
        return self._deltas_of_pages(landed, first - 1, last, sum(file.rows for file in files)).where(wanted)

    @lake_errors
    def record_delivered(self, table: str, page: int) -> None:
        """Store that the gateway has the deltas of all pages up to one. The next delivery starts after that page.

        A delivery to a store that was rebuilt is stored only with its last page: a repeat starts from the beginning.

        Args:
            table: the polled table's name.
            page: number of the last delivered page.

        Raises:
            LakeUnavailableError: Spark or the catalogue cannot be reached.
        """
        if table in self._rebuilt:
            if page < self._newest:
                return
            self._rebuilt.remove(table)
        mark = self._marks[table]._replace(delivered=page)
        self._marks[table] = record_mark(self._lake_tables, table, mark, self._epochs)

    @lake_errors
    def update_known(self, table: str, *, min_rows: int = _MIN_ROWS, max_files: int = _MAX_FILES) -> None:
        """Add a table's delivered pages to `known`, if there are many. Otherwise do nothing.

        The limits count all rows of each file that has delivered pages, also those of undelivered pages and of other
        tables.

        Args:
            table: the polled table's name.
            min_rows: number of landed rows from which they are added, if they are half as many as `known` has.
            max_files: number of landed files from which they are added.

        Raises:
            LakeUnavailableError: Spark or the catalogue cannot be reached.
        """
        mark, landed = self._marks[table], self._landed(table)
        files = [file for file in landed.files if file.first_page <= mark.delivered]
        rows, known_rows = sum(file.rows for file in files), sum(file.rows for file in self._known_files.get(table, ()))
        if len(files) < max_files and rows < min(max(min_rows, known_rows // 2), _MAX_ROWS):
            return
        # another run has written these rows meanwhile: the next poll tries again
        with suppress(CommitConflictError):
            write_known(self._lake_tables, KnownRows(landed, mark.delivered), self._known_snapshot)
            # `known` contains all delivered pages now
            known = mark._replace(known=mark.delivered)
            self._marks[table] = record_mark(self._lake_tables, table, known, self._epochs)
            self._read_known_files()

    def _deltas_of_pages(self, landed: LandedTable, after: int, through: int, rows: int) -> DataFrame:
        """Return the deltas of the pages after `after` up to `through`, which have about `rows` landed rows."""
        # an even number of tasks, because two cores finish them together
        parts = 1 if rows <= _ONE_TASK_ROWS else 2 * -(-rows // (2 * _ROWS_PER_TASK))
        pending = PendingPages(landed, self.client_id, after, through, parts)
        deltas = in_tasks(self._lake_tables.spark, parts, pending.deltas, DELTAS)
        return deltas.repartition(1).sortWithinPartitions("page", "hlc", "delta")

    def _undelivered_files(self, table: str) -> list[LandedFile]:
        """Return the files of `landing` that have pages after the last delivered one."""
        delivered = self._marks[table].delivered
        return [file for file in self._files if file.last_page > delivered and file.may_have(table)]

    def _landed(self, table: str) -> LandedTable:
        """Return a table's files of `known`, and the files of `landing` with pages that `known` lacks."""
        since = self._marks[table].known
        files = tuple(file for file in self._files if file.last_page > since and file.may_have(table))
        known = tuple((file.bucket, file.path) for file in self._known_files.get(table, ()))
        return LandedTable(table, self._identity(table), files, known, since)

    def _landed_after(self, table: str, page: int) -> LandedTable:
        """Return a table's files from which the deltas of the pages after one can be computed.

        Without `known` if that has later pages. Otherwise with it, because early landings may have been deleted.
        """
        if page >= self._marks[table].known:
            return self._landed(table)
        files = tuple(file for file in self._files if file.may_have(table))
        return LandedTable(table, self._identity(table), files, known=(), since=NO_PAGE)

    def _newest_in_history(self, table: str) -> int:
        """Return the highest hlc of the connector's deltas of a table in the lake's history; `NO_PAGE` for none.

        Deltas are pushed in order of their hlcs, so the store that was rebuilt from the history has all up to there.
        """
        spark, deltas = self._lake_tables.spark, self._lake_tables.names.deltas
        if not spark.catalog.tableExists(deltas):
            return NO_PAGE
        values = {"gateway": self._lake_tables.gateway, "table_name": table, "client_id": self.client_id}
        own = reduce(and_, (sf.col(name) == sf.lit(value) for name, value in values.items()))
        (row,) = spark.table(deltas).where(own).agg(sf.max("hlc").alias("hlc")).collect()
        return NO_PAGE if row["hlc"] is None else int(row["hlc"])

    def _identity(self, table: str) -> str | None:
        """Return the column that identifies a row even if the source gives it another row id; None if none does."""
        declared = self._tables.get(table)
        return declared.identity if declared is not None else None

    @lake_errors
    def _read_metadata(self) -> None:
        """Read the files and marks of both tables. Create the tables if they are missing."""
        try:
            self._read_landing_files()
            self._read_known_files()
        except _MISSING:
            ensure_landing(self._lake_tables.spark, self._lake_tables.names)
            self._read_landing_files()
            self._read_known_files()

    def _read_landing_files(self) -> None:
        """Find the files of landed rows in the current snapshot of `landing`."""
        with open_table(self._lake_tables.spark, self._lake_tables.names.landing) as landing:
            self._files = self._lake_tables.landed_files(landing)
            # for the subclass `LakeLanding`, whose commits are checked against this snapshot
            self._landing_snapshot = landing.metadata.current_snapshot_id

    def _read_known_files(self) -> None:
        """Find the files of known rows, and the marks, in the current snapshot of `known`."""
        with open_table(self._lake_tables.spark, self._lake_tables.names.known) as known:
            self._known_files: dict[str, list[KnownFile]] = self._lake_tables.known_files(known)
            self._known_snapshot = known.metadata.current_snapshot_id
            self._marks = self._lake_tables.marks(known, self._tables)
            texts = {table: known.properties.get(self._lake_tables.epochs_property(table)) for table in self._tables}
        self._rebuilt = {table for table, text in texts.items() if text and is_rebuilt(json.loads(text), self._epochs)}


def write_known(tables: ConnectorTables, known: KnownRows, snapshot: int | None) -> None:
    """Replace the rows of one polled table in `known`. A repeat changes nothing.

    Each Spark task writes one bucket (a share of the row ids).

    Args:
        tables: the connector's part of `landing` and `known`.
        known: the table's current rows after some page.
        snapshot: id of the snapshot of `known` that the caller read; None if `known` was empty.

    Raises:
        CommitConflictError: another run has written this table's rows since that snapshot; the next poll tries again.
    """
    table, name = known.landed.table, tables.names.known
    constants = (tables.gateway, tables.connector, table)

    def write_bucket(bucket: int) -> Iterator[pa.RecordBatch]:
        for rows_of_bucket in known.rows(bucket):
            for batch in rows_of_bucket.to_batches():
                constant_columns = [pa.repeat(pa.scalar(value), batch.num_rows) for value in constants]
                yield pa.record_batch([*constant_columns, *batch.columns], KNOWN_COLUMNS)

    written = in_tasks(tables.spark, BUCKETS, write_bucket, KNOWN_COLUMNS)
    batch = ("known", *constants, str(known.last_page))
    commit_rows(tables, name, written, tables.condition(table_name=table), snapshot, batch)


def record_mark(tables: ConnectorTables, table: str, mark: Mark, epochs: Mapping[str, int]) -> Mark:
    """Store a polled table's mark as a property of the table `known`. That does not create a snapshot.

    The commit is repeated if another writer commits at the same time.

    Args:
        tables: the connector's part of `landing` and `known`.
        table: the polled table's name.
        mark: the new mark.
        epochs: the epochs of the store that has the deltas up to the mark.

    Returns:
        The stored mark, which is never behind the previous one.

    Raises:
        PySparkException: the property cannot be written, or other writers committed first in every attempt.
    """
    name = tables.names.known
    for attempt in range(1, COMMIT_ATTEMPTS + 1):
        with open_table(tables.spark, name) as known:
            stored = tables.marks(known, [table])[table].max_with(mark)
        try:
            properties = {tables.mark_property(table): stored.text(), tables.epochs_property(table): json.dumps(epochs)}
            set_properties(tables.spark, name, properties)
        except PySparkException as error:
            if attempt == COMMIT_ATTEMPTS or not is_busy(error):
                raise
        else:
            break
    return stored
