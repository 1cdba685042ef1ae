"""Reads the history `deltas` in order of arrival in a Spark task, with bounded memory.

The tasks that copy the history to destinations (databases and object stores) read it in this way: `lakehouse.backends`
calls `arrival_ranges` in the driver, and `in_order` in tasks. Flushes call `latest_arrivals` too.

An arrival is the gateway's timestamp of receipt. A *stream* is the deltas (changes of rows) of one gateway (an app's
stream of changes) in one shard (a staging store with some of the tables); it is named `GATEWAY/SHARD`. A file of the
history has deltas of one stream, but not in order of arrival. So the rows are sorted externally: runs of
`ROWS_IN_MEMORY` rows are sorted in memory, written to the task's disk, and merged.
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

from lakehouse.data_files import DataFile, read_rows, rows_in
from lakehouse.history.decoding import DELTAS_ARROW, day_of
from lakehouse.table_access import planned_files
from lakesync.analysis.catalogue import column_bounds
from lakesync.model.errors import IntegrityError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pyiceberg.table import FileScanTask, Table

    from lakesync.adapters.transfer.follower import DeltaSelection

ROWS_IN_MEMORY = 25_000
"""Rows that are sorted in memory at once, at most."""
_BYTES_IN_MEMORY = 128 << 20
"""Bytes that are sorted in memory at once, about."""

_BATCH = 5_000
"""Rows of a batch of the result, at most."""
_BATCH_BYTES = 8 << 20
"""Bytes of a batch of the result, about."""
_MERGED_RUNS = 16
"""Number of sorted runs of one level that are merged into a larger one."""
_ORDER = ("arrival", "seq", "ordinal")
"""Columns by which rows are sorted: arrival, number of the push in the log, position in the push."""


class ArrivalRange(NamedTuple):
    """Files of one stream whose arrivals overlap, so that they must be sorted together."""

    gateway: str
    shard: str
    first: int
    """First arrival in the files."""
    last: int
    """Last arrival in the files."""
    files: tuple[DataFile, ...]

    @property
    def stream(self) -> str:
        """The stream's name, `GATEWAY/SHARD`."""
        return f"{self.gateway}/{self.shard}"

    def deltas_beyond(self, arrival: int) -> int:
        """Return the number of deltas after an arrival, estimated as if arrivals were spread evenly."""
        share = (self.last - max(arrival, self.first - 1)) / (self.last - self.first + 1)
        return round(rows_in(self.files) * share)


def arrival_ranges(
    table: Table, snapshot: int, after: Mapping[str, int], until: Mapping[str, int]
) -> list[ArrivalRange]:
    """Return which files to read for some ranges of arrivals, in order of gateway, shard and arrival.

    Files with overlapping arrivals become one `ArrivalRange`. So reading range after range reads a stream in order.

    Args:
        table: the history, opened by pyiceberg.
        snapshot: id of the snapshot to read.
        after: `GATEWAY/SHARD` → the arrival after which deltas are read. Other streams are not read.
        until: `GATEWAY/SHARD` → the last arrival that is read.

    Raises:
        IntegrityError: a file has deltas of several gateways or shards.
        ConfigurationError: tasks cannot open a file.
    """
    from lakesync.analysis.scans import all_of, condition  # imports pyiceberg, which tasks do not need

    if not after:
        return []
    lowest = min(after.values())
    may_have = all_of(
        condition("arrival", ">", lowest),
        condition("day", ">=", day_of(max(0, lowest)).isoformat()),
        condition("gateway", "in", {name.partition("/")[0] for name in after}),
    )
    ranges: list[ArrivalRange] = []
    planned = planned_files(table, snapshot, may_have)
    for each in sorted(_file_range(table, scan_task) for scan_task in planned):
        if each.last <= after.get(each.stream, each.last) or each.first > until[each.stream]:
            continue
        previous = ranges[-1] if ranges else None
        if previous is not None and previous.stream == each.stream and each.first <= previous.last:
            ranges[-1] = previous._replace(last=max(previous.last, each.last), files=(*previous.files, *each.files))
        else:
            ranges.append(each)
    return ranges


