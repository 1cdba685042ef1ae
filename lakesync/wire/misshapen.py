"""Which deltas of a push in JSON are at fault, once it is known that something is or may be."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from lakesync.model.errors import Rejection, ValidationError
from lakesync.model.types import RowDelta, SyncPush

MALFORMED = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What the decoders raise for text that is no JSON, or is nested too deeply."""


class _Envelope(msgspec.Struct, rename="camel"):
    deltas: list[msgspec.Raw]


class _Named(msgspec.Struct, rename="camel"):
    delta_id: str


class _Stamped(msgspec.Struct, rename="camel"):
    hlc: Any = None
    last_seen_hlc: Any = None


_decode_delta = msgspec.json.Decoder(RowDelta, strict=False).decode
_decode_envelope = msgspec.json.Decoder(_Envelope).decode
_decode_named = msgspec.json.Decoder(_Named).decode
_decode_stamped = msgspec.json.Decoder(_Stamped).decode

_DECIMAL = re.compile("0|[1-9][0-9]*")
_SURELY_PLAIN = 1 << 56
"""A text from here on that is no plain decimal and yet read as a whole number went through a double: a multiple of
`_STEP`."""
_STEP = 16


def misspelt(name: str, given: object) -> str | None:
    """What is wrong with the text of an hlc: a lax decoder reads 1000 from "1e3" too. None where it is good, or none.

    Args:
        name: of the field.
        given: as a decoder without a type reads it.
    """
    if not isinstance(given, str) or _DECIMAL.fullmatch(given):
        return None
    return f"{name} is {given[:40]!r}: send the clock's 64 bits as a plain decimal"


def refuse_misspelt(body: bytes, push: SyncPush) -> None:
    """Refuse texts that were read as a whole number and are no plain decimals.

    Raises:
        ValidationError: with every delta that has one.
    """
    if _surely_plain(body, push):
        return
    found = refusal(body, "")
    if str(found):
        raise found


def refusal(body: bytes, otherwise: str) -> ValidationError:
    """What is wrong with a push, with every delta that is no delta.

    Args:
        body: the push.
        otherwise: the message where no fault is found.
    """
    rejected = misshapen(body)
    fault = rejected[0].message if rejected else _misspelt_cursor(body)
    return ValidationError(fault or otherwise, rejected)


def _misspelt_cursor(body: bytes) -> str | None:
    try:
        return misspelt("lastSeenHlc", _decode_stamped(body).last_seen_hlc)
    except (msgspec.MsgspecError, *MALFORMED):
        return None


def _surely_plain(body: bytes, push: SyncPush) -> bool:
    """Whether every hlc that may have been something else stands in the body as clients write them."""
    seen, stamps = push.last_seen_hlc, [delta.hlc for delta in push.deltas]
    if min(stamps, default=0) < 0 or seen < 0:
        return False
    if body.rfind(b'"lastSeenHlc":"%d"' % seen) < 0 and (seen or b'"lastSeenHlc"' in body):
        return False
    small = min(stamps, default=_SURELY_PLAIN) < _SURELY_PLAIN
    place = 0
    for stamp in stamps if small else [stamp for stamp in stamps if not stamp % _STEP]:
        place = body.find(b'"hlc":"%d"' % stamp, place)
        if place < 0:
            return False
    return True


def misshapen(body: bytes) -> list[Rejection]:
    """Every delta of a push that is no delta; none where the fault lies elsewhere."""
    try:
        deltas = _decode_envelope(body).deltas
    except (msgspec.MsgspecError, *MALFORMED):
        return []
    rejected = []
    for place, raw in enumerate(deltas):
        fault = _fault(raw)
        if fault is not None:
            rejected.append(Rejection(_name(raw), ValidationError.code, f"deltas[{place}]: {fault}"))
    return rejected


def _fault(raw: msgspec.Raw) -> str | None:
    try:
        fault = misspelt("hlc", _decode_stamped(raw).hlc)
        if fault is None:
            _decode_delta(raw)
    except (msgspec.MsgspecError, *MALFORMED) as error:
        return str(error)
    return fault


def _name(raw: msgspec.Raw) -> str:
    try:
        return _decode_named(raw).delta_id
    except (msgspec.MsgspecError, *MALFORMED):
        return ""
