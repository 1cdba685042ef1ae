"""One delta's way: from its client's push to the snapshot and the tables that hold it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from lakesync.analysis.catalogue import Lake, cuts_of, marks_of
from lakesync.analysis.scans import both, holds
from lakesync.analysis.unflushed import waiting_deltas
from lakesync.model.errors import LakeUnavailableError, NotFoundError, ValidationError

if TYPE_CHECKING:
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.table import Table

    from lakesync.config import Config

_COLUMNS = (
    *("gateway", "shard", "epoch", "batch_id", "seq", "ordinal", "arrival"),
    *("table_name", "row_id", "op", "client_id", "hlc", "delta_id", "width"),
)
_SHORTEST = 8
"""Digits of an id's beginning that may stand for it."""


class TracedSnapshot(msgspec.Struct, frozen=True, rename="camel"):
    """A snapshot of `deltas` that added the file which holds it."""

    snapshot_id: int
    committed_ms: int | None
    """None where the snapshot has expired; what it added stays."""


class TracedTable(msgspec.Struct, frozen=True, rename="camel"):
    """The delta's state table."""

    merged_hlc: int | None
    """The arrival up to which everything of the gateway is merged into it; None before the first merge."""
    holds: bool
    """Whether that is at or above the delta's arrival."""
    cut_hlc: int | None
    """The earliest cut that is kept and holds it; None where there is none."""


class TracedDelta(msgspec.Struct, frozen=True, rename="camel"):
    """Where a delta was and is."""

    delta_id: str
    gateway: str
    client_id: str
    op: str
    table: str
    row_id: str
    hlc: int
    columns: int
    """How many it came with."""
    arrival_hlc: int
    shard: str
    epoch: int
    seq: int
    ordinal: int
    """Its place in the push."""
    batch_id: str | None
    """None while it waits for the lake."""
    snapshot: TracedSnapshot | None
    state: TracedTable | None


def trace(config: Config, delta_id: str, gateway: str | None = None) -> TracedDelta:
    """Find a delta in staging's log or in the lake.

    Args:
        config: where the lake and the store are.
        delta_id: the delta's, or how it begins.
        gateway: only there.

    Raises:
        NotFoundError: no delta has such an id.
        ValidationError: several have, or the beginning is too short.
        LakeUnavailableError: it is not in the log, and there is no catalogue where the configuration says.
        StagingUnavailableError: what is not flushed yet cannot be read.
    """
    if len(delta_id) < _SHORTEST:
        raise ValidationError(f"delta id {delta_id!r}: give {_SHORTEST} characters at least")
    for waiting in waiting_deltas(config):
        place, delta = waiting.stretch, waiting.delta
        if delta.delta_id.startswith(delta_id) and gateway in (None, place.gateway):
            return TracedDelta(
                *(delta.delta_id, place.gateway, delta.client_id, delta.op, delta.table, delta.row_id, delta.hlc),
                *(len(delta.columns), waiting.arrival, place.shard, place.epoch, waiting.seq, waiting.ordinal),
                batch_id=None,
                snapshot=None,
                state=None,
            )
    with Lake(config) as lake:
        if (deltas := _deltas(lake)) is None:
            raise NotFoundError(f"no delta {delta_id!r} waits for the lake, and nothing is in the lake yet")
        found = _flushed(deltas, delta_id, gateway)
        return _of(found, lake, deltas)


def _deltas(lake: Lake) -> Table | None:
    try:
        return lake.deltas
    except LakeUnavailableError as error:
        raise LakeUnavailableError(f"the delta does not wait in staging's log; {error}") from error


def _flushed(deltas: Table, delta_id: str, gateway: str | None) -> dict[str, Any]:
    from pyiceberg.expressions import StartsWith

    wanted: BooleanExpression = StartsWith(term="delta_id", value=delta_id)
    if gateway is not None:
        wanted = both(wanted, holds("gateway", "=", gateway))
    rows: list[dict[str, Any]] = deltas.scan(row_filter=wanted, selected_fields=_COLUMNS).to_arrow().to_pylist()
    if not rows:
        raise NotFoundError(f"no delta {delta_id!r} in staging's log nor in the lake: was its push refused?")
    if len({(row["gateway"], row["delta_id"]) for row in rows}) > 1:
        some = ", ".join(sorted({row["delta_id"] for row in rows})[:5])
        raise ValidationError(f"{len(rows)} deltas begin with {delta_id!r}: {some}, …; give more of the id")
    return rows[0]


def _of(row: dict[str, Any], lake: Lake, deltas: Table) -> TracedDelta:
    state = lake.state_of(row["gateway"], row["table_name"])
    return TracedDelta(
        *(row["delta_id"], row["gateway"], row["client_id"], row["op"], row["table_name"], row["row_id"], row["hlc"]),
        *(row["width"], row["arrival"], row["shard"], row["epoch"], row["seq"], row["ordinal"]),
        batch_id=row["batch_id"],
        snapshot=_snapshot(deltas, row),
        state=_table(state, row["gateway"], row["arrival"]) if state is not None else None,
    )


def _table(state: Table, gateway: str, arrival: int) -> TracedTable:
    merged = marks_of(state).get(gateway)
    cuts = [cut for cut in cuts_of(state).get(gateway, {}) if cut >= arrival]
    return TracedTable(merged, merged is not None and merged >= arrival, min(cuts, default=None))


def _snapshot(deltas: Table, row: dict[str, Any]) -> TracedSnapshot | None:
    """The snapshot that wrote the file with the delta's batch; after files were joined, the one that joined them."""
    wanted = both(holds("batch_id", "=", row["batch_id"]), holds("gateway", "=", row["gateway"]))
    files = {task.file.file_path for task in deltas.scan(row_filter=wanted).plan_files()}
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
    if not known:
        return TracedSnapshot(min(added), None)
    committed, snapshot_id = min(known)
    return TracedSnapshot(snapshot_id, committed)
