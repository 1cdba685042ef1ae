"""An Iceberg table's files at one snapshot, as tasks read them themselves: Arrow straight from Parquet.

Rows on their way from Spark's reader through Python cost more than the merge itself. A task that opens the files has
them as Arrow at once. Which files, the metadata says at a pinned snapshot, so commits meanwhile are not met.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import functions as sf

from lakehouse.file_systems import is_readable, on_s3, place_of
from lakehouse.table_files import BUCKET_ROWS, DELETES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt
    from pyiceberg.table import FileScanTask
    from pyspark.sql import Column, SparkSession

_DATA, _POSITION_DELETES = 0, 1

ROWS_AT_ONCE = 100_000
"""Of a file, decoded into memory together."""


class DataFiles(NamedTuple):
    """Files of rows and of the places of deleted ones among them."""

    data: tuple[str, ...] = ()
    deletes: tuple[str, ...] = ()
    rows: int = 0
    """In the files, deleted ones included."""

    @classmethod
    def of(cls, tasks: Sequence[FileScanTask]) -> DataFiles:
        """Those of a scan as pyiceberg plans it."""
        deletes = {deleted.file_path for task in tasks for deleted in task.delete_files}
        rows = sum(task.file.record_count for task in tasks)
        return cls(tuple(task.file.file_path for task in tasks), tuple(deletes), rows)


class UnreadableError(Exception):
    """Tasks cannot read these files by themselves: Spark has to."""


def files_at(
    spark: SparkSession, name: str, snapshot: int, where: Column | None = None, by: Column | None = None
) -> dict[int, DataFiles]:
    """The files of a snapshot, by the value of `by` (0 without one).

    Args:
        spark: a session.
        name: the table's full name, quoted.
        snapshot: its id.
        where: which data files, over the columns of the metadata table `files`; all delete files come along.
        by: an integer of a file, such as its bucket.

    Raises:
        UnreadableError: there are files that are no Parquet, neither local nor on S3, or equality deletes.
    """
    found = spark.read.option("versionAsOf", str(snapshot)).table(f"{name}.files")
    if where is not None:
        found = found.where((sf.col("content") != _DATA) | where)
    rows = found.select(
        (sf.lit(0) if by is None else by).alias("place"), "content", "file_path", "file_format", "record_count"
    ).collect()
    files: dict[int, DataFiles] = {}
    for row in rows:
        if row["content"] > _POSITION_DELETES or row["file_format"] != "PARQUET" or not is_readable(row["file_path"]):
            raise UnreadableError(row["file_path"])
        known = files.get(row["place"], DataFiles())
        if row["content"] == _DATA:
            files[row["place"]] = known._replace(
                data=(*known.data, row["file_path"]), rows=known.rows + row["record_count"]
            )
        else:
            files[row["place"]] = known._replace(deletes=(*known.deletes, row["file_path"]))
    return files


def read_files(files: DataFiles, schema: pa.Schema, at_once: int = ROWS_AT_ONCE) -> Iterator[pa.Table]:
    """The columns of a schema, some rows of a file after others, without deleted ones; in a task, on its one core."""
    deleted = _deleted(files.deletes)
    for path in files.data:
        gone = deleted.get(path)
        begin = 0
        for batch in _opened(path).iter_batches(at_once, columns=schema.names, use_threads=False):
            table = pa.Table.from_batches([batch])
            if gone is not None:
                first, last = np.searchsorted(gone, (begin, begin + table.num_rows))
                kept = np.ones(table.num_rows, bool)
                kept[gone[first:last] - begin] = False
                begin += table.num_rows
                table = table.filter(pa.array(kept))
            yield _in_columns(table, schema)


class Places(NamedTuple):
    """Rows of a file."""

    path: str
    places: npt.NDArray[np.int64]
    """In order."""
    rows: pa.Table


def find_rows(files: DataFiles, schema: pa.Schema, column: str, values: pa.Array) -> Iterator[Places]:
    """The rows whose column has one of these values, without deleted ones, and where they are.

    Of a row group without such a row nothing but that column is read.
    """
    deleted = _deleted(files.deletes)
    for path in files.data:
        file = _opened(path)
        begin = 0
        for group in range(file.num_row_groups):
            count = file.metadata.row_group(group).num_rows
            (keys,) = file.read_row_group(group, [column], use_threads=False).columns
            found = np.flatnonzero(np.asarray(pc.is_in(keys, values)))
            if path in deleted:
                found = found[~np.isin(found + begin, deleted[path])]
            if len(found):
                rows = file.read_row_group(group, schema.names, use_threads=False).take(pa.array(found))
                yield Places(path, found + begin, _in_columns(rows, schema))
            begin += count


def places_of(found: Sequence[Places]) -> pa.Table:
    """Where rows are, as `DELETES` has it."""
    paths = pa.concat_arrays([pa.repeat(each.path, len(each.places)) for each in found])
    return pa.table([paths, np.concatenate([each.places for each in found])], DELETES).sort_by(
        [("file_path", "ascending"), ("pos", "ascending")]
    )


def read_buckets(files: DataFiles, schema: pa.Schema, buckets: Sequence[int]) -> Iterator[tuple[int | None, pa.Table]]:
    """The same of some buckets alone, where files of the history keep them apart; with the bucket, or None for rows of
    any: those of a file that does not.
    """
    for path in files.data:
        file = _opened(path)
        groups = None if files.deletes else _groups(file)
        if groups is None:
            yield from ((None, rows) for rows in read_files(files._replace(data=(path,)), schema))
            continue
        for bucket in buckets:
            if bucket in groups:
                yield bucket, _in_columns(file.read_row_group(groups[bucket], schema.names, use_threads=False), schema)


def _groups(file: pq.ParquetFile) -> dict[int, int] | None:
    """Bucket → its row group, of a file that has one for each."""
    told = (file.metadata.metadata or {}).get(BUCKET_ROWS.encode())
    if told is None:
        return None
    there = [bucket for bucket, rows in enumerate(json.loads(told)) if rows]
    return {bucket: group for group, bucket in enumerate(there)}


def _in_columns(table: pa.Table, schema: pa.Schema) -> pa.Table:
    found = table.select(schema.names)
    return found if found.schema.equals(schema) else found.cast(schema)


def _deleted(paths: Sequence[str]) -> dict[str, npt.NDArray[np.int64]]:
    """File → places of its deleted rows, in order."""
    found: dict[str, list[npt.NDArray[np.int64]]] = {}
    for path in paths:
        table = _opened(path).read(["file_path", "pos"], use_threads=False).combine_chunks()
        coded = table["file_path"].combine_chunks().dictionary_encode()
        codes, places = np.asarray(coded.indices), table["pos"].to_numpy()
        for code, of in enumerate(coded.dictionary.to_pylist()):
            found.setdefault(of, []).append(places[codes == code])
    return {of: np.unique(np.concatenate(parts)) for of, parts in found.items()}


def _opened(data_file: str) -> pq.ParquetFile:
    file_system, path = place_of(data_file)
    return pq.ParquetFile(path, filesystem=file_system, pre_buffer=on_s3(data_file))
