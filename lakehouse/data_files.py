"""Reads the Parquet files of an Iceberg table in Spark tasks, directly into Arrow, from a local disk or from S3.

Tasks do not use Spark's own reader, because passing its rows to Python takes longer than merging them. The driver lists
the files of one snapshot and sends them to the tasks (`DataFile`). Later commits do not change these files. All modules
of `lakehouse` whose tasks read tables call it; checkpoints and erasures call `parse_uri` for files of their own. S3 is
configured by the `AWS_…` variables.
"""

from __future__ import annotations

import re
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from lakesync.wire.frame_storage import s3_file_system

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import numpy.typing as npt
    from pyiceberg.table import FileScanTask


_S3 = re.compile(r"^s3a?://")
_ICEBERG_URI = re.compile(r"^(file:/+|s3a?://)")


def on_s3(uri: str) -> bool:
    """Return whether a URI names an object on S3."""
    return bool(_S3.match(uri))


def parse_uri(uri: str) -> tuple[pafs.FileSystem, str]:
    """Return the file system of a URI, and the path on it.

    Raises:
        pyarrow.ArrowInvalid: the URI's scheme is not supported.
    """
    if on_s3(uri):
        return s3_file_system(), _S3.sub("", uri)
    file_system_and_path: tuple[pafs.FileSystem, str] = pafs.FileSystem.from_uri(uri)
    return file_system_and_path


def has_known_scheme(iceberg_uri: str) -> bool:
    """Return whether `parse_iceberg_uri` supports a URI."""
    return bool(_ICEBERG_URI.match(iceberg_uri))


def parse_iceberg_uri(iceberg_uri: str) -> tuple[pafs.FileSystem, str]:
    """Return the file system and path of a file or folder by its URI in Iceberg's metadata: `file:/…` or `s3://…`.

    Paths in these URIs are not percent-encoded, so `parse_uri`, which decodes them, cannot be used.
    """
    if on_s3(iceberg_uri):
        return parse_uri(iceberg_uri)
    return pafs.LocalFileSystem(), _ICEBERG_URI.sub("/", iceberg_uri)


ROWS_AT_ONCE = 50_000
"""Rows of a file that are decoded at once, at most."""
BYTES_AT_ONCE = 128 << 20
"""Bytes of a file that are decoded at once, about, so that a column has less than Arrow's maximum of 2 GiB."""


class DataFile(NamedTuple):
    """A data file, or some of its row groups, and the position delete files that mark rows of it as deleted.

    A file that is divided among `every` tasks has a `DataFile` for each, with `first` from 0 on.
    """

    path: str
    """The file's URI in the table's metadata."""
    deletes: tuple[str, ...] = ()
    """URIs of the delete files."""
    rows: int = 0
    """Number of rows in the whole file, deleted ones included."""
    first: int = 0
    """Index of the first row group to read. The others are `first + every`, `first + 2 * every`, and so on."""
    every: int = 1
    """Distance between the row groups to read; 1 reads all from `first` on."""
    bytes: int = 0
    """Size of the whole file, compressed."""

    @classmethod
    def of(cls, scan_task: FileScanTask) -> DataFile:
        """Return the file of a planned scan task of pyiceberg."""
        deletes = tuple(sorted(each.file_path for each in scan_task.delete_files))
        file = scan_task.file
        return cls(file.file_path, deletes, file.record_count, bytes=file.file_size_in_bytes)


def divide_files(files: Iterable[DataFile], rows_per_task: int) -> list[list[DataFile]]:
    """Divide files into groups, one for each task. A file that is larger than a group is divided by its row groups.

    Args:
        files: the files to divide.
        rows_per_task: number of rows in a group, approximately.
    """
    groups: list[list[DataFile]] = []
    rows_left = 0  # in the last group
    for file in files:
        parts = max(1, round(file.rows / rows_per_task))
        for first in range(parts):
            size = file.rows // parts
            if not groups or size > rows_left:
                groups.append([])
                rows_left = rows_per_task
            groups[-1].append(file._replace(first=first, every=parts))
            rows_left -= size
    return groups


