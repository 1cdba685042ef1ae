"""`copy_page`: copies a page of deltas to an adapter, under batch ids derived from its content, and verifies it.

Tiers, fan-out and migrations call it.
"""

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
"""Deltas per page: the limit of the queries whose pages are copied."""


def copy_page(target: DatabaseAdapter, kind: str, deltas: pa.Table) -> BatchChecksum:
    """Write a page of deltas, one batch per gateway. A repeated copy has the same batch ids, and so changes nothing.

    Args:
        target: the adapter to write to.
        kind: `tier`, `fan-out` or `migration`; part of the batch ids.
        deltas: at least one, in the order of the query that returned them.

    Returns:
        Count and id sum of all deltas, as read back.

    Raises:
        AdapterError: the deltas may or may not be written; retry.
        IntegrityError: the target stores fewer or other deltas than were written.
    """
    import pyarrow.compute as pc

    count, total = 0, 0
    for gateway in pc.unique(deltas.column("gateway")).to_pylist():
        own = deltas.filter(pc.equal(deltas.column("gateway"), gateway))
        expected = table_checksum(own)
        first = own.column("hlc")[0].as_py()
        batch_id = f"{gateway}.{kind}.{first:016x}-{expected.deltas}-{expected.id_sum:016x}"
        stored = write_arrow(target, batch_id, gateway, own)
        if stored != expected:
            raise IntegrityError(
                f"{expected.deltas} deltas of gateway {gateway!r} were written (id sum {expected.id_sum}), but "
                f"{stored.deltas} were read back (id sum {stored.id_sum}). The copy stops; check the target."
            )
        count, total = count + stored.deltas, total + stored.id_sum
    return BatchChecksum(count, total % 2**64)
