"""Reading the table of deltas: pages in an order, rows' states, and where it ends."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from lakesync.adapters.arrow import arrow_schema, from_arrow
from lakesync.adapters.base import ArrowPage, DeltaQuery, Position, position_of
from lakesync.adapters.contents import RowContent, RowId
from lakesync.adapters.flat import COLUMNS
from lakesync.adapters.pieces import in_order, last_position
from lakesync.adapters.selection import contents_of, merged
from lakesync.adapters.sql.executor import Connection
from lakesync.adapters.sql.query import PLACE, conditions
from lakesync.adapters.sql.stored import DELTAS, TRUE_ID
from lakesync.model.merge import RowState

if TYPE_CHECKING:
    import pyarrow as pa

_SELECT = ", ".join(f"{TRUE_ID} AS delta_id" if name == "delta_id" else name for name in COLUMNS)
_OF_ONE_VALUE = 10_001
"""Deltas that may share an arrival and be put in order here: more than one push has."""
_ROWS_AT_ONCE = 500


def page(connection: Connection, query: DeltaQuery) -> ArrowPage:
    """A page, found by the index of its order.

    First the value at which it ends, which an index alone tells, then all of it up to there, as the index has it.
    What shares a value is put in order here, unless there is too much of it.
    """
    where, values = conditions(query)
    order = query.order
    last = connection.rows(
        f"SELECT {order} FROM {DELTAS} WHERE {where} ORDER BY {order} LIMIT 1 OFFSET {query.limit}", values
    )
    if last:
        where, values = conditions(replace(query, until=last[0][0]))
    statement = f"SELECT {_SELECT} FROM {DELTAS} WHERE {where} ORDER BY"
    most = query.limit + _OF_ONE_VALUE
    found = connection.arrow(f"{statement} {order} LIMIT {most}", values, _schema())
    if len(found) == most:
        place = ", ".join(PLACE[order])
        found = connection.arrow(f"{statement} {place} LIMIT {query.limit + 1}", values, _schema())
    found = in_order(found, order)
    given = found.slice(0, query.limit)
    return ArrowPage(given, last_position(given, order) if len(found) > query.limit else None)


def split_points(connection: Connection, query: DeltaQuery, size: int) -> list[int]:
    """The last value of each range of `size` deltas but the last, as an index of the query's order has them."""
    order, points = query.order, list[int]()
    while True:
        where, values = conditions(query)
        statement = f"SELECT {order} FROM {DELTAS} WHERE {where} ORDER BY {order} LIMIT 1 OFFSET {size}"
        found = connection.rows(statement, values)
        if not found:
            return points
        points.append(int(found[0][0]))
        query = replace(query, since=points[-1])


def states(connection: Connection, gateway: str | None, table: str, row_ids: Sequence[str]) -> dict[str, RowState]:
    """The merge of all deltas held of each row; a row without any is absent."""
    found: dict[str, RowState] = {}
    for deltas in _deltas_of(connection, gateway, table, row_ids):
        found |= merged(stored.delta for stored in from_arrow(deltas))
    return found


def contents(connection: Connection, table: str, rows: Sequence[RowId]) -> dict[RowId, RowContent]:
    """The merge of all deltas held of each row of a table; a row without any is absent."""
    by_gateway: dict[str, list[str]] = {}
    for gateway, row_id in rows:
        by_gateway.setdefault(gateway, []).append(row_id)
    found: dict[RowId, RowContent] = {}
    for gateway, row_ids in by_gateway.items():
        for deltas in _deltas_of(connection, gateway, table, row_ids):
            found |= contents_of(from_arrow(deltas))
    return found


def _deltas_of(connection: Connection, gateway: str | None, table: str, row_ids: Sequence[str]) -> Iterator[pa.Table]:
    """All deltas held of some rows, those of a row together."""
    for start in range(0, len(row_ids), _ROWS_AT_ONCE):
        query = DeltaQuery(gateway=gateway, tables=(table,), rows=tuple(row_ids[start : start + _ROWS_AT_ONCE]))
        where, values = conditions(query)
        yield connection.arrow(f"SELECT {_SELECT} FROM {DELTAS} WHERE {where}", values, _schema())


def newest(connection: Connection) -> Position | None:
    """The place after the last of all deltas in order of arrival, by its index."""
    last = connection.rows(f"SELECT arrival FROM {DELTAS} ORDER BY arrival DESC LIMIT 1")
    if not last:
        return None
    found = connection.arrow(f"SELECT {_SELECT} FROM {DELTAS} WHERE arrival = ?", [last[0][0]], _schema())
    return max(position_of(stored, "arrival") for stored in from_arrow(found))


def _schema() -> pa.Schema:
    """Of deltas with their columns spelled."""
    import pyarrow as pa

    schema = arrow_schema()
    return schema.set(schema.get_field_index("columns"), pa.field("columns", pa.string()))