def rows_in(files: Iterable[DataFile]) -> int:
    """Return the number of rows in files, deleted ones included."""
    return sum(file.rows for file in files)


def read_rows(
    file: DataFile,
    schema: pa.Schema,
    *,
    key: str | None = None,
    wanted: pa.Array | None = None,
    skip_without: tuple[str, str] | None = None,
    batch_rows: int = ROWS_AT_ONCE,
) -> Iterator[pa.Table]:
    """Yield the rows of a file that are not deleted, in several tables. It uses one core.

    Args:
        file: the file, or some of its row groups.
        schema: names and types of the columns to read, all of which the file must have.
        key: name of a string column, by which `wanted` selects rows.
        wanted: values of `key`; only rows with one of them are returned. In row groups without such a row only the
            column `key` is read.
        skip_without: name of a string column, and a value; row groups whose statistics exclude this value are skipped.
            Rows with other values may still be returned.
        batch_rows: number of rows in a table, at most; fewer if they are wide.
    """
    opened = open_file(file.path)
    metadata = opened.metadata
    sizes = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
    begins = [0, *accumulate(sizes)]  # position in the file of each row group's first row
    groups = list(range(file.first, metadata.num_row_groups, file.every))
    if skip_without is not None:
        groups = [group for group in groups if _may_have(metadata.row_group(group), *skip_without)]
    deleted = deleted_rows(file)
    kept_in_group = {}  # row group → whether each of its rows is returned
    for group in groups:
        is_kept = ~np.isin(np.arange(begins[group], begins[group + 1]), deleted)
        if wanted is not None:
            (keys,) = opened.read_row_group(group, [key], use_threads=False).columns
            is_kept &= np.asarray(pc.is_in(keys, wanted))
        if is_kept.any():
            kept_in_group[group] = is_kept
    if not kept_in_group:
        return
    groups, is_kept_by_position = list(kept_in_group), np.concatenate(list(kept_in_group.values()))
    size = sum(metadata.row_group(group).total_byte_size for group in groups)
    batch_rows = min(batch_rows, max(1, len(is_kept_by_position) * BYTES_AT_ONCE // max(1, size)))
    begin = 0
    for batch in opened.iter_batches(batch_rows, groups, schema.names, use_threads=False):
        is_kept = is_kept_by_position[begin : begin + batch.num_rows]
        begin += batch.num_rows
        if is_kept.any():
            table = pa.Table.from_batches([batch])
            yield _in_schema(table if is_kept.all() else table.filter(pa.array(is_kept)), schema)


def deleted_rows(file: DataFile) -> npt.NDArray[np.int64]:
    """Return the positions in a data file of its deleted rows, ascending."""
    positions = [np.empty(0, np.int64)]
    for path in file.deletes:
        table = open_file(path).read(["file_path", "pos"], use_threads=False)
        positions.append(table.filter(pc.equal(table["file_path"], file.path))["pos"].to_numpy())
    return np.unique(np.concatenate(positions))


def open_file(uri: str) -> pq.ParquetFile:
    """Open a data file or delete file by its URI in the table's metadata."""
    file_system, path = parse_iceberg_uri(uri)
    return pq.ParquetFile(path, filesystem=file_system, pre_buffer=on_s3(uri))


def _in_schema(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Select a table's columns in the order of a schema, and cast them to its types."""
    selected = table.select(schema.names)
    return selected if selected.schema.equals(schema) else selected.cast(schema)


def _may_have(group: pq.RowGroupMetaData, column: str, value: str) -> bool:
    """Return whether a row group may have a value in a column, by its statistics."""
    for number in range(group.num_columns):
        chunk = group.column(number)
        if chunk.path_in_schema == column:
            statistics = chunk.statistics
            return statistics is None or not statistics.has_min_max or statistics.min <= value <= statistics.max
    return True
