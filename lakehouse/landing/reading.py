"""The landed tables of one connector: which deltas its gateway lacks, and when the table `known` is updated."""

from __future__ import annotations

from contextlib import suppress
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

import pyarrow as pa
from pyiceberg.exceptions import NoSuchTableError
from pyspark.errors import PySparkException
from pyspark.sql import functions as sf
from sqlalchemy.exc import OperationalError, ProgrammingError

from lakehouse.landing.commits import TRIES, commit, is_busy
from lakehouse.landing.files import DELTA_SCHEMA, LandedTable, PendingPages
from lakehouse.landing.folding import KnownRows
from lakehouse.landing.landed_files import BUCKETS, LandedFile
from lakehouse.landing.row_versions import KNOWN
from lakehouse.landing.tables import (
    KNOWN_COLUMNS,
    ConnectorTables,
    KnownFile,
    Mark,
    ensure_landing,
    known_name,
    landing_name,
)
from lakehouse.spark_errors import lake_errors
from lakehouse.table_definitions import set_properties
from lakehouse.task_runner import in_tasks
from lakesync.model.errors import FlushError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence
    from datetime import date

    from pyspark.sql import DataFrame

    from lakesync.connectors.source import Table

ROWS_A_TASK = 50_000

FEW_ROWS = 20_000
"""Number of rows up to which one task computes their deltas."""

_MISSING = (NoSuchTableError, OperationalError, ProgrammingError)
"""Errors of a catalogue without the table, and of a database that is not a catalogue yet."""

FILES_TO_FOLD = 50
ROWS_TO_FOLD, MOST_TO_FOLD = 10_000, 100_000
"""`known` is updated after landings of so many files, or of `ROWS_TO_FOLD` rows if these are half of it, or of
`MOST_TO_FOLD` rows."""


