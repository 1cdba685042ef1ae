"""Hash buckets of row ids and batch ids.

They divide a load among parallel writers (`transfer/loads.py`), and a destination table among locks
(`sql/row_tables.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from zlib import crc32

import msgspec

if TYPE_CHECKING:
    import pyarrow as pa

BUCKETS = 16
"""Number of buckets. A load has at most this many parts, because each part takes whole buckets."""


def bucket_of(text: str) -> int:
    """Return the bucket of a row id or batch id. It is the same in every process and version."""
    return crc32(text.encode()) % BUCKETS


class Part(msgspec.Struct, frozen=True, rename={"count": "of"}):
    """One part of a load, which is a follower's large backlog: the deltas that one writer applies."""

    load: str
    """The load's id; part of the names of its parts' marks."""
    number: int
    """From 0."""
    count: int
    """Number of the load's parts; stored as `of`."""
    by_batch: bool = False
    """Whether deltas are divided by batch id, as object stores store whole batches; otherwise by row id."""

    def mask(self, deltas: pa.Table) -> pa.ChunkedArray:
        """Return a mask of the deltas that belong to this part.

        Args:
            deltas: a table with the columns `batch_id` and `row_id`.
        """
        import pyarrow as pa

        keys = deltas.column("batch_id" if self.by_batch else "row_id")
        encoded = pa.chunked_array(keys, pa.string()).combine_chunks().dictionary_encode()
        belongs = pa.array(
            [bucket_of(text) % self.count == self.number for text in encoded.dictionary.to_pylist()], pa.bool_()
        )
        return pa.chunked_array([belongs.take(encoded.indices)])
