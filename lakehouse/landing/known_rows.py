"""Computes the rows of a polled table as of a page, and compares them with what a poll reads at the source.

A poll reads an external system, the source, and appends the rows to the lake's table `landing`, page by page. The
number of a page is the hlc (timestamp) of its first row. The table `known` has the rows as of some earlier page
(`LandedTable.since`). A page may *claim* to have all rows with a certain value in a column, so that other rows with
this value are deleted. A *census* is a list of all ids at the source.

`KnownRows` serves two purposes: to add pages to `known` (`lakehouse.landing.reading`), and for the Spark tasks of polls
(`lakehouse.landing.poll_tasks`) to compare with, if they take a census or read a table that has no cursor as a whole.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg_core.transform import bucket as bucket_of

from lakehouse.landing.row_changes import ClaimKeys, claims_of
from lakehouse.landing.rows import (
    BUCKETS,
    DELETED_ROW,
    KNOWN_ROWS,
    NO_PAGE,
    ROW,
    LandedTable,
    landed_rows,
    value_tuples,
)
from lakesync.connectors.base import Page, SourceRow
from lakesync.connectors.polling import CensusComparison
from lakesync.model.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lakesync.connectors.base import Census

_encode_sorted = msgspec.json.Encoder(order="sorted").encode


class KnownRows(NamedTuple):
    """A polled table's rows as of a page: those of `known`, changed by the pages that landed after it."""

    landed: LandedTable
    """The table's files in `known` and `landing`."""
    last_page: int
    """The last page that counts."""

    def rows(self, bucket: int | None = None) -> Iterator[pa.Table]:
        """Yield the rows of a bucket (a share of the row ids), or with None of all, in the columns `KNOWN_ROWS`.

        A landed version is current if it is the row's newest, and neither a delete nor a claim of a later page removed
        it. A row of `known` is current if no later page has it or claims it.
        """
        landed = self.landed
        claimed = landed.claim_columns()
        keys = ClaimKeys(claimed)
        newest: dict[str, tuple[int, int]] = {}  # row id → page and hlc of its newest version
        deleted: dict[str, int] = {}  # row id → last page that reports it as deleted
        claims: dict[tuple[str, str], int] = {}  # (column, value) → last page that claims it
        for row in landed_rows(self._pages(bucket if not claimed else None)):  # claims belong to no bucket
            for key in claims_of(row, landed.identity, keys):
                claims[key] = max(row.page, claims.get(key, row.page))
            if row.kind == ROW:
                newest[row.row_id] = max((row.page, row.hlc), newest.get(row.row_id, (NO_PAGE, NO_PAGE)))
            elif row.kind == DELETED_ROW:
                deleted[row.row_id] = max(row.page, deleted.get(row.row_id, NO_PAGE))

        def is_claimed_after(columns: str, page: int) -> bool:
            """Return whether a page after `page` claims a value of the row, given as JSON."""
            return bool(claims) and any(claims.get(key, NO_PAGE) > page for key in keys.of(columns))

        for rows in self._pages(bucket):
            is_current = [
                kind == ROW and newest[row_id] == (page, hlc) and deleted.get(row_id, NO_PAGE) <= page
                for kind, row_id, page, hlc in value_tuples(rows, "kind", "row_id", "page", "hlc")
            ]
            current = rows.filter(pa.array(is_current, pa.bool_())).select(["page", *KNOWN_ROWS.names])
            if claims:
                stays = [not is_claimed_after(*values) for values in value_tuples(current, "columns", "page")]
                current = current.filter(pa.array(stays, pa.bool_()))
            yield current.select(KNOWN_ROWS.names)
        landed_ids = pa.array(sorted({*newest, *deleted}), pa.string())
        for rows in landed.known_rows(bucket):
            unchanged = rows.filter(pc.invert(pc.is_in(rows["row_id"], value_set=landed_ids)))
            if claims:
                stays = [not is_claimed_after(columns, NO_PAGE) for columns in unchanged["columns"].to_pylist()]
                unchanged = unchanged.filter(pa.array(stays, pa.bool_()))
            yield unchanged

    def _pages(self, bucket: int | None) -> Iterator[pa.Table]:
        """Yield the landed rows since `known` of a bucket, or with None of all buckets. A claim has no row id."""
        for rows in self.landed.pages(self.landed.since, self.last_page):
            if bucket is None:
                yield rows
                continue
            ids = pc.fill_null(rows["row_id"], "").combine_chunks()
            yield rows.filter(pa.array(np.asarray(bucket_of(ids, BUCKETS)) == bucket))


