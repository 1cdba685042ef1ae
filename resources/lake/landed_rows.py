"""The rows of one landing, as they are collected and written."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from lakesync import hlc
from transforms.landed import GONE, PLACE, ROW, WHOLE

if TYPE_CHECKING:
    from lakesync.connectors.source import Page

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

_spelled = msgspec.json.Encoder(order="sorted").encode


class Place(msgspec.Struct, frozen=True):
    """How far a connector has read one table."""

    type: str
    """Of the connector: another one's cursors say nothing."""
    cursor: dict[str, Any] | None = None
    counted_ms: int | None = None
    """When its rows were last counted."""


class LandedRows:
    """The rows of one landing, as they are collected; each has a stamp of its own."""

    def __init__(self, gateway: str, connector: str, landing: int, first: int) -> None:
        self.day = datetime.fromtimestamp(hlc.wall_of(first) / 1000, UTC).date()
        self._same = (gateway, connector, self.day, landing)
        self._stamp = first
        self._columns: list[list[Any]] = [[] for _ in range(len(_ARROW) - len(self._same))]

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

    def place(self, table: str, place: Place) -> None:
        """Where a table goes on."""
        self._put(table, PLACE, self._stamp, None, msgspec.json.encode(place).decode())

    def table(self) -> pa.Table:
        """All of them."""
        same = [pa.array([value] * self.count, field.type) for value, field in zip(self._same, _ARROW, strict=False)]
        own = [
            pa.array(values, field.type)
            for values, field in zip(self._columns, list(_ARROW)[len(self._same) :], strict=True)
        ]
        return pa.Table.from_arrays([*same, *own], schema=_ARROW)

    def _put(self, table: str, kind: str, page: int, row_id: str | None, *more: str | None) -> None:
        values = (table, kind, page, self._stamp, row_id, *more, *([None] * (3 - len(more))))
        for column, value in zip(self._columns, values, strict=True):
            column.append(value)
        self._stamp += 1