class LandedTables:
    """The landed tables of one connector."""

    def __init__(self, within: ConnectorTables, tables: Sequence[Table]) -> None:
        """Plan the files of the tables.

        Args:
            within: the connector's part of `landing` and `known`.
            tables: the connector's tables.

        Raises:
            LakeUnavailableError: Spark or the catalogue cannot be reached.
            ConfigurationError: pyiceberg does not support the catalogue.
        """
        self._in = within
        self._tables = {table.name: table for table in tables}
        self._marks: dict[str, Mark] = {}
        self._plan()
        self._number = max((file.landing for file in self._files), default=0)
        self._newest = max((file.hlc for file in self._files), default=0)

    @property
    def client_id(self) -> str:
        """The client id of the connector's deltas."""
        return f"connector:{self._in.connector}"

    def is_due(self, table: str) -> bool:
        """Return whether rows of a table have landed that the gateway may lack."""
        return bool(self._newer(table))

    @property
    def newest(self) -> int:
        """The newest landed page."""
        return self._newest

    def deltas(self, table: str) -> DataFrame:
        """Return the deltas of a table that the gateway lacks, in order of hlc, in the columns `DELTA_SCHEMA`.

        They are one partition, so that one task has all of them in order.
        """
        newer = self._newer(table)
        return self._undelivered(
            self._landed(table), self._marks[table].delivered, self._newest, sum(file.rows for file in newer)
        )

    def history(self, table: str, days: Collection[date]) -> DataFrame | None:
        """Return the deltas of the landings of some days, pushed before or not; None if nothing landed then.

        Args:
            table: the connector's table.
            days: UTC days of landing.
        """
        files = [file for file in self._files if file.may_have(table)]
        spans = [
            (min(file.first for file in of_day), max(file.last for file in of_day))
            for day in days
            if (of_day := [file for file in files if file.day == day])
        ]
        if not spans:
            return None
        first, last = min(low for low, _ in spans), max(high for _, high in spans)
        landed = LandedTable(table, self._identity(table), tuple(files), (), KNOWN)
        wanted = reduce(or_, (sf.col("page").between(*span) for span in spans))
        return self._undelivered(landed, first - 1, last, sum(file.rows for file in files)).where(wanted)

    @lake_errors
    def record_delivered(self, table: str, page: int) -> None:
        """Store that the gateway has the deltas of all pages up to one. Later pages are pushed again.

        Args:
            table: the table's name.
            page: the page.
        """
        self._marks[table] = record_mark(self._in, table, self._marks[table]._replace(delivered=page))

    @lake_errors
    def update_known(self, table: str, *, least: int = ROWS_TO_FOLD, files: int = FILES_TO_FOLD) -> None:
        """Add delivered landings to `known`, if there are many.

        Args:
            table: the table's name.
            least: number of rows from which they are added.
            files: number of files from which they are added.
        """
        mark, landed = self._marks[table], self._landed(table)
        newer = [file for file in landed.files if file.first <= mark.delivered]
        rows, known = sum(file.rows for file in newer), sum(file.rows for file in self._known.get(table, ()))
        if len(newer) < files and rows < min(max(least, known // 2), MOST_TO_FOLD):
            return
        with suppress(FlushError):  # another run has written it meanwhile: the next poll does it
            write_known(self._in, KnownRows(landed, mark.delivered), self._known_snapshot)
            self._marks[table] = record_mark(self._in, table, Mark(mark.delivered, mark.delivered))
            self._plan_known()

    def _undelivered(self, landed: LandedTable, above: int, upto: int, rows: int) -> DataFrame:
        parts = 1 if rows <= FEW_ROWS else 2 * -(-rows // (2 * ROWS_A_TASK))
        pending = PendingPages(landed, self.client_id, above, upto, parts)
        deltas = in_tasks(self._in.spark, parts, pending.deltas, DELTA_SCHEMA)
        return deltas.repartition(1).sortWithinPartitions("page", "hlc", "delta")

    def _newer(self, table: str) -> list[LandedFile]:
        """Return the files with pages of a table that the gateway may lack."""
        delivered = self._marks[table].delivered
        return [file for file in self._files if file.last > delivered and file.may_have(table)]

    def _landed(self, table: str) -> LandedTable:
        """Where the landings are that `known` lacks of a table, and what it has."""
        since = self._marks[table].known
        files = tuple(file for file in self._files if file.last > since and file.may_have(table))
        known = tuple((file.bucket, file.path) for file in self._known.get(table, ()))
        return LandedTable(table, self._identity(table), files, known, since)

    def _identity(self, table: str) -> str | None:
        known = self._tables.get(table)
        return known.identity if known is not None else None

    @lake_errors
    def _plan(self) -> None:
        try:
            self._plan_landing()
            self._plan_known()
        except _MISSING:
            ensure_landing(self._in.spark, self._in.names)
            self._plan_landing()
            self._plan_known()

    def _plan_landing(self) -> None:
        with self._in.opened(landing_name(self._in.names)) as landing:
            self._files = self._in.landed(landing)
            self._landing_snapshot = landing.metadata.current_snapshot_id

    def _plan_known(self) -> None:
        with self._in.opened(known_name(self._in.names)) as known:
            self._known: dict[str, list[KnownFile]] = self._in.known(known)
            self._known_snapshot = known.metadata.current_snapshot_id
            self._marks = self._in.marks(known, self._tables)


def write_known(tables: ConnectorTables, known: KnownRows, snapshot: int | None) -> None:
    """Replace the rows of one table in `known`, in one task for each bucket. A repeat changes nothing.

    Args:
        tables: the connector's tables.
        known: the rows, up to a page.
        snapshot: the snapshot of `known` that was read.

    Raises:
        FlushError: another run has written this table's rows meanwhile; the next poll does it.
    """
    table, name = known.landed.table, known_name(tables.names)
    constants = (tables.gateway, tables.connector, table)

    def rows(bucket: int) -> Iterator[pa.RecordBatch]:
        for found in known.rows(bucket):
            for batch in found.to_batches():
                same = [pa.repeat(pa.scalar(value), batch.num_rows) for value in constants]
                yield pa.record_batch([*same, *batch.columns], names=_NAMES)

    written = in_tasks(tables.spark, BUCKETS, rows, KNOWN_COLUMNS)
    batch = ("known", *constants, str(known.upto))
    commit(tables, name, written, tables.condition(table_name=table), snapshot, batch)


def record_mark(tables: ConnectorTables, table: str, mark: Mark) -> Mark:
    """Store how far a table is read, without a snapshot.

    Args:
        tables: the connector's tables.
        table: the table's name.
        mark: the pages up to which it is read.

    Returns:
        The stored mark, which is never behind the one before.
    """
    name = known_name(tables.names)
    for attempt in range(1, TRIES + 1):
        with tables.opened(name) as known:
            joined = tables.marks(known, [table])[table].joined(mark)
        try:
            set_properties(tables.spark, name, {tables.property_of(table): joined.text()})
        except PySparkException as error:
            if attempt == TRIES or not is_busy(error):
                raise
        else:
            break
    return joined


_NAMES = ["gateway", "connector", "table_name", "row_id", "columns"]
