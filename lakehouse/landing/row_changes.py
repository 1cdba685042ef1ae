"""Computes the deltas that follow from a polled table's landed rows, to be pushed to the gateway.

A gateway is one app's stream of deltas (changes of one row each). A poll reads an external system (the source) and
appends the rows to the lake's table `landing`, page by page. The number of a page is the hlc (timestamp) of its first
row. A page has new versions of rows, ids of deleted rows, and *claims*, which have nothing to do with access tokens. A
claim says that the page has all rows with a certain value in a column, so that other rows with this value are deleted.
A row's changes follow from its versions, deletes and claims in order of pages (`replay_versions`); each change with an
effect becomes a delta. `lakesync.testing.landing` has the same rules in their simplest form, and a property test
compares the two.

The table `known` has the rows as of some page, `LandedTable.since`; as versions they have the page `NO_PAGE`, below all
others. The Spark tasks that `lakehouse.landing.reading` starts call `PendingPages.deltas`;
`lakehouse.landing.known_rows` uses the rules for claims.
"""

from __future__ import annotations

import zlib
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

from lakehouse.landing.rows import (
    CLAIM,
    DELETED_ROW,
    KNOWN_ROWS,
    NO_PAGE,
    ROW,
    ROWS_AT_ONCE,
    LandedRow,
    LandedTable,
    landed_rows,
    value_tuples,
)
from lakesync.connectors.base import changed_columns
from lakesync.model.delta import delta_id
from lakesync.model.types import ColumnValue, Op, RowDelta
from lakesync.wire.json import encode_delta

DELTAS = pa.schema([("page", pa.int64()), ("hlc", pa.int64()), ("op", pa.string()), ("delta", pa.string())])
"""Columns of computed deltas; `delta` is the delta as JSON."""

_decode = msgspec.json.Decoder(dict[str, Any]).decode


class Version(NamedTuple):
    """One version of a row, as a page contained it."""

    page: int
    hlc: int
    columns: str
    """The row as JSON."""


class Change(NamedTuple):
    """A change of a row."""

    page: int
    hlc: int
    columns: str | None
    """The row as JSON after it; None: it was deleted."""
    before: str | None
    """The row as JSON before it; None: it did not exist."""


class ClaimKeys:
    """Reads from a row's JSON its values in the claimed columns.

    A column is claimed if a page claims to have all rows with some value in it.
    """

    def __init__(self, columns: Sequence[str]) -> None:
        """Prepare the decoder.

        Args:
            columns: names of the claimed columns.
        """
        self.columns = tuple(columns)
        row_type = msgspec.defstruct("Keys", [(column, Any, None) for column in columns])
        self._decode = msgspec.json.Decoder(row_type).decode

    def of(self, columns: str) -> list[tuple[str, str]]:
        """Return `(column, value)` for each claimed column that is not null in a row's JSON, with the value as text."""
        row = self._decode(columns)
        values = ((column, getattr(row, column)) for column in self.columns)
        return [(column, as_text(value)) for column, value in values if value is not None]


