"""The encoding of a row of staging's log: a push's deltas as one compressed body, and their ids beside it.

The *log* of the staging store has one row for each push (a client's request with *deltas*, changes of rows). Stores
write and replay log rows; flush tasks read their bodies to copy them to the lake. The ids stay when a body is deleted
after that, so that a repeated push is recognised. Each id is stored as two hashes of 8 bytes (see `model.delta`): the
*identity*, by which the delta is recognised; and the *digest*, which the store's ledger of accepted deltas sums up.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import zstandard

from lakesync.model.delta import id_digest, id_digests, id_identities
from lakesync.model.errors import ValidationError
from lakesync.model.types import RowDelta
from lakesync.wire.json import decode_deltas

BODY_VERSION = 1
"""The first byte of a body. A zstd frame follows, with a compact JSON array of deltas, hlcs as integers."""

MAX_BODY_BYTES = 256 << 20
"""The largest body, uncompressed, that is read."""

_HEAD = bytes((BODY_VERSION,))
_LEVEL = 1
"""The compression level of zstd: the fastest, because every push waits for it."""
_HLC_BYTES = _DIGEST_BYTES = 8
_IDS_VERSION = b"\x01"
"""The last byte of packed ids. Ids from before version 1 have none."""
_OLD = b"old"
"""Starts the identity of a delta id that was packed before version 1."""
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
    """
    hlcs = [delta.hlc for delta in deltas]
    return PackedDeltas(len(deltas), min(hlcs), max(hlcs), pack_ids(deltas), encode_body(deltas) if body else None)


def encode_body(deltas: Sequence[RowDelta]) -> bytes:
    """Return the body of a log row."""
    return _HEAD + _codec.compress(_encode(deltas))


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

    The result has all hlcs (int64, little-endian), then all `id_digest`s, then all `id_identity`s, and a version byte.
    Ids that an earlier version of LakeSync packed have no identities and no version byte.
    """
    ids = [delta.delta_id for delta in deltas]
    hlcs = struct.pack(f"<{len(deltas)}q", *[delta.hlc for delta in deltas])
    return b"".join((hlcs, id_digests(ids), id_identities(ids), _IDS_VERSION))


def packed_digests(ids: bytes) -> memoryview:
    """Return the `id_digest`s in packed ids, one after another.

    Raises:
        ValidationError: the length is invalid.
    """
    count, _ = _layout(ids)
    return memoryview(ids)[count * _HLC_BYTES :][: count * _DIGEST_BYTES]


def unpack_ids(ids: bytes) -> list[tuple[int, bytes]]:
    """Return what identifies each delta, in order.

    Returns:
        Pairs of hlc and `id_identity`; for ids without a version byte, pairs of hlc and `old_identity`.

    Raises:
        ValidationError: the length is invalid.
    """
    count, has_identities = _layout(ids)
    if has_identities:
        start, prefix = count * (_HLC_BYTES + _DIGEST_BYTES), b""
    else:  # the digests take the place of identities
        start, prefix = count * _HLC_BYTES, _OLD
    offsets = range(start, start + count * _DIGEST_BYTES, _DIGEST_BYTES)
    identities = [prefix + ids[offset : offset + _DIGEST_BYTES] for offset in offsets]
    return list(zip(struct.unpack_from(f"<{count}q", ids), identities, strict=True))


def old_identity(delta_id: str) -> bytes:
    """Return what `unpack_ids` returns in place of the identity of a delta id that was packed before version 1.

    Only the digest of such an id is stored.
    """
    return _OLD + id_digest(delta_id)


def _layout(ids: bytes) -> tuple[int, bool]:
    """Return the number of deltas in packed ids, and whether the ids contain identities.

    Raises:
        ValidationError: the length is invalid.
    """
    # all other parts have 8 bytes, so one byte more is the version, and only ids with a version have identities
    has_identities = len(ids) % _DIGEST_BYTES == len(_IDS_VERSION)
    width = _HLC_BYTES + (2 if has_identities else 1) * _DIGEST_BYTES
    count, rest = divmod(len(ids) - has_identities * len(_IDS_VERSION), width)
    if rest or (has_identities and ids[-1:] != _IDS_VERSION):
        raise ValidationError(f"{len(ids)} bytes of ids are not a multiple of {width}")
    return count, has_identities
