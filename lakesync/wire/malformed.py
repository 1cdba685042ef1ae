"""Checks that msgspec's decoders do not make: malformed deltas of a push, texts of hlcs, values without canonical form.

A *push* is a client's request with *deltas*, changes of rows. A decoder stops at the first malformed delta, but a
client must get the rejection of each, so that it can set these aside. An *hlc* is a client's timestamp, an integer of
64 bits, which JSON has as a number or as a decimal text; msgspec rounds texts in other notations, so these are
rejected. The *cursor* of a push is the hlc up to which its client has everything. A value needs a *canonical form*
(JCS), from which its delta's id is computed. The decoders in `wire` call this module; so do clients before they push,
and `lakesync push` for the deltas in a file.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec

from lakesync.model.delta import jcs_raw
from lakesync.model.errors import Rejection, ValidationError
from lakesync.model.types import RowDelta, SyncPush
from lakesync.model.validation import check_hlc, find_malformed

DECODE_ERRORS = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""The errors that decoders raise for text that is not the JSON of a message, or is nested too deeply."""


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


_decode_push = msgspec.json.Decoder(SyncPush, strict=False).decode
_decode_delta = msgspec.json.Decoder(RowDelta, strict=False).decode
_decode_envelope = msgspec.json.Decoder(_Envelope).decode
_decode_id = msgspec.json.Decoder(_WithId).decode
_decode_hlcs = msgspec.json.Decoder(_WithHlcs).decode

_DECIMAL = re.compile("0|[1-9][0-9]*")
"""The text of an hlc."""
_LARGE = 1 << 56
"""All doubles above this number are multiples of `_DOUBLE_STEP`. So an hlc above it that is no such multiple was not
rounded: it was written as an integer or a plain decimal. Hlcs of clocks that are set to a time after 2004 are above
it."""
_DOUBLE_STEP = 16
"""The difference between neighbouring doubles from `_LARGE` on; it is greater for greater doubles."""


_HEX = rb"[0-9a-fA-F]{2}"
_ESCAPE = re.compile(rb"\\(?:u[dD][89abAB]%b\\u[dD][c-fC-F]%b|(u[dD][89a-fA-F]%b)|.)" % (_HEX, _HEX, _HEX))
"""One escape in JSON, or two for a surrogate pair. Group 1 is a lone surrogate. An escaped backslash is a match of its
own, so text that follows it is not taken for an escape."""


def replace_lone_surrogates(text: bytes, replacement: bytes = rb"\ufffd") -> bytes:
    """Return a JSON text without lone surrogates: halves of surrogate pairs, which are no Unicode text.

    JavaScript, and APIs that are written in it, send one where a text was cut within a character.

    Args:
        text: the JSON text.
        replacement: what takes the place of each; by default the replacement character U+FFFD.
    """
    return _ESCAPE.sub(lambda escape: replacement if escape[1] else escape[0], text) if b"\\u" in text else text


def repair_values(body: bytes) -> bytes:
    """Return a push in JSON with U+FFFD for each lone surrogate in a value; the push unchanged if it has none.

    Raises:
        ValidationError: an id or a name contains a lone surrogate. Two ids might become equal by a replacement. Its
            attribute `rejected` lists each such delta.
    """
    repaired = replace_lone_surrogates(body)
    if repaired != body:
        try:
            push = _decode_push(replace_lone_surrogates(body, rb"\u0000"))  # NUL, which no id may contain
        except DECODE_ERRORS:
            return repaired  # it is malformed in another way too
        rejected = find_malformed(push.deltas)
        if rejected:
            raise ValidationError(rejected[0].message, rejected)
    return repaired


def hlc_problem(name: str, given: object) -> str | None:
    """Return what is wrong with an hlc that is given as text; None if it is a plain decimal, or no text.

    msgspec's lax decoders accept more texts, such as "1e3", and round them. They read integers exactly.

    Args:
        name: the field's name, for the message.
        given: the value as an untyped decoder reads it.
    """
    if not isinstance(given, str) or _DECIMAL.fullmatch(given):
        return None
    return f"{name} is {given[:40]!r}: send the clock's 64 bits as a plain decimal"


