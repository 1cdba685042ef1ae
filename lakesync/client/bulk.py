"""Many rows at once: settled rows, which have no edits, and whose values their table holds as they are.

Values are looked at by column, a statement takes many rows, and no object is made of a row. What does not fit goes the
way of `lakesync.client.core.pages`, row by row, with the same outcome.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar, cast

import msgspec

from lakesync.client.stamps import Layout, Record
from lakesync.exceptions import ValidationError
from lakesync.schema import ColumnType
from lakesync.types import RowDelta
from lakesync.wire.pages import cells_of, flat

T = TypeVar("T")
Value = bytes | memoryview | msgspec.Raw
Part = tuple[str, str, int, str, tuple[str, ...], Sequence[Any]]
"""A delta that makes a row or adds to it: table, row id, hlc, client id, its columns, and their values as JSON text."""
Types = Mapping[str, Mapping[str, ColumnType]]

_NOTHING = type(None)
_FITTING: dict[ColumnType, frozenset[type]] = {
    "string": frozenset({str, _NOTHING}),
    "number": frozenset({int, float, _NOTHING}),
    "boolean": frozenset({bool, _NOTHING}),
    "null": frozenset({_NOTHING}),
}
_LEAST, _MOST = -(2**63), 2**63 - 1024
"""Within them, a number is one that SQLite holds as it is."""
_VARIABLES, _ROWS = 900, 50
"""The most of each in one statement; an old SQLite takes 999 variables."""
_decode = msgspec.json.Decoder().decode
_row_id_of, _hlc_of, _client_of = attrgetter("row_id"), attrgetter("hlc"), attrgetter("client_id")
_column_of, _value_of = attrgetter("column"), attrgetter("value")


class MisfitError(Exception):
    """A table has no schema, lacks a column, or a type does not hold a value: these rows go the other way."""


class Group:
    """Rows of one table, each of as many deltas, which have the same columns."""

    def __init__(self, table: str, parts: tuple[tuple[str, ...], ...]) -> None:
        self.table = table
        self.layout = Layout(parts)
        """The columns by delta, the INSERT first."""
        self.names = tuple([name for part in parts for name in part])
        self.row_ids: list[str] = []
        self.values: list[Any] = []
        """Of the first row, then of the second, and so on, in the order of `names`."""
        self.hlcs: list[int] = []
        self.clients: list[str] = []
        """Of each delta of each row."""

    def extend(self, deltas: Iterable[RowDelta], values: Iterable[Any]) -> None:
        """Take in rows that consist of one delta each, of these columns."""
        deltas = list(deltas)
        self.row_ids += map(_row_id_of, deltas)
        self.hlcs += map(_hlc_of, deltas)
        self.clients += map(_client_of, deltas)
        self.values += values

    def only(self, places: Sequence[int]) -> Group:
        """Some of the rows, of a group whose rows consist of one delta each."""
        found, width = Group(self.table, self.layout.parts), len(self.names)
        for place in places:
            found.row_ids.append(self.row_ids[place])
            found.hlcs.append(self.hlcs[place])
            found.clients.append(self.clients[place])
            found.values += self.values[place * width : place * width + width]
        return found

    def columns(self, types: Types) -> list[Sequence[Any]]:
        """The values by column, as SQLite takes them.

        Raises:
            MisfitError: a value is not of its column's type, or a column is named twice.
        """
        kinds, names = types.get(self.table), self.names
        if kinds is None or not all(name in kinds for name in names) or len(set(names)) < len(names):
            raise MisfitError
        return [_column(kinds[name], self.values[place :: len(names)]) for place, name in enumerate(names)]


class Groups:
    """New rows, grouped as they come; the parts of a row come one after another, its INSERT first."""

    def __init__(self) -> None:
        self._groups: dict[tuple[str, tuple[tuple[str, ...], ...]], Group] = {}

    def __iter__(self) -> Iterator[Group]:
        return (group for group in self._groups.values() if group.row_ids)

    @property
    def highest(self) -> int:
        """The highest hlc."""
        return max((max(group.hlcs) for group in self), default=0)

    def add(self, parts: Iterable[Part]) -> None:
        """Take rows in.

        Raises:
            MisfitError: the parts of a row do not stand in order of stamp.
        """
        group = Group("", ())
        last, newest = ("", ""), (0, "")
        for table, row_id, hlc, client_id, names, values in parts:
            stamp = (hlc, client_id)
            if row_id == last[1] and table == last[0]:
                if stamp <= newest:
                    raise MisfitError
                group = self._moved(group, names)
            else:
                last = (table, row_id)
                if (names,) != group.layout.parts or table != group.table:
                    group = self._group(table, (names,))
                group.row_ids.append(row_id)
            newest = stamp
            group.hlcs.append(hlc)
            group.clients.append(client_id)
            group.values += values

    def extend(self, table: str, deltas: Sequence[RowDelta]) -> None:
        """Take in rows that consist of one INSERT each.

        Raises:
            MisfitError: their columns cannot be read.
        """
        for names, places, values in by_columns(deltas):
            self._group(table, (names,)).extend(map(deltas.__getitem__, places), values)

    def _moved(self, group: Group, names: tuple[str, ...]) -> Group:
        """Take the last row of a group to one of rows that have a further part; what it had is there already."""
        further = self._group(group.table, (*group.layout.parts, names))
        count = len(group.layout.parts)
        further.row_ids.append(group.row_ids.pop())
        further.hlcs += _taken(group.hlcs, count)
        further.clients += _taken(group.clients, count)
        further.values += _taken(group.values, len(group.names))
        return further

    def _group(self, table: str, parts: tuple[tuple[str, ...], ...]) -> Group:
        found = self._groups.get((table, parts))
        if found is None:
            found = self._groups[table, parts] = Group(table, parts)
        return found


class Columns(NamedTuple):
    """Deltas that have the same columns."""

    names: tuple[str, ...]
    places: Sequence[int]
    """Which of those asked about they are."""
    values: list[Any]
    """Of the first, then of the second, and so on."""


def by_columns(deltas: Sequence[RowDelta]) -> Iterable[Columns]:
    """Deltas by the names of their columns.

    Raises:
        MisfitError: their columns cannot be read.
    """
    names: list[str] = []
    values: list[Any] = []
    widths: list[int] = []
    try:
        for some in cells_of(deltas):
            cells = flat(some)
            names += map(_column_of, cells)
            values += map(_value_of, cells)
            widths += map(len, some)
    except ValidationError:
        raise MisfitError from None
    first = names[: widths[0]] if widths else []
    if set(widths) <= {len(first)} and names == first * len(deltas):
        return [Columns(tuple(first), range(len(deltas)), values)]
    found: dict[tuple[str, ...], Columns] = {}
    start = 0
    for place, width in enumerate(widths):
        key = tuple(names[start : start + width])
        one = found.setdefault(key, Columns(key, [], []))
        cast("list[int]", one.places).append(place)
        one.values.extend(values[start : start + width])
        start += width
    return found.values()


def put(
    db: sqlite3.Connection,
    group: Group,
    columns: Sequence[Sequence[Any]],
    records: Sequence[Record],
    generation: int,
    types: Types,
    *,
    instead: bool,
) -> None:
    """Write whole rows, and what is known of them from now on.

    Args:
        instead: of rows that are there, of which nothing stays as it was; otherwise nothing is known of them.
    """
    head, marks = _row(group)
    cells = [group.row_ids, *columns]
    if instead:
        write_rows(db, head, marks, cells, _instead(group, types))
    else:
        try:
            write_rows(db, head, marks, cells)
        except sqlite3.IntegrityError:  # one of them is there after all: somebody wrote it past the triggers
            write_rows(db, head, marks, cells, _instead(group, types))
    write_rows(db, *_known("INSERT OR REPLACE" if instead else "INSERT", group, generation), [group.row_ids, records])


def update(
    db: sqlite3.Connection,
    group: Group,
    columns: Sequence[Sequence[Any]],
    records: Sequence[Record],
    generation: int,
) -> None:
    """Change columns of rows that are there, and what is known of them."""
    given = ", ".join(f"c{place}" for place in range(len(columns)))
    changes = ", ".join(f'"{name}" = _lakesync_said.c{place}' for place, name in enumerate(group.names))
    head = f"WITH _lakesync_said (id, {given}) AS ("
    tail = f') UPDATE "{group.table}" SET {changes} FROM _lakesync_said WHERE row_id = _lakesync_said.id'
    write_rows(db, head, f"(?{', ?' * len(columns)})", [group.row_ids, *columns], tail)
    write_rows(db, *_known("INSERT OR REPLACE", group, generation), [group.row_ids, records])


def _row(group: Group) -> tuple[str, str]:
    names = "".join(f', "{name}"' for name in group.names)
    return f'INSERT INTO "{group.table}" (row_id{names})', f"(?{', ?' * len(group.names)})"


def _instead(group: Group, types: Types) -> str:
    """What becomes of a row that is there: it has the new values, and none in the schema's other columns."""
    values = [f'"{name}" = ' + (f'excluded."{name}"' if name in group.names else "NULL") for name in types[group.table]]
    return f" ON CONFLICT (row_id) DO UPDATE SET {', '.join(values)}"


