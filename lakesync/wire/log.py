"""The encoding of the staging log: a push's deltas as one compressed body, and their ids beside it.

Stores write it, flush tasks and replays read it.
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
_HLC_BYTES = _DIGEST_BYTES = 8
_IDS_VERSION = b"\x01"
_OLD = b"old"
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
    hlc_low: int
    hlc_high: int
    ids: bytes
    body: bytes | None


def pack(deltas: Sequence[RowDelta], *, body: bool = True) -> PackedDeltas:
    """Return deltas, at least one, in the form of a log row.

    Args:
        deltas: of a push.
        body: whether to encode a body.
    """
    stamps = [delta.hlc for delta in deltas]
    return PackedDeltas(len(deltas), min(stamps), max(stamps), pack_ids(deltas), encode_body(deltas) if body else None)


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
            raise ValidationError(f"the log body claims {size} bytes, 0 to {MAX_BODY_BYTES} are read")
        return _codec.decompress(view)
    except zstandard.ZstdError as error:
        raise ValidationError(f"the log body is damaged: {error}") from None


def unpacked_size(body: bytes) -> int:
    """Return the number of bytes of the JSON in a body."""
    return int(zstandard.frame_content_size(memoryview(body)[1:]))


def pack_ids(deltas: Sequence[RowDelta]) -> bytes:
    """Pack the hlcs (int64, little-endian), the `id_digest`s and the `id_identity`s of deltas, each one after another.

    A version byte follows. Ids that were packed before version 1 have no version byte and no identities.
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
    """Return `(hlc, id identity)` of each delta, in order; for ids from before version 1, `(hlc, old_identity)`.

    Raises:
        ValidationError: the length is invalid.
    """
    count, whole = _layout(ids)
    start, mark = (count * (_HLC_BYTES + _DIGEST_BYTES), b"") if whole else (count * _HLC_BYTES, _OLD)
    known = [mark + ids[at : at + _DIGEST_BYTES] for at in range(start, start + count * _DIGEST_BYTES, _DIGEST_BYTES)]
    return list(zip(struct.unpack_from(f"<{count}q", ids), known, strict=True))


def old_identity(delta_id: str) -> bytes:
    """Return what identifies a delta id that was packed before version 1."""
    return _OLD + id_digest(delta_id)


def _layout(ids: bytes) -> tuple[int, bool]:
    """Return the number of deltas, and whether each has an identity."""
    whole = len(ids) % _DIGEST_BYTES == len(_IDS_VERSION)
    width = _HLC_BYTES + (2 if whole else 1) * _DIGEST_BYTES
    count, rest = divmod(len(ids) - whole * len(_IDS_VERSION), width)
    if rest or (whole and ids[-1:] != _IDS_VERSION):
        raise ValidationError(f"{len(ids)} bytes of ids are no multiple of {width}")
    return count, whole
