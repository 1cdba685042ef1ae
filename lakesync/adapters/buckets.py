"""Buckets of row ids and batch ids: how a large load is divided among writers, and a table of rows among locks."""

from __future__ import annotations

from typing import TYPE_CHECKING
from zlib import crc32

import msgspec

if TYPE_CHECKING:
    import pyarrow as pa

BUCKETS = 16
"""A load has at most as many parts: each takes whole buckets."""


def bucket_of(text: str) -> int:
    """The bucket of a row id or a batch id; the same in every process and version."""
    return crc32(text.encode()) % BUCKETS


class Part(msgspec.Struct, frozen=True):
    """One part of a divided load: the deltas that one writer takes."""

    load: str
    """The load's id: marks of another load's parts say nothing about this one."""
    number: int
    of: int
    by_batch: bool = False
    """Divided by batch id, as object stores keep whole batches; else by row id."""

    def mask(self, deltas: pa.Table) -> pa.ChunkedArray:
        """Which deltas belong to this part.

        Args:
            deltas: with the columns `batch_id` and `row_id`.
        """
        import pyarrow as pa

        keys = deltas.column("batch_id" if self.by_batch else "row_id")
        coded = pa.chunked_array(keys, pa.string()).combine_chunks().dictionary_encode()
        mine = pa.array([bucket_of(text) % self.of == self.number for text in coded.dictionary.to_pylist()], pa.bool_())
        return pa.chunked_array([mine.take(coded.indices)])
