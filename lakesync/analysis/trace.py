"""`trace` finds one delta in staging's log or in the lake, and which parts of the pipeline contain it.

A *delta* is a client's change of some columns of one row. It is in the log of the staging store until a flush has
written it to the lake's table `deltas`, in a batch. Its push is named by gateway, shard, epoch and seq: a *shard* is
the staging store for some of the tables, an *epoch* the time at which the store's copy of the gateway was created, and
*seq* the push's number in the log. A *gateway* is one app's stream of changes. An *arrival* is its timestamp of a push,
as an HLC. State tables (with the current rows) and checkpoints (snapshots of all rows, for new clients) say up to which
arrival they contain everything. `lakesync trace` calls this module.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import msgspec
from pyiceberg.expressions import StartsWith

from lakesync.analysis.catalogue import LakeReader, checkpoint_snapshots, merge_marks
from lakesync.analysis.scans import all_of, condition
from lakesync.analysis.unflushed import unflushed_deltas
from lakesync.model.errors import LakeUnavailableError, NotFoundError, ValidationError

if TYPE_CHECKING:
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.table import Table

    from lakesync.config import Config

_TRACED_COLUMNS = (
    *("gateway", "shard", "epoch", "batch_id", "seq", "ordinal", "arrival"),
    *("table_name", "row_id", "op", "client_id", "hlc", "delta_id", "width"),
)
"""The columns that `trace` reads; `width` is the number of columns that a delta was pushed with."""
_MIN_PREFIX = 8
"""The fewest characters of a delta id to search for."""


class TracedSnapshot(msgspec.Struct, frozen=True, rename="camel"):
    """The snapshot of `deltas` that added the file with the delta; after a compaction, the compaction's snapshot."""

    snapshot_id: int
    committed_ms: int | None
    """Commit time in milliseconds since 1970; None if the snapshot has expired. Its data stays."""


class TracedTable(msgspec.Struct, frozen=True, rename="camel"):
    """The state table of the delta's row."""

    merged_hlc: int | None
    """The arrival up to which the gateway's deltas are merged; None before the first merge."""
    contains_delta: bool
    """Whether the delta is merged: `merged_hlc` is at or above its arrival."""
    checkpoint_hlc: int | None
    """Arrival of the earliest stored checkpoint that contains the delta; None if none does yet."""


class TracedDelta(msgspec.Struct, frozen=True, rename="camel"):
    """A delta, and where it is stored."""

    delta_id: str
    gateway: str
    client_id: str
    op: str
    table: str
    row_id: str
    hlc: int
    columns: int
    """Number of columns that it was pushed with."""
    arrival_hlc: int
    """The gateway's timestamp of its push."""
    shard: str
    epoch: int
    """Identifies the copy of the store that accepted it."""
    seq: int
    ordinal: int
    """Position in the push."""
    batch_id: str | None
    """The flush batch; None if it is not flushed yet."""
    snapshot: TracedSnapshot | None
    """None if the delta is not flushed yet, or if no file of its batch was found."""
    state: TracedTable | None
    """None if the delta is not flushed yet, or if its table has no state table."""


def trace(config: Config, delta_id: str, gateway: str | None = None) -> TracedDelta:
    """Find a delta in staging's log or, if it is not there, in the lake.

    Args:
        config: names the lake and the store.
        delta_id: the delta's id, or its first characters, at least 8.
        gateway: restricts the search to one gateway; None for all.

    Raises:
        NotFoundError: no delta has such an id.
        ValidationError: several deltas match, in the log or in the lake; or the prefix is too short.
        LakeUnavailableError: the delta is not in the log, and there is no catalogue.
        StagingUnavailableError: unflushed deltas cannot be read.
    """
    if len(delta_id) < _MIN_PREFIX:
        raise ValidationError(f"delta id {delta_id!r} is too short; give at least {_MIN_PREFIX} characters")
    matching: dict[tuple[str, str], TracedDelta] = {}
    for found in unflushed_deltas(config):
        delta = found.delta
        if delta.delta_id.startswith(delta_id) and gateway in (None, found.gateway):
            traced = TracedDelta(  # the first 13 fields, in their order
                *(delta.delta_id, found.gateway, delta.client_id, delta.op, delta.table, delta.row_id, delta.hlc),
                *(len(delta.columns), found.arrival, found.shard, found.epoch, found.seq, found.ordinal),
                batch_id=None,
                snapshot=None,
                state=None,
            )
            matching.setdefault((found.gateway, delta.delta_id), traced)
    if matching:
        _check_one(matching, delta_id)
        return next(iter(matching.values()))
    with LakeReader(config) as lake:
        if (deltas := _deltas(lake)) is None:
            raise NotFoundError(f"no delta {delta_id!r} is in staging's log, and the lake is empty; check the id")
        return _traced(_find_flushed(deltas, delta_id, gateway), lake, deltas)


