"""The history in order of arrival, as a task reads it from the files itself, and no more of it at once than a part.

A file of the history is one gateway's deltas of one shard, in the order of its buckets. What is too much to be put in
order in memory is put in order part by part, each on the task's own disk, and those are read side by side.
"""

from __future__ import annotations

import os
import tempfile
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakesync.analysis.scans import both, holds
from resources.lake.bounds import bounds_of
from resources.lake.catalogue import iceberg_table
from resources.lake.data_files import DataFiles, read_files
from resources.lake.places import is_readable
from transforms.decode import DELTAS_ARROW, day_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pyiceberg.table import FileScanTask, Table
    from pyspark.sql import SparkSession

    from lakesync.adapters.following import Choice

PART = 25_000
"""Rows that are put in order in memory."""

_BATCH = 5_000
"""Rows of a batch."""
_TOGETHER = 16
"""Parts of a size that are read side by side, and made one."""
_ORDER = ("arrival", "seq", "ordinal")


class Stretch(NamedTuple):
    """Files of one stream that have to be read together, as their arrivals are interleaved."""

    gateway: str
    shard: str
    files: DataFiles


def stretches(spark: SparkSession, deltas: str, snapshot: int, after: Mapping[str, int]) -> list[Stretch] | None:
    """The files of a snapshot with deltas beyond some arrivals, in order of gateway, shard and arrival.

    Args:
        spark: a session.
        deltas: the history's full name, quoted.
        snapshot: its id.
        after: `GATEWAY/SHARD` → the arrival above which its deltas are wanted; other streams are not.

    Returns:
        None where tasks cannot open the files, or these do not tell whose they are: Spark has to read them.
    """
    with iceberg_table(spark, deltas) as table:
        return stretches_of(table, snapshot, after) if table is not None else None


def stretches_of(table: Table, snapshot: int, after: Mapping[str, int]) -> list[Stretch] | None:
    """The same of a history that is open."""
    if not after:
        return []
    low = min(after.values())
    near = both(
        holds("arrival", ">", low),
        holds("day", ">=", day_of(max(0, low)).isoformat()),
        holds("gateway", "in", {name.partition("/")[0] for name in after}),
    )
    placed = [_placed(table, task) for task in table.scan(near, snapshot_id=snapshot).plan_files()]
    if None in placed:
        return None
    found: list[tuple[Stretch, int]] = []
    for gateway, shard, first, last, files in sorted(each for each in placed if each is not None):
        if last <= after.get(f"{gateway}/{shard}", last):
            continue
        before, end = found[-1] if found else (None, -1)
        if before is not None and before[:2] == (gateway, shard) and first <= end:
            found[-1] = (Stretch(gateway, shard, _together(before.files, files)), max(end, last))
        else:
            found.append((Stretch(gateway, shard, files), last))
    return [stretch for stretch, _ in found]


def reached(spark: SparkSession, deltas: str, snapshot: int) -> dict[str, int] | None:
    """`GATEWAY/SHARD` → the highest arrival of it in a snapshot; None where that is for Spark to find out, as above."""
    with iceberg_table(spark, deltas) as table:
        return reached_in(table, snapshot) if table is not None else None


def reached_in(table: Table, snapshot: int) -> dict[str, int] | None:
    """The same of a history that is open."""
    found: dict[str, int] = {}
    for task in table.scan(snapshot_id=snapshot).plan_files():
        placed = _placed(table, task)
        if placed is None:
            return None
        name = f"{placed[0]}/{placed[1]}"
        found[name] = max(placed[3], found.get(name, placed[3]))
    return found


def in_order(
    found: Sequence[Stretch], after: Mapping[str, int], choice: Choice, columns: Sequence[str], part: int = PART
) -> Iterator[pa.RecordBatch]:
    """What is wanted of these, in order of gateway, shard, arrival and place in the log; in a task.

    Args:
        found: as `stretches` has them.
        after: as it was told.
        choice: which tables and gateways.
        columns: of the history, that are wanted.
        part: rows that are put in order in memory.
    """
    schema = pa.schema([DELTAS_ARROW.field(name) for name in dict.fromkeys((*columns, "table_name", *_ORDER))])
    for stretch in found:
        if choice.gateways and stretch.gateway not in choice.gateways:
            continue
        low = after[f"{stretch.gateway}/{stretch.shard}"]
        wanted = (_wanted(rows, low, choice) for rows in read_files(stretch.files, schema, part))
        for rows in ordered(wanted, part):
            yield from rows.select(list(columns)).combine_chunks().to_batches(max_chunksize=_BATCH)


def ordered(rows: Iterable[pa.Table], part: int = PART) -> Iterator[pa.Table]:
    """Rows of a stream by arrival and place in the log, a few thousand at a time.

    Args:
        rows: in any order.
        part: as many are in memory at once, or a batch of each of the parts that are read side by side.
    """
    with tempfile.TemporaryDirectory(prefix="lakesync-order-", dir=_disk()) as folder:
        parts = _Parts(Path(folder))
        waiting: list[pa.Table] = []
        for some in rows:
            waiting.append(some)
            if sum(map(len, waiting)) >= part:
                parts.add([_sorted(waiting)])
                waiting = []
        left = [_sorted(waiting)] if any(map(len, waiting)) else []
        if not parts:
            yield from left
            return
        if left:
            parts.add(left)
        yield from parts.side_by_side()


