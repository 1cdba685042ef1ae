"""Computes deltas between row versions, and the ids of deltas and actions.

A *delta* is a change of some columns of one row; its *hlc* is the client's timestamp, by a hybrid logical clock. An
*action* is a client's command to an external system, which a *connector* connects to. The ids of both are hashes of
their content, so that a repeated delta or action is recognised: SHA-256 over the JSON Canonicalization Scheme (JCS, RFC
8785), with keys in UTF-16 order, numbers as ECMAScript prints them, and no spaces. The gateway checks the ids of
actions, but not those of deltas, so a client may choose these. Clients, polls (reads of external systems), the engine
and the staging store call this module.
"""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from json.encoder import encode_basestring
from typing import Any

import msgspec

from lakesync.model.errors import ValidationError
from lakesync.model.types import Action, ColumnValue, Op, RowDelta

MAX_DEPTH = 100
"""The most levels of lists and objects in a value."""

_TOO_DEEP = f"the value is nested more than {MAX_DEPTH} deep: flatten it"
CANONICAL = r'0|-?[1-9][0-9]{0,14}|true|false|null|"[^"\\\x00-\x1f]*"'
"""A regular expression for JSON texts that are canonical as they are, as most pushed values are. These need not be
parsed. Integers have at most 15 digits, because doubles represent these exactly."""
_IS_CANONICAL = re.compile(CANONICAL.encode()).fullmatch
_HEX_CHARS = 64
"""The length of a SHA-256 in hex digits."""
_HEX_ID = re.compile(r"[0-9a-f]{64}")
"""The form of an id that `delta_id` returns."""
_SHA256 = hashlib.sha256()
"""SHA-256 of nothing; only copies of it are used."""
_decode = msgspec.json.Decoder().decode


def jcs(value: Any) -> str:
    """Return the canonical text (RFC 8785) of a decoded JSON value.

    Integers beyond 2**53 are rounded to doubles, as in JavaScript.

    Args:
        value: the value, as Python decodes JSON.

    Raises:
        ValidationError: the value cannot be written as JSON: an infinity, NaN, a lone surrogate, a key that is no
            string, another type, or more than `MAX_DEPTH` levels.
    """
    parts: list[str] = []
    _write(value, parts.append, MAX_DEPTH)
    return "".join(parts)


def jcs_raw(raw: bytes | memoryview | msgspec.Raw) -> str:
    """Return the canonical text (RFC 8785) of a value that is given as JSON text.

    Args:
        raw: the JSON text, in UTF-8.

    Raises:
        ValidationError: the text is not JSON, or has no canonical form.
    """
    text = bytes(raw)
    try:
        if _IS_CANONICAL(text):
            return text.decode()
        value = _decode(text)
    except UnicodeDecodeError as error:
        raise ValidationError(f"the value is not UTF-8: {error}") from None
    except msgspec.MsgspecError as error:
        raise ValidationError(f"{_shorten(text)} is not a JSON value: {error}") from None
    except RecursionError:
        raise ValidationError(_TOO_DEEP) from None
    return jcs(value)


def delta_id(*, client_id: str, hlc: int, table: str, row_id: str, columns: Iterable[ColumnValue]) -> str:
    """Return the id of a delta: SHA-256 hex of the canonical text of everything but its op.

    The op is left out because the gateway may send an UPDATE on as an INSERT, with the same id.

    Args:
        client_id: the client that writes.
        hlc: the client's timestamp of the write.
        table: the row's table.
        row_id: the row's id.
        columns: the columns; another order gives another id.

    Raises:
        ValidationError: a value has no canonical form.
    """
    cells = ",".join(f'{{"column":{_quote(cell.column)},"value":{jcs_raw(cell.value)}}}' for cell in columns)
    return _sha256(
        f'{{"clientId":{_quote(client_id)},"columns":[{cells}],"hlc":"{hlc}","rowId":{_quote(row_id)},'
        f'"table":{_quote(table)}}}'
    )


def action_id(*, client_id: str, hlc: int, connector: str, action_type: str, params: Any) -> str:
    """Return the id of an action: SHA-256 hex of its canonical text.

    Args:
        client_id: the client that requests the action.
        hlc: the client's timestamp of the request.
        connector: the connector's name.
        action_type: the type of the action.
        params: the params, as a decoded JSON value or as `msgspec.Raw`.

    Raises:
        ValidationError: the params have no canonical form.
    """
    text = jcs_raw(params) if isinstance(params, msgspec.Raw) else jcs(params)
    return _sha256(
        f'{{"actionType":{_quote(action_type)},"clientId":{_quote(client_id)},"connector":{_quote(connector)},'
        f'"hlc":"{hlc}","params":{text}}}'
    )


