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

from lakehouse.catalogue import planned_files
from lakehouse.data_files import DataFile, read_rows, rows_in
from lakehouse.history.decoding import DELTAS_ARROW, day_of
from lakesync.analysis.column_bounds import column_bounds
from lakesync.model.errors import IntegrityError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pyiceberg.table import FileScanTask, Table

    from lakesync.adapters.transfer.follower import DeltaSelection

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
    first: int
    """The least arrival."""
    last: int
    """The greatest arrival."""
    files: tuple[DataFile, ...]

    @property
    def stream(self) -> str:
        """`GATEWAY/SHARD`."""
        return f"{self.gateway}/{self.shard}"

    def deltas_beyond(self, arrival: int) -> int:
        """About how many of its deltas arrived later, if they came evenly."""
        share = (self.last - max(arrival, self.first - 1)) / (self.last - self.first + 1)
        return round(rows_in(self.files) * share)


def stretches(table: Table, snapshot: int, after: Mapping[str, int], until: Mapping[str, int]) -> list[Stretch]:
    """The files of a snapshot with deltas in a range of arrivals, in order of gateway, shard and arrival.

    Args:
        table: the history.
        snapshot: its id.
        after: `GATEWAY/SHARD` → the arrival above which its deltas are wanted; other streams are not.
        until: `GATEWAY/SHARD` → the last arrival that is wanted.

    Raises:
        IntegrityError: a file does not tell whose deltas it holds.
        ConfigurationError: tasks cannot open a file.
    """
    from lakesync.analysis.scans import all_of, condition  # pyiceberg, which tasks do without

    if not after:
        return []
    low = min(after.values())
    near = all_of(
        condition("arrival", ">", low),
        condition("day", ">=", day_of(max(0, low)).isoformat()),
        condition("gateway", "in", {name.partition("/")[0] for name in after}),
    )
    found: list[Stretch] = []
    planned = planned_files(table, snapshot, near)
    for each in sorted(_stretch(table, task) for task in planned):
        if each.last <= after.get(each.stream, each.last) or each.first > until[each.stream]:
            continue
        before = found[-1] if found else None
        if before is not None and before.stream == each.stream and each.first <= before.last:
            found[-1] = before._replace(last=max(before.last, each.last), files=(*before.files, *each.files))
        else:
            found.append(each)
    return found


def latest_arrivals(table: Table, snapshot: int) -> dict[str, int]:
    """Return the greatest arrival of each `GATEWAY/SHARD` in a snapshot of the history.

    Args:
        table: the history.
        snapshot: its id.

    Raises:
        IntegrityError, ConfigurationError: as `stretches`.
    """
    found: dict[str, int] = {}
    for task in planned_files(table, snapshot):
        each = _stretch(table, task)
        found[each.stream] = max(each.last, found.get(each.stream, each.last))
    return found


def in_order(
    found: Sequence[Stretch],
    after: Mapping[str, int],
    until: Mapping[str, int],
    choice: DeltaSelection,
    columns: Sequence[str],
    part: int = PART,
) -> Iterator[pa.RecordBatch]:
    """What is wanted of these, in order of gateway, shard, arrival and place in the log; in a task.

    Args:
        found: as `stretches` has them.
        after: as `stretches`, or further.
        until: as `stretches`.
        choice: which tables and gateways.
        columns: of the history, that are wanted.
        part: rows that are put in order in memory.
    """
    needed = dict.fromkeys((*columns, "table_name", "row_id", "batch_id", *_ORDER))
    schema = pa.schema([DELTAS_ARROW.field(name) for name in needed])
    for stretch in found:
        low, high = after[stretch.stream], until[stretch.stream]
        if stretch.last <= low or (choice.gateways and stretch.gateway not in choice.gateways):
            continue
        read = (rows for file in stretch.files for rows in read_rows(file, schema, batch_rows=part))
        wanted = (_wanted(rows, low, high, choice) for rows in read)
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
        """Add a part.

        Args:
            rows: of it, one at least.
            size: in bytes, about.
        """
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


def _wanted(rows: pa.Table, low: int, high: int, choice: DeltaSelection) -> pa.Table:
    arrival = rows.column("arrival")
    mask = pc.and_(pc.greater(arrival, low), pc.less_equal(arrival, high))
    if choice.tables:
        mask = pc.and_(mask, pc.is_in(rows.column("table_name"), pa.array(choice.tables)))
    if choice.without:
        mask = pc.and_(mask, pc.invert(pc.is_in(rows.column("table_name"), pa.array(choice.without))))
    if choice.part is not None:
        mask = pc.and_(mask, choice.part.mask(rows))
    return rows.filter(mask)


def _stretch(table: Table, task: FileScanTask) -> Stretch:
    """A file by itself."""
    gateway, shard = (column_bounds(table, task.file, name) for name in ("gateway", "shard"))
    first, last = column_bounds(table, task.file, "arrival")
    is_pure = None not in gateway and gateway[0] == gateway[1] and None not in shard and shard[0] == shard[1]
    if not (is_pure and isinstance(first, int) and isinstance(last, int)):
        raise IntegrityError(
            f"the file {task.file.file_path} of {'.'.join(table.name())} holds deltas of gateways {gateway} and shards "
            f"{shard}, where a file holds one gateway's deltas of one shard: have Spark write it again by these columns"
        )
    return Stretch(str(gateway[0]), str(shard[0]), first, last, (DataFile.of(task),))
