"""The client's SQLite store always returns the same as the memory store, and its tables hold the app's rows."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection
from contextlib import closing
from typing import Any

from hypothesis import example, given, settings
from msgspec.structs import replace

from lakesync.client.core import Changes, Edit, KnownRow, MemoryStore, Position
from lakesync.client.core.rows import merge_delta, visible_row
from lakesync.client.core.store import EditStatus
from lakesync.client.sqlite.client_store import SqliteClientStore
from lakesync.client.sqlite.sql_values import to_sql
from lakesync.client.sqlite.stamps import stamps_of
from lakesync.model.delta import jcs_raw
from lakesync.model.merge import RowState
from lakesync.model.schema import parse_schema
from lakesync.model.types import ColumnValue, Op, RowDelta, RowKey
from lakesync.testing import strategies
from tests.property.test_client_rows import ComparedRow, steps

SCHEMA = parse_schema(
    {
        "table": "t",
        "columns": [
            {"name": "x", "type": "number"},
            {"name": "y", "type": "string"},
            {"name": "z", "type": "json"},
        ],
    }
)


class ComparedStores(MemoryStore):
    """Calls both stores and compares the results."""

    def __init__(self, db: sqlite3.Connection) -> None:
        super().__init__()
        self._db = db
        self._twin = SqliteClientStore(db, [SCHEMA])

    def position(self) -> Position:
        assert self._twin.position() == super().position()
        return super().position()

    def known(self, keys: Collection[RowKey]) -> dict[RowKey, KnownRow]:
        found = super().known(keys)
        assert _spelled(self._twin.known(keys)) == _spelled(found)
        return self._twin.known(keys)

    def older_than(self, generation: int) -> list[RowKey]:
        assert self._twin.older_than(generation) == super().older_than(generation)
        return super().older_than(generation)

    def edits(self, status: EditStatus | None = None, limit: int | None = None) -> list[Edit]:
        assert self._twin.edits(status, limit) == super().edits(status, limit)
        return super().edits(status, limit)

    def edits_of(self, keys: Collection[RowKey]) -> dict[RowKey, list[Edit]]:
        assert self._twin.edits_of(keys) == super().edits_of(keys)
        return super().edits_of(keys)

    def commit(self, changes: Changes) -> None:
        super().commit(changes)
        self._twin.commit(changes)
        table = {row_id: cells for row_id, *cells in self._db.execute("SELECT row_id, x, y, z FROM t")}
        assert table.keys() == {row_id for _, row_id in self.rows}
        for (_, row_id), row in self.rows.items():
            assert table[row_id] == [self._cell(row, column.name) for column in SCHEMA.columns]
        self._twin = SqliteClientStore(self._db, [SCHEMA])

    def _cell(self, row: dict[str, bytes], column: str) -> object:
        """The value that SQLite returns from a column, by the column's affinity."""
        value = to_sql(SCHEMA.types[column], row[column]) if column in row else None
        (cell,) = self._db.execute(f"SELECT CAST(? AS {'NUMERIC' if column == 'x' else 'TEXT'})", (value,)).fetchone()
        return cell


class BulkStore(SqliteClientStore):
    """Writes pages of any size in bulk."""

    bulk_from = 0

    @property
    def rows(self) -> dict[RowKey, dict[str, bytes]]:
        """The known values and the edits, merged, for rows of the app's table with these columns."""
        table = {row_id: cells for row_id, *cells in self._db.execute("SELECT row_id, x, y, z FROM t")}
        known, edits = self.known([("t", "r")]), self.edits_of([("t", "r")])
        merged = visible_row(known["t", "r"].state if known else None, edits.get(("t", "r"), ()))
        assert table.keys() == ({"r"} if merged is not None else set())
        if merged is None:
            return {}
        assert [cell is None for cell in table["r"]] == [bytes(merged.get(name, b"null")) == b"null" for name in "xyz"]
        return {("t", "r"): {name: bytes(text) for name, text in merged.items()}}


def _spelled(known: dict[RowKey, KnownRow]) -> dict[RowKey, Any]:
    return {
        key: (
            {column: (part.stamp, jcs_raw(value)) for part in row.state.live for column, value in part.columns.items()},
            row.state.tombstone,
            row.state.inserted,
            row.generation,
        )
        for key, row in known.items()
    }


def _delta(op: Op, hlc: int, **cells: int) -> RowDelta:
    columns = tuple(ColumnValue.of(name, value) for name, value in cells.items())
    return RowDelta(op, "t", "r", "a", columns, hlc, f"{hlc:064x}")


@settings(deadline=None)
@given(strategies.histories().filter(bool))
@example([_delta("INSERT", 1, z=1, x=1, y=1), _delta("UPDATE", 2, x=2)])
@example([_delta("INSERT", 1), _delta("UPDATE", 2, z=1, x=1, y=1), _delta("UPDATE", 3, x=2)])
def test_a_record_round_trips_stamps_and_their_updates(history: list[RowDelta]) -> None:
    state = RowState()
    for delta in history[:-1]:
        merge_delta(state, delta)
    with closing(sqlite3.connect(":memory:")) as db:
        codec = SqliteClientStore(db, [SCHEMA]).stamp_codec
        record = codec.encode(stamps_of(state))
        assert codec.decode(record) == stamps_of(state)
        update = replace(history[-1], op="UPDATE")
        columns = tuple(cell.column for cell in update.columns)
        stamp = ([update.hlc], [update.client_id])
        (after,) = codec.after_updates([record], *stamp, columns) if columns else (None,)
        if after is not None:
            merge_delta(state, update)
            assert codec.decode(after) == stamps_of(state)


@settings(deadline=None)
@given(steps)
def test_the_sqlite_store_equals_the_memory_store(steps: list[tuple[str, Any]]) -> None:
    with closing(sqlite3.connect(":memory:")) as db:
        ComparedRow(ComparedStores(db)).play(steps)


@settings(deadline=None)
@given(steps)
def test_bulk_writes_equal_the_row_by_row_merge(steps: list[tuple[str, Any]]) -> None:
    with closing(sqlite3.connect(":memory:")) as db:
        ComparedRow(BulkStore(db, [SCHEMA])).play(steps)
