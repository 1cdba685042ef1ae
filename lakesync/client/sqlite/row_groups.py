"""Groups rows that the gateway has sent by table and layout, and writes a group with few SQL statements.

A row consists of one or more deltas (changes of some of its columns): an INSERT and later UPDATEs. Its *layout* says
which columns each of them wrote. Its *record* stores the stamp (hlc and client id) of each delta, in a table beside the
app's table. Rows with one layout need the same SQL. `bulk_changes` uses this module for pages of changes, and
`sync.checkpoint_load` for checkpoints, which have all rows for a new client.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from operator import attrgetter
from typing import Any, NamedTuple, Self, TypeVar

from lakesync.client.sqlite.bulk_decoding import (
    DecodedColumns,
    NotBulkWritableError,
    TableTypes,
    decode_column,
    decode_uniform,
    group_by_columns,
)
from lakesync.client.sqlite.stamps import Layout, Record, known_table
from lakesync.model.types import RowDelta

T = TypeVar("T")
RowPart = tuple[str, str, int, str, tuple[str, ...], Sequence[Any]]
"""One delta of a row: table, row id, hlc, client id, column names, and the columns' JSON values."""

_row_id_of, _hlc_of, _client_of = attrgetter("row_id"), attrgetter("hlc"), attrgetter("client_id")

_ROWS_PER_STATEMENT = (200, 20, 1)
"""Rows that one statement writes. The first size is used as often as possible, then the next for the remaining rows.
SQLite's limit of parameters makes the sizes smaller for tables with many columns."""


class RowStamps(NamedTuple):
    """The row ids and stamps (hlc and client id) of deltas, each field as a list."""

    row_ids: Sequence[str]
    hlcs: Sequence[int]
    clients: Sequence[str]

    @classmethod
    def of(cls, deltas: Sequence[RowDelta]) -> Self:
        """Return those of these deltas, in their order."""
        return cls(list(map(_row_id_of, deltas)), list(map(_hlc_of, deltas)), list(map(_client_of, deltas)))


class RowGroup:
    """Rows of one table with the same layout."""

    def __init__(self, table: str, parts: tuple[tuple[str, ...], ...]) -> None:
        """Start an empty group.

        Args:
            table: the rows' table.
            parts: the columns that each delta of a row writes, the INSERT first.
        """
        self.table = table
        self.layout = Layout(parts)
        self.names = tuple([name for part in parts for name in part])
        """All columns, in order of the deltas."""
        self.row_ids: list[str] = []
        self.values: list[Any] = []
        """JSON values in order of `names`: those of the first row, then those of the second, and so on."""
        self.hlcs: list[int] = []
        """One hlc for each delta of each row."""
        self.clients: list[str] = []
        """One client id for each delta of each row."""
        self._decoded: list[Sequence[Any]] | None = None
        """The values of each column as SQLite binds them, in place of `values`."""

    @classmethod
    def from_decoded(cls, table: str, stamps: RowStamps, decoded: DecodedColumns) -> RowGroup:
        """Return a group of rows of one delta each, whose values are decoded.

        Args:
            table: the rows' table.
            stamps: the row id, hlc and client id of each delta.
            decoded: the values of the same deltas.
        """
        group = cls(table, (decoded.names,))
        group.add_rows(stamps, ())
        group._decoded = decoded.columns
        return group

    def add_rows(self, stamps: RowStamps, values: Iterable[Any]) -> None:
        """Add rows of one delta each.

        Args:
            stamps: the row id, hlc and client id of each delta.
            values: JSON values in order of `names`: those of the first row, then those of the second, and so on.
        """
        self.row_ids += stamps.row_ids
        self.hlcs += stamps.hlcs
        self.clients += stamps.clients
        self.values += values

    def select(self, indexes: Sequence[int]) -> RowGroup:
        """Return a group with the rows at these indexes. Every row must consist of one delta."""
        selected, width = RowGroup(self.table, self.layout.parts), len(self.names)
        if self._decoded is not None:
            selected._decoded = [[column[index] for index in indexes] for column in self._decoded]
            width = 0
        for index in indexes:
            selected.row_ids.append(self.row_ids[index])
            selected.hlcs.append(self.hlcs[index])
            selected.clients.append(self.clients[index])
            selected.values += self.values[index * width : index * width + width]
        return selected

    def sql_columns(self, types: TableTypes) -> list[Sequence[Any]]:
        """Return the values of each column of `names`, in the form in which sqlite3 binds them.

        Raises:
            NotBulkWritableError: a value has another type than its column, or two deltas write the same column.
        """
        if self._decoded is not None:
            return self._decoded
        kinds, names = types.get(self.table), self.names
        if kinds is None or not all(name in kinds for name in names) or len(set(names)) < len(names):
            raise NotBulkWritableError
        return [decode_column(kinds[name], self.values[index :: len(names)]) for index, name in enumerate(names)]