def latest_arrivals(table: Table, snapshot: int | None) -> dict[str, int]:
    """Return `GATEWAY/SHARD` → its newest arrival in a snapshot of the history.

    Args:
        table: the history, opened by pyiceberg.
        snapshot: id of the snapshot to read; None if the table is empty.

    Raises:
        IntegrityError, ConfigurationError: as `arrival_ranges`.
    """
    by_stream: dict[str, int] = {}
    for scan_task in planned_files(table, snapshot):
        each = _file_range(table, scan_task)
        by_stream[each.stream] = max(each.last, by_stream.get(each.stream, each.last))
    return by_stream


def in_order(
    ranges: Sequence[ArrivalRange],
    after: Mapping[str, int],
    until: Mapping[str, int],
    selection: DeltaSelection,
    columns: Sequence[str],
    rows_in_memory: int = ROWS_IN_MEMORY,
) -> Iterator[pa.RecordBatch]:
    """Yield selected deltas in order of gateway, shard, arrival and position in the log. Tasks call it.

    Args:
        ranges: the result of `arrival_ranges`.
        after: `GATEWAY/SHARD` → the arrival after which deltas are read, not before that given to `arrival_ranges`.
        until: `GATEWAY/SHARD` → the last arrival that is read.
        selection: the tables and gateways whose deltas are yielded.
        columns: the columns of the history to yield.
        rows_in_memory: number of rows to sort in memory at once.
    """
    # `selection.part`, one task's share of a load (a large backlog), needs `batch_id` or `row_id` to select its rows
    needed = dict.fromkeys((*columns, "table_name", "row_id", "batch_id", *_ORDER))
    schema = pa.schema([DELTAS_ARROW.field(name) for name in needed])
    for each in ranges:
        after_arrival, last_arrival = after[each.stream], until[each.stream]
        if each.last <= after_arrival or not selection.has_gateway(each.gateway):
            continue
        read = (rows for file in each.files for rows in read_rows(file, schema, batch_rows=rows_in_memory))
        wanted = (_wanted(rows, after_arrival, last_arrival, selection) for rows in read)
        for rows in ordered(wanted, rows_in_memory):
            yield from rows.select(list(columns)).combine_chunks().to_batches(max_chunksize=_batch_rows(rows))


def ordered(rows: Iterable[pa.Table], rows_in_memory: int) -> Iterator[pa.Table]:
    """Yield the rows of one stream sorted by arrival and position in the log, part by part.

    Args:
        rows: the stream's rows, in any order.
        rows_in_memory: number of rows to sort in memory at once.
    """
    with tempfile.TemporaryDirectory(prefix="lakesync-order-", dir=_temporary_folder()) as folder:
        runs = _SortedRuns(Path(folder))
        pending: list[pa.Table] = []
        number = size = 0  # how many rows are pending, and their bytes
        for table in rows:
            pending.append(table)
            number, size = number + len(table), size + table.nbytes
            if number >= rows_in_memory or size >= _BYTES_IN_MEMORY:
                runs.add([_sorted(pending)])
                pending, number, size = [], 0, 0
        left = [_sorted(pending)] if number else []
        if not runs:
            yield from left
            return
        if left:
            runs.add(left)
        yield from runs.merged()


class _SortedRuns:
    """Sorted runs on disk. `_MERGED_RUNS` runs of one level are merged into one of the next, which bounds their number.

    A run's level is the number of times that its rows were merged.
    """

    def __init__(self, folder: Path) -> None:
        self._paths = (folder / str(number) for number in count())
        self._by_level: list[list[Path]] = []

    def __bool__(self) -> bool:
        return bool(self._by_level)

    def add(self, rows: Iterable[pa.Table], level: int = 0) -> None:
        """Add a run.

        Args:
            rows: the run's rows, sorted; at least one.
            level: the run's level.
        """
        path = next(self._paths)
        _spill(rows, path)
        if level == len(self._by_level):
            self._by_level.append([])
        of_level = self._by_level[level]
        of_level.append(path)
        if len(of_level) == _MERGED_RUNS:
            self._by_level[level] = []
            self.add(_merge_runs(of_level), level + 1)
            for path in of_level:
                path.unlink()

    def merged(self) -> Iterator[pa.Table]:
        """Yield the rows of all runs, sorted."""
        return _merge_runs(list(chain.from_iterable(self._by_level)))


