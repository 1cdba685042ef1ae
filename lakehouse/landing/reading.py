"""What landed of one connector's tables, and how far its gateway was told of it."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.exceptions import NoSuchTableError
from pyspark.sql import functions as sf
from sqlalchemy.exc import OperationalError, ProgrammingError

from lakehouse.commits import MovedError
from lakehouse.data_files import DataFiles
from lakehouse.landing import events as law
from lakehouse.landing.commits import claims_in
from lakehouse.landing.events import PLACE, WHOLE
from lakehouse.landing.files import Landed, Telling
from lakehouse.landing.folding import Folding
from lakehouse.landing.known import fold, note
from lakehouse.landing.tables import ConnectorTables, LandedFile, Mark, ensure_landing, known_name, landing_name
from lakehouse.spark_errors import lake_errors
from lakehouse.task_runner import ROWS_HERE, in_tasks

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import date

    from pyspark.sql import DataFrame

    from lakesync.connectors.source import Table

ROWS_A_TASK = 50_000

_MISSING = (NoSuchTableError, OperationalError, ProgrammingError)
"""What a catalogue says of a table that it has not; the others are of databases that are no catalogue yet."""

FILES_TO_FOLD = 50
ROWS_TO_FOLD, MOST_TO_FOLD = 10_000, 100_000
"""`known` is brought up to what has landed in so many files, or rows where those are half of it, or so many."""


class Waiting(NamedTuple):
    """A page of a table that landed and was not told yet."""

    page: int
    """Up to this one it is told; of the newest, up to the end of what has landed."""
    rows: int
    size: int
    """Bytes of its rows as JSON."""


class LandedTables:
    """The tables of one connector, as they have landed."""

    def __init__(self, within: ConnectorTables, tables: Sequence[Table]) -> None:
        """Raises:
        LakeUnavailableError: Spark, or the catalogue, is gone.
        ConfigurationError: only Spark knows the catalogue.
        """
        self._in = within
        self._tables = {table.name: table for table in tables}
        self._marks: dict[str, Mark] = {}
        self._claims: dict[str, set[tuple[str, str]]] = {}
        self._plan()
        self._number = max((file.landing for file in self._files), default=0)
        self._newest = max((file.hlc for file in self._files), default=0)

    @property
    def client_id(self) -> str:
        """In whose name the connector's deltas are pushed."""
        return f"connector:{self._in.connector}"

    @lake_errors
    def waiting(self, table: str) -> list[Waiting]:
        """The pages of a table that landed and were not told yet, in order."""
        found: dict[int, tuple[int, int]] = {}
        for rows in self._landed(table).pages(self._marks[table].told, self._newest):
            sizes = pc.fill_null(pc.binary_length(rows["columns"]), 0)
            counted = pa.table({"page": rows["page"], "size": sizes}).group_by("page")
            for each in counted.aggregate([("size", "sum"), ("size", "count")]).to_pylist():
                count, size = found.get(each["page"], (0, 0))
                found[each["page"]] = (count + each["size_count"], size + each["size_sum"])
        pages = [Waiting(page, *found[page]) for page in sorted(found)]
        # nothing else of this table landed since: once all is told, no file that has landed is looked at again
        return [*pages[:-1], pages[-1]._replace(page=self._newest)] if pages else []

    @lake_errors
    def deltas(self, table: str, pages: Sequence[Waiting]) -> pa.Table:
        """What follows from waiting pages, in the order of stamps: `lakehouse.landing.events.DELTA_SCHEMA`."""
        rows = sum(each.rows for each in pages)
        parts = 1 if rows <= ROWS_HERE else 2 * -(-rows // (2 * ROWS_A_TASK))
        telling = Telling(self._landed(table), self.client_id, self._marks[table].told, pages[-1].page, parts)
        if parts == 1:
            return pa.Table.from_batches(telling.deltas()).sort_by("hlc")
        return in_tasks(self._in.spark, parts, telling.deltas, law.DELTA_SCHEMA).toArrow().sort_by("hlc")

    def history(self, table: str, until: date) -> DataFrame:
        """What became of a table's rows from the first landing to the end of a day, whatever was pushed."""
        spark, names = self._in.spark, self._in.names
        mine = (sf.col("gateway") == self._in.gateway) & (sf.col("connector") == self._in.connector)
        of_table = mine & (sf.col("table_name") == table)
        landed = spark.table(landing_name(names)).where(of_table & (sf.col("kind") != PLACE) & (sf.col("day") <= until))
        claimed = landed.where(sf.col("kind") == WHOLE).select("name").distinct().collect()
        nothing = spark.table(known_name(names)).where(sf.lit(False)).select("row_id", "columns")
        return law.events(landed, nothing, self._identity(table), [row["name"] for row in claimed])

    @lake_errors
    def told(self, table: str, page: int) -> None:
        """The gateway has what follows from all pages up to this one. Unless that is noted, it is pushed once more."""
        mark = self._marks[table]._replace(told=page)
        self._marks[table] = mark
        note(self._in, table, mark)

    @lake_errors
    def settle(self, table: str, *, least: int = ROWS_TO_FOLD, files: int = FILES_TO_FOLD) -> None:
        """Bring `known` up to what was told, where that is much beside it."""
        mark, landed = self._marks[table], self._landed(table)
        newer = [file for file in landed.files if file.first <= mark.told]
        rows, known = sum(file.rows for file in newer), sum(each.rows for _, each in landed.known)
        if len(newer) < files and rows < min(max(least, known // 2), MOST_TO_FOLD):
            return
        folded = Mark(mark.told, mark.told)
        with suppress(MovedError):  # somebody has committed to it meanwhile: the next poll does it
            fold(self._in, Folding(landed, mark.told), folded, rows + known)
            self._plan_known()

    def _landed(self, table: str) -> Landed:
        """Where the landings are that `known` lacks of a table, and what it has."""
        since = self._marks[table].known
        files = tuple(file for file in self._files if file.last > since)
        claimed = {name for file in files for of, name in self._claims_in(file) if of == table}
        identity = self._identity(table)
        columns = tuple(sorted({*claimed, *([identity] if identity else [])}))
        return Landed(table, identity, columns, files, self._known.get(table, ()), since)

    def _claims_in(self, file: LandedFile) -> set[tuple[str, str]]:
        if file.path not in self._claims:
            self._claims[file.path] = claims_in(file)
        return self._claims[file.path]

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

    def _plan_known(self) -> None:
        with self._in.opened(known_name(self._in.names)) as known:
            marks = {table: self._in.mark(known, table) for table in self._tables}
            found = self._in.known(known)
        # what this poll has told counts also where it could not be noted
        self._marks = {
            table: mark._replace(told=max(mark.told, self._marks.get(table, mark).told))
            for table, mark in marks.items()
        }
        self._known = {
            table: tuple((bucket, DataFiles.of(tasks)) for bucket, tasks in of_table.items())
            for table, of_table in found.items()
        }
