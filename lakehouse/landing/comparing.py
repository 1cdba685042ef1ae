"""Compares what a poll read with a table's known rows, those that its landings and the table `known` result in.

A poll reads either a census, a list of all ids, or all rows of a table that has no cursor. The Spark tasks of a poll
call it.
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
    """Compare the ids that the source has with the known rows.

    Args:
        rows: the known rows.
        census: every row id at the source, or every value of another column.
    """
    at_source = pc.unique(pa.chunked_array([pa.array(values, pa.string()) for values in census.values], pa.string()))
    keys = ClaimKeys([census.column] if census.column is not None else [])
    known, absent, known_ids = 0, list[SourceRow](), [pa.array([], pa.string())]
    for some in rows.rows():
        known += some.num_rows
        if census.column is None:
            values = some["row_id"].combine_chunks()
            known_ids.append(values)
        else:
            texts = some["columns"].to_pylist()
            values = pa.array([next((value for _, value in keys.of(text)), None) for text in texts], pa.string())
        missing = some.filter(pc.invert(pc.is_in(values, value_set=at_source)))
        absent += [
            SourceRow(row_id, msgspec.json.decode(columns))
            for row_id, columns in zip(missing["row_id"].to_pylist(), missing["columns"].to_pylist(), strict=True)
        ]
    if census.column is not None:
        return CensusComparison(known, absent, [])
    unknown = at_source.filter(pc.invert(pc.is_in(at_source, value_set=pa.concat_arrays(known_ids))))
    return CensusComparison(known, absent, sorted(unknown.to_pylist()))


class RowDigests:
    """Digests of the known rows of a table that is read as a whole, so that unchanged rows do not land again."""

    def __init__(self, rows: KnownRows) -> None:
        """Compute the digests, which take about 100 bytes of memory each.

        Args:
            rows: the known rows.
        """
        self._digests = {
            _digest(row_id, columns.encode())
            for some in rows.rows()
            for row_id, columns in zip(some["row_id"].to_pylist(), some["columns"].to_pylist(), strict=True)
        }

    def changed(self, page: Page) -> Page:
        """Return the page with its new and changed rows only. These count as known from now on."""
        changed = []
        for row in page.rows:
            digest = _digest(row.row_id, _encode_sorted(row.columns))
            if digest not in self._digests:
                self._digests.add(digest)
                changed.append(row)
        return Page(page.table, changed, page.cursor, page.deleted, page.whole)


def _digest(row_id: str, columns: bytes) -> bytes:
    return hashlib.blake2b(row_id.encode() + b"\0" + columns, digest_size=16).digest()
