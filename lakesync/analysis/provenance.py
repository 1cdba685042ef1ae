"""Finds what became of deltas: all deltas of one row (`row_history`), or the way of one delta into the lake (`trace`).

`lakesync row history` and `lakesync trace` print the results. The deltas come from the lake and from staging's log.

`provenance` replays the merge of a row's deltas in order of arrival, and explains for each column of each delta why its
value is not the current one. The value with the greatest stamp wins: the pair of the hlc, by the clock of the client
that wrote it, and that client's id.

`trace` finds a delta's push, flush batch, Iceberg snapshot, and the tables that contain it. A delta is in staging's log
until a flush has written it to the lake's table `deltas`. Its push is named by gateway, shard, epoch and seq. A shard
is the staging store for some of the tables, an epoch the time at which the store's copy of the gateway was created, and
seq the push's number in the log. An arrival is the time at which the gateway accepted a push, as an HLC. State tables
(with the current rows) and checkpoints (files of all rows, for new clients) say up to which arrival they contain
everything.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from msgspec import Raw

from lakesync.analysis.as_of import format_hlc
from lakesync.analysis.catalogue import LakeReader, checkpoint_snapshots, may_have_catalogue, merge_marks
from lakesync.analysis.scans import all_of, condition
from lakesync.analysis.unflushed import unflushed_deltas
from lakesync.model.errors import LakeUnavailableError, NotFoundError, ValidationError
from lakesync.model.merge import RowState
from lakesync.model.types import ColumnValue, RowDelta, Stamp

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.table import Table

    from lakesync.config import Config

_ROW_COLUMNS = (
    *("gateway", "shard", "epoch", "seq", "ordinal", "arrival"),
    *("table_name", "row_id", "op", "client_id", "hlc", "delta_id", "columns"),
)
"""The columns of the lake's table `deltas` that `row_history` reads."""
_Position = tuple[str, str, int, int, int]
"""Gateway, shard, epoch, sequence number and ordinal of a delta."""

Outcome = Literal["live", "replaced", "lost", "deleted", "repeated"]
"""`live`: the value is the column's current value. `replaced`: it was, until a write with a newer stamp arrived.
`lost`: an older arrival had a newer stamp. `deleted`: a DELETE with a newer stamp removed it. `repeated`: the same
delta had arrived before."""

_Verdict = tuple[Outcome, str, str | None]
"""Outcome, reason, and the id of the delta that won, if one did."""
_TRACED_COLUMNS = (
    *("gateway", "shard", "epoch", "batch_id", "seq", "ordinal", "arrival"),
    *("table_name", "row_id", "op", "client_id", "hlc", "delta_id", "width"),
)
"""The columns that `trace` reads; `width` is the number of columns that a delta was pushed with."""
_MIN_PREFIX = 8
"""The fewest characters of a delta id to search for."""


def row_history(config: Config, table: str, row: str, gateway: str | None = None) -> list[DeltaProvenance]:
    """Return each delta of a row and what became of it, gateway by gateway, in order of arrival.

    Args:
        config: names the lake and the store.
        table: the row's table.
        row: the row's id.
        gateway: restricts the search to one gateway; None for every gateway that has such a row.

    Raises:
        NotFoundError: there is no such row, or no such table.
        LakeUnavailableError: the row is not in the log, and there is no catalogue.
        StagingUnavailableError: unflushed deltas cannot be read.
    """
    found: dict[_Position, ArrivedDelta] = {}
    tables = set()
    for each in unflushed_deltas(config):
        log, delta = each.range, each.delta
        tables.add(delta.table)
        if delta.key == (table, row) and gateway in (None, log.gateway):
            position = (log.gateway, log.shard, log.epoch, each.seq, each.ordinal)
            found[position] = ArrivedDelta(log.gateway, each.arrival, False, delta)
    if may_have_catalogue(config) or not found:  # before the first flush, every delta is in the log
        with LakeReader(config) as lake:
            if lake.deltas is not None:
                found |= _flushed(lake.deltas, table, row, gateway)
            tables |= {name for _, name in lake.state_tables.values()}
    if not found:
        if table not in tables:
            raise NotFoundError(f"there is no table {table!r} in the lake; known tables: {', '.join(sorted(tables))}")
        where = f" in gateway {gateway!r}" if gateway else ""
        raise NotFoundError(f"table {table!r} never had a row {row!r}{where}; check the row id")
    ordered = [found[each] for each in sorted(found, key=lambda each: (each[0], found[each].arrival, *each[1:]))]
    gateways = dict.fromkeys(each.gateway for each in ordered)
    return [entry for name in gateways for entry in provenance([each for each in ordered if each.gateway == name])]


