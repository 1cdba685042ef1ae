"""An Iceberg table's files at one snapshot, as tasks read them themselves: Arrow straight from Parquet.

Rows on their way from Spark's reader through Python cost more than the merge itself. A task that opens the files has
them as Arrow at once. Which files, the metadata says at a pinned snapshot, so commits meanwhile are not met.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import functions as sf

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import Column, SparkSession

_LOCAL = re.compile(r"^file:/+")
_DATA, _POSITION_DELETES = 0, 1


class DataFiles(NamedTuple):
    """Files of rows and of the places of deleted ones among them."""

    data: tuple[str, ...] = ()
    deletes: tuple[str, ...] = ()


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
        UnreadableError: there are files that are not local Parquet, or equality deletes.
    """
    found = spark.read.option("versionAsOf", str(snapshot)).table(f"{name}.files")
    if where is not None:
        found = found.where((sf.col("content") != _DATA) | where)
    rows = found.select(
        (sf.lit(0) if by is None else by).alias("place"), "content", "file_path", "file_format"
    ).collect()
    files: dict[int, DataFiles] = {}
    for row in rows:
        if row["content"] > _POSITION_DELETES or row["file_format"] != "PARQUET" or not _LOCAL.match(row["file_path"]):
            raise UnreadableError(row["file_path"])
        known = files.get(row["place"], DataFiles())
        if row["content"] == _DATA:
            files[row["place"]] = known._replace(data=(*known.data, row["file_path"]))
        else:
            files[row["place"]] = known._replace(deletes=(*known.deletes, row["file_path"]))
    return files


def read_files(files: DataFiles, schema: pa.Schema) -> Iterator[pa.Table]:
    """The columns of a schema, file by file, without deleted rows; in a task, on its one core."""
    deleted = _deleted(files.deletes)
    for path in files.data:
        table = pq.read_table(_path(path), columns=schema.names, partitioning=None, use_threads=False, schema=None)
        gone = deleted.get(path)
        if gone is not None:
            kept = np.ones(table.num_rows, bool)
            kept[gone] = False
            table = table.filter(pa.array(kept))
        yield table.select(schema.names).cast(schema)


def _deleted(paths: Sequence[str]) -> dict[str, list[int]]:
    """File → places of its deleted rows."""
    found: dict[str, list[int]] = {}
    for path in paths:
        table = pq.read_table(_path(path), columns=["file_path", "pos"], partitioning=None, use_threads=False)
        for of, place in zip(table["file_path"].to_pylist(), table["pos"].to_pylist(), strict=True):
            found.setdefault(of, []).append(place)
    return found


def _path(uri: str) -> str:
    return _LOCAL.sub("/", uri)