def make_action(
    connector: str,
    action_type: str,
    params: Mapping[str, Any],
    *,
    client_id: str,
    hlc: int,
    idempotency_key: str | None = None,
) -> Action:
    """Create an action with its id.

    Args:
        connector: the connector's name.
        action_type: the type of the action, one that the connector executes.
        params: the params, as a decoded JSON object.
        client_id: the client that requests the action.
        hlc: the client's timestamp of the request.
        idempotency_key: actions of a client with the same key are executed once; None if only the id counts.

    Raises:
        ValidationError: `params` is not a JSON object.
    """
    if not isinstance(params, Mapping):
        raise ValidationError(f"params are {params!r}: give a JSON object")
    body = msgspec.Raw(jcs(dict(params)).encode())
    identity = action_id(client_id=client_id, hlc=hlc, connector=connector, action_type=action_type, params=body)
    return Action(client_id, hlc, connector, action_type, body, identity, idempotency_key)


def extract_delta(
    before: Mapping[str, Any] | None,
    after: Mapping[str, Any] | None,
    *,
    table: str,
    row_id: str,
    client_id: str,
    hlc: int,
) -> RowDelta | None:
    """Return the delta between two versions of a row; None if nothing changed.

    Without `before` it is an INSERT of every column, without `after` a DELETE, otherwise an UPDATE of the columns whose
    values differ. Values are compared as JSON: 1 equals 1.0 and not true. A column that `after` omits is unchanged.

    Args:
        before: the earlier values, by column; None if the row did not exist.
        after: the later values, by column; None if the row was deleted.
        table: the row's table.
        row_id: the row's id.
        client_id: the client that writes.
        hlc: the client's timestamp of the write.

    Raises:
        ValidationError: a value is not a JSON value.
    """
    op: Op = "DELETE"
    columns: tuple[ColumnValue, ...] = ()
    if after is None:
        if before is None:
            return None
    else:
        op = "INSERT" if before is None else "UPDATE"
        columns = _changed(before or {}, after)
        if before is not None and not columns:
            return None
    identity = delta_id(client_id=client_id, hlc=hlc, table=table, row_id=row_id, columns=columns)
    return RowDelta(op, table, row_id, client_id, columns, hlc, identity)


def dedup_key(delta_id: str) -> bytes:
    """Return 8 bytes by which a repeated delta is recognised: the first of the SHA-256 of its id, whatever its form.

    `id_number` would not do, because a client could choose two ids with the same first digits.
    """
    return dedup_keys((delta_id,))


def dedup_keys(delta_ids: Iterable[str]) -> bytes:
    """Return the `dedup_key`s of several delta ids, one after another."""
    hashes = []
    for delta_id in delta_ids:
        sha256 = _SHA256.copy()  # half the time of `hashlib.sha256(...)`, which looks the algorithm up
        sha256.update(delta_id.encode())
        hashes.append(sha256.digest()[:8])
    return b"".join(hashes)


def id_number(delta_id: str) -> int:
    """Return a delta id as a number of 64 bits. The sums of these numbers show whether two sets of deltas are equal.

    It is made of the id's first 16 hex digits or, for an id that is not 64 lower-case hex digits, of the first 8 bytes
    of its SHA-256.
    """
    if _HEX_ID.fullmatch(delta_id):
        return int(delta_id[:16], 16)
    return int.from_bytes(hashlib.sha256(delta_id.encode()).digest()[:8], "big")


def id_numbers(delta_ids: Sequence[str]) -> bytes:
    """Return the `id_number`s of several delta ids, one after another, each as 8 bytes (big-endian)."""
    joined = "".join(delta_ids)
    hashes = b""
    if set(map(len, delta_ids)) == {_HEX_CHARS} and joined == joined.lower():
        with suppress(ValueError):
            hashes = bytes.fromhex(joined)
    if 2 * len(hashes) < _HEX_CHARS * len(delta_ids):  # some id is not 64 hex digits (`fromhex` skips spaces)
        return b"".join([id_number(delta_id).to_bytes(8, "big") for delta_id in delta_ids])
    return b"".join(struct.unpack("8s24x" * len(delta_ids), hashes))  # the first 8 of each 32 bytes


def _changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[ColumnValue, ...]:
    """Return the columns of `after` whose values differ from those of `before`, in canonical text."""
    changed = []
    for column, value in after.items():
        text = jcs(value)
        if column not in before or jcs(before[column]) != text:
            changed.append(ColumnValue(column, msgspec.Raw(text.encode())))
    return tuple(changed)


