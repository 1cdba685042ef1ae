"""Erasure in a SQL database: what covered deltas said, and the rows that were made of it."""

from __future__ import annotations

from collections.abc import Sequence

from lakesync.adapters.redaction import NO_COLUMNS, Redacted, Redaction, TouchedRow
from lakesync.adapters.sql.executor import Connection, Value
from lakesync.adapters.sql.stored import DELTAS


def redact_deltas(connection: Connection, requests: Sequence[Redaction]) -> Redacted:
    """Take from covered deltas what they said, within the caller's transaction."""
    count = 0
    touched: dict[TouchedRow, None] = {}
    for each in requests:
        where, values = _covered(each)
        found = connection.rows(f"SELECT DISTINCT table_name, row_id FROM {DELTAS} WHERE {where}", values)
        touched |= dict.fromkeys((each.gateway, table, row_id) for table, row_id in found)
        count += connection.execute(
            f"UPDATE {DELTAS} SET op = 'UPDATE', columns = ? WHERE {where} AND columns <> ?",
            [NO_COLUMNS, *values, NO_COLUMNS],
        )
    return Redacted(count, touched=tuple(touched))


def _covered(request: Redaction) -> tuple[str, list[Value]]:
    parts: list[tuple[str, Value]] = [("gateway = ?", request.gateway), ("hlc <= ?", request.hlc)]
    wanted = {"client_id": request.client_id, "table_name": request.table, "row_id": request.row_id}
    parts += [(f"{name} = ?", value) for name, value in wanted.items() if value is not None]
    where = " AND ".join(condition for condition, _ in parts)
    if request.tables:
        where += f" AND table_name IN ({', '.join('?' * len(request.tables))})"
    return where, [*(value for _, value in parts), *request.tables]