def as_text(value: Any) -> str:
    """Return a JSON value as text, in which claims store and compare values."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


class Claims:
    """The claims of pages: a page states that it has all rows with a certain value in a column."""

    def __init__(self) -> None:
        """Create it without claims."""
        self._pages: dict[tuple[str, str], dict[int, int]] = {}

    def add(self, column: str, value: str, page: int, hlc: int) -> None:
        """Add a claim. If a page makes the same claim twice, the smaller hlc counts.

        Args:
            column: the claimed column.
            value: its value.
            page: the page that claims it.
            hlc: the claim's hlc.
        """
        pages = self._pages.setdefault((column, value), {})
        pages[page] = min(hlc, pages.get(page, hlc))

    def __contains__(self, key: tuple[str, str]) -> bool:
        return key in self._pages

    def after(self, key: tuple[str, str], page: int) -> tuple[int, int] | None:
        """Return the first page after another that makes a claim, and the claim's hlc; None if no later page does.

        Args:
            key: column and value of the claim.
            page: the other page.
        """
        pages = self._pages.get(key)
        if not pages:
            return None
        if len(pages) == 1:  # by far the most frequent case
            ((only_page, hlc),) = pages.items()
            return (only_page, hlc) if only_page > page else None
        pages_in_order = sorted(pages)
        index = bisect_right(pages_in_order, page)
        return (pages_in_order[index], pages[pages_in_order[index]]) if index < len(pages_in_order) else None


def replay_versions(
    versions: Sequence[Version],
    deletes: Iterable[tuple[int, int]],
    keys: Callable[[str], Iterable[tuple[str, str]]],
    claims: Claims,
) -> Iterator[Change]:
    """Yield the changes of one row in order of page and hlc, also those without an effect.

    A change is a version, a delete, or a claim after a version that has the claimed value, before the next version.

    Args:
        versions: the row's versions, in order of page and hlc.
        deletes: `(page, hlc)` at which the source reports the row as deleted; ignored if the page also has the row.
        keys: returns the claim keys of a version's JSON.
        claims: the claims of all pages. A claim deletes the row if it fits the row's version and its page lacks the
            row.
    """
    pages_with_row = {version.page for version in versions}
    changes: list[tuple[int, int, str | None]] = list(versions)
    changes += [(page, hlc, None) for page, hlc in deletes if page not in pages_with_row]
    for number, version in enumerate(versions):
        next_page = versions[number + 1].page if number + 1 < len(versions) else None
        for key in keys(version.columns):
            claim = claims.after(key, version.page)  # (page, hlc)
            # if the row's next version is in that page, or an earlier one, the claim does not delete this version
            if claim is not None and (next_page is None or claim[0] < next_page):
                changes.append((*claim, None))
    changes.sort(key=lambda each: each[:2])
    before = None
    for page, hlc, columns in changes:
        yield Change(page, hlc, columns, before)
        before = columns


def claims_of(row: LandedRow, identity: str | None, keys: ClaimKeys) -> Iterator[tuple[str, str]]:
    """Yield the claims of a landed row, as `(column, value)`: its page has all rows with this value.

    A row with an identity claims its own value in the identity column, so that a row with the same identity and another
    row id is deleted.

    Args:
        row: the landed row.
        identity: the column that identifies rows at the source; None if the source has no such column.
        keys: reads the claimed columns from a row's JSON.
    """
    if row.kind == CLAIM:
        yield row.name, row.value
    elif row.kind == ROW and identity is not None:
        yield from (key for key in keys.of(row.columns) if key[0] == identity)


class PendingPages(NamedTuple):
    """A range of pages whose deltas are computed, divided among tasks by row id."""

    landed: LandedTable
    client_id: str
    """Client id of the deltas."""
    after: int
    """The page after which the range begins."""
    through: int
    """The last page of the range."""
    parts: int = 1
    """Number of tasks."""

    def deltas(self, part: int = 0) -> Iterator[pa.RecordBatch]:
        """Yield the deltas of one task's rows, in the columns `DELTAS`."""
        yield from _PendingRows(self, part).deltas()


