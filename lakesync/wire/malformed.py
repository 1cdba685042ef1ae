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
from lakesync.model.validation import check_hlc, check_shape

DECODE_ERRORS = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""The errors that decoders raise for text that is not the JSON of a message, or is nested too deeply."""


class MalformedDeltasError(ValidationError):
    """Deltas of a push are malformed."""

    def __init__(self, rejected: Sequence[Rejection], others: SyncPush) -> None:
        """Create the error.

        Args:
            rejected: the rejections of the malformed deltas, at least one.
            others: the push without these deltas.
        """
        super().__init__(rejected[0].message, rejected)
        self.others = others
        """The push without the malformed deltas. The gateway checks it too, to list every rejected delta."""


class _Envelope(msgspec.Struct, rename="camel"):
    """A push, with its deltas as JSON."""

    client_id: str
    deltas: list[msgspec.Raw]
    last_seen_hlc: Any = 0


class _WithId(msgspec.Struct, rename="camel"):
    """A delta, with nothing but its id."""

    delta_id: str


class _WithHlc(msgspec.Struct, rename="camel"):
    """A delta, with nothing but its hlc, as it is written; None if it has none."""

    hlc: Any = None


_decode_delta = msgspec.json.Decoder(RowDelta, strict=False).decode
_decode_envelope = msgspec.json.Decoder(_Envelope).decode
_decode_id = msgspec.json.Decoder(_WithId).decode
_decode_hlc = msgspec.json.Decoder(_WithHlc).decode

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


def decode_singly(body: bytes, default_message: str) -> SyncPush:
    """Decode a push delta by delta, with U+FFFD for each lone surrogate in a value.

    `wire.json.decode_push` calls it for a push that it cannot decode as a whole, or not without doubt.

    Args:
        body: the push as JSON.
        default_message: the message if the problem is not in the deltas.

    Raises:
        MalformedDeltasError: deltas are malformed; it has a rejection of each of them.
        ValidationError: the body is malformed elsewhere.
    """
    repaired = replace_lone_surrogates(body)
    try:
        envelope = _decode_envelope(repaired)
        # lone surrogates in ids and names are rejected: two ids might become equal by a replacement
        marked = _decode_envelope(replace_lone_surrogates(body, rb"\u0000")).deltas if repaired != body else None
        if problem := hlc_problem("lastSeenHlc", envelope.last_seen_hlc):
            raise ValidationError(problem)
        cursor = msgspec.convert(envelope.last_seen_hlc, int, strict=False)
    except DECODE_ERRORS:
        raise ValidationError(default_message) from None
    check_range("lastSeenHlc", cursor)
    deltas, rejected = [], []
    for index, raw in enumerate(envelope.deltas):
        try:
            deltas.append(_decode_alone(raw, raw if marked is None else marked[index], f"deltas[{index}]"))
        except ValidationError as error:
            rejected.append(Rejection(_delta_id(raw), ValidationError.code, str(error)))
    push = SyncPush(envelope.client_id, tuple(deltas), cursor)
    if rejected:
        raise MalformedDeltasError(rejected, push)
    return push


def has_certainly_plain_hlcs(body: bytes, push: SyncPush) -> bool:
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
    # clients write the cursor last, so it is found quickly; without one it is 0
    if body.rfind(b'"lastSeenHlc":"%d"' % cursor) < 0 and (cursor != 0 or b'"lastSeenHlc"' in body):
        return False
    may_be_rounded = hlcs if lowest < _LARGE else [hlc for hlc in hlcs if hlc % _DOUBLE_STEP == 0]
    position = 0
    for hlc in may_be_rounded:  # in the order of the text, which is therefore searched only once
        position = body.find(b'"hlc":"%d"' % hlc, position)
        if position < 0:
            return False
    return True


_SAFELY_FINITE = 1e300
"""Numbers up to here certainly fit a double, whose limit is near 1.8e308."""
# Values that need no further check: they are certainly canonical.
_PlainInt = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
_PlainFloat = Annotated[float, msgspec.Meta(ge=-_SAFELY_FINITE, le=_SAFELY_FINITE)]
_decode_plain = msgspec.json.Decoder(list[str | bool | _PlainInt | _PlainFloat | None]).decode


def check_values(deltas: Sequence[RowDelta], first: int = 0) -> None:
    """Check that every value has a canonical form.

    Args:
        deltas: the deltas.
        first: the index of the first one in its push, for error messages.

    Raises:
        ValidationError: a value contains invalid UTF-8, lone surrogates, numbers beyond doubles, or is nested too
            deeply. Its attribute `rejected` lists every delta with such a value.
    """
    if _all_plain([cell.value for delta in deltas for cell in delta.columns]):
        return
    rejected = [
        Rejection(delta.delta_id, ValidationError.code, f"deltas[{index}]{problem}")
        for index, delta in enumerate(deltas, first)
        if (problem := _value_problem(delta)) is not None
    ]
    if rejected:
        raise ValidationError(rejected[0].message, rejected)


def _decode_alone(raw: msgspec.Raw, marked: msgspec.Raw, where: str) -> RowDelta:
    """Decode one delta, or raise ValidationError.

    Args:
        raw: the delta as JSON.
        marked: the same, with NUL, which no id or name may contain, for each lone surrogate.
        where: its place in the push, for the message.
    """
    try:
        if problem := hlc_problem("hlc", _decode_hlc(raw).hlc):
            raise ValidationError(f"{where}: {problem}")
        delta = _decode_delta(raw)
        if raw is not marked and (rejection := check_shape(_decode_delta(marked))):
            raise ValidationError(rejection.message)
    except DECODE_ERRORS as error:
        raise ValidationError(f"{where}: {error}") from None
    if problem := _value_problem(delta):
        raise ValidationError(where + problem)
    return delta


def _delta_id(raw: msgspec.Raw) -> str:
    """Return the id in the JSON of a malformed delta; empty if it cannot be read."""
    try:
        return _decode_id(raw).delta_id
    except DECODE_ERRORS:
        return ""


def _value_problem(delta: RowDelta) -> str | None:
    """Return which value of a delta has no canonical form, as text after the delta's place; None if all have one."""
    for cell in delta.columns:
        try:
            jcs_raw(cell.value)
        except ValidationError as error:
            return f", column {cell.column!r}: {error}"
    return None


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
