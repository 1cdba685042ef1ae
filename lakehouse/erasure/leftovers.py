"""Searches the Parquet files in a table's folder for rows that an erasure covers, without asking Iceberg.

A query of the table shows neither the files of killed runs, which no snapshot references, nor rows that are only marked
as deleted. Both are still on disk, so Spark tasks read every file. The proof in `lakehouse.erasure.requests` calls it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from lakehouse.data_files import data_file_path
from lakehouse.task_runner import in_tasks
from lakesync.model.errors import FlushError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pyspark.sql import SparkSession

    from lakesync.staging.records import Erasure


_MAX_TASKS = 16
"""Number of Spark tasks that read files, at most."""
_FOUND_SCHEMA = "path string, seq bigint, rows bigint, error string"
"""Columns of the rows that tasks yield: a leftover, or the error of a file that cannot be read."""
_FOUND = pa.schema([("path", pa.string()), ("seq", pa.int64()), ("rows", pa.int64()), ("error", pa.string())])


class Leftover(msgspec.Struct, frozen=True):
    """A data file that still has rows which an erasure covers."""

    path: str
    """Path on pyarrow's file system."""
    seq: int
    """Number of the erasure request, among those of its gateway."""
    rows: int
    """Number of covered rows in the file."""


def find_leftovers(spark: SparkSession, location: str, requests: Sequence[Erasure], *, history: bool) -> list[Leftover]:
    """Return the Parquet files in a table's folder that have rows which one gateway's requests cover.

    Args:
        spark: an open Spark session.
        location: URI of the table's folder.
        requests: one gateway's requests.
        history: True for the folder of `deltas`, False for that of a state table.

    Raises:
        FlushError: a file cannot be read, so its content is unknown.
    """
    file_system, root = data_file_path(location)
    selector = pafs.FileSelector(f"{root}/data", allow_not_found=True, recursive=True)
    paths = [each.path for each in file_system.get_file_info(selector) if each.is_file]
    parquet = [path for path in paths if path.endswith(".parquet")]
    erasures = tuple(requests)

    def part(number: int) -> Iterator[pa.RecordBatch]:
        """Search the files of one task."""
        for path in parquet[number::_MAX_TASKS]:
            try:
                found = list(leftovers_in_file(data_file_path(location)[0], path, erasures, history=history))
            except (OSError, pa.ArrowInvalid) as error:
                rows = [{"path": path, "error": str(error)}]
            else:
                rows = [{"path": each.path, "seq": each.seq, "rows": each.rows} for each in found]
            yield pa.RecordBatch.from_pylist(rows, _FOUND)

    found = in_tasks(spark, min(len(parquet), _MAX_TASKS), part, _FOUND_SCHEMA).toArrow().to_pylist()
    for each in found:
        if each["error"] is not None:
            raise FlushError(
                f"the data file {each['path']} cannot be read ({each['error']}), so the erasure cannot be proven; if "
                "no snapshot references it, a killed run left it and maintenance removes it when it is old enough"
            )
    return [Leftover(each["path"], each["seq"], each["rows"]) for each in found]


def delete_files(location: str, paths: Sequence[str]) -> None:
    """Delete files. A missing file is not an error.

    Args:
        location: URI of the table's folder, which selects the file system.
        paths: the files' paths on it.
    """
    file_system, _ = data_file_path(location)
    for path in paths:
        if file_system.get_file_info(path).type != pafs.FileType.NotFound:
            file_system.delete_file(path)


def unreferenced_files(location: str, referenced: Iterable[str]) -> list[str]:
    """Return the paths of data files in a table's folder that no snapshot references.

    Args:
        location: URI of the table's folder.
        referenced: URIs of the files that any of its snapshots references.
    """
    file_system, root = data_file_path(location)
    known = {data_file_path(uri)[1] for uri in referenced}
    found = file_system.get_file_info(pafs.FileSelector(f"{root}/data", allow_not_found=True, recursive=True))
    return sorted(info.path for info in found if info.is_file and info.path not in known)


def leftovers_in_file(
    file_system: pafs.FileSystem, path: str, requests: Sequence[Erasure], *, history: bool
) -> Iterator[Leftover]:
    """Yield a leftover for each request that covers rows of a data file. Delete files have none.

    Args:
        file_system: the file's file system.
        path: the path on it.
        requests: one gateway's requests.
        history: True for a file of `deltas`, False for one of a state table.

    Raises:
        OSError, pyarrow.ArrowInvalid: the file cannot be read.
    """
    counts = dict.fromkeys((request.seq for request in requests), 0)
    columns = _HISTORY if history else _STATE
    with file_system.open_input_file(path) as source:
        file = pq.ParquetFile(source)
        if not set(columns) <= set(file.schema_arrow.names):
            return  # a delete file
        for batch in file.iter_batches(columns=list(columns), batch_size=50_000):
            for request in requests:
                counts[request.seq] += _covered(batch, request, history=history)
    yield from (Leftover(path, seq, rows) for seq, rows in counts.items() if rows)


_HISTORY = ("gateway", "shard", "table_name", "row_id", "op", "client_id", "hlc", "width", "columns")
"""The columns of `deltas` that are searched."""
_STATE = ("_gateway", "_row", "_cells", "_inserted")
"""The columns of a state table that are searched."""


def _covered(batch: pa.RecordBatch, request: Erasure, *, history: bool) -> int:
    """Return the number of rows with contents that a request covers."""
    if history:
        mine = pc.and_(pc.equal(batch["gateway"], request.gateway), pc.less_equal(batch["hlc"], request.hlc))
        if request.shards:
            mine = pc.and_(mine, pc.is_in(batch["shard"], pa.array(request.shards)))
        if request.client_id is not None:
            mine = pc.and_(mine, pc.equal(batch["client_id"], request.client_id))
        else:
            mine = pc.and_(mine, pc.equal(batch["table_name"], request.table))
            mine = pc.and_(mine, pc.equal(batch["row_id"], request.row_id))
        return sum(_has_content(row) for row in batch.filter(mine).to_pylist())
    mine = pc.equal(batch["_gateway"], request.gateway)
    if request.client_id is None:
        mine = pc.and_(mine, pc.equal(batch["_row"], request.row_id))
    return sum(_has_covered_part(row, request) for row in batch.filter(mine).to_pylist())


def _has_content(delta: dict[str, Any]) -> bool:
    """Return whether a delta of the history is not emptied yet; `redaction` empties these."""
    return delta["op"] == "INSERT" or bool(delta["width"] or delta["columns"])


def _has_covered_part(row: dict[str, Any], request: Erasure) -> bool:
    """Return whether a state row has a value or an INSERT of the request's client, or any, from before the erasure."""
    stamps = [cell for _, cell in row["_cells"] or ()]
    if row["_inserted"] is not None:
        stamps.append(row["_inserted"])
    return any(each["hlc"] <= request.hlc and request.client_id in (None, each["client_id"]) for each in stamps)
