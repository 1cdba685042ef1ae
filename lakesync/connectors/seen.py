"""What landed last of a table's newest rows: what a poll brings again as it was then need not land again.

Connectors read a little before their place, so an idle poll brings the same few rows each time. A landing that knows
them by their digests keeps nothing of them, and compares nothing.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from lakesync.connectors.source import Page

MOST = 500
"""Rows, and claims, that are remembered; a page of more, or with a row twice, lands as it is."""

_GONE = ""
_spelled = msgspec.json.Encoder(order="sorted").encode


class SeenRow(msgspec.Struct, frozen=True, array_like=True):
    """A row as it landed last."""

    digest: str
    """Empty where it is gone."""
    values: dict[str, Any] = {}
    """By column, where a value of it lets another row take its place."""


_UNSEEN = SeenRow("unseen")


class Seen(msgspec.Struct):
    """Rows by their ids, and claims (`Page.whole`) by column and value, with a digest of all that each claims."""

    rows: dict[str, SeenRow] = {}
    claims: dict[str, str] = {}
    columns: set[str] = set()
    """Those of identities and of claims."""

    def news(self, page: Page, identity: str | None) -> Page:
        """The page without what changes nothing; from now on it counts as landed.

        Args:
            identity: as in `Table`.
        """
        watched = {column for column, _ in page.whole} | ({identity} if identity else set())
        digests = {row.row_id: _digest(row.columns) for row in page.rows} if len(page.rows) <= MOST else {}
        odd = len(digests) < len(page.rows) or len(page.deleted) + len(page.whole) > MOST
        if odd or not watched <= self.columns:
            self.rows, self.claims, self.columns = {}, {}, self.columns | watched
        if odd:
            return page
        changed = {each for each, digest in digests.items() if self.rows.get(each, _UNSEEN).digest != digest}
        claimed = {
            claim: sorted(row.row_id for row in page.rows if row.columns.get(claim[0]) == claim[1])
            for claim in page.whole
        }
        claims = {claim: _digest([(each, digests[each]) for each in ids]) for claim, ids in claimed.items()}
        told = [
            claim
            for claim, ids in claimed.items()
            if self.claims.get(_name(*claim)) != claims[claim] or not changed.isdisjoint(ids)
        ]
        # a claim is told with all that it claims, and an identity with all who have it
        changed |= {each for claim in told for each in claimed[claim]}
        taken = {row.columns.get(identity) for row in page.rows if row.row_id in changed} if identity else set()
        rows = [row for row in page.rows if row.row_id in changed or (identity and row.columns.get(identity) in taken)]
        gone = [each for each in page.deleted if each not in digests and self.rows.get(each, _UNSEEN).digest != _GONE]

        replacing = [*told, *((identity, value) for value in taken if identity)]
        self.forget(each for each in self._with(replacing) if each not in digests)
        for row in rows:
            values = {column: row.columns.get(column) for column in self.columns}
            for column, value in values.items():
                self.claims.pop(_name(column, value), None)  # it may be more now than was claimed
            self.rows.pop(row.row_id, None)
            self.rows[row.row_id] = SeenRow(digests[row.row_id], values)
        if identity:  # of rows that came with one identity, the next page that has fewer of them ends the others
            who = Counter(row.columns.get(identity) for row in page.rows)
            self.forget(row.row_id for row in page.rows if who[row.columns.get(identity)] > 1)
        self.rows |= dict.fromkeys(gone, SeenRow(_GONE))
        self.claims |= {_name(*claim): claims[claim] for claim in told}
        self.rows, self.claims = _newest(self.rows), _newest(self.claims)
        return Page(page.table, rows, page.cursor, gone, told)

    def forget(self, row_ids: Iterable[str]) -> None:
        """Take these rows as they come next."""
        for row_id in list(row_ids):
            self.rows.pop(row_id, None)

    def _with(self, pairs: Iterable[tuple[str, Any]]) -> Iterable[str]:
        """The rows that have one of these values in its column."""
        wanted = {_name(*pair) for pair in pairs}
        return [
            row_id
            for row_id, row in self.rows.items()
            if any(_name(column, value) in wanted for column, value in row.values.items())
        ]


def _newest(kept: Mapping[str, Any]) -> dict[str, Any]:
    return dict(list(kept.items())[-MOST:])


def _name(column: str, value: Any) -> str:
    return f"{column}={value}"


def _digest(value: Any) -> str:
    return hashlib.blake2b(_spelled(value), digest_size=8).hexdigest()
