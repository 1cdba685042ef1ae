"""`known` brought up to a page: its files written anew from those that there are and from what has landed since."""

from __future__ import annotations

from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING

import pyarrow as pa

from lakehouse.commits import MovedError, commit_files, set_properties
from lakehouse.landing.tables import BUCKETS, ConnectorTables, Mark, known_name
from lakehouse.table_files import WRITTEN, WRITTEN_SCHEMA, Layout, data_files, write_data_file
from lakehouse.task_runner import ROWS_HERE, told

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lakehouse.landing.folding import Folding

TRIES = 5
"""Commits of a mark while others commit to the table in between."""

ROWS_A_GROUP = 20_000
"""Of a file."""


def fold(tables: ConnectorTables, folding: Folding, mark: Mark, rows: int) -> None:
    """Write `known` of one table anew, and its mark in the same commit.

    Args:
        mark: of the page that it is brought up to.
        rows: how many are read, about.

    Raises:
        MovedError: somebody has committed to it meanwhile: the next poll does it.
    """
    table_name = folding.landed.table
    with tables.opened(known_name(tables.names)) as table:
        held = [task for tasks in tables.known(table).get(table_name, {}).values() for task in tasks]
        layout = Layout.of(table)
        folders = [tables.partition(table_name, bucket) for bucket in range(BUCKETS)]
        write = _writer(layout, folders, folding, (tables.gateway, tables.connector, table_name))
        written = told(tables.spark, BUCKETS, write, WRITTEN, WRITTEN_SCHEMA, here=rows <= ROWS_HERE)
        values = (tables.gateway, tables.connector, table_name)
        added = data_files(table, written, lambda folder: (*values, folders.index(folder)))
        current = table.current_snapshot()
        properties = {tables.property_of(table_name): mark.spelled()}
        if not added and not held:
            set_properties(table, properties)
            return
        removed = [task.file for task in held]
        commit_files(table, current.snapshot_id if current else None, added, removed, properties)


def note(tables: ConnectorTables, table: str, mark: Mark) -> None:
    """Note how far a table is told, without a snapshot; left to the next time where others keep committing."""
    for _ in range(TRIES):
        with tables.opened(known_name(tables.names)) as known, suppress(MovedError):
            set_properties(known, {tables.property_of(table): mark.spelled()})
            return


def _writer(
    layout: Layout, folders: list[str], folding: Folding, constants: tuple[str, str, str]
) -> Callable[[int], Iterator[pa.RecordBatch]]:
    """What writes the rows of a bucket as a file, where there are any, and tells of it."""

    def groups(bucket: int) -> Iterator[pa.Table]:
        held: list[pa.Table] = []
        for rows in folding.rows(bucket):
            held.append(rows)
            if sum(each.num_rows for each in held) >= ROWS_A_GROUP:
                yield _whole(held, constants)
                held = []
        if any(each.num_rows for each in held):
            yield _whole(held, constants)

    def write(bucket: int) -> Iterator[pa.RecordBatch]:
        rows = groups(bucket)
        first = next(rows, None)
        if first is not None:
            yield write_data_file(layout, folders[bucket], chain([first], rows))

    return write


def _whole(held: list[pa.Table], constants: tuple[str, str, str]) -> pa.Table:
    rows = pa.concat_tables(held).combine_chunks()
    for name, value in zip(("gateway", "connector", "table_name"), constants, strict=True):
        rows = rows.append_column(name, pa.repeat(pa.scalar(value), rows.num_rows))
    return rows
