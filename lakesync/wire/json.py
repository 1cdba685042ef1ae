"""The JSON encoding of pushes, pulls and their responses. Gateway, client and stores call it.

A *push* sends deltas (changes of rows), a *pull* requests those that the client lacks, and a *page* is the response to
it. `lakesync.model.types` describes their fields. An *hlc* (timestamp of a hybrid logical clock) and a *cursor* (the
hlc up to which a client has everything) have 64 bits, which a JSON number in JavaScript would round. So they are
encoded as decimal strings; they are decoded from these or from integers. Column values keep the text in which they were
sent.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import msgspec

from lakesync.model.errors import ValidationError
from lakesync.model.types import (
    DEFAULT_MAX_DELTAS,
    ColumnValue,
    Op,
    PushResult,
    RowDelta,
    SyncPage,
    SyncPull,
    SyncPush,
    SyncResponse,
)
from lakesync.wire.malformed import DECODE_ERRORS, check_range, check_values, decode_singly, has_certainly_plain_hlcs

T = TypeVar("T")

_DECIMAL = re.compile("0|[1-9][0-9]{0,18}")
"""The text of an hlc, which has at most 19 digits."""
_WHOLE_NUMBER = re.compile("[0-9]{1,1000}")
"""The text of a limit in a query. Python converts texts of more than 4,300 digits to no integer."""


class _Delta(msgspec.Struct, rename="camel", gc=False):
    """A delta for encoding, with its hlc as a text."""

    op: Op
    table: str
    row_id: str
    client_id: str
    columns: tuple[ColumnValue, ...]
    hlc: str
    delta_id: str


class _PullRequest(msgspec.Struct, rename="camel"):
    """A pull as it is sent: `since` and `limit` are other names of `sinceHlc` and `maxDeltas`."""

    client_id: str
    since_hlc: int | float | str | msgspec.UnsetType = msgspec.UNSET
    since: int | float | str | msgspec.UnsetType = msgspec.UNSET
    max_deltas: int | float | msgspec.UnsetType = msgspec.UNSET
    limit: int | float | msgspec.UnsetType = msgspec.UNSET
    source: str | None = None
    own_hlc: int | float | str | None = None


_encode = msgspec.json.Encoder().encode
# Lax decoders (`strict=False`) read integers from text too, which hlcs need. Fields of type str accept texts only.
_decode_push = msgspec.json.Decoder(SyncPush, strict=False).decode
_decode_pull = msgspec.json.Decoder(_PullRequest).decode
_decode_response = msgspec.json.Decoder(SyncResponse, strict=False).decode
_decode_result = msgspec.json.Decoder(PushResult, strict=False).decode
_decode_deltas = msgspec.json.Decoder(list[RowDelta], strict=False).decode


def decode_push(body: bytes) -> SyncPush:
    """Decode a push request. Its values are views that keep `body` alive. Lone surrogates in them become U+FFFD.

    Raises:
        MalformedDeltasError: deltas are malformed; it lists each of them, and has the push without them.
        ValidationError: the body is not a push.
    """
    try:
        push = _decode_push(body)
    except DECODE_ERRORS as error:
        push = decode_singly(body, str(_unreadable("push", error)))
    else:
        if not has_certainly_plain_hlcs(body, push):
            push = decode_singly(body, "the push cannot be decoded")
    check_range("lastSeenHlc", push.last_seen_hlc)
    try:
        check_values(push.deltas)
    except ValidationError as error:
        return decode_singly(body, str(error))
    return push


def encode_push(push: SyncPush) -> bytes:
    """Encode a push request, as a client sends it."""
    deltas = _all_to_wire(push.deltas)
    return _encode({"clientId": push.client_id, "deltas": deltas, "lastSeenHlc": str(push.last_seen_hlc)})


def decode_pull(body: bytes) -> SyncPull:
    """Decode a pull request: `clientId`, `sinceHlc` (or `since`), `maxDeltas` (or `limit`), `source`, `ownHlc`.

    Raises:
        ValidationError: the body is not a pull.
    """
    return _pull(read("pull", _decode_pull, body))


def parse_pull(query: Mapping[str, str]) -> SyncPull:
    """Decode a pull request from the query parameters of a GET, which have the names that `decode_pull` lists.

    Raises:
        ValidationError: a parameter is missing or not a number.
    """
    fields: dict[str, str | int] = dict(query)
    for name in fields.keys() & {"maxDeltas", "limit"}:  # msgspec would read 1e2 as 100
        if not _WHOLE_NUMBER.fullmatch(query[name]):
            raise ValidationError(f"{name} is {query[name][:40]!r}: send a whole number of at least 1")
        fields[name] = int(query[name])
    try:
        return _pull(msgspec.convert(fields, _PullRequest))
    except msgspec.ValidationError as error:
        raise ValidationError(f"pull: {error}") from None


def encode_pull(pull: SyncPull) -> bytes:
    """Encode a pull request, as a client posts it."""
    fields: dict[str, Any] = {
        "clientId": pull.client_id,
        "sinceHlc": str(pull.since_hlc),
        "maxDeltas": pull.max_deltas,
        "source": pull.source,
        "ownHlc": None if pull.own_hlc is None else str(pull.own_hlc),
    }
    return _encode({name: value for name, value in fields.items() if value is not None})


def decode_response(body: bytes) -> SyncResponse:
    """Decode a page, as a client receives it.

    Raises:
        ValidationError: the body is not a page.
    """
    response = read("response", _decode_response, body)
    check_range("serverHlc", response.server_hlc)
    check_values(response.deltas)
    return response


def encode_response(response: SyncResponse | SyncPage) -> bytes:
    """Encode the response to a pull. A `SyncPage` is one whose deltas may still be encoded; they are decoded here."""
    deltas = _all_to_wire(response.deltas)
    return _encode({"deltas": deltas, "serverHlc": str(response.server_hlc), "hasMore": response.has_more})


def decode_push_result(body: bytes) -> PushResult:
    """Decode the response to a push, as a client receives it.

    Raises:
        ValidationError: the body has another form.
    """
    result = read("push result", _decode_result, body)
    check_range("serverHlc", result.server_hlc)
    check_values(result.deltas)
    return result


def encode_push_result(result: PushResult) -> bytes:
    """Encode the response to a push."""
    deltas = _all_to_wire(result.deltas)
    return _encode({"serverHlc": str(result.server_hlc), "accepted": result.accepted, "deltas": deltas})


def encode_delta(delta: RowDelta) -> bytes:
    """Encode one delta, compactly, as a part of an array."""
    return _encode(_to_wire(delta))


def encode_deltas(deltas: Iterable[RowDelta]) -> bytes:
    """Encode deltas as a compact array."""
    return _encode(_all_to_wire(deltas))


def decode_deltas(body: bytes) -> list[RowDelta]:
    """Decode the output of `encode_deltas`. Values are not checked, because they were checked when they were pushed.

    Raises:
        ValidationError: the body has another form.
    """
    return read("deltas", _decode_deltas, body)


def encode_json(value: Any) -> bytes:
    """Encode any value as the gateway's other responses: integers under `hlc` and `…Hlc` become decimal strings."""
    return _encode(_with_hlcs(msgspec.to_builtins(value, builtin_types=(msgspec.Raw,))))


