"""Erasure in an object store: an object that holds something covered is written anew, whole, under its key."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from lakesync.adapters.arrow import held_in_table
from lakesync.adapters.object_store import LakeAdapter
from lakesync.adapters.redaction import Redacted, Redaction, TouchedRow, redacted
from lakesync.model.crash_points import crash_point
from lakesync.model.errors import IntegrityError

if TYPE_CHECKING:
    import pyarrow as pa


def redact_objects(
    objects: LakeAdapter,
    keys: Iterable[str],
    decode: Callable[[str, bytes], pa.Table],
    encode: Callable[[bytes, pa.Table], bytes],
    requests: Sequence[Redaction],
) -> Redacted:
    """Write those objects anew that hold something.

    Args:
        objects: the store.
        keys: of objects that may hold something.
        decode: key, content → deltas.
        encode: the content as it was, deltas → the content.
        requests: what is to be erased.

    Raises:
        IntegrityError: an object does not hold what was written.
        AdapterError: the store cannot be reached; a repeat is safe.
    """
    count = 0
    touched: dict[TouchedRow, None] = {}
    for key in keys:
        data = objects.get_object(key)
        deltas, done = redacted(decode(key, data), requests)
        touched |= dict.fromkeys(done.touched)
        if not done.deltas:
            continue
        objects.put_object(key, encode(data, deltas))
        back, left = redacted(decode(key, objects.get_object(key)), requests)
        if left.deltas or held_in_table(back) != held_in_table(deltas):
            raise IntegrityError(
                f"object {key!r} was written without what is to be erased, and {left.deltas} of its {len(back)} deltas "
                "still say something: another writer may be at it; repeat the erasure"
            )
        count += done.deltas
        crash_point("objects.redacted")
    return Redacted(count, touched=tuple(touched))
