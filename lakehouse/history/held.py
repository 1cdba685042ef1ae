"""A flush's batch as `deltas` holds it at a snapshot: how many deltas, and the sum of their ids."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as sf

from lakehouse.bounds import bounds_of
from lakehouse.data_files import DataFiles, read_files
from lakehouse.history.decoding import day_of
from lakehouse.history.ledger import id_sums
from lakehouse.table_definitions import LakeNames, at
from lakesync.adapters.arrow import id_numbers
from lakesync.analysis.scans import holds

if TYPE_CHECKING:
    from pyiceberg.table import FileScanTask, Table
    from pyspark.sql import Column, SparkSession

    from lakesync.staging.records import Batch

Held = tuple[int, int]
"""Count, and sum of ids modulo 2**64."""

_READERS = 2
_ID = pa.schema([("delta_id", pa.string())])
_IDS = pa.schema([("gateway", pa.string()), ("batch_id", pa.string()), ("delta_id", pa.string())])


def held_in_files(table: Table, batch: Batch) -> Held | None:
    """The batch in the table as it was loaded, read from its files; None where it is not there."""
    from pyiceberg import expressions as ice

    snapshot = table.current_snapshot()
    if snapshot is None:
        return None
    first, last = (day_of(arrival).isoformat() for arrival in (batch.arrival_low, batch.arrival_high))
    near = ice.And(
        holds("gateway", "=", batch.gateway),
        holds("day", ">=", first),
        holds("day", "<=", last),
        holds("batch_id", "=", batch.batch_id),
    )
    tasks = list(table.scan(near, selected_fields=tuple(_IDS.names), snapshot_id=snapshot.snapshot_id).plan_files())

    def held(task: FileScanTask) -> Held:
        files = DataFiles((task.file.file_path,), tuple(deleted.file_path for deleted in task.delete_files))
        marks = [bounds_of(table, task.file, name) for name in ("gateway", "batch_id")]
        whole = marks == [(batch.gateway, batch.gateway), (batch.batch_id, batch.batch_id)]
        return _of_files(files, None if whole else batch)

    with ThreadPoolExecutor(_READERS) as pool:
        return _added(list(pool.map(held, tasks)))


def held_by_spark(spark: SparkSession, names: LakeNames, snapshot: int | None, batch: Batch) -> Held | None:
    """The same, as Spark reads a snapshot."""
    if snapshot is None:
        return None
    (row,) = id_sums(at(spark, names.deltas, snapshot).where(is_of(batch))).collect()
    return (row["count"], int(row["total"])) if row["count"] else None


def is_of(batch: Batch) -> Column:
    """The batch's rows, and enough around them to prune files by partition and bounds."""
    days = (day_of(batch.arrival_low), day_of(batch.arrival_high))
    return (
        (sf.col("gateway") == batch.gateway)
        & sf.col("day").between(*days)
        & sf.col("arrival").between(batch.arrival_low, batch.arrival_high)
        & (sf.col("batch_id") == batch.batch_id)
    )


def _of_files(files: DataFiles, batch: Batch | None) -> Held:
    """Of the batch's rows among the files', or of all."""
    count = total = 0
    for rows in read_files(files, _ID if batch is None else _IDS):
        if batch is None:
            own = rows
        else:
            own = rows.filter(
                pc.and_(pc.equal(rows["gateway"], batch.gateway), pc.equal(rows["batch_id"], batch.batch_id))
            )
        found = id_numbers(own["delta_id"].combine_chunks())
        count += len(found)
        total += int(found.sum(dtype="uint64"))  # modulo 2**64, as the ledger has it
    return count, total


def _added(parts: list[Held]) -> Held | None:
    count, total = (sum(each) for each in zip(*parts, strict=True)) if parts else (0, 0)
    return (count, total % 2**64) if count else None
