"""`SeenRows`: remembers a table's newest rows that a poll wrote, so that unchanged rows are not written again.

A poll reads what has changed at a source, an external system, since a cursor, and writes it to the lake. It begins some
time before the cursor, so that it misses nothing, and so it reads the same few rows each time. The pipeline's poll
tasks (`lakehouse.landing`) pass each page of rows to `SeenRows.drop_unchanged` before they write it. They store the
`SeenRows` of a table with its cursor, for the next poll. Rows are compared by *digests*, short hashes of their columns.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from lakesync.connectors.base import Page

MAX_REMEMBERED = 500
"""Number of rows, and of claims (see `SeenRows`), that are remembered. A larger page is written whole, uncompared."""

_DELETED = ""
"""The digest of a deleted row."""
_encode_sorted = msgspec.json.Encoder(order="sorted").encode
_Claim = tuple[str, str]
"""A pair of `Page.complete`, `(column, value)`: the page has all rows with this value."""


class SeenRow(msgspec.Struct, frozen=True, array_like=True):
    """A row as it was written last."""

    digest: str
    """Empty if the row is deleted."""
    values: dict[str, Any] = {}
    """Column → value, for the columns of identities and claims: a row with an equal value may replace this one."""


_UNSEEN = SeenRow("unseen")
"""In place of a row that is not remembered; its digest equals that of no row."""


class SeenRows(msgspec.Struct):
    """The remembered rows and claims of a table.

    A *claim* of a page is a pair of `Page.complete`, `(column, value)`: the page has all rows with this value, and
    other known rows with it are deleted. A row's *identity* is its value in the column `Table.identity`: a row replaces
    known rows with the same value.
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
        columns = {column for column, _ in page.complete} | ({identity} if identity else set())
        is_too_large = max(len(page.rows), len(page.deleted) + len(page.complete)) > MAX_REMEMBERED
        digests = {} if is_too_large else {row.row_id: _digest(row.columns) for row in page.rows}
        can_compare = not is_too_large and len(digests) == len(page.rows)  # equal if no row id occurs twice
        if not can_compare or not columns <= self.columns:  # remembered rows do not have the values of a new column
            self.rows, self.claims, self.columns = {}, {}, self.columns | columns
        if not can_compare:
            return page
        claimed: dict[_Claim, list[str]] = {
            claim: sorted(row.row_id for row in page.rows if row.columns.get(claim[0]) == claim[1])
            for claim in page.complete
        }
        claim_digests = {claim: _digest([(each, digests[each]) for each in ids]) for claim, ids in claimed.items()}
        changes = self._changes(page, identity, digests, claimed, claim_digests)
        self._remember(page, changes, identity, digests, claim_digests)
        return changes

    def forget(self, row_ids: Iterable[str]) -> None:
        """Forget rows, so that they are returned when they are read next."""
        for row_id in list(row_ids):
            self.rows.pop(row_id, None)

    def _changes(
        self,
        page: Page,
        identity: str | None,
        digests: Mapping[str, str],
        claimed: Mapping[_Claim, Sequence[str]],
        claim_digests: Mapping[_Claim, str],
    ) -> Page:
        """Return the part of a page that differs from what is remembered.

        Args:
            page: a page that was read.
            identity: the table's `Table.identity`.
            digests: row id → digest, for the page's rows.
            claimed: claim of the page → ids of its rows.
            claim_digests: claim of the page → digest of its rows.
        """
        changed_ids = {each for each, digest in digests.items() if self.rows.get(each, _UNSEEN).digest != digest}
        changed_claims = [
            claim
            for claim, ids in claimed.items()
            if self.claims.get(_name(*claim)) != claim_digests[claim] or not changed_ids.isdisjoint(ids)
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
        return Page(page.table, rows, page.cursor, deleted, changed_claims)

    def _remember(
        self,
        page: Page,
        changes: Page,
        identity: str | None,
        digests: Mapping[str, str],
        claim_digests: Mapping[_Claim, str],
    ) -> None:
        """Remember the changes as written, and forget rows that they delete or replace.

        Args:
            page: the page that was read.
            changes: the part of the page that `_changes` returned.
            identity: the table's `Table.identity`.
            digests: row id → digest, for the page's rows.
            claim_digests: claim of the page → digest of its rows.
        """
        identities = {row.columns.get(identity) for row in changes.rows} if identity else set()
        replaced = [*changes.complete, *((identity, value) for value in identities if identity)]
        self.forget(each for each in self._rows_with(replaced) if each not in digests)
        for row in changes.rows:
            values = {column: row.columns.get(column) for column in self.columns}
            for column, value in values.items():
                self.claims.pop(_name(column, value), None)  # the claim may not have included this row
            self.rows.pop(row.row_id, None)
            self.rows[row.row_id] = SeenRow(digests[row.row_id], values)
        if identity:  # several rows of a page share an identity: a later page with fewer of them deletes the others
            rows_per_identity = Counter(row.columns.get(identity) for row in page.rows)
            self.forget(row.row_id for row in page.rows if rows_per_identity[row.columns.get(identity)] > 1)
        self.rows |= dict.fromkeys(changes.deleted, SeenRow(_DELETED))
        self.claims |= {_name(*claim): claim_digests[claim] for claim in changes.complete}
        self.rows, self.claims = _newest(self.rows), _newest(self.claims)

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
