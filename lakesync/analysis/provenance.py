"""Finds all deltas (changes) of one row, and explains for each of their columns why its value is current, or is not.

`lakesync row history` calls `row_history`, which finds the deltas in the lake and in staging's log (staging is the
gateways' database), where they are until a flush has moved them to the lake. `provenance` replays their merge in the
order of their *arrival*: a push's timestamp by the gateway, which is one app's stream of changes. Of all values of a
column, the one with the greatest *stamp* wins: the pair of the hlc, by the clock of the client that wrote it, and that
client's id. The *tombstone* is the row's DELETE with the greatest stamp; it removes values with smaller stamps.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Literal

import msgspec
from msgspec import Raw

from lakesync.analysis.as_of import format_hlc
from lakesync.analysis.catalogue import LakeReader, may_have_catalogue
from lakesync.analysis.scans import all_of, condition
from lakesync.analysis.unflushed import unflushed_deltas
from lakesync.model.errors import NotFoundError
from lakesync.model.merge import RowState
from lakesync.model.types import RowDelta
from lakesync.wire.history import delta_of_row

if TYPE_CHECKING:
    from pyiceberg.table import Table

    from lakesync.config import Config

_ROW_COLUMNS = (
    *("gateway", "shard", "epoch", "seq", "ordinal", "arrival"),
    *("table_name", "row_id", "op", "client_id", "hlc", "delta_id", "columns"),
)
"""The columns of the lake's table `deltas` that `row_history` reads."""
_LogPosition = tuple[str, str, int, int, int]
"""Where a delta is or was in staging's log: gateway, shard (staging store), epoch (copy of the store), number of the
push, and position in the push."""

Outcome = Literal["live", "replaced", "lost", "deleted", "repeated"]
"""`live`: the value is the column's current value. `replaced`: it was, until a write with a newer stamp arrived.
`lost`: an older arrival had a newer stamp. `deleted`: a DELETE with a newer stamp removed it. `repeated`: the same
delta had arrived before."""

_Verdict = tuple[Outcome, str, str | None]
"""Outcome, reason, and the id of the delta that won, if one did."""


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
    found: dict[_LogPosition, ArrivedDelta] = {}
    tables = set()
    for each in unflushed_deltas(config):
        tables.add(each.delta.table)
        if each.delta.key == (table, row) and gateway in (None, each.gateway):
            found[each[:5]] = ArrivedDelta(each.gateway, each.arrival, False, each.delta)  # by its position in the log
    if may_have_catalogue(config) or not found:  # before the first flush, every delta is in the log
        with LakeReader(config) as lake:
            if lake.deltas is not None:
                found |= _flushed(lake.deltas, table, row, gateway)  # replaces deltas that were flushed meanwhile
            tables |= {name for _, name in lake.state_tables.values()}
    if not found:
        if table not in tables:
            raise NotFoundError(f"there is no table {table!r} in the lake; known tables: {', '.join(sorted(tables))}")
        where = f" in gateway {gateway!r}" if gateway else ""
        raise NotFoundError(f"table {table!r} never had a row {row!r}{where}; check the row id")
    by_arrival = sorted(found.items(), key=lambda each: (each[1].gateway, each[1].arrival, *each[0]))
    gateways = groupby((delta for _, delta in by_arrival), key=lambda each: each.gateway)
    return [entry for _, history in gateways for entry in provenance(list(history))]


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
    """The gateway's timestamp of its push."""
    arrived: str
    """The arrival as a time, UTC."""
    flushed: bool
    """Whether it is in the lake."""
    op: str
    client_id: str
    hlc: int
    """The client's timestamp."""
    written: str
    """The hlc as a time by the client's clock, UTC."""
    delta_id: str
    columns: tuple[ColumnProvenance, ...]
    """What became of the value of each of its columns."""
    note: str = ""
    """The effect of a delta without columns; empty for any other."""


class ArrivedDelta(msgspec.Struct, frozen=True):
    """A delta with its gateway and arrival."""

    gateway: str
    arrival: int
    """The gateway's timestamp of its push."""
    flushed: bool
    """Whether it is in the lake; otherwise it is in staging's log."""
    delta: RowDelta


def provenance(history: Sequence[ArrivedDelta]) -> list[DeltaProvenance]:
    """Replay the deltas of one row and return what became of each.

    The deltas are merged one by one. Of each, the merge says which columns won and which lost. A column that wins
    replaces the value of the delta that owned it, so that delta gets its verdict then. The owners at the end are live.

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
        owning_deltas = {column: history[owner].delta for column, owner in owners.items()}  # before this delta
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
            if tombstone is not None and delta.stamp <= tombstone.stamp:
                reason = f"stamped no later than the DELETE of {_author(tombstone)}"
                verdicts[index][column] = ("deleted", reason, tombstone.delta_id)
            else:
                verdicts[index][column] = _explain_loss(delta, owning_deltas[column])
    for column, index in owners.items():
        verdicts[index][column] = ("live", "", None)
    return [_describe(arrived, verdicts[index], notes[index]) for index, arrived in enumerate(history)]


def _flushed(deltas: Table, table: str, row: str, gateway: str | None) -> dict[_LogPosition, ArrivedDelta]:
    """Return the row's deltas in the lake."""
    row_filter = all_of(condition("table_name", "=", table), condition("row_id", "=", row))
    if gateway is not None:
        row_filter = all_of(row_filter, condition("gateway", "=", gateway))
    scan = deltas.scan(row_filter=row_filter, selected_fields=_ROW_COLUMNS)
    return {
        (each["gateway"], each["shard"], each["epoch"], each["seq"], each["ordinal"]): ArrivedDelta(
            each["gateway"], each["arrival"], True, delta_of_row({**each, "columns": sorted(each["columns"] or ())})
        )
        for batch in scan.to_arrow_batch_reader()
        for each in batch.to_pylist()
    }


def _explain_loss(delta: RowDelta, owner: RowDelta) -> _Verdict:
    """Explain why a value that arrived lost to the current one, which `owner` wrote."""
    if delta.stamp == owner.stamp:
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
        tombstone: the row's newest DELETE before it; None without one.
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
