"""What landed of one connector's tables, and how far its gateway has the deltas that follow."""

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
from lakehouse.landing.files import DELTA_SCHEMA, Landed, PendingPages
from lakehouse.landing.folding import Folding
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
"""One task makes the deltas of so few."""

_MISSING = (NoSuchTableError, OperationalError, ProgrammingError)
"""What a catalogue says of a table that it has not; the others are of databases that are no catalogue yet."""

FILES_TO_FOLD = 50
ROWS_TO_FOLD, MOST_TO_FOLD = 10_000, 100_000
"""`known` is brought up to what has landed in so many files, or rows where those are half of it, or so many."""


class LandedTables:
    """The tables of one connector, as they have landed."""

    def __init__(self, within: ConnectorTables, tables: Sequence[Table]) -> None:
        """Raises:
        LakeUnavailableError: Spark or the catalogue cannot be reached.
        ConfigurationError: only Spark knows the catalogue.
        """
        self._in = within
        self._tables = {table.name: table for table in tables}
        self._marks: dict[str, Mark] = {}
        self._plan()
        self._number = max((file.landing for file in self._files), default=0)
        self._newest = max((file.hlc for file in self._files), default=0)

    @property
    def client_id(self) -> str:
        """In whose name the connector's deltas are pushed."""
        return f"connector:{self._in.connector}"

    def is_due(self, table: str) -> bool:
        """Whether something of a table landed that the gateway may lack."""
        return bool(self._newer(table))

    @property
    def newest(self) -> int:
        """The page up to which everything landed."""
        return self._newest

    def deltas(self, table: str) -> DataFrame:
        """The deltas that follow from what the gateway lacks of a table, in the order of their stamps (`DELTA_SCHEMA`).

        They are one partition, so that one task has them all in order.
        """
        newer = self._newer(table)
        return self._undelivered(
            self._landed(table), self._marks[table].delivered, self._newest, sum(file.rows for file in newer)
        )

    def history(self, table: str, days: Collection[date]) -> DataFrame | None:
        """Return the deltas of the landings of some days, whatever was pushed; None where nothing landed then.

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
        landed = Landed(table, self._identity(table), tuple(files), (), KNOWN)
        wanted = reduce(or_, (sf.col("page").between(*span) for span in spans))
        return self._undelivered(landed, first - 1, last, sum(file.rows for file in files)).where(wanted)

    @lake_errors
    def note_delivered(self, table: str, page: int) -> None:
        """Store that the gateway has what follows from the pages up to one; what is not stored is pushed again.

        Args:
            table: the table's name.
            page: the last of them.
        """
        self._marks[table] = note(self._in, table, self._marks[table]._replace(delivered=page))

    @lake_errors
    def settle(self, table: str, *, least: int = ROWS_TO_FOLD, files: int = FILES_TO_FOLD) -> None:
        """Bring `known` up to what was delivered, where that is much.

        Args:
            table: the table's name.
            least: rows from which it is much.
            files: files from which it is much.
        """
        mark, landed = self._marks[table], self._landed(table)
        newer = [file for file in landed.files if file.first <= mark.delivered]
        rows, known = sum(file.rows for file in newer), sum(file.rows for file in self._known.get(table, ()))
        if len(newer) < files and rows < min(max(least, known // 2), MOST_TO_FOLD):
            return
        with suppress(FlushError):  # somebody has written it meanwhile: the next poll does it
            fold(self._in, Folding(landed, mark.delivered), self._known_snapshot)
            self._marks[table] = note(self._in, table, Mark(mark.delivered, mark.delivered))
            self._plan_known()

    def _undelivered(self, landed: Landed, above: int, upto: int, rows: int) -> DataFrame:
        parts = 1 if rows <= FEW_ROWS else 2 * -(-rows // (2 * ROWS_A_TASK))
        pending = PendingPages(landed, self.client_id, above, upto, parts)
        deltas = in_tasks(self._in.spark, parts, pending.deltas, DELTA_SCHEMA)
        return deltas.repartition(1).sortWithinPartitions("page", "hlc", "delta")

    def _newer(self, table: str) -> list[LandedFile]:
        """The files with pages of a table that the gateway may lack."""
        delivered = self._marks[table].delivered
        return [file for file in self._files if file.last > delivered and file.may_have(table)]

    def _landed(self, table: str) -> Landed:
        """Where the landings are that `known` lacks of a table, and what it has."""
        since = self._marks[table].known
        files = tuple(file for file in self._files if file.last > since and file.may_have(table))
        known = tuple((file.bucket, file.path) for file in self._known.get(table, ()))
        return Landed(table, self._identity(table), files, known, since)

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


def fold(tables: ConnectorTables, folding: Folding, snapshot: int | None) -> None:
    """Write `known` of one table anew, a task a bucket. A repeat changes nothing.

    Args:
        tables: of the connector.
        folding: the rows, up to a page.
        snapshot: of `known`, which was read.

    Raises:
        FlushError: somebody has written this table's rows meanwhile: the next poll does it.
    """
    table, name = folding.landed.table, known_name(tables.names)
    constants = (tables.gateway, tables.connector, table)

    def rows(bucket: int) -> Iterator[pa.RecordBatch]:
        for found in folding.rows(bucket):
            for batch in found.to_batches():
                same = [pa.repeat(pa.scalar(value), batch.num_rows) for value in constants]
                yield pa.record_batch([*same, *batch.columns], names=_NAMES)

    written = in_tasks(tables.spark, BUCKETS, rows, KNOWN_COLUMNS)
    batch = ("known", *constants, str(folding.upto))
    commit(tables, name, written, tables.condition(table_name=table), snapshot, batch)


def note(tables: ConnectorTables, table: str, mark: Mark) -> Mark:
    """Store how far a table is read, without a snapshot.

    Args:
        tables: the connector's.
        table: the table's name.
        mark: how far.

    Returns:
        The mark that is noted: never behind the one that was there.
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
