"""Followers: each copies the lake's history, the Iceberg table of all deltas (changes of rows), to one destination.

The pipeline runs followers in Spark tasks (`lakehouse.backends.destinations`); `follow_history` copies what a follower
lacks. `loads.py` divides a large backlog, a *load*, into *parts* for parallel tasks. Each part has a follower.

A destination stores the deltas. A database also has *destination tables*, with the current rows of the synced tables. A
follower's *mark*, a text at the destination, has its progress. It changes in the transaction that writes the deltas.
The progress also has the columns of the destination tables' rows (`row_columns`): if the schema has others, the rows
are rewritten.

The history is read in order of gateway, shard and arrival. A *gateway* has the changes of one app; its tables may be
divided among *shards*. A *stream* is the deltas of one gateway and shard, named `GATEWAY/SHARD`. An *arrival* is the
timestamp that the gateway gives a push. All deltas of a push have the same one, and a mark never divides a push. A
*chunk* is what is applied in one transaction: at a database many arrivals, at an object store one of the lake's
*batches* (the deltas of one flush to the lake), which stay the same on a retry.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from lakesync.adapters.arrow import DELTA_COLUMNS, table_checksum
from lakesync.adapters.base import ContentTransform, DatabaseAdapter, StateWriter, StoresBatches, unchanged
from lakesync.adapters.deltas import BatchChecksum, Part, TableSelection
from lakesync.adapters.digests import day_of, day_text
from lakesync.adapters.transfer.progress import ProgressInMark, require_marks
from lakesync.adapters.transfer.table_rewrites import columns_of_tables, rewrite_outdated_tables
from lakesync.model.crash_points import crash_point
from lakesync.model.errors import IntegrityError
from lakesync.model.schema import TableSchema

if TYPE_CHECKING:
    import pyarrow as pa

TRANSACTION_DELTAS = 25_000
"""A database's chunk ends at the first whole arrival after this many deltas, or after `TRANSACTION_BYTES`."""
TRANSACTION_BYTES = 128 << 20
"""Bytes after which a database's chunk ends, in memory."""
HISTORY_COLUMNS = (*DELTA_COLUMNS, "shard", "batch_id")
"""The columns of the lake's `deltas` that followers read."""
_PUSH_COLUMNS = ("gateway", "shard", "arrival")
"""The columns that identify a push."""
NO_STREAMS: Mapping[str, int] = {}
"""The default for mappings from streams to arrivals."""


class DeltaSelection(TableSelection, frozen=True):
    """The deltas that a follower selects."""

    part: Part | None = None
    """Only the deltas of this part of a load; None selects all."""


class Load(msgspec.Struct, frozen=True, rename={"written_columns": "shown"}):
    """A follower's backlog, divided into parts that are applied in parallel, each with a mark of its own."""

    id: str
    parts: int
    """Number of parts."""
    until: dict[str, int]
    """`GATEWAY/SHARD` → the last arrival that belongs to the load."""
    by_batch: bool = False
    """Whether deltas are divided by batch, because the adapter stores whole batches; otherwise by row id."""
    written_columns: dict[str, tuple[str, ...]] = {}
    """Synced table → columns of the rows that the parts write to its destination table; stored as `shown`, its name in
    existing marks."""

    def part(self, number: int) -> Part:
        """Return one of its parts."""
        return Part(self.id, number, self.parts, self.by_batch)


class FollowerProgress(msgspec.Struct, frozen=True, rename={"selection": "choice", "row_columns": "shown"}):
    """A follower's progress, stored as JSON in its mark."""

    selection: DeltaSelection = DeltaSelection()
    """A follower whose selection has changed starts again. Stored as `choice`, its name in existing marks."""
    streams: dict[str, int] = {}
    """`GATEWAY/SHARD` → arrival up to which everything was applied."""
    deltas: int = 0
    """Number of deltas applied, each once."""
    id_sum: int = 0
    """Sum of their ids modulo 2**64."""
    row_columns: dict[str, tuple[str, ...]] = {}
    """Synced table → columns that all rows of its destination table have; stored as `shown`."""
    load: Load | None = None
    """A load in progress. The deltas of its parts are not counted yet."""

    def applied_up_to(self, stream: str) -> int:
        """Return the arrival up to which a stream, `GATEWAY/SHARD`, was applied; -1 if nothing was."""
        return self.streams.get(stream, -1)

    def has_reached(self, until: Mapping[str, int]) -> bool:
        """Return whether each of some streams was applied up to an arrival.

        Args:
            until: `GATEWAY/SHARD` → the arrival.
        """
        return all(self.applied_up_to(stream) >= arrival for stream, arrival in until.items())


