"""The objects in which `ObjectDeltas` stores deltas (changes of rows): their keys, and their content.

A key is `PREFIX/GATEWAY/DAY/ARRIVALS-HLCS.BATCH.parquet` (or `.json`): gateway (one app's stream of deltas), UTC day of
the first arrival, lowest and highest arrival (the gateway's timestamps of pushes), lowest and highest hlc (the clients'
timestamps), each with 16 hexadecimal digits, and the batch id. So a query skips objects by their keys, without reading
them.

The content is a batch of deltas in Parquet, or a `FlushEnvelope`, one JSON object as LakeSync for TypeScript writes it:
`{version: 1, gatewayId, createdAt, hlcRange: {min, max}, deltaCount, byteSize, deltas}`; every hlc is a decimal string.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec

from lakesync.adapters.arrow import ValueRange, decode_parquet, encode_parquet, from_arrow, parquet_metadata, to_arrow
from lakesync.adapters.deltas import Order, StoredDelta
from lakesync.model.errors import IntegrityError
from lakesync.model.hlc import iso_time
from lakesync.model.types import RowDelta
from lakesync.wire.json import encode_deltas

if TYPE_CHECKING:
    import pyarrow as pa

FlushFormat = Literal["parquet", "json"]
"""How new objects are encoded. JSON means a `FlushEnvelope`."""

DELTAS_PREFIX = "deltas"
"""The prefix of all keys."""
_PARQUET_MAGIC = b"PAR1"
"""The first bytes of a Parquet file."""
_KEY = re.compile(
    r"(?P<gateway>[^/]+)/\d{4}-\d\d-\d\d/(?P<spans>[0-9a-f]{16}(-[0-9a-f]{16}){3})\.[^/]+\.(?P<ending>parquet|json)"
)


class DeltaFile(NamedTuple):
    """An object's parsed key, with its metadata from a listing."""

    key: str
    gateway: str
    arrivals: ValueRange
    """A JSON object stores no arrivals, and all of its deltas get the highest one; so both ends are the highest."""
    hlcs: ValueRange
    etag: str = ""
    """The object's ETag; empty if the key was not listed. An erasure changes the object and its ETag."""
    size: int = 0
    """Bytes of the object; 0 if the key was not listed."""

    def span(self, order: Order) -> ValueRange:
        """Return `arrivals` or `hlcs`, depending on a query's order."""
        return self.arrivals if order == "arrival" else self.hlcs


def envelope_deltas(data: bytes, file: DeltaFile) -> list[StoredDelta]:
    """Return the deltas of a `FlushEnvelope`. It contains no arrivals, so all deltas get the batch's greatest one.

    Args:
        data: the object's content.
        file: the object's parsed key.

    Raises:
        IntegrityError: the envelope is damaged, or has another version.
    """
    envelope = decode_envelope(data)
    return [StoredDelta(envelope.gateway_id, file.arrivals.high, delta) for delta in envelope.deltas]


def decode_file(data: bytes, file: DeltaFile) -> pa.Table:
    """Decode the deltas of an object.

    Args:
        data: the object's content.
        file: the object's parsed key.

    Raises:
        IntegrityError: the content is damaged.
    """
    return decode_parquet(data) if file.key.endswith(".parquet") else to_arrow(envelope_deltas(data, file))


def reencode_file(old: bytes, deltas: pa.Table) -> bytes:
    """Encode an object's new content in the format, and with the metadata, of its old one. An erasure needs this.

    Args:
        old: the object's old content.
        deltas: the new deltas.
    """
    if old.startswith(_PARQUET_MAGIC):
        return encode_parquet(deltas, parquet_metadata(old))
    envelope = decode_envelope(old)
    created = datetime.fromisoformat(envelope.created_at)
    return encode_envelope(envelope.gateway_id, from_arrow(deltas), round(created.timestamp() * 1000))


def parse_key(key: str) -> DeltaFile | None:
    """Parse an object's key; None if it does not name an object of deltas."""
    found = _KEY.fullmatch(key.removeprefix(f"{DELTAS_PREFIX}/"))
    if found is None:
        return None
    first_arrival, last_arrival, low_hlc, high_hlc = (int(value, 16) for value in found["spans"].split("-"))
    arrivals = ValueRange(first_arrival if found["ending"] == "parquet" else last_arrival, last_arrival)
    return DeltaFile(key, found["gateway"], arrivals, ValueRange(low_hlc, high_hlc))


class HlcRange(msgspec.Struct, frozen=True):
    """The lowest and the highest hlc in an envelope."""

    min: int
    max: int


class FlushEnvelope(msgspec.Struct, frozen=True, rename="camel"):
    """A batch of deltas and its summary."""

    version: Literal[1]
    gateway_id: str
    created_at: str
    """When the batch was flushed: ISO 8601, UTC, with milliseconds."""
    hlc_range: HlcRange
    delta_count: int
    byte_size: int
    """Bytes of the JSON text of `deltas`."""
    deltas: tuple[RowDelta, ...]


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
    return _encode(
        {
            "version": 1,
            "gatewayId": gateway,
            "createdAt": iso_time(now_ms),
            "hlcRange": {"min": str(min(hlcs)), "max": str(max(hlcs))},
            "deltaCount": len(deltas),
            "byteSize": len(text),
            "deltas": msgspec.Raw(text),
        }
    )


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