def check_range(name: str, value: int) -> None:
    """Raise ValidationError if an hlc is out of range.

    Args:
        name: the field's name, for the message.
        value: the hlc.
    """
    problem = check_hlc(name, value)
    if problem is not None:
        raise ValidationError(problem)


def check_hlc_texts(body: bytes, push: SyncPush) -> None:
    """Check that every hlc of a decoded push was written as a number or a plain decimal.

    Args:
        body: the push as JSON.
        push: the same, decoded.

    Raises:
        ValidationError: an hlc was not; its attribute `rejected` lists every such delta.
    """
    if _has_certainly_plain_hlcs(body, push):
        return
    error = push_error(body, default_message="")
    if str(error):  # empty: no problem was found
        raise error


def push_error(body: bytes, default_message: str) -> ValidationError:
    """Return the error for a malformed push, with a rejection for every malformed delta; the caller raises it.

    Args:
        body: the push as JSON.
        default_message: the message if no problem is found.
    """
    rejected = _malformed_deltas(body)
    problem = rejected[0].message if rejected else _cursor_problem(body)
    return ValidationError(problem or default_message, rejected)


def _cursor_problem(body: bytes) -> str | None:
    """Return what is wrong with the cursor `lastSeenHlc` of a push; None if it is valid or cannot be read."""
    try:
        return hlc_problem("lastSeenHlc", _decode_hlcs(body).last_seen_hlc)
    except DECODE_ERRORS:
        return None


def _has_certainly_plain_hlcs(body: bytes, push: SyncPush) -> bool:
    """Return True if the hlcs of a push were certainly not rounded, by a quick search in its text.

    Each hlc that may have been rounded is searched for in the form in which clients write it. False means that the
    texts must be decoded to decide.

    Args:
        body: the push as JSON.
        push: the same, decoded.
    """
    cursor, hlcs = push.last_seen_hlc, [delta.hlc for delta in push.deltas]
    lowest = min(hlcs, default=_LARGE)
    if lowest < 0 or cursor < 0:
        return False
    has_default_cursor = cursor == 0 and b'"lastSeenHlc"' not in body
    if not has_default_cursor and body.rfind(b'"lastSeenHlc":"%d"' % cursor) < 0:
        return False
    may_be_rounded = hlcs if lowest < _LARGE else [hlc for hlc in hlcs if hlc % _DOUBLE_STEP == 0]
    position = 0
    for hlc in may_be_rounded:  # in the order of the text, which is therefore searched only once
        position = body.find(b'"hlc":"%d"' % hlc, position)
        if position < 0:
            return False
    return True


def _malformed_deltas(body: bytes) -> list[Rejection]:
    """Return a rejection for every malformed delta of a push; an empty list if the problem is elsewhere.

    Args:
        body: the push as JSON.
    """
    try:
        deltas = _decode_envelope(body).deltas
    except DECODE_ERRORS:
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
    except DECODE_ERRORS as error:
        return str(error)
    return problem


def _delta_id(raw: msgspec.Raw) -> str:
    """Return the id in the JSON of a malformed delta; empty if it cannot be read."""
    try:
        return _decode_id(raw).delta_id
    except DECODE_ERRORS:
        return ""


_SAFELY_FINITE = 1e300
"""Numbers up to here certainly fit a double, whose limit is near 1.8e308."""
# Values that need no further check: they are certainly canonical.
_PlainInt = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
_PlainFloat = Annotated[float, msgspec.Meta(ge=-_SAFELY_FINITE, le=_SAFELY_FINITE)]
_decode_plain = msgspec.json.Decoder(list[str | bool | _PlainInt | _PlainFloat | None]).decode


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
    """Return True if all values are scalars that certainly have a canonical form; False if each must be checked."""
    # A line break inside of a string is an error, so no string begins in one value and ends in another.
    joined = b",\n".join(texts)
    if b"\\u" in joined:  # an escape, perhaps of a lone surrogate
        return False
    try:
        return len(_decode_plain(b"[" + joined + b"]")) == len(texts)
    except DECODE_ERRORS:
        return False
