"""The rows of one landing, as they are collected and written."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import pyarrow as pa

from lakehouse.landing.events import GONE, PLACE, ROW, WHOLE
from lakesync import hlc
from lakesync.connectors.seen import Seen
from lakesync.connectors.source import Page

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from lakesync.connectors.source import SourceRow

_ARROW = pa.schema(
    [
        ("gateway", pa.string()),
        ("connector", pa.string()),
        ("day", pa.date32()),
        ("landing", pa.int64()),
        ("table_name", pa.string()),
        ("kind", pa.string()),
        ("page", pa.int64()),
        ("hlc", pa.int64()),
        ("row_id", pa.string()),
        ("columns", pa.string()),
        ("name", pa.string()),
        ("value", pa.string()),
    ]
)

STAMPS_A_PART = 1 << 22
"""Stamps that a part of a divided reading may use: 64 ms of the clock, so that 32 parts are 2 s ahead of it."""

_spelled = msgspec.json.Encoder(order="sorted").encode


class Place(msgspec.Struct, frozen=True):
    """How far a connector has read one table."""

    type: str
    """Of the connector: another one's cursors say nothing."""
    cursor: dict[str, Any] | None = None
    counted_ms: int | None = None
    """When its rows were last counted."""
    seen: Seen = msgspec.field(default_factory=Seen)
    """What landed last of its newest rows."""


class Constants(NamedTuple):
    """What all rows of a landing begin with."""

    gateway: str
    connector: str
    day: date
    landing: int

    @classmethod
    def of(cls, gateway: str, connector: str, landing: int, first: int) -> Constants:
        """Those of the landing whose first stamp is `first`."""
        return cls(gateway, connector, datetime.fromtimestamp(hlc.wall_of(first) / 1000, UTC).date(), landing)


class LandedRows:
    """The rows of one landing, as they are collected; each has a stamp of its own."""

    def __init__(self, constants: Constants, first: int) -> None:
        """Args: first: the first stamp to give out."""
        self.constants = constants
        self._stamp = first
        self._columns: list[list[Any]] = [[] for _ in range(len(_ARROW) - len(self.constants))]

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._columns[0])

    @property
    def newest(self) -> int:
        """The highest stamp given out."""
        return self._stamp - 1

    def add(self, page: Page) -> None:
        """A page's rows, deletes and claims."""
        first = self._stamp
        for row in page.rows:
            self._put(page.table, ROW, first, row.row_id, _spelled(row.columns).decode())
        for row_id in page.deleted:
            self._put(page.table, GONE, first, row_id)
        for name, value in page.whole:
            self._put(page.table, WHOLE, first, None, None, name, value)

    def skip(self, stamps: int) -> None:
        """Leave stamps to rows that are made elsewhere."""
        self._stamp += stamps

    def place(self, table: str, place: Place) -> None:
        """Where a table goes on."""
        self._put(table, PLACE, self._stamp, None, msgspec.json.encode(place).decode())

    def table(self) -> pa.Table:
        """All of them."""
        same = [
            pa.array([value] * self.count, field.type) for value, field in zip(self.constants, _ARROW, strict=False)
        ]
        own = [
            pa.array(values, field.type)
            for values, field in zip(self._columns, list(_ARROW)[len(self.constants) :], strict=True)
        ]
        return pa.Table.from_arrays([*same, *own], schema=_ARROW)

    def groups(self, table: str, pages: Iterable[Sequence[SourceRow]], size: int, *, most: int) -> Iterator[pa.Table]:
        """The rows of pages, some `size` at a time, which are forgotten.

        Raises:
            ValueError: they need more than `most` stamps.
        """
        end = self._stamp + most
        for page in pages:
            self.add(Page(table, page))
            if self._stamp > end:
                raise ValueError(f"a part of {table} has more than {most} rows")
            if self.count >= size:
                yield self._taken()
        if self.count:
            yield self._taken()

    def _taken(self) -> pa.Table:
        made = self.table()
        for column in self._columns:
            column.clear()
        return made

    def _put(self, table: str, kind: str, page: int, row_id: str | None, *more: str | None) -> None:
        values = (table, kind, page, self._stamp, row_id, *more, *([None] * (3 - len(more))))
        for column, value in zip(self._columns, values, strict=True):
            column.append(value)
        self._stamp += 1
