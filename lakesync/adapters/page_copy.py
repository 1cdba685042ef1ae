"""Copies a page of deltas to an adapter under content-derived batch ids, and verifies it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakesync.adapters.arrow import table_checksum
from lakesync.adapters.arrow_access import write_arrow
from lakesync.adapters.base import DatabaseAdapter
from lakesync.adapters.deltas import BatchChecksum
from lakesync.model.errors import IntegrityError

if TYPE_CHECKING:
    import pyarrow as pa

PAGE_DELTAS = 10_000
"""Deltas copied at once."""


def copy_page(to: DatabaseAdapter, why: str, deltas: pa.Table) -> BatchChecksum:
    """Write deltas, one batch per gateway. The same deltas always get the same batch ids.

    Args:
        to: the adapter to write to.
        why: the kind of copy; part of the batch id.
        deltas: at least one, in order.

    Returns:
        Count and id sum of all deltas, as read back.

    Raises:
        AdapterError: the deltas may or may not be written; retry.
        IntegrityError: the adapter stores fewer or other deltas than it was given.
    """
    import pyarrow.compute as pc

    count, total = 0, 0
    for gateway in pc.unique(deltas.column("gateway")).to_pylist():
        own = deltas.filter(pc.equal(deltas.column("gateway"), gateway))
        expected = table_checksum(own)
        first = own.column("hlc")[0].as_py()
        stored = write_arrow(to, f"{gateway}.{why}.{first:016x}-{expected.deltas}-{expected.id_sum:016x}", gateway, own)
        if stored != expected:
            raise IntegrityError(
                f"{expected.deltas} deltas of gateway {gateway!r} were written (id sum {expected.id_sum}), but "
                f"{stored.deltas} were read back (id sum {stored.id_sum}). The copy stops; check the target."
            )
        count, total = count + stored.deltas, total + stored.id_sum
    return BatchChecksum(count, total % 2**64)
