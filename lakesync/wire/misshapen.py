"""Which deltas of a push in JSON are at fault, once it is known that something is."""

from __future__ import annotations

import msgspec

from lakesync.exceptions import Rejection, ValidationError
from lakesync.types import RowDelta

MALFORMED = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What the decoders raise for text that is no JSON, or is nested too deeply."""


class _Envelope(msgspec.Struct, rename="camel"):
    deltas: list[msgspec.Raw]


class _Named(msgspec.Struct, rename="camel"):
    delta_id: str


_decode_delta = msgspec.json.Decoder(RowDelta, strict=False).decode
_decode_envelope = msgspec.json.Decoder(_Envelope).decode
_decode_named = msgspec.json.Decoder(_Named).decode


def misshapen(body: bytes) -> list[Rejection]:
    """Every delta of a refused push that is no delta; none where the fault lies elsewhere."""
    try:
        deltas = _decode_envelope(body).deltas
    except (msgspec.MsgspecError, *MALFORMED):
        return []
    rejected = []
    for place, raw in enumerate(deltas):
        try:
            _decode_delta(raw)
        except (msgspec.MsgspecError, *MALFORMED) as error:
            rejected.append(Rejection(_name(raw), ValidationError.code, f"deltas[{place}]: {error}"))
    return rejected


def _name(raw: msgspec.Raw) -> str:
    try:
        return _decode_named(raw).delta_id
    except (msgspec.MsgspecError, *MALFORMED):
        return ""