class _RunReader:
    """A run on disk, whose next rows are in memory."""

    def __init__(self, path: Path) -> None:
        self._file = pa.ipc.open_file(pa.OSFile(str(path)))
        self._next = 0
        self.rows = self._file.schema.empty_table()
        self.read_next()

    @property
    def has_more(self) -> bool:
        """Whether there are rows on disk that were not read yet."""
        return bool(self._next < self._file.num_record_batches)

    @property
    def last(self) -> int:
        """The arrival of the last row in memory. The rows on disk may begin with the same arrival."""
        return int(self.rows.column("arrival")[-1].as_py())

    def read_next(self) -> None:
        """Read the next batch into memory."""
        batch = pa.Table.from_batches([self._file.get_batch(self._next)])
        self.rows = pa.concat_tables([self.rows, batch])
        self._next += 1

    def take_before(self, arrival: int | None) -> pa.Table:
        """Remove the rows before an arrival from memory and return them; with None, all rows."""
        end = len(self.rows)
        if arrival is not None:
            end = int(np.searchsorted(self.rows.column("arrival").to_numpy(), arrival))
        taken, self.rows = self.rows.slice(0, end), self.rows.slice(end)
        return taken


def _merge_runs(paths: Sequence[Path]) -> Iterator[pa.Table]:
    """Yield the rows of several runs, sorted.

    Each run has its next rows in memory. The border is the least arrival of the last such row of a run that has more on
    disk. So all rows before the border are in memory; in each round they are sorted and yielded.
    """
    runs = [_RunReader(path) for path in paths]
    while runs:
        border = min((each.last for each in runs if each.has_more), default=None)
        complete = [each.take_before(border) for each in runs]
        if any(map(len, complete)):
            yield _sorted(complete)
        for each in runs:
            if each.has_more and (not len(each.rows) or each.last == border):
                each.read_next()
        runs = [each for each in runs if len(each.rows)]


def _sorted(rows: Sequence[pa.Table]) -> pa.Table:
    """Return the rows of several tables, sorted."""
    rows_in_one = pa.concat_tables(rows).combine_chunks()
    return rows_in_one.take(pc.sort_indices(rows_in_one, sort_keys=[(name, "ascending") for name in _ORDER]))


def _temporary_folder() -> str | None:
    """Return the folder that Spark gives its tasks for temporary files; None, the system's default, outside a task."""
    return os.environ.get("SPARK_LOCAL_DIRS", "").partition(",")[0] or None


def _spill(rows: Iterable[pa.Table], path: Path) -> None:
    """Write tables of rows, at least one, to a file."""
    rows = iter(rows)
    first = next(rows)
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, first.schema, options=options) as writer:
        for table in chain((first,), rows):
            writer.write_table(table, max_chunksize=_batch_rows(table))


def _batch_rows(rows: pa.Table) -> int:
    """Return the number of rows in a batch, by the size of the rows."""
    return min(_BATCH, max(1, len(rows) * _BATCH_BYTES // max(1, int(rows.nbytes))))


def _wanted(rows: pa.Table, after: int, last: int, selection: DeltaSelection) -> pa.Table:
    """Return the rows in a range of arrivals that a selection includes; their gateway is selected."""
    arrival = rows.column("arrival")
    rows = rows.filter(pc.and_(pc.greater(arrival, after), pc.less_equal(arrival, last)))
    selected = selection.select_tables(rows)
    if selection.part is None:
        return selected
    return selected.filter(selection.part.mask(selected))  # the deltas that one task of a load applies


def _file_range(table: Table, scan_task: FileScanTask) -> ArrivalRange:
    """Return the range of arrivals of one file, by its column bounds: the least and greatest values in the manifest."""
    gateway, shard = (column_bounds(table, scan_task.file, name) for name in ("gateway", "shard"))
    first, last = column_bounds(table, scan_task.file, "arrival")
    is_pure = None not in gateway and gateway[0] == gateway[1] and None not in shard and shard[0] == shard[1]
    if not (is_pure and isinstance(first, int) and isinstance(last, int)):
        raise IntegrityError(
            f"the file {scan_task.file.file_path} of {'.'.join(table.name())} holds deltas of gateways {gateway} and "
            f"shards {shard}, but a file must have one gateway's deltas of one shard: rewrite it by these columns with "
            "Spark"
        )
    return ArrivalRange(str(gateway[0]), str(shard[0]), first, last, (DataFile.of(scan_task),))
