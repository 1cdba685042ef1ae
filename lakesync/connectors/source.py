"""The source protocol: what a connector implements to be polled. The pipeline's poll tasks call it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from lakesync.model.delta import jcs

if TYPE_CHECKING:
    from lakesync.model.schema import TableSchema

Cursor = Mapping[str, Any]
"""A position in a source: a JSON object that only the connector interprets."""


class SourceRow(NamedTuple):
    """A complete row as the source has it now."""

    row_id: str
    columns: Mapping[str, Any]
    """Column → JSON value."""


def changed_columns(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns that differ between two versions of a row, with the later values; null for missing ones.

    This comparison is the core of the poll's diff, which `lakehouse.landing` computes.

    Args:
        before: columns of the earlier version.
        after: columns of the later version.
    """
    return {name: after.get(name) for name in {**before, **after} if _differ(before.get(name), after.get(name))}


def _differ(before: Any, after: Any) -> bool:
    if isinstance(before, str) and isinstance(after, str):
        return before != after
    return jcs(before) != jcs(after)


@dataclass(frozen=True)
class Page:
    """Some changes of one table. The poll writes a page with its cursor to the lake completely, or not at all."""

    table: str
    rows: Sequence[SourceRow]
    cursor: Cursor | None = None
    """Where to continue after this page was written; None keeps the previous cursor."""
    deleted: Sequence[str] = ()
    """Row ids that the source reports as deleted."""
    whole: Sequence[tuple[str, str]] = ()
    """`(column, value)` pairs for which the page is complete: other known rows with this value are deleted."""


class Census(NamedTuple):
    """A list of all rows that a table has now."""

    column: str | None
    """The column whose values are listed; None for the row id."""
    values: Iterator[Sequence[str]]
    """All values, in pages."""


class Usage(NamedTuple):
    """API calls made, and the remaining budget."""

    calls: int
    left: int | None = None
    """Remaining calls; None if the source reports no budget."""
    limit: int | None = None
    """The whole budget; None if the source reports none."""


def _no_schema() -> TableSchema | None:
    return None


class Table(NamedTuple):
    """A table that a source fills."""

    name: str
    identity: str | None = None
    """A column that identifies a row even when its row id changes: a row with the same value replaces the other row."""
    schema: Callable[[], TableSchema | None] = _no_schema
    """Returns the schema to register if the gateway has none yet; called after the first rows were written."""
    counted: bool = False
    """Whether every poll takes a census, because `changes` does not report deletes."""


class Source(Protocol):
    """A connector's source during one poll. It is used by one caller at a time and closed at the end.

    Methods raise errors of `lakesync.model.errors`: terminal ones that a person must fix (`AuthError`,
    `ForbiddenError`, `ConfigurationError`), and transient ones (`RateLimitedError`, `AdapterError`).

    Three members are optional: `probes()`, see `lakesync.connectors.probes`; `split`, see `ParallelSource`; and
    `resumable = True` for a source that can continue after any page from that page's cursor, so that a long read is
    written in parts.
    """

    @property
    def tables(self) -> Sequence[Table]:
        """The tables, in the order in which they are polled."""

    @property
    def usage(self) -> Usage:
        """The calls made so far."""

    def changes(self, table: str, cursor: Cursor | None) -> Iterator[Page]:
        """Yield changes after a cursor; without a cursor, all rows.

        Unchanged rows may be returned again; no change may be missed. All pages belong to `table`.
        """

    def census(self, table: str) -> Census | None:
        """Return all rows that are there now; None if `changes` reports deletes."""

    def read(self, table: str, row_ids: Sequence[str]) -> Iterator[Page]:
        """Yield rows by id, which a census found, with their dependent rows in other tables."""

    def gone(self, table: str, rows: Sequence[SourceRow]) -> set[str]:
        """Return the ids of those rows that are certainly deleted or outside the filter.

        Rows that may exist but are hidden from this account must not be returned.

        Args:
            table: one of `tables`.
            rows: known rows that a census does not list.
        """

    def close(self) -> None:
        """Close the connections."""


class TablePart(Protocol):
    """A part of a large table that any process can read independently. It can be pickled."""

    def pages(self) -> Iterator[Sequence[SourceRow]]:
        """Yield its rows in pages."""


class ParallelRead(NamedTuple):
    """A whole table divided into parts that are read in parallel."""

    parts: Sequence[TablePart]
    cursor: Cursor
    """Where to continue after all parts were written."""


@runtime_checkable
class ParallelSource(Protocol):
    """A source that can divide a read."""

    def split(self, table: str, cursor: Cursor | None) -> ParallelRead | None:
        """Return a whole table in parts; None if it must be read with `changes`."""
