"""Landings written as files by whoever reads the source, and committed by number."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakehouse.commits import MovedError, commit_files
from lakehouse.file_systems import place_of
from lakehouse.landing.events import PLACE
from lakehouse.landing.rows import STAMPS_A_PART, LandedRows
from lakehouse.landing.tables import EPOCH, ConnectorTables, landing_name
from lakehouse.spark_errors import brief
from lakehouse.table_files import WRITTEN_SCHEMA, Layout, data_files, write_data_file
from lakehouse.task_runner import in_tasks
from lakesync.exceptions import FlushError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table

    from lakehouse.landing.rows import Constants
    from lakehouse.landing.tables import LandedFile
    from lakesync.connectors.source import Piece

TRIES = 10
"""Commits of one landing while others keep committing to the table in between."""

_ROWS_A_GROUP = 20_000


def write_rows(tables: ConnectorTables, landing: Table, rows: LandedRows) -> pa.Table:
    """Collected rows as a file; what `data_files_of` takes."""
    folder = tables.partition(rows.constants.day)
    return pa.Table.from_batches([write_data_file(Layout.of(landing), folder, [rows.table()])])


def write_parts(
    tables: ConnectorTables, landing: Table, constants: Constants, first: int, table: str, pieces: Sequence[Piece]
) -> pa.Table:
    """The rows of pieces, each read and written by a task of Spark, with stamps from `first` on; as `write_rows`."""
    layout, folder = Layout.of(landing), tables.partition(constants.day)

    def write(part: int) -> Iterator[pa.RecordBatch]:
        rows = LandedRows(constants, first + part * STAMPS_A_PART)
        groups = rows.groups(table, pieces[part].pages(), _ROWS_A_GROUP, most=STAMPS_A_PART)
        group = next(groups, None)
        if group is not None:
            yield write_data_file(layout, folder, chain([group], groups))

    return in_tasks(tables.spark, len(pieces), write, WRITTEN_SCHEMA).toArrow()


def commit_landing(tables: ConnectorTables, constants: Constants, written: pa.Table, newest: int) -> None:
    """Commit a landing's files, unless one of its number has been committed.

    Args:
        newest: the highest stamp in it.

    Raises:
        FlushError: another poll has landed meanwhile, or nothing was written.
    """
    error: Exception | None = None
    for _ in range(TRIES):
        with tables.opened(landing_name(tables.names)) as landing:
            there = tables.landed(landing)
            if max((file.landing for file in there), default=0) >= constants.landing:
                if max(file.hlc for file in there) == newest:
                    return  # the answer to the commit was lost
                break
            if error is not None and not isinstance(error, MovedError):
                break
            try:
                commit_files(landing, _snapshot(landing), _data_files(tables, landing, constants, written))
            except MovedError as moved:
                error = moved
            except Exception as unknown:
                error = unknown
            else:
                return
    raise FlushError(
        f"landing {constants.landing} of connector {tables.connector!r} was not written"
        f"{f' ({brief(error)})' if error else ''}: another poll of it may be under way; the next one goes on from the "
        "last landing"
    ) from error


def places_told(files: Sequence[LandedFile], number: int) -> Mapping[str, str]:
    """By table, the place that a landing says, as JSON."""
    found: dict[str, str] = {}
    for file in files:
        if file.landing != number:
            continue
        file_system, path = place_of(file.path)
        rows = pq.read_table(path, columns=["landing", "kind", "table_name", "columns"], filesystem=file_system)
        told = rows.filter(pc.and_(pc.equal(rows["landing"], number), pc.equal(rows["kind"], PLACE)))
        found |= dict(zip(told["table_name"].to_pylist(), told["columns"].to_pylist(), strict=True))
    return found


def claims_in(file: LandedFile) -> set[tuple[str, str]]:
    """The tables of a file, and the columns, in which pages of it claim rows."""
    if not file.claims:
        return set()
    file_system, path = place_of(file.path)
    rows = pq.read_table(path, columns=["table_name", "name"], filesystem=file_system)
    named = rows.filter(pc.is_valid(rows["name"])).group_by(["table_name", "name"]).aggregate([])
    return set(zip(named["table_name"].to_pylist(), named["name"].to_pylist(), strict=True))


def _data_files(tables: ConnectorTables, landing: Table, constants: Constants, written: pa.Table) -> list[DataFile]:
    values = (tables.gateway, tables.connector, (constants.day - EPOCH).days)
    return data_files(landing, written, lambda _: values)


def _snapshot(table: Table) -> int | None:
    current = table.current_snapshot()
    return current.snapshot_id if current else None