class _Parts:
    """Each in order, on disk; many of a size are made one of the next, as a batch of each is in memory in the end."""

    def __init__(self, folder: Path) -> None:
        self._paths = (folder / str(number) for number in count())
        self._by_size: list[list[Path]] = []

    def __bool__(self) -> bool:
        return bool(self._by_size)

    def add(self, rows: Iterable[pa.Table], size: int = 0) -> None:
        """Add a part, of one row at least."""
        path = next(self._paths)
        _spill(rows, path)
        if size == len(self._by_size):
            self._by_size.append([])
        same = self._by_size[size]
        same.append(path)
        if len(same) == _TOGETHER:
            self._by_size[size] = []
            self.add(_side_by_side(same), size + 1)
            for path in same:
                path.unlink()

    def side_by_side(self) -> Iterator[pa.Table]:
        """All of them in order."""
        return _side_by_side(list(chain.from_iterable(self._by_size)))


class _Reading:
    """A part on disk, of which the next rows are in memory."""

    def __init__(self, path: Path) -> None:
        self._file = pa.ipc.open_file(pa.OSFile(str(path)))
        self._next = 0
        self.rows = self._file.schema.empty_table()
        self.go_on()

    @property
    def more(self) -> bool:
        """Whether there is more than what is in memory."""
        return bool(self._next < self._file.num_record_batches)

    @property
    def last(self) -> int:
        """The arrival of the last row in memory: further rows of it may follow."""
        return int(self.rows.column("arrival")[-1].as_py())

    def go_on(self) -> None:
        """Read another batch."""
        batch = pa.Table.from_batches([self._file.get_batch(self._next)])
        self.rows = pa.concat_tables([self.rows, batch])
        self._next += 1

    def below(self, arrival: int | None) -> pa.Table:
        """Take the rows below an arrival, or all that are there."""
        end = len(self.rows)
        if arrival is not None:
            end = int(np.searchsorted(self.rows.column("arrival").to_numpy(), arrival))
        taken, self.rows = self.rows.slice(0, end), self.rows.slice(end)
        return taken


def _side_by_side(paths: Sequence[Path]) -> Iterator[pa.Table]:
    parts = [_Reading(path) for path in paths]
    while parts:
        border = min((each.last for each in parts if each.more), default=None)
        taken = [each.below(border) for each in parts]
        if any(map(len, taken)):
            yield _sorted(taken)
        for each in parts:
            if each.more and (not len(each.rows) or each.last == border):
                each.go_on()
        parts = [each for each in parts if len(each.rows)]


def _sorted(rows: Sequence[pa.Table]) -> pa.Table:
    whole = pa.concat_tables(rows).combine_chunks()
    return whole.take(pc.sort_indices(whole, sort_keys=[(name, "ascending") for name in _ORDER]))


def _disk() -> str | None:
    """Where Spark has its tasks put what is too much for memory; outside of a task, where the system has it."""
    return os.environ.get("SPARK_LOCAL_DIRS", "").partition(",")[0] or None


def _spill(rows: Iterable[pa.Table], path: Path) -> None:
    rows = iter(rows)
    first = next(rows)
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, first.schema, options=options) as writer:
        for some in chain((first,), rows):
            writer.write_table(some, max_chunksize=_BATCH)


def _wanted(rows: pa.Table, low: int, choice: Choice) -> pa.Table:
    mask = pc.greater(rows.column("arrival"), low)
    if choice.tables:
        mask = pc.and_(mask, pc.is_in(rows.column("table_name"), pa.array(choice.tables)))
    if choice.without:
        mask = pc.and_(mask, pc.invert(pc.is_in(rows.column("table_name"), pa.array(choice.without))))
    return rows.filter(mask)


def _placed(table: Table, task: FileScanTask) -> tuple[str, str, int, int, DataFiles] | None:
    """Gateway, shard, first and last arrival of a file; None where it does not tell, or cannot be opened."""
    files = DataFiles.of([task])
    gateway, shard = (bounds_of(table, task.file, name) for name in ("gateway", "shard"))
    first, last = bounds_of(table, task.file, "arrival")
    if not (isinstance(first, int) and isinstance(last, int) and gateway[0] is not None and shard[0] is not None):
        return None
    pure = gateway[0] == gateway[1] and shard[0] == shard[1]
    if not pure or not all(map(is_readable, (*files.data, *files.deletes))):
        return None
    return str(gateway[0]), str(shard[0]), first, last, files


def _together(one: DataFiles, other: DataFiles) -> DataFiles:
    deletes = tuple(dict.fromkeys((*one.deletes, *other.deletes)))
    return DataFiles((*one.data, *other.data), deletes, one.rows + other.rows)
