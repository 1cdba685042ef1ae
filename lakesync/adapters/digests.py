"""What a destination holds, day by day, in figures that are computed where it lies and compared with the lake's.

A day is a UTC day of arrival: a delta's, and of a row that of its newest delta. Sums are of 32-bit checksums, so that
a database adds them up without overflow.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import msgspec

from lakesync.adapters.arrow import spelled
from lakesync.adapters.checksums import checksum
from lakesync.model import hlc
from lakesync.model.schema import TableSchema

if TYPE_CHECKING:
    import pyarrow as pa

DAY = 86_400_000 << hlc.COUNTER_BITS
"""Arrivals of one day."""
MODULUS = (1 << 31) - 1
"""By which arrivals are divided before what is left over is added up."""


class Digest(msgspec.Struct, frozen=True):
    """What a place has of one table on one day."""

    table: str
    day: int
    """Days since 1970."""
    deltas: int = 0
    delta_sum: int = 0
    """Of the checksums of `ID|OP|COLUMNS`."""
    rows: int = 0
    """Of the table of rows."""
    deleted: int = 0
    """Rows of these that are marked as deleted."""
    row_sum: int = 0
    """Of the checksums of `GATEWAY/ROW ID`."""
    arrival_sum: int = 0
    """Of what is left of the rows' newest arrivals, modulo `MODULUS`."""
    altered: int = 0
    """Rows whose cells are not as they were written."""

    def plus(self, other: Digest) -> Digest:
        """The figures of two parts of a table's day together."""
        sums = {name: getattr(self, name) + getattr(other, name) for name in _FIGURES}
        return Digest(self.table, self.day, **sums)


_FIGURES = ("deltas", "delta_sum", "rows", "deleted", "row_sum", "arrival_sum", "altered")


class Scope(msgspec.Struct, frozen=True):
    """What is compared."""

    tables: tuple[str, ...] = ()
    """Empty: every table."""
    without: tuple[str, ...] = ()
    gateways: tuple[str, ...] = ()
    """Empty: every gateway."""
    schemas: tuple[TableSchema, ...] = ()
    """Of the tables of rows."""
    days: tuple[int, ...] = ()
    """Days since 1970; empty: every day."""

    def has_table(self, table: str) -> bool:
        """Whether a table is compared."""
        return table not in self.without and (not self.tables or table in self.tables)


@runtime_checkable
class Digestible(Protocol):
    """A `DatabaseAdapter` that adds up what it holds where it lies."""

    def digests(self, scope: Scope) -> list[Digest]:
        """Return the figures of each table and day of which there is something.

        Raises:
            AdapterError: the backend cannot be read.
        """


def together(digests: Iterable[Digest]) -> dict[tuple[str, int], Digest]:
    """Figures by table and day, those of several places added."""
    found: dict[tuple[str, int], Digest] = {}
    for each in digests:
        key = (each.table, each.day)
        found[key] = found[key].plus(each) if key in found else each
    return found


def digests_of(deltas: pa.Table, scope: Scope) -> list[Digest]:
    """The figures of deltas that are at hand, in either form."""
    names = ("table_name", "arrival", "delta_id", "op", "columns")
    days = frozenset(scope.days)
    found: dict[tuple[str, int], list[int]] = {}
    for table, arrival, *parts in zip(*(spelled(deltas).column(name).to_pylist() for name in names), strict=True):
        day = day_of(arrival)
        if scope.has_table(table) and (not days or day in days):
            figures = found.setdefault((table, day), [0, 0])
            figures[0] += 1
            figures[1] += checksum("|".join(parts))
    return [Digest(table, day, count, total) for (table, day), (count, total) in found.items()]


class Difference(msgspec.Struct, frozen=True):
    """A day of a table on which a destination does not have what the lake has."""

    table: str
    day: str
    """`YYYY-MM-DD`, UTC."""
    lake: Digest
    there: Digest

    def __str__(self) -> str:
        """In words, with the figures that differ."""
        names = {"deltas": "deltas", "rows": "rows", "deleted": "deleted rows", "altered": "altered rows"}
        told = [
            f"{getattr(self.there, name)} {words} of {getattr(self.lake, name)}"
            for name, words in names.items()
            if getattr(self.there, name) != getattr(self.lake, name)
        ]
        return f"{self.table} on {self.day}: {', '.join(told) or 'other contents'}"


def differences(lake: Iterable[Digest], there: Iterable[Digest]) -> list[Difference]:
    """The days on which two places do not have the same, by day and table."""
    wanted, found = together(lake), together(there)
    keys = sorted({*wanted, *found}, key=lambda key: (key[1], key[0]))
    pairs = [(wanted.get(key, Digest(*key)), found.get(key, Digest(*key))) for key in keys]
    return [Difference(one.table, day_text(one.day), one, other) for one, other in pairs if one != other]


def day_of(arrival: int) -> int:
    """The day of an arrival, in days since 1970."""
    return arrival // DAY


def day_text(day: int) -> str:
    """`YYYY-MM-DD` of days since 1970."""
    return datetime.fromtimestamp(day * 86_400, UTC).strftime("%Y-%m-%d")


def day_number(day: date) -> int:
    """Days since 1970."""
    return (day - date(1970, 1, 1)).days


def ranges(days: Sequence[int]) -> list[tuple[int, int]]:
    """The first arrival of each run of days, and the first one after it."""
    found: list[tuple[int, int]] = []
    for day in sorted(set(days)):
        if found and found[-1][1] == day * DAY:
            found[-1] = (found[-1][0], (day + 1) * DAY)
        else:
            found.append((day * DAY, (day + 1) * DAY))
    return found
