"""What the polls of all connector types share: settings, reports, the census, and `SeenRows`.

A poll reads what has changed at a source, an external system, since a cursor, and writes it to the lake (it lands). A
census lists all ids that a source has. It finds rows that were added or deleted although the source reported no change.
`SeenRows` has digests of a table's newest rows, so that unchanged rows do not land again. Such rows are common: a poll
begins some time before its cursor, so that it misses nothing, and returns the same few rows each time. The pipeline's
poll tasks (`lakehouse.landing`) and `lakesync.testing.landing` call this module.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from lakesync.connectors.base import Census, Cursor, Page, Source, SourceRow, Usage
from lakesync.model.errors import CensusError, LakeSyncError

MEMORY_BUDGET_BYTES = 16 << 20
"""Default bytes of JSON that a poll keeps in memory before it lands them."""

MAX_DELETED_SHARE = 0.2
"""Default share of a table's known rows that a census may delete."""
_ALWAYS_DELETABLE_ROWS = 20
"""A census may delete this many rows of a table, even if they are more than the allowed share."""

MAX_REMEMBERED = 500
"""Number of rows, and of claims (see there), that `SeenRows` remembers. A larger page is written whole, uncompared."""

_DELETED = ""
"""The digest of a deleted row."""
_encode_sorted = msgspec.json.Encoder(order="sorted").encode


class CensusComparison(NamedTuple):
    """The known rows of a table compared with a census."""

    known: int
    """Number of known rows."""
    absent: Sequence[SourceRow]
    """Known rows that are not in the census."""
    unknown: Sequence[str]
    """Row ids that are only in the census; empty if the census lists another column."""


Compare = Callable[[str, Census], CensusComparison]
"""Compares a table's census with the known rows."""


@dataclass
class TableReport:
    """A poll's result for one table."""

    table: str
    pages: int = 0
    """Pages read."""
    rows: int = 0
    """Rows read."""
    deleted: int = 0
    """Rows reported as deleted."""
    landings: int = 0
    """How often rows were written to the lake."""
    cursor: Cursor | None = None
    """The cursor after the poll."""
    census_taken: bool = False
    """Whether a census was begun, because one was due."""
    error: LakeSyncError | None = None
    """Why the table was not read completely. What landed before stays; the next poll continues there."""


@dataclass
class PollReport:
    """A poll's result."""

    tables: list[TableReport] = field(default_factory=list)
    usage: Usage = field(default_factory=lambda: Usage(0))
    seconds: float = 0.0

    @property
    def error(self) -> LakeSyncError | None:
        """The error of the first table that has one."""
        return next((each.error for each in self.tables if each.error is not None), None)


def census_pages(source: Source, table: str, compare: Compare, deleted_share: float) -> Iterator[Page]:
    """Yield pages for the differences that a census finds: rows that are new at the source, then deleted ones.

    Args:
        source: the source to list.
        table: one of its tables.
        compare: compares the census with the known rows.
        deleted_share: the share of the known rows, 0 to 1, that may be deleted.

    Raises:
        CensusError: more rows would be deleted; no row is.
        LakeSyncError: as the source's methods.
    """
    census = source.census(table)
    if census is None:
        return
    comparison = compare(table, census)
    if comparison.unknown:
        yield from source.read(table, comparison.unknown)
    deleted = sorted(source.find_deleted(table, comparison.absent)) if comparison.absent else []
    if len(deleted) > max(_ALWAYS_DELETABLE_ROWS, comparison.known * deleted_share):
        raise CensusError(
            f"the census of {table} would delete {len(deleted)} of {comparison.known} rows, more than "
            f"{deleted_share:.0%}: if they are really deleted at the source, raise deletedShare of its ingest once; "
            "nothing was deleted"
        )
    if deleted:
        yield Page(table, [], deleted=deleted)


class IngestSettings(msgspec.Struct, frozen=True, rename="camel"):
    """The `ingest` settings that all connector types share."""

    interval_ms: int = 10_000
    """Milliseconds between the starts of two polls."""
    chunk_size: int = 500
    """Deltas per push."""
    memory_budget_bytes: int = MEMORY_BUDGET_BYTES
    """Bytes of rows that a poll keeps in memory. A task of a long read lands four times as much at once."""
    max_calls: int | None = None
    """API calls of all tasks of a poll, including retries; None for no limit."""
    census_interval_ms: int = 86_400_000
    """Milliseconds between two censuses."""
    deleted_share: float = MAX_DELETED_SHARE
    """Share of a table's rows, 0 to 1, that a census may delete."""

    @classmethod
    def of(cls, ingest: Mapping[str, Any]) -> IngestSettings:
        """Parse the shared settings. Settings of one type only, such as `tables`, are ignored.

        Args:
            ingest: the connector's `ingest`, which the registry of connector types has validated.
        """
        return msgspec.convert(ingest, cls)


class SeenRow(msgspec.Struct, frozen=True, array_like=True):
    """A row as it was written last."""

    digest: str
    """Empty if the row is deleted."""
    values: dict[str, Any] = {}
    """Column → value, for the columns of identities and claims: a row with an equal value may replace this one."""


