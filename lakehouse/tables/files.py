"""Merged rows as files that tasks write: whole buckets in place of the files that were read, or touched rows beside."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.catalogue import iceberg_table
from lakehouse.commits import commit_files
from lakehouse.data_files import DataFiles, places_of
from lakehouse.file_systems import is_readable
from lakehouse.merge.project import REJECTED
from lakehouse.table_files import DELETES, WRITTEN, WRITTEN_SCHEMA, Layout, data_files, write_data_file
from lakehouse.task_runner import ROWS_HERE, told

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pyiceberg.manifest import DataFile
    from pyiceberg.table import FileScanTask, Table
    from pyspark.sql import SparkSession

    from lakehouse.tables.buckets import Merge

ROWS_A_GROUP = 25_000
"""Of a file, read into memory together: of those without a touched row their ids alone."""

ROWS_SEARCHED_HERE = 2_000_000
"""Rows among which this process looks for those that an increment touches; tasks do among more."""

_COUNTED = (("deletes", pa.int64()), ("tombstones", pa.int64()), ("rejected", pa.int64()))
_TOLD = pa.schema([*WRITTEN, *_COUNTED])
_TOLD_SCHEMA = f"{WRITTEN_SCHEMA}, deletes bigint, tombstones bigint, rejected bigint"


class Rewritten(NamedTuple):
    """What a rewrite committed."""

    snapshot_id: int
    rows: int
    tombstones: int
    rejected: int


def rewrite(
    spark: SparkSession, name: str, snapshot: int | None, merge: Callable[[Mapping[int, DataFiles]], Merge]
) -> Rewritten | None:
    """Merge, and commit what the merge touches in place of what was there at `snapshot`.

    Whole buckets take the place of their files. Touched rows alone stand in files of their own, and other files say
    where they were before. None, with nothing done, of a table whose catalogue or files only Spark can open.

    Args:
        spark: a session.
        name: the table's full name, quoted.
        snapshot: that it is at; None where it is empty.
        merge: what tasks do, of the state's files by bucket.

    Raises:
        MovedError: somebody has committed since `snapshot`.
    """
    with iceberg_table(spark, name) as table:
        if table is None:
            return None
        held = _held(table, snapshot)
        states = {place: DataFiles.of(tasks) for place, tasks in held.items()}
        if not all(is_readable(path) for files in states.values() for path in (*files.data, *files.deletes)):
            return None
        todo = merge(states)
        folder = table.spec().fields[0].name
        written = _written(spark, Layout.of(table), folder, todo)

        def files(told: pa.Table, *, deletes: bool) -> list[DataFile]:
            return data_files(
                table, told, lambda partition: (int(partition.removeprefix(f"{folder}=")),), deletes=deletes
            )

        of_deletes = pc.equal(written["deletes"], 1)
        rows = written.filter(pc.invert(of_deletes))
        added, deleted = files(rows, deletes=False), files(written.filter(of_deletes), deletes=True)
        touched = {file.partition[0] for file in added} if todo.extent != "rows" else set()
        # What says which of their rows are deleted stays until upkeep, of no consequence to any other file.
        removed = [task.file for place in touched for task in held.get(place, ())]
        committed = commit_files(table, snapshot, added, removed, deletes=deleted) if added else snapshot
        if committed is None:
            return None
        counts = [pc.sum(rows[column]).as_py() or 0 for column in ("rows", "tombstones", "rejected")]
        return Rewritten(committed, *counts)


def _held(table: Table, snapshot: int | None) -> dict[int, list[FileScanTask]]:
    """The table's files by bucket."""
    found: dict[int, list[FileScanTask]] = {}
    if snapshot is not None:
        for task in table.scan(snapshot_id=snapshot).plan_files():
            found.setdefault(task.file.partition[0], []).append(task)
    return found


def _written(spark: SparkSession, layout: Layout, folder: str, merge: Merge) -> pa.Table:
    of_deletes = Layout(DELETES, layout.folder, ("file_path",))

    def part(task: int) -> Iterator[pa.RecordBatch]:
        for place, rows, old in merge.rows_of(task):
            partition = f"{folder}={place}"
            if rows.num_rows:
                groups = (rows.slice(at, ROWS_A_GROUP) for at in range(0, rows.num_rows, ROWS_A_GROUP))
                counts = (0, pc.sum(rows["_gone"]).as_py() or 0, pc.sum(rows[REJECTED]).as_py() or 0)
                yield _told(write_data_file(layout, partition, groups), counts)
            if old:
                yield _told(write_data_file(of_deletes, partition, [places_of(old)]), (1, 0, 0))

    most = ROWS_SEARCHED_HERE if merge.extent == "rows" else ROWS_HERE
    return told(spark, merge.tasks, part, _TOLD, _TOLD_SCHEMA, here=merge.rows <= most)


def _told(file: pa.RecordBatch, counts: tuple[int, int, int]) -> pa.RecordBatch:
    return pa.record_batch([*file.columns, *(pa.array([count], pa.int64()) for count in counts)], _TOLD)
