"""A page of deltas from one adapter to another: written under an id that its content gives it, and read back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakesync.adapters.arrow import held_in_table
from lakesync.adapters.base import DatabaseAdapter, Held
from lakesync.adapters.several import write_arrow
from lakesync.model.errors import IntegrityError

if TYPE_CHECKING:
    import pyarrow as pa

PAGE = 10_000
"""Deltas that are moved at once."""


def copy_page(to: DatabaseAdapter, why: str, deltas: pa.Table) -> Held:
    """Write deltas, each gateway's as a batch of its own; the same deltas again are the same batches.

    Returns:
        What the destination was read to hold of them: all.

    Raises:
        AdapterError: they may or may not be there; a repeat is safe.
        IntegrityError: it holds less than it was given, or other deltas.
    """
    import pyarrow.compute as pc

    count, total = 0, 0
    for gateway in pc.unique(deltas.column("gateway")).to_pylist():
        some = deltas.filter(pc.equal(deltas.column("gateway"), gateway))
        wanted = held_in_table(some)
        first = some.column("hlc")[0].as_py()
        found = write_arrow(to, f"{gateway}.{why}.{first:016x}-{wanted.deltas}-{wanted.id_sum:016x}", gateway, some)
        if found != wanted:
            raise IntegrityError(
                f"{wanted.deltas} deltas of gateway {gateway!r} were written (sum of ids {wanted.id_sum}), and "
                f"{found.deltas} read back ({found.id_sum}): nothing further is done with them"
            )
        count, total = count + found.deltas, total + found.id_sum
    return Held(count, total % 2**64)
