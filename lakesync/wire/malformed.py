"""Checks that msgspec's decoders do not make: malformed deltas of a push, texts of hlcs, values without canonical form.

A *delta* is a change of some columns of one row. A decoder stops at the first malformed one, but a client must get the
rejection of each, so that it can set these aside. An *hlc* is a client's timestamp, of 64 bits: a JSON number would
lose some of them. A value needs a *canonical form* (JCS), from which its delta's id is computed. The decoders in
`wire.json` and `wire.protobuf` call this module.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from lakesync.model.delta import jcs_raw
from lakesync.model.errors import Rejection, ValidationError
from lakesync.model.types import RowDelta, SyncPush
from lakesync.model.validation import check_hlc

DECODE_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""The errors that decoders raise for text that is not JSON, or is nested too deeply."""


class _Envelope(msgspec.Struct, rename="camel"):
    """A push, with its deltas as JSON."""

    deltas: list[msgspec.Raw]


class _WithId(msgspec.Struct, rename="camel"):
    """A delta, with nothing but its id."""

    delta_id: str


class _WithHlcs(msgspec.Struct, rename="camel"):
    """A delta or a push, with nothing but its hlc or cursor, as it is written; None if it has none."""

    hlc: Any = None
    last_seen_hlc: Any = None


_decode_delta = msgspec.json.Decoder(RowDelta, strict=False).decode
_decode_envelope = msgspec.json.Decoder(_Envelope).decode
_decode_id = msgspec.json.Decoder(_WithId).decode
_decode_hlcs = msgspec.json.Decoder(_WithHlcs).decode

_DECIMAL = re.compile("0|[1-9][0-9]*")
"""The text of an hlc."""
_LARGE = 1 << 56
"""From here on, all doubles are multiples of `_DOUBLE_STEP`. So a larger hlc that is no such multiple was not rounded
to a double: it was written as a decimal."""
_DOUBLE_STEP = 16
"""The least difference of two doubles above `_LARGE`."""


def hlc_problem(name: str, given: object) -> str | None:
    """Return what is wrong with the text of an hlc; None if it is valid or absent.

    msgspec's lax decoders accept more texts than plain decimals, such as "1e3", which are rounded.

    Args:
        name: the field's name, for the message.
        given: the value as an untyped decoder reads it. Only texts are checked here, not numbers.
    """
    if not isinstance(given, str) or _DECIMAL.fullmatch(given):
        return None
    return f"{name} is {given[:40]!r}: send the clock's 64 bits as a plain decimal"


def check_range(name: str, value: int) -> None:
    """Check that an hlc is in range.

    Args:
        name: the field's name, for the message.
        value: the hlc.

    Raises:
        ValidationError: it is out of range.
    """
    problem = check_hlc(name, value)
    if problem is not None:
        raise ValidationError(problem)


def check_hlc_texts(body: bytes, push: SyncPush) -> None:
    """Check that every hlc of a decoded push is a plain decimal.

    Args:
        body: the push as JSON.
        push: the same, decoded.

    Raises:
        ValidationError: an hlc is not; its attribute `rejected` lists every such delta.
    """
    if _has_plain_hlcs(body, push):
        return
    error = push_error(body, "")
    if str(error):
        raise error


def push_error(body: bytes, default_message: str) -> ValidationError:
    """Return the error for a malformed push, with a rejection for every malformed delta; the caller raises it.

    Args:
        body: the push as JSON.
        default_message: the message if no problem is found.
    """
    rejected = malformed_deltas(body)
    problem = rejected[0].message if rejected else _cursor_problem(body)
    return ValidationError(problem or default_message, rejected)


def _cursor_problem(body: bytes) -> str | None:
    """Return what is wrong with the cursor `lastSeenHlc` of a push; None if it is valid or cannot be read."""
    try:
        return hlc_problem("lastSeenHlc", _decode_hlcs(body).last_seen_hlc)
    except (msgspec.MsgspecError, *DECODE_ERRORS):
        return None