def read(what: str, decode: Callable[[bytes], T], body: bytes) -> T:
    """Decode a body; a ValidationError begins with `what`, the name of the message."""
    try:
        return decode(body)
    except DECODE_ERRORS as error:
        raise _unreadable(what, error) from None


def _unreadable(what: str, error: Exception) -> ValidationError:
    """Return the error for a body that is not the JSON of a message, or is nested too deeply."""
    if isinstance(error, RecursionError):
        return ValidationError(f"{what}: the JSON is nested too deeply: flatten it")
    return ValidationError(f"{what}: {error}")


def _pull(request: _PullRequest) -> SyncPull:
    """Check a decoded pull request, of which some fields have two names; raises ValidationError."""
    name, given = ("since", request.since) if request.since_hlc is msgspec.UNSET else ("sinceHlc", request.since_hlc)
    remedy = "send the serverHlc of the last response, 0 at first"
    since = 0 if given is msgspec.UNSET else _hlc(name, given, remedy)
    own = None if request.own_hlc is None else _hlc("ownHlc", request.own_hlc, "send an hlc of the client's own")
    name, limit = ("limit", request.limit) if request.max_deltas is msgspec.UNSET else ("maxDeltas", request.max_deltas)
    limit = DEFAULT_MAX_DELTAS if limit is msgspec.UNSET else _whole(name, limit)
    if limit < 1:
        raise ValidationError(f"{name} is {limit}: ask for at least 1")
    return SyncPull(request.client_id, since, limit, request.source or None, own)


def _whole(name: str, given: float) -> int:
    """Return a whole number as an integer, also if JSON writes it as 5.0.

    Args:
        name: the field's name, for the message.
        given: the number.

    Raises:
        ValidationError: the number has a fraction.
    """
    if isinstance(given, float) and not given.is_integer():  # also NaN and infinities
        raise ValidationError(f"{name} is {given}: send a whole number")
    return int(given)


def _hlc(name: str, given: float | str, remedy: str) -> int:
    """Return an hlc that JSON has as a number or a decimal text.

    Args:
        name: the field's name, for the message.
        given: the number or text.
        remedy: what to send instead, for the message.

    Raises:
        ValidationError: it is neither, or out of range.
    """
    if isinstance(given, str):
        if not _DECIMAL.fullmatch(given):
            raise ValidationError(f"{name} is {given[:40]!r}: {remedy}")
        given = int(given)
    value = _whole(name, given)
    check_range(name, value)
    return value


def _to_wire(delta: RowDelta) -> _Delta:
    """Return a delta for encoding, with its hlc as a text."""
    return _Delta(delta.op, delta.table, delta.row_id, delta.client_id, delta.columns, str(delta.hlc), delta.delta_id)


def _all_to_wire(deltas: Iterable[RowDelta]) -> list[_Delta]:
    return [_to_wire(delta) for delta in deltas]


def _with_hlcs(value: Any) -> Any:
    """Return a value in which every integer under a key that is `hlc`, or ends in `Hlc`, is a decimal string."""
    if isinstance(value, dict):
        return {
            key: str(item)
            if type(item) is int and isinstance(key, str) and (key == "hlc" or key.endswith("Hlc"))
            else _with_hlcs(item)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [_with_hlcs(item) for item in value]
    return value