class RowGroups:
    """Collects new rows in groups. Iterate over it to get the groups."""

    def __init__(self) -> None:
        """Start without rows."""
        self._groups: dict[tuple[str, tuple[tuple[str, ...], ...]], RowGroup] = {}
        self._decoded: list[RowGroup] = []

    def __iter__(self) -> Iterator[RowGroup]:
        return (group for group in (*self._decoded, *self._groups.values()) if group.row_ids)

    @property
    def highest_hlc(self) -> int:
        """The highest hlc of all deltas; 0 without rows."""
        return max((max(group.hlcs) for group in self), default=0)

    def add_parts(self, parts: Iterable[RowPart]) -> None:
        """Add rows of any number of deltas. The deltas of a row are neighbours, its INSERT first.

        Raises:
            NotBulkWritableError: the deltas of a row are not in order of their stamps, so they must be merged.
        """
        group = RowGroup("", ())  # no row has these values, so the first one gets another group
        last_row, newest = ("", ""), (0, "")
        for table, row_id, hlc, client_id, names, values in parts:
            stamp = (hlc, client_id)
            if row_id == last_row[1] and table == last_row[0]:
                if stamp <= newest:
                    raise NotBulkWritableError
                group = self._extend_last_row(group, names)
            else:
                last_row = (table, row_id)
                if (names,) != group.layout.parts or table != group.table:
                    group = self.get_or_create(table, (names,))
                group.row_ids.append(row_id)
            newest = stamp
            group.hlcs.append(hlc)
            group.clients.append(client_id)
            group.values += values

    def add_inserts(
        self, table: str, deltas: Sequence[RowDelta], types: TableTypes, stamps: RowStamps | None = None
    ) -> None:
        """Add rows of one INSERT each.

        Args:
            table: the rows' table.
            deltas: the INSERTs.
            types: the column types of all tables.
            stamps: the deltas' stamps, if the caller has them.

        Raises:
            NotBulkWritableError: their columns cannot be decoded.
        """
        decoded = decode_uniform(deltas, types.get(table, {}))
        if decoded is not None:
            self._decoded.append(RowGroup.from_decoded(table, stamps or RowStamps.of(deltas), decoded))
            return
        for names, indexes, values in group_by_columns(deltas):
            group = self.get_or_create(table, (names,))
            group.add_rows(RowStamps.of([deltas[index] for index in indexes]), values)

    def get_or_create(self, table: str, parts: tuple[tuple[str, ...], ...]) -> RowGroup:
        """Return the group of a table and layout, to add rows to.

        Args:
            table: the rows' table.
            parts: the columns that each delta of a row writes, the INSERT first.
        """
        group = self._groups.get((table, parts))
        if group is None:
            group = self._groups[table, parts] = RowGroup(table, parts)
        return group

    def _extend_last_row(self, group: RowGroup, names: tuple[str, ...]) -> RowGroup:
        """Move the last row of a group to the group whose layout has a further delta with these columns."""
        extended = self.get_or_create(group.table, (*group.layout.parts, names))
        count = len(group.layout.parts)
        extended.row_ids.append(group.row_ids.pop())
        extended.hlcs += _pop_last(group.hlcs, count)
        extended.clients += _pop_last(group.clients, count)
        extended.values += _pop_last(group.values, len(group.names))
        return extended


