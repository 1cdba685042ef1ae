"""The rows of one landing, as tasks collect them for Spark to write."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import pyarrow as pa

from lakesync.connectors.seen_rows import SeenRows
from lakesync.model import hlc

if TYPE_CHECKING:
    from lakesync.connectors.source import Page

ROW, GONE, WHOLE, PLACE = "row", "gone", "whole", "place"
"""Kinds of landed rows: a version of a row; a row that is gone; a claim that the page has all rows with a value in a
column; and the place from which the connector goes on."""

REPORT = "report"
"""The kind of a row that a task hands to the poll and that does not land."""

LANDED_COLUMNS = (
    "gateway string, connector string, day date, landing bigint, table_name string, kind string, page bigint, "
    "hlc bigint, row_id string, columns string, name string, value string"
)
"""The columns of `landing`, as Spark has them."""

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

_encode_sorted = msgspec.json.Encoder(order="sorted").encode


class Place(msgspec.Struct, frozen=True):
    """How far a connector has read one table."""

    type: str
    """Of the connector: another one's cursors say nothing."""
    cursor: dict[str, Any] | None = None
    counted_ms: int | None = None
    """When its rows were last counted."""
    seen: SeenRows = msgspec.field(default_factory=SeenRows)
    """What landed last of its newest rows."""


class Constants(NamedTuple):
    """What all rows of a landing begin with."""

    gateway: str
    connector: str
    day: date
    landing: int

    @classmethod
    def of(cls, gateway: str, connector: str, landing: int, first: int) -> Constants:
        """Return the constants of a landing.

        Args:
            gateway: of the connector.
            connector: its name.
            landing: the landing's number.
            first: its first stamp.
        """
        return cls(gateway, connector, datetime.fromtimestamp(hlc.wall_of(first) / 1000, UTC).date(), landing)


class LandedRows:
    """The rows of one landing, as they are collected; each has a stamp of its own."""

    def __init__(self, constants: Constants, first: int) -> None:
        """Args: first: the first stamp to give out."""
        self.constants = constants
        self._stamp = first
        self.bytes = 0
        """Bytes of JSON added so far."""
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
            text = _encode_sorted(row.columns)
            self.bytes += len(text)
            self._put(page.table, ROW, first, row.row_id, text.decode())
        for row_id in page.deleted:
            self._put(page.table, GONE, first, row_id)
        for name, value in page.whole:
            self._put(page.table, WHOLE, first, None, None, name, value)

    def place(self, table: str, place: Place) -> None:
        """Add where a table's next poll begins.

        Args:
            table: the table's name.
            place: the cursor.
        """
        self._put(table, PLACE, self._stamp, None, msgspec.json.encode(place).decode())

    def report(self, table: str, text: str) -> None:
        """Add a task's report of a table; it has no stamp and does not land.

        Args:
            table: the table's name.
            text: as JSON.
        """
        self._put(table, REPORT, self._stamp, None, text)
        self._stamp -= 1

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

    def taken(self) -> pa.RecordBatch:
        """Return the collected rows, and forget them."""
        made = self.table().to_batches()
        for column in self._columns:
            column.clear()
        return pa.concat_batches(made) if made else pa.RecordBatch.from_pylist([], _ARROW)

    def _put(self, table: str, kind: str, page: int, row_id: str | None, *more: str | None) -> None:
        values = (table, kind, page, self._stamp, row_id, *more, *([None] * (3 - len(more))))
        for column, value in zip(self._columns, values, strict=True):
            column.append(value)
        self._stamp += 1
