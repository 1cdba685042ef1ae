"""What a query asks for, as SQL that every database reads alike."""

from __future__ import annotations

from lakesync.adapters.base import DeltaQuery, Order, Position
from lakesync.adapters.sql.executor import Value
from lakesync.adapters.sql.stored import TRUE_ID

PLACE = {
    "arrival": ("arrival", "hlc", "client_id", TRUE_ID, "gateway"),
    "hlc": ("hlc", "client_id", TRUE_ID, "gateway"),
}
"""What deltas are ordered by."""


def conditions(query: DeltaQuery) -> tuple[str, list[Value]]:
    """What must hold, whatever the limit, and its values."""
    where, values = list[str](), list[Value]()
    if query.since >= 0:  # else it says nothing, and a planner may read a whole index for it
        where.append(f"{query.order} > ?")
        values.append(query.since)
    if query.until is not None:
        where.append(f"{query.order} <= ?")
        values.append(query.until)
    if query.after is not None:
        where.append(f"{query.order} >= ?")  # an index finds this one
        values.append(query.after.value)
        behind, places = _behind(query.order, query.after)
        where.append(behind)
        values += places
    if query.gateway is not None:
        where.append("gateway = ?")
        values.append(query.gateway)
    for column, wanted in (("table_name", query.tables), ("row_id", query.rows)):
        if wanted:
            where.append(f"{column} IN ({', '.join('?' * len(wanted))})")
            values += wanted
    return " AND ".join(where) or "1 = 1", values


def _behind(order: Order, after: Position) -> tuple[str, list[Value]]:
    """Being behind a place, spelled out: not every database compares rows, nor finds an index for it."""
    names = PLACE[order]
    place: dict[str, Value] = {
        "arrival": after.value,
        "hlc": after.hlc,
        "client_id": after.client_id,
        TRUE_ID: after.delta_id,
        "gateway": after.gateway,
    }
    behind, values = f"{names[-1]} > ?", [place[names[-1]]]
    for name in reversed(names[:-1]):
        behind = f"({name} > ? OR ({name} = ? AND {behind}))"
        values = [place[name], place[name], *values]
    return behind, values
