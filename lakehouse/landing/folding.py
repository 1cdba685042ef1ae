"""Computes the current rows of a table from its landings, in tasks: for the table `known`, and to compare a census."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg_core.transform import bucket as bucket_of

from lakehouse.landing.files import KNOWN_ROWS, LandedRow, LandedTable, claims_of, pairs_of
from lakehouse.landing.landed_files import BUCKETS
from lakehouse.landing.row_versions import KNOWN, ClaimKeys
from lakehouse.landing.rows import GONE, ROW


class KnownRows(NamedTuple):
    """The rows that result from a table's landings up to a page."""

    landed: LandedTable
    upto: int

    def rows(self, bucket: int | None = None) -> Iterator[pa.Table]:
        """Yield the rows of a bucket, or with None of all buckets, in the columns `KNOWN_ROWS`."""
        landed = self.landed
        claimed = landed.claim_columns()
        keys = ClaimKeys(claimed)
        newest: dict[str, tuple[int, int]] = {}
        gone: dict[str, int] = {}
        claims: dict[tuple[str, str], int] = {}
        for row in self._read(bucket if not claimed else None):
            for key in claims_of(row, landed.identity, keys):
                claims[key] = max(row.page, claims.get(key, row.page))
            if row.kind == ROW:
                newest[row.row_id] = max((row.page, row.hlc), newest.get(row.row_id, (KNOWN, KNOWN)))
            elif row.kind == GONE:
                gone[row.row_id] = max(row.page, gone.get(row.row_id, KNOWN))

        def ended(columns: str, page: int) -> bool:
            return bool(claims) and any(claims.get(key, KNOWN) > page for key in keys.of(columns))

        for rows in self._pages(bucket):
            there = [
                kind == ROW and newest[row_id] == (page, hlc) and gone.get(row_id, KNOWN) <= page
                for kind, row_id, page, hlc in pairs_of(rows, "kind", "row_id", "page", "hlc")
            ]
            found = rows.filter(pa.array(there, pa.bool_())).select(["page", *KNOWN_ROWS.names])
            kept = (
                [not ended(columns, page) for columns, page in pairs_of(found, "columns", "page")] if claims else None
            )
            found = found.select(KNOWN_ROWS.names)
            yield found if kept is None else found.filter(pa.array(kept, pa.bool_()))
        row_ids = pa.array(sorted({*newest, *gone}), pa.string())
        for rows in landed.known_rows(bucket):
            left = rows.filter(pc.invert(pc.is_in(rows["row_id"], value_set=row_ids)))
            if claims:
                kept = [not ended(columns, KNOWN) for columns in left["columns"].to_pylist()]
                left = left.filter(pa.array(kept, pa.bool_()))
            yield left

    def _pages(self, bucket: int | None) -> Iterator[pa.Table]:
        for rows in self.landed.pages(self.landed.since, self.upto):
            if bucket is None:
                yield rows
                continue
            ids = pc.fill_null(rows["row_id"], "").combine_chunks()
            yield rows.filter(pa.array(np.asarray(bucket_of(ids, BUCKETS)) == bucket))

    def _read(self, bucket: int | None) -> Iterator[LandedRow]:
        for rows in self._pages(bucket):
            yield from map(LandedRow._make, pairs_of(rows, *LandedRow._fields))
