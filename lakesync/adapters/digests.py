"""Digests (counts and checksums) by table and day, computed at a destination and in the lake to compare the two.

A *destination* is a database or object store that receives the lake's *deltas* (changes of rows). A database also has
*destination tables*, with the current rows. A *gateway* is one app's stream of deltas. An *arrival* is the gateway's
timestamp of a push. The day of a delta is the UTC day of its arrival; the day of a row is that of its newest delta.
Sums add 32-bit checksums, so that a database can add them without overflow.

Adapters implement `Digestible`: databases in SQL, object stores with `digest_deltas`. The pipeline compares each
destination with the lake (`lakehouse.backends.comparison`), and restores the days that differ. The restore
(`adapters.transfer.restore`) and SQL adapters select days by `arrival_ranges`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import msgspec

from lakesync.adapters.arrow import columns_as_text
from lakesync.adapters.deltas import TableSelection
from lakesync.model import hlc
from lakesync.model.schema import TableSchema

if TYPE_CHECKING:
    import pyarrow as pa

ARRIVALS_PER_DAY = 86_400_000 << hlc.COUNTER_BITS
"""The length of a day in arrivals, which are hybrid logical clocks: milliseconds, then the bits of a counter."""
ARRIVAL_MODULUS = (1 << 31) - 1
"""Arrivals are reduced modulo this number before they are summed, so that the sum does not overflow."""


class Digest(msgspec.Struct, frozen=True):
    """Counts and checksums of one table on one day."""

    table: str
    day: int
    """Days since 1970."""
    deltas: int = 0
    """Number of stored deltas."""
    delta_sum: int = 0
    """Sum of `text_checksum("ID|OP|COLUMNS")` over the deltas."""
    rows: int = 0
    """Rows of the destination table."""
    deleted: int = 0
    """Number of these rows that are marked as deleted."""
    row_sum: int = 0
    """Sum of `text_checksum("GATEWAY/ROW ID")` over the rows."""
    arrival_sum: int = 0
    """Sum of the rows' newest arrivals, each modulo `ARRIVAL_MODULUS`."""
    altered: int = 0
    """Rows whose cells do not match the checksum that was written with them."""

    def plus(self, other: Digest) -> Digest:
        """Add the figures of another part of the same table and day."""
        sums = {name: getattr(self, name) + getattr(other, name) for name in _FIGURES}
        return Digest(self.table, self.day, **sums)


_FIGURES = ("deltas", "delta_sum", "rows", "deleted", "row_sum", "arrival_sum", "altered")
"""The fields of a `Digest` that can be added up."""


class DigestScope(TableSelection, frozen=True):
    """The tables, gateways and days that are compared."""

    schemas: tuple[TableSchema, ...] = ()
    """Schemas of the destination tables."""
    days: tuple[int, ...] = ()
    """Days since 1970; empty selects every day."""


@runtime_checkable
class Digestible(Protocol):
    """A `DatabaseAdapter` that computes digests of what it stores."""

    def digests(self, scope: DigestScope) -> list[Digest]:
        """Return the digest of each table and day that has deltas or rows.

        Raises:
            AdapterError: the backend cannot be read.
        """


def merge_digests(digests: Iterable[Digest]) -> dict[tuple[str, int], Digest]:
    """Add up digests by `(table, day)`."""
    found: dict[tuple[str, int], Digest] = {}
    for each in digests:
        key = (each.table, each.day)
        found[key] = found[key].plus(each) if key in found else each
    return found


def digest_deltas(deltas: pa.Table, scope: DigestScope) -> list[Digest]:
    """Compute the digests of deltas, for an object store.

    Args:
        deltas: deltas of gateways in the scope, with `columns` as a map or as JSON text (`lakesync.adapters.arrow`).
        scope: selects the tables and days.
    """
    names = ("table_name", "arrival", "delta_id", "op", "columns")
    days = frozenset(scope.days)
    found: dict[tuple[str, int], tuple[int, int]] = {}  # table and day → number of deltas and sum of checksums
    for table, arrival, *parts in zip(
        *(columns_as_text(deltas).column(name).to_pylist() for name in names), strict=True
    ):
        day = day_of(arrival)
        if scope.has_table(table) and (not days or day in days):
            count, total = found.get((table, day), (0, 0))
            found[table, day] = (count + 1, total + text_checksum("|".join(parts)))
    return [Digest(table, day, count, total) for (table, day), (count, total) in found.items()]


class Difference(msgspec.Struct, frozen=True):
    """A table and day on which destination and lake differ."""

    table: str
    day: str
    """`YYYY-MM-DD`, UTC."""
    lake: Digest
    destination: Digest

    def __str__(self) -> str:
        """Describe the figures that differ."""
        names = {"deltas": "deltas", "rows": "rows", "deleted": "deleted rows", "altered": "altered rows"}
        parts = [
            f"{getattr(self.destination, name)} {words} of {getattr(self.lake, name)}"
            for name, words in names.items()
            if getattr(self.destination, name) != getattr(self.lake, name)
        ]
        return f"{self.table} on {self.day}: {', '.join(parts) or 'other contents'}"


def diff_digests(lake: Iterable[Digest], destination: Iterable[Digest]) -> list[Difference]:
    """Return the tables and days that differ, ordered by day and table.

    Args:
        lake: digests of the lake.
        destination: digests of the destination.
    """
    in_lake, at_destination = merge_digests(lake), merge_digests(destination)
    differences = []
    for table, day in sorted({*in_lake, *at_destination}, key=lambda key: (key[1], key[0])):
        nothing = Digest(table, day)
        lake_digest, destination_digest = in_lake.get((table, day), nothing), at_destination.get((table, day), nothing)
        if lake_digest != destination_digest:
            differences.append(Difference(table, day_text(day), lake_digest, destination_digest))
    return differences


def day_of(arrival: int) -> int:
    """Return the day of an arrival, in days since 1970."""
    return arrival // ARRIVALS_PER_DAY


def day_text(day: int) -> str:
    """Format days since 1970 as `YYYY-MM-DD`."""
    return datetime.fromtimestamp(day * 86_400, UTC).strftime("%Y-%m-%d")


def day_number(day: date) -> int:
    """Return a date as days since 1970."""
    return (day - date(1970, 1, 1)).days


def arrival_ranges(days: Sequence[int]) -> list[tuple[int, int]]:
    """Return a range of arrivals for each run of consecutive days: the first arrival, and the first one after it."""
    found: list[tuple[int, int]] = []
    for day in sorted(set(days)):
        if found and found[-1][1] == day * ARRIVALS_PER_DAY:
            found[-1] = (found[-1][0], (day + 1) * ARRIVALS_PER_DAY)
        else:
            found.append((day * ARRIVALS_PER_DAY, (day + 1) * ARRIVALS_PER_DAY))
    return found


def text_checksum(text: str) -> int:
    """Return the first eight hexadecimal digits of the MD5 of a text's UTF-8 bytes, as an integer.

    Every supported database can compute it.
    """
    return int(hashlib.md5(text.encode("utf-8", "surrogatepass"), usedforsecurity=False).hexdigest()[:8], 16)
