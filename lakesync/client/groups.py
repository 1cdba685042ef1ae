"""New rows and changes of rows, grouped by table and by how their columns are shared out among deltas."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any, NamedTuple, Self, TypeVar

from lakesync.client.cells import MisfitError, Read, Types, by_columns, read_alike, read_column
from lakesync.client.stamps import Layout
from lakesync.model.types import RowDelta

T = TypeVar("T")
Part = tuple[str, str, int, str, tuple[str, ...], Sequence[Any]]
"""A delta that makes a row or adds to it: table, row id, hlc, client id, its columns, and their values as JSON text."""

_row_id_of, _hlc_of, _client_of = attrgetter("row_id"), attrgetter("hlc"), attrgetter("client_id")


class Fields(NamedTuple):
    """Whose rows deltas are, and their stamps, by field."""

    row_ids: Sequence[str]
    hlcs: Sequence[int]
    clients: Sequence[str]

    @classmethod
    def of(cls, deltas: Sequence[RowDelta]) -> Self:
        """Of these, in their order; no object is made of a delta."""
        return cls(list(map(_row_id_of, deltas)), list(map(_hlc_of, deltas)), list(map(_client_of, deltas)))


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
        self._read: list[Sequence[Any]] | None = None

    @classmethod
    def read(cls, table: str, fields: Fields, read: Read) -> Group:
        """Rows that consist of one delta each, whose values were read already."""
        made = cls(table, (read.names,))
        made.extend(fields, ())
        made._read = read.columns
        return made

    def extend(self, fields: Fields, values: Iterable[Any]) -> None:
        """Take in rows that consist of one delta each, of these columns."""
        self.row_ids += fields.row_ids
        self.hlcs += fields.hlcs
        self.clients += fields.clients
        self.values += values

    def only(self, places: Sequence[int]) -> Group:
        """Some of the rows, of a group whose rows consist of one delta each."""
        found, width = Group(self.table, self.layout.parts), len(self.names)
        if self._read is not None:
            found._read = [[column[place] for place in places] for column in self._read]
            width = 0
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
        if self._read is not None:
            return self._read
        kinds, names = types.get(self.table), self.names
        if kinds is None or not all(name in kinds for name in names) or len(set(names)) < len(names):
            raise MisfitError
        return [read_column(kinds[name], self.values[place :: len(names)]) for place, name in enumerate(names)]


class Groups:
    """New rows, grouped as they come; the parts of a row come one after another, its INSERT first."""

    def __init__(self) -> None:
        self._groups: dict[tuple[str, tuple[tuple[str, ...], ...]], Group] = {}
        self._read: list[Group] = []

    def __iter__(self) -> Iterator[Group]:
        return (group for group in (*self._read, *self._groups.values()) if group.row_ids)

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
                    group = self.group(table, (names,))
                group.row_ids.append(row_id)
            newest = stamp
            group.hlcs.append(hlc)
            group.clients.append(client_id)
            group.values += values

    def extend(self, table: str, deltas: Sequence[RowDelta], types: Types, fields: Fields | None = None) -> None:
        """Take in rows that consist of one INSERT each; `fields` are theirs, where these are at hand.

        Raises:
            MisfitError: their columns cannot be read.
        """
        read = read_alike(deltas, types.get(table, {}))
        if read is not None:
            self._read.append(Group.read(table, fields or Fields.of(deltas), read))
            return
        for names, places, values in by_columns(deltas):
            self.group(table, (names,)).extend(Fields.of([deltas[place] for place in places]), values)

    def group(self, table: str, parts: tuple[tuple[str, ...], ...]) -> Group:
        """The rows of a table that have these columns by delta, to be added to."""
        found = self._groups.get((table, parts))
        if found is None:
            found = self._groups[table, parts] = Group(table, parts)
        return found

    def _moved(self, group: Group, names: tuple[str, ...]) -> Group:
        """Take the last row of a group to one of rows that have a further part; what it had is there already."""
        further = self.group(group.table, (*group.layout.parts, names))
        count = len(group.layout.parts)
        further.row_ids.append(group.row_ids.pop())
        further.hlcs += _taken(group.hlcs, count)
        further.clients += _taken(group.clients, count)
        further.values += _taken(group.values, len(group.names))
        return further


def _taken(values: list[T], count: int) -> list[T]:
    """The last values of a list, taken out of it."""
    start = len(values) - count
    taken = values[start:]
    del values[start:]
    return taken