def compare_census(rows: KnownRows, census: Census) -> CensusComparison:
    """Compare the ids that the source has with the known rows. The Spark tasks of polls call it.

    Args:
        rows: the known rows.
        census: every row id at the source. Or every value of another column: then a known row is absent at the source
            if its value is.
    """
    # the values to compare: row ids, or the values of `census.column` as text
    at_source = pc.unique(pa.chunked_array([pa.array(values, pa.string()) for values in census.values], pa.string()))
    keys = ClaimKeys([census.column] if census.column is not None else [])
    known_count, absent, known_ids = 0, list[SourceRow](), [pa.array([], pa.string())]
    for batch in rows.rows():
        known_count += batch.num_rows
        if census.column is None:
            values = batch["row_id"].combine_chunks()
            known_ids.append(values)
        else:
            columns_and_values = map(keys.of, batch["columns"].to_pylist())  # for each row one pair, or none for null
            values = pa.array([pairs[0][1] if pairs else None for pairs in columns_and_values], pa.string())
        absent_rows = batch.filter(pc.invert(pc.is_in(values, value_set=at_source)))
        absent += [
            SourceRow(row_id, msgspec.json.decode(columns))
            for row_id, columns in value_tuples(absent_rows, *KNOWN_ROWS.names)
        ]
    if census.column is not None:
        return CensusComparison(known_count, absent, [])
    unknown = at_source.filter(pc.invert(pc.is_in(at_source, value_set=pa.concat_arrays(known_ids))))
    return CensusComparison(known_count, absent, sorted(unknown.to_pylist()))


class RowDigests:
    """Digests of the known rows of a table that is read as a whole, so that unchanged rows do not land again."""

    def __init__(self, rows: KnownRows) -> None:
        """Compute the digests, which take about 100 bytes of memory each, as do the ids of rows that have changed.

        Args:
            rows: the known rows.
        """
        self._digests = {
            _digest(row_id, columns.encode())
            for batch in rows.rows()
            for row_id, columns in value_tuples(batch, *KNOWN_ROWS.names)
        }
        self._changed: dict[str, bytes] = {}
        """Id of each row that has changed → its new digest."""

    def drop_unchanged(self, page: Page) -> Page:
        """Return a page with only its new and changed rows, which count as known from now on.

        Raises:
            ConfigurationError: an earlier row of the read has the same id and other values. In each poll, one of the
                two would be a change.
        """
        changed = []
        for row in page.rows:
            digest = _digest(row.row_id, _encode_sorted(row.columns))
            if self._changed.get(row.row_id, digest) != digest:
                raise ConfigurationError(
                    f"{page.table} has several rows with the id {row.row_id!r} and different values: let its query "
                    "return each id once, for example by GROUP BY, or set another rowIdColumn"
                )
            if digest not in self._digests:
                self._digests.add(digest)
                self._changed[row.row_id] = digest
                changed.append(row)
        return Page(page.table, changed, page.cursor, page.deleted, page.complete)


def _digest(row_id: str, columns: bytes) -> bytes:
    """Return a digest of a row's id and columns, by which equal rows are found without keeping them."""
    return hashlib.blake2b(row_id.encode() + b"\0" + columns, digest_size=16).digest()