def _flushed(deltas: Table, table: str, row: str, gateway: str | None) -> dict[_Position, ArrivedDelta]:
    """Return the row's deltas in the lake."""
    row_filter = all_of(condition("table_name", "=", table), condition("row_id", "=", row))
    if gateway is not None:
        row_filter = all_of(row_filter, condition("gateway", "=", gateway))
    scan = deltas.scan(row_filter=row_filter, selected_fields=_ROW_COLUMNS)
    return {
        (each["gateway"], each["shard"], each["epoch"], each["seq"], each["ordinal"]): ArrivedDelta(
            each["gateway"], each["arrival"], True, _delta(each)
        )
        for batch in scan.to_arrow_batch_reader()
        for each in _rows(batch)
    }


def _rows(batch: Any) -> Iterator[dict[str, Any]]:
    """Yield the rows of an Arrow batch."""
    yield from batch.to_pylist()


def _delta(row: dict[str, Any]) -> RowDelta:
    """Return the delta in a row of the lake's table `deltas`."""
    columns = tuple(ColumnValue(name, Raw(text.encode())) for name, text in sorted(row["columns"] or ()))
    return RowDelta(row["op"], row["table_name"], row["row_id"], row["client_id"], columns, row["hlc"], row["delta_id"])


class ColumnProvenance(msgspec.Struct, frozen=True):
    """One column of a delta, and what became of its value."""

    column: str
    value: Raw
    """JSON text."""
    outcome: Outcome
    reason: str
    """Empty for a live value."""
    winner: str | None = None
    """Id of the delta that it lost to."""


class DeltaProvenance(msgspec.Struct, frozen=True):
    """One delta of a row, and what became of it."""

    gateway: str
    arrival: int
    arrived: str
    """The arrival as a time, UTC."""
    flushed: bool
    """Whether it is in the lake."""
    op: str
    client_id: str
    hlc: int
    written: str
    """The hlc as a time by the client's clock, UTC."""
    delta_id: str
    columns: tuple[ColumnProvenance, ...]
    note: str = ""
    """The effect of a delta without columns; empty for any other."""


class ArrivedDelta(msgspec.Struct, frozen=True):
    """A delta with its gateway and arrival."""

    gateway: str
    arrival: int
    flushed: bool
    """Whether it is in the lake; otherwise it is in staging's log."""
    delta: RowDelta


def provenance(history: Sequence[ArrivedDelta]) -> list[DeltaProvenance]:
    """Replay the deltas of one row and return what became of each.

    Args:
        history: all deltas of one row in one gateway, in order of arrival.

    Returns:
        One entry per delta, in the same order.
    """
    state = RowState()
    verdicts: list[dict[str, _Verdict]] = [{} for _ in history]
    notes = ["" for _ in history]
    owners: dict[str, int] = {}  # column → index of the delta whose value is current
    tombstone: RowDelta | None = None
    for index, arrived in enumerate(history):
        delta = arrived.delta
        stamp: Stamp = (delta.hlc, delta.client_id)
        owning_deltas = {column: history[owner].delta for column, owner in owners.items()}
        result = state.merge(delta)
        if delta.op == "DELETE":
            hides = result.was_visible and not result.visible
            notes[index] = _explain_delete(delta, tombstone, changed=result.changed, hides=hides)
            if result.changed:
                tombstone = delta
                for column in owners.keys() - state.values().keys():
                    reason = f"deleted by {_author(delta)}"
                    verdicts[owners.pop(column)][column] = ("deleted", reason, delta.delta_id)
            continue
        if not delta.columns:
            notes[index] = "has no columns" if delta.op == "INSERT" else "erased: its columns are gone"
        for column in result.won:
            if column in owners:
                reason = f"replaced by {_author(delta)}"
                verdicts[owners[column]][column] = ("replaced", reason, delta.delta_id)
            owners[column] = index
        for column in result.lost:
            if tombstone is not None and stamp <= (tombstone.hlc, tombstone.client_id):
                reason = f"stamped no later than the DELETE of {_author(tombstone)}"
                verdicts[index][column] = ("deleted", reason, tombstone.delta_id)
            else:
                verdicts[index][column] = _explain_loss(delta, owning_deltas[column])
    for column, index in owners.items():
        verdicts[index][column] = ("live", "", None)
    return [_describe(arrived, verdicts[index], notes[index]) for index, arrived in enumerate(history)]