def _known(verb: str, group: Group, generation: int) -> tuple[str, str]:
    head = f"{verb} INTO _lakesync_known (tbl, row_id, generation, stamps, whole)"
    return head, f"('{group.table}', ?, {generation}, ?, NULL)"


def write_rows(db: sqlite3.Connection, head: str, marks: str, columns: Sequence[Sequence[Any]], tail: str = "") -> None:
    """Write rows, many with a statement: to begin and end one takes as long as a row of it."""
    width = len(columns)
    size = min(_ROWS, _VARIABLES // width) * width or width
    cells = list(chain.from_iterable(zip(*columns, strict=True)))
    whole = len(cells) // size * size
    if whole:
        several = f"{head} VALUES {', '.join([marks] * (size // width))}{tail}"
        db.executemany(several, [cells[place : place + size] for place in range(0, whole, size)])
    single = f"{head} VALUES {marks}{tail}"
    db.executemany(single, [cells[place : place + width] for place in range(whole, len(cells), width)])


def _taken(values: list[T], count: int) -> list[T]:
    """The last values of a list, taken out of it."""
    start = len(values) - count
    taken = values[start:]
    del values[start:]
    return taken


def _column(kind: ColumnType, values: Sequence[Value]) -> Sequence[Any]:
    joined = b",".join(values)
    escaped = b"\\u" in joined
    try:
        found: list[Any] = _decode(b"[" + joined + b"]")
        if escaped and kind != "json":
            "".join([value for value in found if isinstance(value, str)]).encode()  # half a surrogate pair is no text
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        raise MisfitError from None
    if len(found) != len(values):
        raise MisfitError
    if kind == "json":
        if escaped:
            raise MisfitError
        return [None if value is None else bytes(text).decode() for value, text in zip(found, values, strict=True)]
    if not set(map(type, found)) <= _FITTING[kind]:
        raise MisfitError
    if kind == "number":
        numbers = [value for value in found if value is not None]
        if numbers and (min(numbers) < _LEAST or max(numbers) > _MOST):
            raise MisfitError
    if kind == "boolean":  # sqlite3 takes long over what is no int, float, str or bytearray
        return [None if value is None else int(value) for value in found]
    return found