class AppliedChunk(msgspec.Struct, frozen=True):
    """A chunk that a follower has applied, or, without deltas, the last move of its mark."""

    deltas: int
    """Number of deltas applied."""
    progress: FollowerProgress
    """The progress after them."""
    days: dict[str, int] = {}
    """UTC day of arrival, `YYYY-MM-DD` → number of deltas."""


def stream_name(gateway: str, shard: str) -> str:
    """Return the name of a stream.

    Args:
        gateway: the gateway id.
        shard: the shard's name.
    """
    return f"{gateway}/{shard}"


def read_follower_progress(
    adapter: DatabaseAdapter, name: str, selection: DeltaSelection, since: Mapping[str, int] = NO_STREAMS
) -> FollowerProgress:
    """Return a follower's progress. It starts again if its selection has changed.

    Args:
        adapter: the follower's destination.
        name: the follower's name, and the name of its mark.
        selection: the deltas that the follower selects.
        since: `GATEWAY/SHARD` → arrival after which a follower starts that has no mark, or starts again.

    Raises:
        ConfigurationError: the adapter does not store marks.
        AdapterError: the adapter cannot be read.
        IntegrityError: the mark was not written by a follower.
    """
    mark = ProgressInMark(require_marks(adapter), name, FollowerProgress)
    return continued_progress(mark.read(), selection, since)


def follow_history(
    adapter: DatabaseAdapter,
    name: str,
    selection: DeltaSelection,
    history: Iterable[pa.RecordBatch],
    schemas: Sequence[TableSchema] = (),
    transform: ContentTransform = unchanged,
    until: Mapping[str, int] = NO_STREAMS,
    min_deltas: int = TRANSACTION_DELTAS,
    since: Mapping[str, int] = NO_STREAMS,
    cold: Sequence[DatabaseAdapter] = (),
) -> Iterator[AppliedChunk]:
    """Apply the history that a follower lacks: a chunk at each step of the iteration.

    Args:
        adapter: the follower's destination.
        name: the follower's name, and the name of its mark.
        selection: the deltas that the follower selects; `history` contains no others.
        history: `HISTORY_COLUMNS` in order of gateway, shard and arrival. Deltas already applied are skipped.
        schemas: the destination tables.
        transform: changes row contents before they are written.
        until: `GATEWAY/SHARD` → arrival up to which `history` has all selected deltas.
        min_deltas: deltas per chunk, at least, at a database; a chunk ends with a whole arrival.
        since: as in `read_follower_progress`.
        cold: the adapters to which old deltas were moved, whose contents `transform` adds.

    Yields:
        Each chunk, after it was applied and the mark was moved. Finally, if the mark moves beyond deltas that are not
        selected, an `AppliedChunk` without deltas.

    Raises:
        ConfigurationError: the adapter does not store marks.
        AdapterError: the adapter cannot be reached; a retry continues.
        IntegrityError: another run moved the mark, or the adapter stores fewer or other deltas than were written.
    """
    mark = ProgressInMark(require_marks(adapter), name, FollowerProgress)
    in_mark = mark.read()  # the progress in the mark: as found, and after each chunk
    progress = continued_progress(in_mark, selection, since)
    # a part of a load rewrites no table: `Load.written_columns` has the columns of its rows
    row_columns = columns_of_tables(adapter, schemas) if selection.part is None else {}
    if selection.part is None and isinstance(adapter, StateWriter):
        written = progress.row_columns if progress.deltas else None
        rewrite_outdated_tables(adapter, name, schemas, row_columns, written, transform, selection, cold)
    # `load=None`: a load that was not resumed is given up, and all of its deltas are applied again
    progress = replace(progress, row_columns=row_columns, load=None)
    if in_mark is None:
        # An erasure changes the text of each mark, so that a chunk that was read before it is not applied after it. So
        # the mark is written before the history is read.
        mark.write(progress)
    missing = _skip_applied(history, progress)
    # an adapter that stores batches recognises those of the lake when they are written again
    size = (("batch_id",), 1) if isinstance(adapter, StoresBatches) else (_PUSH_COLUMNS, min_deltas)
    for chunk in split_chunks(missing, *size):
        expected = table_checksum(chunk)
        progress = in_mark = _progress_after(progress, selection, chunk, expected)
        batch_id = chunk.column("batch_id")[0].as_py()
        stored = mark.apply(batch_id, chunk.select(list(DELTA_COLUMNS)), progress, schemas, transform)
        if stored != expected:
            raise IntegrityError(
                f"follower {name!r} wrote {expected.deltas} deltas (id sum {expected.id_sum}) and read back "
                f"{stored.deltas} (id sum {stored.id_sum}): compare the destination with the lake"
            )
        crash_point("follow.after_chunk")  # tests kill the process here
        yield AppliedChunk(expected.deltas, progress, count_by_day(chunk))
    # The last deltas of a stream may not be selected. The mark moves beyond them, so that no run reads them again.
    read_up_to = {stream: max(last, progress.applied_up_to(stream)) for stream, last in until.items()}
    progress = replace(progress, streams={**progress.streams, **read_up_to})
    if progress.streams and progress != in_mark:
        mark.write(progress)
        yield AppliedChunk(0, progress)


