"""Buckets of a state table rewritten as files that tasks write, committed in place of the files that were read."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from resources.lake.catalogue import iceberg_table
from resources.lake.commits import commit_files
from resources.lake.data_files import DataFiles
from resources.lake.spread import ROWS_HERE, told
from resources.lake.table_files import WRITTEN, WRITTEN_SCHEMA, Layout, data_files, write_data_file
from transforms.project import REJECTED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table
    from pyspark.sql import SparkSession

    from resources.lake.state.buckets import Merge

ROWS_A_GROUP = 100_000
"""Of a file, read into memory together."""

_COUNTED = (("tombstones", pa.int64()), ("rejected", pa.int64()))
_TOLD = pa.schema([*WRITTEN, *_COUNTED])
_TOLD_SCHEMA = f"{WRITTEN_SCHEMA}, tombstones bigint, rejected bigint"


class Rewritten(NamedTuple):
    """What a rewrite committed."""

    snapshot_id: int
    rows: int
    tombstones: int
    rejected: int


def rewrite_buckets(
    spark: SparkSession, name: str, snapshot: int | None, merge: Callable[[Mapping[int, DataFiles]], Merge]
) -> Rewritten | None:
    """Merge, and commit the buckets that the merge touches in place of those at `snapshot`.

    None, with nothing done, where that is Spark's: of a table with deleted rows, whose files only Spark takes away with
    those that it writes, or whose catalogue only Spark knows.

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
        if held is None:
            return None
        files = {
            place: DataFiles(
                tuple(file.file_path for file in of_bucket), (), sum(file.record_count for file in of_bucket)
            )
            for place, of_bucket in held.items()
        }
        folder = table.spec().fields[0].name
        written = _written(spark, Layout.of(table), folder, merge(files))
        added = data_files(table, written, lambda partition: (int(partition.removeprefix(f"{folder}=")),))
        touched = {file.partition[0] for file in added}
        removed = [file for place in touched for file in held.get(place, ())]
        committed = commit_files(table, snapshot, added, removed) if added else snapshot
        if committed is None:
            return None
        counts = [pc.sum(written[column]).as_py() or 0 for column in ("rows", "tombstones", "rejected")]
        return Rewritten(committed, *counts)


def _held(table: Table, snapshot: int | None) -> dict[int, list[DataFile]] | None:
    """The table's files by bucket; None where rows of them are deleted."""
    found: dict[int, list[DataFile]] = {}
    if snapshot is None:
        return found
    for task in table.scan(snapshot_id=snapshot).plan_files():
        if task.delete_files:
            return None
        found.setdefault(task.file.partition[0], []).append(task.file)
    return found


def _written(spark: SparkSession, layout: Layout, folder: str, merge: Merge) -> pa.Table:
    def part(task: int) -> Iterator[pa.RecordBatch]:
        for place, rows in merge.rows_of(task):
            if rows.num_rows:
                groups = (rows.slice(at, ROWS_A_GROUP) for at in range(0, rows.num_rows, ROWS_A_GROUP))
                file = write_data_file(layout, f"{folder}={place}", groups)
                counts = [pc.sum(rows["_gone"]).as_py() or 0, pc.sum(rows[REJECTED]).as_py() or 0]
                added = [pa.array([count], pa.int64()) for count in counts]
                yield pa.record_batch([*file.columns, *added], _TOLD)

    return told(spark, merge.tasks, part, _TOLD, _TOLD_SCHEMA, here=merge.rows <= ROWS_HERE)