def _deltas(lake: LakeReader) -> Table | None:
    """Return the table `deltas`; None if the lake has none yet.

    Raises:
        LakeUnavailableError: there is no catalogue.
    """
    try:
        return lake.deltas
    except LakeUnavailableError as error:
        raise LakeUnavailableError(f"the delta is not in staging's log, and {error}") from error


def _find_flushed(deltas: Table, delta_id: str, gateway: str | None) -> dict[str, Any]:
    """Return the row of `deltas` whose delta id begins with a text.

    Raises:
        NotFoundError: it does not exist.
        ValidationError: several deltas match.
    """
    row_filter: BooleanExpression = StartsWith(term="delta_id", value=delta_id)
    if gateway is not None:
        row_filter = all_of(row_filter, condition("gateway", "=", gateway))
    rows: list[dict[str, Any]] = (
        deltas.scan(row_filter=row_filter, selected_fields=_TRACED_COLUMNS).to_arrow().to_pylist()
    )
    if not rows:
        raise NotFoundError(
            f"no delta {delta_id!r} is in staging's log or in the lake; its push may have been rejected"
        )
    _check_one({(row["gateway"], row["delta_id"]) for row in rows}, delta_id)
    return rows[0]


def _check_one(matching: Collection[tuple[str, str]], delta_id: str) -> None:
    """Raise ValidationError if several deltas, as (gateway, delta id), begin with a text."""
    if len(matching) > 1:
        first_ids = ", ".join(sorted({each for _, each in matching})[:5])
        gateways = ", ".join(sorted({each for each, _ in matching})[:5])
        raise ValidationError(
            f"{len(matching)} deltas of {gateways} start with {delta_id!r}: {first_ids}, …; give more of the id or the "
            "gateway"
        )


def _traced(row: dict[str, Any], lake: LakeReader, deltas: Table) -> TracedDelta:
    """Return a row of `deltas` with its snapshot and its state table."""
    state = lake.state_table_of(row["gateway"], row["table_name"])
    return TracedDelta(  # the first 13 fields, in their order
        *(row["delta_id"], row["gateway"], row["client_id"], row["op"], row["table_name"], row["row_id"], row["hlc"]),
        *(row["width"], row["arrival"], row["shard"], row["epoch"], row["seq"], row["ordinal"]),
        batch_id=row["batch_id"],
        snapshot=_snapshot(deltas, row),
        state=_table(state, row["gateway"], row["arrival"]) if state is not None else None,
    )


def _table(state: Table, gateway: str, arrival: int) -> TracedTable:
    """Return whether a state table and its checkpoints contain a gateway's delta of an arrival."""
    merged = merge_marks(state.properties).get(gateway)
    checkpoints = [each for each in checkpoint_snapshots(state).get(gateway, {}) if each >= arrival]
    return TracedTable(merged, merged is not None and merged >= arrival, min(checkpoints, default=None))


def _snapshot(deltas: Table, row: dict[str, Any]) -> TracedSnapshot | None:
    """Return the snapshot that added the file with the delta's batch; after a compaction, the compaction's snapshot."""
    row_filter = all_of(condition("batch_id", "=", row["batch_id"]), condition("gateway", "=", row["gateway"]))
    files = {task.file.file_path for task in deltas.scan(row_filter=row_filter).plan_files()}
    current = deltas.current_snapshot()
    if current is None:
        return None
    added = {
        entry.snapshot_id
        for manifest in current.manifests(deltas.io)
        for entry in manifest.fetch_manifest_entry(deltas.io)
        if entry.data_file.file_path in files and entry.snapshot_id is not None
    }
    if not added:
        return None
    snapshots = [(deltas.snapshot_by_id(each), each) for each in added]
    known = [(snapshot.timestamp_ms, each) for snapshot, each in snapshots if snapshot is not None]
    if not known:  # all have expired, so it is unknown which was the first; any id will do
        return TracedSnapshot(min(added), None)
    committed, snapshot_id = min(known)
    return TracedSnapshot(snapshot_id, committed)