def _explain_loss(delta: RowDelta, owner: RowDelta) -> _Verdict:
    """Explain why a value that arrived lost to the current one, which `owner` wrote."""
    if delta.hlc == owner.hlc and delta.client_id == owner.client_id:
        reason = f"{_author(owner)} has the same stamp, and the greater value wins"
    elif delta.hlc == owner.hlc:
        reason = f"{_author(owner)} wrote at the same hlc, and the greater client id wins"
    else:
        reason = f"{_author(owner)} wrote later, though it arrived before"
    return "lost", reason, owner.delta_id


def _explain_delete(delta: RowDelta, tombstone: RowDelta | None, *, changed: bool, hides: bool) -> str:
    """Explain the effect of a DELETE.

    Args:
        delta: the DELETE.
        tombstone: the row's newest DELETE before it; None if there was none.
        changed: whether it has changed the row's state.
        hides: whether the row was visible before it, and is hidden after it.
    """
    if not changed and tombstone is not None:
        is_same = tombstone.delta_id == delta.delta_id
        return "repeated" if is_same else f"no effect: {_author(tombstone)} deleted the row with a later stamp"
    return "deletes the row" if hides else "deletes older columns; the row had newer ones, or none"


def _describe(arrived: ArrivedDelta, verdicts: dict[str, _Verdict], note: str) -> DeltaProvenance:
    """Return the entry of a delta. A column without a verdict belongs to a delta that had arrived before."""
    delta = arrived.delta
    repeated: _Verdict = ("repeated", "the same delta had arrived before", None)
    columns = [
        ColumnProvenance(cell.column, cell.value, *verdicts.get(cell.column, repeated)) for cell in delta.columns
    ]
    return DeltaProvenance(
        gateway=arrived.gateway,
        arrival=arrived.arrival,
        arrived=format_hlc(arrived.arrival),
        flushed=arrived.flushed,
        op=delta.op,
        client_id=delta.client_id,
        hlc=delta.hlc,
        written=format_hlc(delta.hlc),
        delta_id=delta.delta_id,
        columns=tuple(columns) if delta.op != "DELETE" else (),
        note=note,
    )


def _author(delta: RowDelta) -> str:
    """Return who made a delta, and when."""
    return f"{delta.client_id} at {format_hlc(delta.hlc)}"


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
    shard: str
    epoch: int
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
    """Find a delta in staging's log or in the lake.

    Args:
        config: names the lake and the store.
        delta_id: the delta's id, or its first characters, at least 8.
        gateway: restricts the search to one gateway; None for all.

    Raises:
        NotFoundError: no delta has such an id.
        ValidationError: several deltas of the log match, or without one there, of the lake; or the prefix is too short.
        LakeUnavailableError: the delta is not in the log, and there is no catalogue.
        StagingUnavailableError: unflushed deltas cannot be read.
    """
    if len(delta_id) < _MIN_PREFIX:
        raise ValidationError(f"delta id {delta_id!r} is too short; give at least {_MIN_PREFIX} characters")
    matching: dict[tuple[str, str], TracedDelta] = {}
    for found in unflushed_deltas(config):
        log, delta = found.range, found.delta
        if delta.delta_id.startswith(delta_id) and gateway in (None, log.gateway):
            traced = TracedDelta(
                *(delta.delta_id, log.gateway, delta.client_id, delta.op, delta.table, delta.row_id, delta.hlc),
                *(len(delta.columns), found.arrival, log.shard, log.epoch, found.seq, found.ordinal),
                batch_id=None,
                snapshot=None,
                state=None,
            )
            matching.setdefault((log.gateway, delta.delta_id), traced)
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
        NotFoundError: there is none.
        ValidationError: several deltas match.
    """
    from pyiceberg.expressions import StartsWith

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
    return TracedDelta(
        *(row["delta_id"], row["gateway"], row["client_id"], row["op"], row["table_name"], row["row_id"], row["hlc"]),
        *(row["width"], row["arrival"], row["shard"], row["epoch"], row["seq"], row["ordinal"]),
        batch_id=row["batch_id"],
        snapshot=_snapshot(deltas, row),
        state=_table(state, row["gateway"], row["arrival"]) if state is not None else None,
    )


def _table(state: Table, gateway: str, arrival: int) -> TracedTable:
    """Return whether a state table and its checkpoints contain a gateway's delta of an arrival."""
    merged = merge_marks(state).get(gateway)
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
