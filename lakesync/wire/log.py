"""The encoding of a row of staging's log: a push's deltas as one compressed body, and their ids beside it.

The *log* of the staging store has one row for each push (a client's request with *deltas*, changes of rows). Stores
write log rows, and read them again after a crash; flush tasks read their bodies to copy them to the lake (Iceberg
tables). An *hlc* is a client's timestamp. The ids stay when a body is deleted after that, so that a repeated push is
recognised. Each id is stored as two hashes of 8 bytes (see `model.delta`): the *dedup key*, by which the delta is
recognised; and the *id number*, which the store's ledger of accepted deltas sums up.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import zstandard

from lakesync.model.delta import dedup_keys, id_numbers
from lakesync.model.errors import ValidationError
from lakesync.model.types import RowDelta
from lakesync.wire.json import decode_deltas

BODY_VERSION = 1
"""The first byte of a body. A zstd frame follows, with a compact JSON array of deltas, hlcs as integers."""

MAX_BODY_BYTES = 256 << 20
"""The largest body, uncompressed."""

_HEAD = bytes((BODY_VERSION,))
_LEVEL = 1
"""The compression level of zstd: the fastest, because every push waits for it."""
_HASH_BYTES = 8
"""The size of an hlc, an id number or a dedup key in packed ids."""
_IDS_VERSION = b"\x01"
"""The last byte of packed ids. Ids from before version 1 have neither this byte nor dedup keys."""
_OLD = b"old"
"""Starts the dedup key of a delta id that was packed before version 1; the id number follows."""
_encode = msgspec.json.Encoder().encode


class _Codec(threading.local):
    """The zstd contexts of one thread: they can be reused, but not by several threads."""

    def __init__(self) -> None:
        self.compress = zstandard.ZstdCompressor(level=_LEVEL).compress
        self.decompress = zstandard.ZstdDecompressor().decompress


_codec = _Codec()


class PackedDeltas(NamedTuple):
    """A push's deltas in the form of a log row."""

    number: int
    """Number of deltas."""
    hlc_low: int
    """The lowest hlc (client's timestamp) of the deltas."""
    hlc_high: int
    """The highest hlc of the deltas."""
    ids: bytes
    """The deltas' ids, as `pack_ids` returns them."""
    body: bytes | None
    """The deltas, as `encode_body` returns them; None if they are not stored, because the lake has them already."""


def pack(deltas: Sequence[RowDelta], *, body: bool = True) -> PackedDeltas:
    """Return deltas, at least one, in the form of a log row.

    Args:
        deltas: the deltas of one push.
        body: whether to encode a body.

    Raises:
        ValidationError: as `encode_body`.
    """
    hlcs = [delta.hlc for delta in deltas]
    return PackedDeltas(len(deltas), min(hlcs), max(hlcs), pack_ids(deltas), encode_body(deltas) if body else None)


def encode_body(deltas: Sequence[RowDelta]) -> bytes:
    """Return the body of a log row.

    Raises:
        ValidationError: the deltas have more than `MAX_BODY_BYTES` bytes as JSON, so the body could not be read again.
    """
    text = _encode(deltas)
    if len(text) > MAX_BODY_BYTES:
        raise ValidationError(
            f"the push has {len(text)} bytes as JSON, at most {MAX_BODY_BYTES} are allowed: send it in parts"
        )
    return _HEAD + _codec.compress(text)


def decode_body(body: bytes) -> list[RowDelta]:
    """Return the deltas of a log row's body.

    Raises:
        ValidationError: the body is damaged, or has another version.
    """
    return decode_deltas(unpack_body(body))


def unpack_body(body: bytes) -> bytes:
    """Return the JSON in a body.

    Raises:
        ValidationError: the body is damaged, or has another version.
    """
    if not body:
        raise ValidationError("the log body is empty")
    if body[0] != BODY_VERSION:
        raise ValidationError(f"log body version {body[0]} is not {BODY_VERSION}: read it with a newer LakeSync")
    view = memoryview(body)[1:]
    try:
        size = zstandard.frame_content_size(view)
        if not 0 <= size <= MAX_BODY_BYTES:
            raise ValidationError(f"the log body claims {size} bytes, the maximum is {MAX_BODY_BYTES}")
        return _codec.decompress(view)
    except zstandard.ZstdError as error:
        raise ValidationError(f"the log body is damaged: {error}") from None


def unpacked_size(body: bytes) -> int:
    """Return the number of bytes of the JSON in a body, from its header, without unpacking it."""
    return int(zstandard.frame_content_size(memoryview(body)[1:]))


def pack_ids(deltas: Sequence[RowDelta]) -> bytes:
    """Pack the hlcs and ids of deltas.

    The result has all hlcs (int64, little-endian), then all `id_numbers`, then all `dedup_keys`, and a version byte.
    """
    ids = [delta.delta_id for delta in deltas]
    hlcs = struct.pack(f"<{len(deltas)}q", *[delta.hlc for delta in deltas])
    return b"".join((hlcs, id_numbers(ids), dedup_keys(ids), _IDS_VERSION))


def packed_id_numbers(ids: bytes) -> memoryview:
    """Return the part of packed ids with the id numbers, 8 bytes each (big-endian).

    Raises:
        ValidationError: the length is invalid.
    """
    count, _ = _layout(ids)
    return memoryview(ids)[count * _HASH_BYTES :][: count * _HASH_BYTES]


def unpack_ids(ids: bytes) -> list[tuple[int, bytes]]:
    """Return what identifies each delta, in order.

    Returns:
        Pairs of hlc and `dedup_key`; for ids without a version byte, pairs of hlc and `old_dedup_key`.

    Raises:
        ValidationError: the length is invalid.
    """
    count, has_dedup_keys = _layout(ids)
    # ids without dedup keys end with the id numbers, which take their place
    start, prefix = (2 * count * _HASH_BYTES, b"") if has_dedup_keys else (count * _HASH_BYTES, _OLD)
    offsets = range(start, start + count * _HASH_BYTES, _HASH_BYTES)
    keys = [prefix + ids[offset : offset + _HASH_BYTES] for offset in offsets]
    return list(zip(struct.unpack_from(f"<{count}q", ids), keys, strict=True))


def old_dedup_key(delta_id: str) -> bytes:
    """Return what `unpack_ids` returns as the dedup key of a delta id that was packed before version 1."""
    return _OLD + id_numbers((delta_id,))


def _layout(ids: bytes) -> tuple[int, bool]:
    """Return the number of deltas in packed ids, and whether the ids contain dedup keys.

    Raises:
        ValidationError: the length is invalid.
    """
    # all other parts have 8 bytes, so one byte more is the version, and only ids with a version have dedup keys
    has_dedup_keys = len(ids) % _HASH_BYTES == len(_IDS_VERSION)
    width = (3 if has_dedup_keys else 2) * _HASH_BYTES
    count, rest = divmod(len(ids) - has_dedup_keys * len(_IDS_VERSION), width)
    if rest or (has_dedup_keys and ids[-1:] != _IDS_VERSION):
        raise ValidationError(f"{len(ids)} bytes of ids are not a multiple of {width}")
    return count, has_dedup_keys
