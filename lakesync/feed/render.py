"""A row spelled as deltas with true stamps: grouped by stamp, original ids where a group is the original delta."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from msgspec import Raw

from lakesync.delta import delta_id
from lakesync.lww import RowState
from lakesync.staging.records import StoredRow
from lakesync.types import ColumnValue, Op, RowDelta, Stamp

_NO_STAMP: Stamp = (0, "")


class _Group(NamedTuple):
    """The columns of a row that share a stamp."""

    stamp: Stamp
    columns: dict[str, Raw]
    original: str | None
    """The id of the delta that the group is, whole."""


def insert(row: StoredRow) -> list[RowDelta]:
    """The whole row: INSERT with the oldest stamp, then UPDATEs in order of stamp."""
    groups = _groups(row)
    if not groups:
        return [_delta("INSERT", row, _Group(row.state.inserted or _NO_STAMP, {}, None))]
    return [_delta("UPDATE" if place else "INSERT", row, group) for place, group in enumerate(groups)]


def update(row: StoredRow, wanted: Callable[[str, str], bool]) -> list[RowDelta]:
    """The columns for which `wanted(column, owner's client id)` holds."""
    deltas = []
    for group in _groups(row):
        columns = {column: value for column, value in group.columns.items() if wanted(column, group.stamp[1])}
        if columns:
            whole = group.original if len(columns) == len(group.columns) else None
            deltas.append(_delta("UPDATE", row, _Group(group.stamp, columns, whole)))
    return deltas


def delete(row: StoredRow) -> RowDelta:
    """A DELETE with the tombstone's stamp or, where the row lives on for others, one no newer than its data."""
    return _delta("DELETE", row, _Group(_delete_stamp(row.state), {}, None))


def _groups(row: StoredRow) -> list[_Group]:
    groups: list[_Group] = []
    for part in sorted(row.state.live, key=lambda part: (part.hlc, part.client_id, part.delta_id)):
        stamp = (part.hlc, part.client_id)
        if groups and groups[-1].stamp == stamp:
            groups[-1] = _Group(stamp, {**groups[-1].columns, **part.columns}, None)
        else:
            groups.append(_Group(stamp, part.columns, part.delta_id if part.whole else None))
    return groups


def _delete_stamp(state: RowState) -> Stamp:
    if not state.visible and state.tombstone is not None:
        return state.tombstone
    stamps = [(part.hlc, part.client_id) for part in state.live]
    if state.inserted is not None:
        stamps.append(state.inserted)
    return min(stamps, default=_NO_STAMP)


def _delta(op: Op, row: StoredRow, group: _Group) -> RowDelta:
    hlc, client_id = group.stamp
    columns = tuple(ColumnValue(column, value) for column, value in group.columns.items())
    identity = group.original or delta_id(
        client_id=client_id, hlc=hlc, table=row.table, row_id=row.row_id, columns=columns
    )
    return RowDelta(op, row.table, row.row_id, client_id, columns, hlc, identity)