def continued_progress(
    found: FollowerProgress | None, selection: DeltaSelection, since: Mapping[str, int] = NO_STREAMS
) -> FollowerProgress:
    """Return the progress that a follower continues from: that of a new one if its selection has changed.

    Args:
        found: the progress in the follower's mark; None without a mark.
        selection: the deltas that the follower selects.
        since: as in `read_follower_progress`.
    """
    return found if found is not None and found.selection == selection else FollowerProgress(selection, dict(since))


def count_by_day(chunk: pa.Table) -> dict[str, int]:
    """Return the number of deltas by UTC day of arrival, `YYYY-MM-DD`."""
    counted = chunk.group_by("arrival").aggregate([([], "count_all")])
    days = Counter[str]()
    for arrival, count in zip(*(counted.column(name).to_pylist() for name in ("arrival", "count_all")), strict=True):
        days[day_text(day_of(arrival))] += count
    return dict(days)


def split_chunks(history: Iterable[pa.RecordBatch], key_columns: Sequence[str], min_deltas: int) -> Iterator[pa.Table]:
    """Split history into chunks that end where a value of `key_columns` changes.

    Args:
        history: sorted so that deltas with equal values in `key_columns` are adjacent.
        key_columns: deltas with equal values in these columns stay in one chunk.
        min_deltas: the least number of deltas per chunk, except the last; fewer if they have `TRANSACTION_BYTES`.
    """
    import pyarrow as pa

    def target(count: int, size: int) -> int:
        """Return `min_deltas`, or the number of deltas with `TRANSACTION_BYTES`, if `count` deltas have `size`."""
        return min(min_deltas, max(1, count * TRANSACTION_BYTES // max(1, size)))

    pending: list[pa.RecordBatch] = []
    count = size = 0
    for batch in history:
        pending.append(batch)
        count, size = count + batch.num_rows, size + batch.nbytes
        while count > target(count, size):
            table = pa.Table.from_batches(pending)
            end = _chunk_end(table, key_columns, target(count, size))
            if end is None:
                break
            yield table.slice(0, end)
            rest = table.slice(end)
            pending, count, size = rest.to_batches(), len(rest), rest.nbytes
    if pending:
        yield pa.Table.from_batches(pending)


def _skip_applied(history: Iterable[pa.RecordBatch], progress: FollowerProgress) -> Iterator[pa.RecordBatch]:
    """Yield the history without the deltas that were applied already."""
    import pyarrow as pa
    import pyarrow.compute as pc

    for batch in history:
        if not batch.num_rows:
            continue
        applied = [progress.applied_up_to(stream) for stream in _streams(batch)]
        missing = batch.filter(pc.greater(batch.column("arrival"), pa.array(applied, pa.int64())))
        if missing.num_rows:
            yield missing


def _streams(batch: pa.RecordBatch) -> Iterator[str]:
    """Yield the stream of each delta."""
    gateways, shards = (batch.column(name).to_pylist() for name in ("gateway", "shard"))
    return map(stream_name, gateways, shards)


def _chunk_end(table: pa.Table, key_columns: Sequence[str], min_deltas: int) -> int | None:
    """Return the number of deltas in the first chunk; None if it may continue after the table.

    The chunk ends at the first delta, from `min_deltas` on, whose key differs from that of the delta before it.
    """
    import pyarrow.compute as pc

    if min_deltas >= len(table):
        return None
    before, after = table.slice(min_deltas - 1, len(table) - min_deltas), table.slice(min_deltas)
    differs_in_any = None
    for name in key_columns:
        differs = pc.not_equal(before.column(name), after.column(name))
        differs_in_any = differs if differs_in_any is None else pc.or_(differs_in_any, differs)
    index = pc.index(differs_in_any, value=True).as_py()
    return None if index < 0 else int(min_deltas + index)


def _progress_after(
    progress: FollowerProgress, selection: DeltaSelection, chunk: pa.Table, stored: BatchChecksum
) -> FollowerProgress:
    """Return the progress after a chunk of the history was applied."""
    streams = dict(progress.streams)
    last = chunk.group_by(["gateway", "shard"]).aggregate([("arrival", "max")])
    for gateway, shard, arrival in zip(
        *(last.column(name).to_pylist() for name in ("gateway", "shard", "arrival_max")), strict=True
    ):
        streams[stream_name(gateway, shard)] = arrival
    total = BatchChecksum(progress.deltas, progress.id_sum).plus(stored)
    return FollowerProgress(selection, streams, total.deltas, total.id_sum, progress.row_columns)
