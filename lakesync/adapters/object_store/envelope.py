"""`FlushEnvelope`: a batch as one JSON object, as the reference (the TypeScript system) writes it.

`{version: 1, gatewayId, createdAt, hlcRange: {min, max}, deltaCount, byteSize, deltas}`; every hlc is a decimal string.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Literal

import msgspec

from lakesync.adapters.deltas import StoredDelta
from lakesync.model.errors import IntegrityError
from lakesync.model.types import RowDelta
from lakesync.wire.json import encode_deltas


class HlcRange(msgspec.Struct, frozen=True):
    """The least and the greatest hlc in an envelope."""

    min: int
    max: int


class FlushEnvelope(msgspec.Struct, frozen=True, rename="camel"):
    """A batch and its summary."""

    version: Literal[1]
    gateway_id: str
    created_at: str
    """ISO 8601, UTC, with milliseconds."""
    hlc_range: HlcRange
    delta_count: int
    byte_size: int
    """Bytes of the JSON text of `deltas`."""
    deltas: tuple[RowDelta, ...]


class _EncodedEnvelope(msgspec.Struct, rename="camel"):
    """A `FlushEnvelope` for encoding: hlcs are texts, and the deltas are encoded already."""

    version: int
    gateway_id: str
    created_at: str
    hlc_range: dict[str, str]
    delta_count: int
    byte_size: int
    deltas: msgspec.Raw


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(FlushEnvelope, strict=False).decode  # not strict: hlcs are decimal strings


def encode_envelope(gateway: str, deltas: Sequence[StoredDelta], now_ms: int) -> bytes:
    """Encode a batch as a `FlushEnvelope`.

    Args:
        gateway: the gateway id.
        deltas: at least one.
        now_ms: the time of creation, milliseconds since 1970.
    """
    text = encode_deltas([stored.delta for stored in deltas])
    hlcs = [stored.delta.hlc for stored in deltas]
    created = datetime.fromtimestamp(now_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    hlc_range = {"min": str(min(hlcs)), "max": str(max(hlcs))}
    return _encode(_EncodedEnvelope(1, gateway, created, hlc_range, len(deltas), len(text), msgspec.Raw(text)))


def decode_envelope(data: bytes) -> FlushEnvelope:
    """Decode a `FlushEnvelope`.

    Raises:
        IntegrityError: the envelope is damaged, or has another version.
    """
    try:
        envelope = _decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise IntegrityError(f"not a FlushEnvelope of version 1: {error}") from error
    if envelope.delta_count != len(envelope.deltas):
        raise IntegrityError(
            f"the FlushEnvelope declares {envelope.delta_count} deltas and contains {len(envelope.deltas)}"
        )
    return envelope
