"""Compares what a poll read with the known rows of a table: a census, or all rows of a table without a cursor.

Tasks of a poll call it.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.landing.row_versions import ClaimKeys
from lakesync.connectors.polling import CensusComparison
from lakesync.connectors.source import Page, SourceRow

if TYPE_CHECKING:
    from lakehouse.landing.folding import KnownRows
    from lakesync.connectors.source import Census

_encode_sorted = msgspec.json.Encoder(order="sorted").encode


def compare_census(rows: KnownRows, census: Census) -> CensusComparison:
    """Compare a census with the known rows.

    Args:
        rows: the known rows.
        census: the ids that the source has.
    """
    there = pc.unique(pa.chunked_array([pa.array(piece, pa.string()) for piece in census.values], pa.string()))
    keys = ClaimKeys([census.column] if census.column is not None else [])
    known, absent, met = 0, list[SourceRow](), [pa.array([], pa.string())]
    for piece in rows.rows():
        known += piece.num_rows
        if census.column is None:
            values = piece["row_id"].combine_chunks()
            met.append(values)
        else:
            texts = piece["columns"].to_pylist()
            values = pa.array([next((value for _, value in keys.of(text)), None) for text in texts], pa.string())
        missing = piece.filter(pc.invert(pc.is_in(values, value_set=there)))
        absent += [
            SourceRow(row_id, msgspec.json.decode(columns))
            for row_id, columns in zip(missing["row_id"].to_pylist(), missing["columns"].to_pylist(), strict=True)
        ]
    if census.column is not None:
        return CensusComparison(known, absent, [])
    unknown = there.filter(pc.invert(pc.is_in(there, value_set=pa.concat_arrays(met))))
    return CensusComparison(known, absent, sorted(unknown.to_pylist()))


class RowDigests:
    """Digests of the known rows of a table that is read as a whole, so that unchanged rows do not land again."""

    def __init__(self, rows: KnownRows) -> None:
        """Compute the digests, of about 100 bytes each.

        Args:
            rows: the known rows.
        """
        self._there = {
            _digest(row_id, columns.encode())
            for piece in rows.rows()
            for row_id, columns in zip(piece["row_id"].to_pylist(), piece["columns"].to_pylist(), strict=True)
        }

    def changed(self, page: Page) -> Page:
        """Return the page with new and changed rows only, which count as known from now on."""
        changed = []
        for row in page.rows:
            digest = _digest(row.row_id, _encode_sorted(row.columns))
            if digest not in self._there:
                self._there.add(digest)
                changed.append(row)
        return Page(page.table, changed, page.cursor, page.deleted, page.whole)


def _digest(row_id: str, columns: bytes) -> bytes:
    return hashlib.blake2b(row_id.encode() + b"\0" + columns, digest_size=16).digest()