_UNSEEN = SeenRow("unseen")
"""In place of a row that is not remembered; its digest equals none."""


class SeenRows(msgspec.Struct):
    """The remembered rows and claims of a table.

    A claim is a pair of `Page.complete`, `(column, value)`: the page has all rows with this value. A row's identity is
    its value in the column `Table.identity`: a row replaces another row with the same value.
    """

    rows: dict[str, SeenRow] = {}
    """By row id."""
    claims: dict[str, str] = {}
    """`COLUMN=VALUE` → digest of all rows with this value."""
    columns: set[str] = set()
    """The columns of identities and claims."""

    def drop_unchanged(self, page: Page, identity: str | None) -> Page:
        """Return a page without the rows and claims that change nothing, and remember it as written.

        The page is returned unchanged if it is larger than `MAX_REMEMBERED`, or if a row id occurs in it twice.

        Args:
            page: a page that was read.
            identity: the table's `Table.identity`.
        """
        watched = {column for column, _ in page.complete} | ({identity} if identity else set())
        digests = {row.row_id: _digest(row.columns) for row in page.rows} if len(page.rows) <= MAX_REMEMBERED else {}
        cannot_compare = len(digests) < len(page.rows) or len(page.deleted) + len(page.complete) > MAX_REMEMBERED
        if cannot_compare or not watched <= self.columns:  # remembered rows do not have the values of a new column
            self.rows, self.claims, self.columns = {}, {}, self.columns | watched
        if cannot_compare:
            return page
        # First: which rows and claims of the page differ from what is remembered?
        changed_ids = {each for each, digest in digests.items() if self.rows.get(each, _UNSEEN).digest != digest}
        claimed = {
            claim: sorted(row.row_id for row in page.rows if row.columns.get(claim[0]) == claim[1])
            for claim in page.complete
        }
        claims = {claim: _digest([(each, digests[each]) for each in ids]) for claim, ids in claimed.items()}
        changed_claims = [
            claim
            for claim, ids in claimed.items()
            if self.claims.get(_name(*claim)) != claims[claim] or not changed_ids.isdisjoint(ids)
        ]
        # A changed claim is returned with all of its rows, and a changed row with all rows of the same identity: each
        # means that known rows which the page does not have are deleted, so the page must have all others.
        changed_ids |= {each for claim in changed_claims for each in claimed[claim]}
        identities = (
            {row.columns.get(identity) for row in page.rows if row.row_id in changed_ids} if identity else set()
        )
        rows = [
            row
            for row in page.rows
            if row.row_id in changed_ids or (identity and row.columns.get(identity) in identities)
        ]
        deleted = [
            each for each in page.deleted if each not in digests and self.rows.get(each, _UNSEEN).digest != _DELETED
        ]

        # Then: remember the page as written, and forget rows that it deletes or replaces.
        replaced = [*changed_claims, *((identity, value) for value in identities if identity)]
        self.forget(each for each in self._rows_with(replaced) if each not in digests)
        for row in rows:
            values = {column: row.columns.get(column) for column in self.columns}
            for column, value in values.items():
                self.claims.pop(_name(column, value), None)  # the claim may not have included this row
            self.rows.pop(row.row_id, None)
            self.rows[row.row_id] = SeenRow(digests[row.row_id], values)
        if identity:  # several rows of a page share an identity: a later page with fewer of them deletes the others
            rows_per_identity = Counter(row.columns.get(identity) for row in page.rows)
            self.forget(row.row_id for row in page.rows if rows_per_identity[row.columns.get(identity)] > 1)
        self.rows |= dict.fromkeys(deleted, SeenRow(_DELETED))
        self.claims |= {_name(*claim): claims[claim] for claim in changed_claims}
        self.rows, self.claims = _newest(self.rows), _newest(self.claims)
        return Page(page.table, rows, page.cursor, deleted, changed_claims)

    def forget(self, row_ids: Iterable[str]) -> None:
        """Forget rows, so that they are returned when they are read next."""
        for row_id in list(row_ids):
            self.rows.pop(row_id, None)

    def _rows_with(self, pairs: Iterable[tuple[str, Any]]) -> Iterable[str]:
        """Return the ids of remembered rows that have the value of a `(column, value)` pair in its column."""
        names = {_name(*pair) for pair in pairs}
        return [
            row_id
            for row_id, row in self.rows.items()
            if any(_name(column, value) in names for column, value in row.values.items())
        ]


def _newest(remembered: Mapping[str, Any]) -> dict[str, Any]:
    """Return the rows or claims that were remembered last, at most `MAX_REMEMBERED`."""
    return dict(list(remembered.items())[-MAX_REMEMBERED:])


def _name(column: str, value: Any) -> str:
    """Return the key of a claim in `SeenRows.claims`."""
    return f"{column}={value}"


def _digest(value: Any) -> str:
    """Return a short digest of a JSON value, whatever the order of its keys."""
    return hashlib.blake2b(_encode_sorted(value), digest_size=8).hexdigest()