class _PendingRows:
    """One task's rows that the pages contain or claim, with the versions that are needed to compute their deltas.

    A version is the row in one page, or in `known`. Earlier versions are needed because a delta has only the columns
    that changed, and a claim deletes rows by their earlier values.
    """

    def __init__(self, pages: PendingPages, part: int) -> None:
        self._pages = pages
        self._landed = pages.landed
        self._part = part
        self._claim_columns = pages.landed.claim_columns()
        self._keys = ClaimKeys(self._claim_columns)
        self._claims = Claims()
        self._versions: dict[str, list[Version]] = {}
        self._deletes: dict[str, list[tuple[int, int]]] = {}
        for row in self._landed_rows(pages.after, pages.through):
            self._add_claims(row)
            if row.kind != CLAIM and self._is_own(row.row_id):  # a claim has no row id
                self._add_version(row)
        self._read_earlier_versions()

    def deltas(self) -> Iterator[pa.RecordBatch]:
        """Yield the deltas in the columns `DELTAS`."""
        pages = self._pages
        changes: list[tuple[str, Change]] = []  # row id and change
        keys = self._keys.of if self._claim_columns else lambda _: ()  # without claims, no row needs to be decoded
        for row_id, versions in self._versions.items():
            if len(versions) > 1:
                versions.sort(key=lambda version: (version.page, version.hlc))
            changes += [
                (row_id, change)
                for change in replay_versions(versions, self._deletes.get(row_id, ()), keys, self._claims)
                if change.page > pages.after and change.columns != change.before
            ]
            if len(changes) >= ROWS_AT_ONCE:
                yield delta_batch(changes, pages.client_id, self._landed.table)
                changes = []
        yield delta_batch(changes, pages.client_id, self._landed.table)

    def _read_earlier_versions(self) -> None:
        """Read the versions of these rows from before the pages: from `known`, and from pages that landed since then.

        Without claims, the rows are those of the pages. With claims, all earlier rows are read, to find those that have
        a claimed value.
        """
        landed, after = self._landed, self._pages.after
        wanted = {*self._versions, *self._deletes}
        row_ids = None if self._claim_columns else pa.array(sorted(wanted), pa.string())
        for rows in landed.known_rows(row_ids=row_ids):
            for row_id, columns in value_tuples(rows, *KNOWN_ROWS.names):
                if row_id in wanted or self._is_claimed(row_id, columns):
                    wanted.add(row_id)
                    self._versions.setdefault(row_id, []).append(Version(NO_PAGE, NO_PAGE, columns))
        if self._claim_columns:
            versions = (row for row in self._landed_rows(landed.since, after) if row.kind == ROW)
            wanted |= {row.row_id for row in versions if self._is_claimed(row.row_id, row.columns)}
        for row in self._landed_rows(landed.since, after, row_ids):
            if row.row_id in wanted:
                self._add_version(row)
        if self._claim_columns:
            # claims of the earlier pages, as far as they concern these rows
            all_versions = chain.from_iterable(self._versions.values())
            keys = {key for version in all_versions for key in self._keys.of(version.columns)}
            for row in self._landed_rows(landed.since, after):
                self._add_claims(row, keys)

    def _landed_rows(self, after: int, through: int, row_ids: pa.Array | None = None) -> Iterator[LandedRow]:
        """Yield the landed rows of `LandedTable.pages` one by one."""
        return landed_rows(self._landed.pages(after, through, row_ids))

    def _add_version(self, row: LandedRow) -> None:
        """Remember a row's version, or the page that reports the row as deleted."""
        if row.kind == ROW:
            self._versions.setdefault(row.row_id, []).append(Version(row.page, row.hlc, row.columns))
        elif row.kind == DELETED_ROW:
            self._deletes.setdefault(row.row_id, []).append((row.page, row.hlc))

    def _add_claims(self, row: LandedRow, among: Collection[tuple[str, str]] | None = None) -> None:
        """Remember the `(column, value)` that a landed row claims; with `among`, only if they are among these."""
        for key in claims_of(row, self._landed.identity, self._keys):
            if among is None or key in among:
                self._claims.add(*key, row.page, row.hlc)

    def _is_claimed(self, row_id: str, columns: str) -> bool:
        """Return whether a row is this task's, and has a value that a page claims."""
        return self._is_own(row_id) and any(key in self._claims for key in self._keys.of(columns))

    def _is_own(self, row_id: str) -> bool:
        """Return whether a row id is this task's; ids are distributed by their CRC."""
        return self._pages.parts == 1 or zlib.crc32(row_id.encode()) % self._pages.parts == self._part


def delta_batch(changes: Iterable[tuple[str, Change]], client_id: str, table: str) -> pa.RecordBatch:
    """Return changes of rows as deltas, in the columns `DELTAS`. Changes without an effect are left out.

    Args:
        changes: row ids with their changes.
        client_id: the client id of the deltas.
        table: the deltas' table.
    """
    deltas: list[tuple[int, int, str, str]] = []
    for row_id, (page, hlc, columns, before) in changes:
        op, values = _change(columns, before)
        if op == "UPDATE" and not values:
            continue
        cells = tuple(ColumnValue.of(name, value) for name, value in values.items())
        id_of_delta = delta_id(client_id=client_id, hlc=hlc, table=table, row_id=row_id, columns=cells)
        delta = RowDelta(op, table, row_id, client_id, cells, hlc, id_of_delta)
        deltas.append((page, hlc, op, encode_delta(delta).decode()))
    columns_of_deltas = zip(*deltas, strict=True) if deltas else ([],) * len(DELTAS)
    arrays = [pa.array(part, field.type) for part, field in zip(columns_of_deltas, DELTAS, strict=True)]
    return pa.record_batch(arrays, DELTAS)


def _change(columns: str | None, before: str | None) -> tuple[Op, Mapping[str, Any]]:
    """Return the operation and the changed columns of a row's change, from the row as JSON after and before it."""
    if columns is None:
        return "DELETE", {}
    if before is None:
        return "INSERT", _decode(columns)
    return "UPDATE", changed_columns(_decode(before), _decode(columns))
