"""What a connector is to a poll: tables, what changed in them since a place, and which rows are still there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    from lakesync.model.schema import TableSchema

Cursor = Mapping[str, Any]
"""Where a source's reading goes on: a JSON object that only its connector reads."""


class SourceRow(NamedTuple):
    """A row as the source has it now, whole."""

    row_id: str
    columns: Mapping[str, Any]
    """JSON values by column."""


@dataclass(frozen=True)
class Page:
    """A piece of what changed. It lands whole, with its cursor, or not at all."""

    table: str
    rows: Sequence[SourceRow]
    cursor: Cursor | None = None
    """Where to go on once this page has landed; None leaves the place as it is."""
    deleted: Sequence[str] = ()
    """Row ids that the source says are gone."""
    whole: Sequence[tuple[str, str]] = ()
    """(column, value): of the rows that have this value in this column, those of this page are all that there are."""


class Census(NamedTuple):
    """What is still there of a table."""

    column: str | None
    """The column whose values are counted; None is the row id."""
    values: Iterator[Sequence[str]]
    """Every value, in pieces."""


class Usage(NamedTuple):
    """What a source was asked for, and what it still allows."""

    calls: int
    left: int | None = None
    """Calls left of the budget that the source tells of; None where it tells of none."""
    limit: int | None = None


def _no_schema() -> TableSchema | None:
    return None


class Table(NamedTuple):
    """A table that a source fills."""

    name: str
    identity: str | None = None
    """A column that identifies what a row is about even where its row id changes: a row with the value of another takes
    that one's place."""
    schema: Callable[[], TableSchema | None] = _no_schema
    """What a gateway is to register for it, where it has no schema yet; asked when something has landed."""
    counted: bool = False
    """Its rows are counted at each poll, as nothing else tells of deletes."""


class Source(Protocol):
    """A source while it is polled, for one connector. Nobody else uses it meanwhile, and it is closed at the end.

    Its methods raise what `lakesync.model.errors` has: terminal errors for what a person must mend (`AuthError`,
    `ForbiddenError`, `ConfigurationError`), transient ones for what passes (`RateLimitedError`, `AdapterError`).
    """

    @property
    def tables(self) -> Sequence[Table]:
        """What it fills, in the order in which it is polled."""

    @property
    def usage(self) -> Usage:
        """What was asked so far."""

    def changes(self, table: str, cursor: Cursor | None) -> Iterator[Page]:
        """What changed since a place; everything where there is none.

        A row may come again that did not change, and must come again rather than be missed. Each page is of `table`.
        """

    def census(self, table: str) -> Census | None:
        """What is there now; None where its deletes come by `changes`."""

    def read(self, table: str, row_ids: Sequence[str]) -> Iterator[Page]:
        """Rows that a census has and nobody knew of, with what belongs to them in other tables."""

    def gone(self, table: str, rows: Sequence[SourceRow]) -> set[str]:
        """Which of these rows, which a census lacks, are certainly deleted or outside of what is polled.

        What may be there and only hidden from us is not among them.
        """

    def close(self) -> None:
        """Give back what it holds."""


# A source may have `probes() -> Iterable[Probe]` as well, see `lakesync.connectors.probing`, `spread`, see below, and
# `resumable = True`, if reading goes on behind any page from that page's cursor: a long reading lands in pieces then.


class Piece(Protocol):
    """A part of a large table that any process can read by itself; it can be pickled."""

    def pages(self) -> Iterator[Sequence[SourceRow]]:
        """Its rows, in pieces that can be held."""


class Spread(NamedTuple):
    """A whole table in parts that are read at once."""

    pieces: Sequence[Piece]
    cursor: Cursor
    """Where to go on once all of them have landed."""


@runtime_checkable
class Spreading(Protocol):
    """A source that may divide its reading."""

    def spread(self, table: str, cursor: Cursor | None) -> Spread | None:
        """All of a table in parts; None where it is to be read by `changes`."""