def write_rows(
    db: sqlite3.Connection,
    group: RowGroup,
    columns: Sequence[Sequence[Any]],
    records: Sequence[Record],
    generation: int,
    types: TableTypes,
    *,
    replace: bool,
) -> None:
    """Insert or replace complete rows and their records.

    Args:
        db: the app's database.
        group: the rows.
        columns: the values of each column of the group, as SQLite binds them.
        records: the rows' records.
        generation: the number of the latest pull of all rows, which is stored with each record.
        types: the column types of all tables.
        replace: whether the rows exist and all their values are replaced; otherwise they are new.
    """
    # ON CONFLICT reads `excluded`, which may be the name of the table too: AS makes the names differ
    names = "".join(f', "{name}"' for name in group.names)
    head, marks = f'INSERT INTO "{group.table}" AS app (row_id{names})', f"(?{', ?' * len(group.names)})"
    cells = [group.row_ids, *columns]
    if replace:
        execute_for_rows(db, head, marks, cells, _on_conflict_replace(group, types))
    else:
        try:
            execute_for_rows(db, head, marks, cells)
        except sqlite3.IntegrityError:  # a row exists although it is not known: it was written without the triggers
            execute_for_rows(db, head, marks, cells, _on_conflict_replace(group, types))
    insert_or_replace = "INSERT OR REPLACE" if replace else "INSERT"
    execute_for_rows(db, *_insert_record(insert_or_replace, group, generation), [group.row_ids, records])


def update_rows(
    db: sqlite3.Connection,
    group: RowGroup,
    columns: Sequence[Sequence[Any]],
    records: Sequence[Record],
    generation: int,
) -> None:
    """Update columns of known rows, and their records.

    Args:
        db: the app's database.
        group: the rows.
        columns: the new values of each column of the group, as SQLite binds them.
        records: the rows' records after the update.
        generation: as for `write_rows`.
    """
    names = ", ".join(f"c{index}" for index in range(len(columns)))
    changes = ", ".join(f'"{name}" = _lakesync_new.c{index}' for index, name in enumerate(group.names))
    head = f"WITH _lakesync_new (id, {names}) AS ("
    tail = f') UPDATE "{group.table}" SET {changes} FROM _lakesync_new WHERE row_id = _lakesync_new.id'
    execute_for_rows(db, head, f"(?{', ?' * len(columns)})", [group.row_ids, *columns], tail)
    execute_for_rows(db, *_insert_record("INSERT OR REPLACE", group, generation), [group.row_ids, records])


def execute_for_rows(
    db: sqlite3.Connection, head: str, marks: str, columns: Sequence[Sequence[Any]], tail: str = ""
) -> None:
    """Execute a statement with a VALUES list for many rows at once, because starting a statement costs like a row.

    Args:
        db: the database.
        head: SQL before VALUES.
        marks: the placeholders of one row of the list, such as `(?, ?)`.
        columns: the parameters by column, each with a value for every row.
        tail: SQL after the list.
    """
    width = len(columns)
    cells = list(chain.from_iterable(zip(*columns, strict=True)))
    limit = db.getlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER) // width
    done = 0  # number of cells that are written
    for size in _ROWS_PER_STATEMENT:
        rows = max(1, min(size, limit))
        step = rows * width
        end = len(cells) - (len(cells) - done) % step  # the rest needs a statement for fewer rows
        if end > done:
            statement = f"{head} VALUES {', '.join([marks] * rows)}{tail}"
            db.executemany(statement, [cells[start : start + step] for start in range(done, end, step)])
            done = end


def _pop_last(values: list[T], count: int) -> list[T]:
    """Remove the last values of a list and return them."""
    start = len(values) - count
    removed = values[start:]
    del values[start:]
    return removed


def _on_conflict_replace(group: RowGroup, types: TableTypes) -> str:
    """Return the clause that replaces an existing row; columns of the schema that the row lacks become NULL."""
    values = [f'"{name}" = ' + (f'excluded."{name}"' if name in group.names else "NULL") for name in types[group.table]]
    return f" ON CONFLICT (row_id) DO UPDATE SET {', '.join(values)}"


def _insert_record(insert_or_replace: str, group: RowGroup, generation: int) -> tuple[str, str]:
    """Return the head and the placeholders of the statement that inserts a row's record."""
    return f"{insert_or_replace} INTO {known_table(group.table)} (row_id, generation, stamps)", f"(?, {generation}, ?)"