def _has_plain_hlcs(body: bytes, push: SyncPush) -> bool:
    """Return whether the hlcs of a push are certainly plain decimals, by a quick search in its text.

    An hlc that may have been rounded is searched for in the form in which clients write it. False means only that the
    texts have to be decoded to decide.

    Args:
        body: the push as JSON.
        push: the same, decoded.
    """
    cursor, hlcs = push.last_seen_hlc, [delta.hlc for delta in push.deltas]
    if min(hlcs, default=0) < 0 or cursor < 0:
        return False
    if body.rfind(b'"lastSeenHlc":"%d"' % cursor) < 0 and (cursor or b'"lastSeenHlc"' in body):
        return False
    has_small = min(hlcs, default=_LARGE) < _LARGE  # then any of them may have been rounded
    position = 0
    for hlc in hlcs if has_small else [hlc for hlc in hlcs if not hlc % _DOUBLE_STEP]:
        position = body.find(b'"hlc":"%d"' % hlc, position)
        if position < 0:
            return False
    return True


def malformed_deltas(body: bytes) -> list[Rejection]:
    """Return a rejection for every malformed delta of a push; an empty list if the problem is elsewhere.

    Args:
        body: the push as JSON.
    """
    try:
        deltas = _decode_envelope(body).deltas
    except (msgspec.MsgspecError, *DECODE_ERRORS):
        return []
    rejected = []
    for index, raw in enumerate(deltas):
        problem = _problem(raw)
        if problem is not None:
            rejected.append(Rejection(_delta_id(raw), ValidationError.code, f"deltas[{index}]: {problem}"))
    return rejected


def _problem(raw: msgspec.Raw) -> str | None:
    """Return what is wrong with the JSON of a delta; None if it can be decoded."""
    try:
        problem = hlc_problem("hlc", _decode_hlcs(raw).hlc)
        if problem is None:
            _decode_delta(raw)
    except (msgspec.MsgspecError, *DECODE_ERRORS) as error:
        return str(error)
    return problem


def _delta_id(raw: msgspec.Raw) -> str:
    """Return the id in the JSON of a malformed delta; empty if it cannot be read."""
    try:
        return _decode_id(raw).delta_id
    except (msgspec.MsgspecError, *DECODE_ERRORS):
        return ""


_SCALARS = frozenset({str, bool, int, float, type(None)})
"""The types of decoded values that are neither lists nor objects."""
_SAFELY_FINITE = 1e300
"""Numbers up to here certainly fit a double."""
_decode_any = msgspec.json.Decoder().decode


def check_values(deltas: Sequence[RowDelta]) -> None:
    """Check that every value has a canonical form.

    Raises:
        ValidationError: a value contains invalid UTF-8, lone surrogates, numbers beyond doubles, or is nested too
            deeply. Its attribute `rejected` lists every delta with such a value.
    """
    if _all_plain([cell.value for delta in deltas for cell in delta.columns]):
        return
    rejected = []
    for index, delta in enumerate(deltas):
        for cell in delta.columns:
            try:
                jcs_raw(cell.value)
            except ValidationError as error:
                message = f"deltas[{index}], column {cell.column!r}: {error}"
                rejected.append(Rejection(delta.delta_id, ValidationError.code, message))
                break
    if rejected:
        raise ValidationError(rejected[0].message, rejected)


def _all_plain(texts: Sequence[msgspec.Raw]) -> bool:
    """Return whether all values are scalars that are certainly valid; otherwise each is checked."""
    joined = b",".join(texts)
    if b"\\u" in joined:
        return False
    try:
        values = _decode_any(b"[" + joined + b"]")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    kinds = set(map(type, values))
    if len(values) != len(texts) or not kinds <= _SCALARS:
        return False
    numbers = [value for value in values if type(value) is int or type(value) is float]
    return not numbers or (min(numbers) >= -_SAFELY_FINITE and max(numbers) <= _SAFELY_FINITE)