def _write(value: Any, put: Callable[[str], None], depth: int) -> None:
    """Write a value as canonical JSON, by calling `put` with each part; raises ValidationError.

    Args:
        value: the decoded JSON value.
        put: called with each part of the text, in order.
        depth: how many levels of lists and objects are left.
    """
    kind = type(value)
    if kind is str:
        put(_quote(value))
    elif value is None:
        put("null")
    elif kind is bool:
        put("true" if value else "false")
    elif kind is int or kind is float:
        put(_number(value))
    elif isinstance(value, Mapping):
        _write_object(value, put, depth - 1)
    elif isinstance(value, list | tuple):
        _write_list(value, put, depth - 1)
    else:
        raise ValidationError(f"{_shorten(repr(value))} of type {kind.__name__} is no JSON value")


def _write_list(value: Sequence[Any], put: Callable[[str], None], depth: int) -> None:
    """Write a list as canonical JSON; `depth` is the number of levels that are left. Raises ValidationError."""
    if depth < 0:
        raise ValidationError(_TOO_DEEP)
    put("[")
    for index, item in enumerate(value):
        if index:
            put(",")
        _write(item, put, depth)
    put("]")


def _write_object(value: Mapping[Any, Any], put: Callable[[str], None], depth: int) -> None:
    """Write an object as canonical JSON; `depth` is the number of levels that are left. Raises ValidationError."""
    if depth < 0:
        raise ValidationError(_TOO_DEEP)
    for key in value:
        if type(key) is not str:
            raise ValidationError(f"key {_shorten(repr(key))} is no string")
    put("{")
    for index, key in enumerate(sorted(value, key=_utf16)):
        if index:
            put(",")
        put(_quote(key))
        put(":")
        _write(value[key], put, depth)
    put("}")


def _quote(text: str) -> str:
    """Return a text as a JSON string; raises ValidationError if it is no valid Unicode."""
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise ValidationError(
                f"{_shorten(repr(text))} contains a lone surrogate, which is no Unicode text"
            ) from None
    return encode_basestring(text)


def _utf16(key: str) -> bytes:
    """Return the UTF-16 code units by which RFC 8785 sorts the keys of an object."""
    return key.encode("utf-16-be", "surrogatepass")


def _number(value: float) -> str:
    """Format a number like ECMAScript's Number::toString; Python's repr has the same digits in another notation.

    Raises:
        ValidationError: it is NaN, infinite, or an integer beyond the range of doubles.
    """
    if type(value) is int and -(2**53) <= value <= 2**53:
        return str(value)
    try:
        double = float(value)
    except OverflowError:
        double = float("inf")
    if double != double or double in (float("inf"), float("-inf")):  # noqa: PLR0124 (NaN is the one that differs)
        raise ValidationError(f"{_shorten(repr(value) if type(value) is float else 'the integer')} is no finite double")
    if double == 0:
        return "0"
    mantissa, _, exponent = repr(abs(double)).partition("e")
    whole, _, fraction = mantissa.partition(".")
    fraction = "" if fraction == "0" else fraction
    # `digits` are the significant digits; the decimal point comes after the first `point` of them
    digits = (whole + fraction).lstrip("0")
    point = len(whole) + int(exponent or "0") - (len(whole + fraction) - len(digits))
    digits = digits.rstrip("0")
    sign = "-" if double < 0 else ""
    return sign + _place_point(digits, point)


def _place_point(digits: str, point: int) -> str:
    """Place the decimal point after the first `point` digits, by the cases of ECMA-262, 6.1.6.1.20.

    Args:
        digits: the significant digits.
        point: how many of them are before the decimal point; negative for zeros between the point and the digits.
    """
    if len(digits) <= point <= 21:
        return digits + "0" * (point - len(digits))
    if 0 < point <= 21:
        return f"{digits[:point]}.{digits[point:]}"
    if -6 < point <= 0:
        return f"0.{'0' * -point}{digits}"
    tail = f".{digits[1:]}" if len(digits) > 1 else ""
    return f"{digits[0]}{tail}e{point - 1:+d}"


def _sha256(text: str) -> str:
    """Return the SHA-256 of a text in UTF-8, as hex digits."""
    return hashlib.sha256(text.encode()).hexdigest()


def _shorten(text: str | bytes) -> str:
    """Return the beginning of a value, at most 60 characters, for an error message."""
    shown = text if isinstance(text, str) else text.decode(errors="replace")
    return shown if len(shown) <= 60 else f"{shown[:57]}..."
