"""Protobuf messages: encodes and decodes pushes, pulls, responses and single deltas.

A *push* sends deltas (changes of rows), a *pull* requests those that the client lacks. A *checkpoint* is a snapshot of
all rows, from which new clients start. Gateway, client and the pipeline's checkpoints call this module.
`wire.delta_fields` decodes the deltas of a checkpoint faster.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

import msgspec
from google.protobuf.message import DecodeError, Message
from msgspec.structs import asdict, replace

from lakesync.model.errors import Rejection, ValidationError
from lakesync.model.types import (
    DEFAULT_MAX_DELTAS,
    ColumnValue,
    Op,
    RowDelta,
    SyncPage,
    SyncPull,
    SyncPush,
    SyncResponse,
)
from lakesync.wire import lakesync_pb2 as pb
from lakesync.wire.malformed import MalformedDeltasError, check_range, check_values, replace_lone_surrogates

M = TypeVar("M", bound=Message)

_OPS: dict[pb.DeltaOp, Op] = {pb.DELTA_OP_INSERT: "INSERT", pb.DELTA_OP_UPDATE: "UPDATE", pb.DELTA_OP_DELETE: "DELETE"}
_OP_NUMBERS = {op: number for number, op in _OPS.items()}
_SPACE = b" \t\r\n"
"""The whitespace of JSON, which may surround a value."""


def encode_push(push: SyncPush) -> bytes:
    """Encode a SyncPush message."""
    return pb.SyncPush(
        client_id=push.client_id, deltas=map(_message, push.deltas), last_seen_hlc=push.last_seen_hlc
    ).SerializeToString()


def decode_push(data: bytes) -> SyncPush:
    """Decode a SyncPush message. Lone surrogates in its values become U+FFFD.

    Raises:
        MalformedDeltasError: deltas are malformed; it lists each of them, and has the push without them.
        ValidationError: `data` has another form.
    """
    message = parse(pb.SyncPush(), data)
    check_range("lastSeenHlc", message.last_seen_hlc)
    push = SyncPush(message.client_id, (), message.last_seen_hlc)
    try:
        return replace(push, deltas=_deltas(message.deltas))
    except ValidationError:
        return _decode_singly(push, message.deltas)


def encode_pull(pull: SyncPull) -> bytes:
    """Encode a SyncPull message."""
    return pb.SyncPull(**asdict(pull)).SerializeToString()  # the message has the same fields


def decode_pull(data: bytes) -> SyncPull:
    """Decode a SyncPull message; without `max_deltas` the limit is `DEFAULT_MAX_DELTAS`.

    Raises:
        ValidationError: `data` has another form.
    """
    message = parse(pb.SyncPull(), data)
    check_range("sinceHlc", message.since_hlc)
    own = message.own_hlc if message.HasField("own_hlc") else None
    if own is not None:
        check_range("ownHlc", own)
    limit = message.max_deltas or DEFAULT_MAX_DELTAS
    return SyncPull(message.client_id, message.since_hlc, limit, message.source or None, own)


def encode_response(response: SyncResponse | SyncPage) -> bytes:
    """Encode a SyncResponse message."""
    return pb.SyncResponse(
        deltas=map(_message, response.deltas), server_hlc=response.server_hlc, has_more=response.has_more
    ).SerializeToString()


def decode_response(data: bytes) -> SyncResponse:
    """Decode a SyncResponse message.

    Raises:
        ValidationError: `data` has another form.
    """
    message = parse(pb.SyncResponse(), data)
    check_range("serverHlc", message.server_hlc)
    return SyncResponse(_deltas(message.deltas), message.server_hlc, message.has_more)


def decode_deltas(data: Sequence[bytes]) -> tuple[RowDelta, ...]:
    """Decode RowDelta messages.

    Raises:
        ValidationError: one of them has another form.
    """
    return _deltas(parse(pb.RowDelta(), each) for each in data)


def parse(message: M, data: bytes) -> M:
    """Parse `data` into `message`, and return it.

    Args:
        message: an empty message.
        data: the encoded message.

    Raises:
        ValidationError: `data` has another form.
    """
    try:
        message.ParseFromString(data)
    except DecodeError as error:
        raise ValidationError(f"{type(message).__name__}: the protobuf message is malformed: {error}") from None
    return message


def _decode_singly(push: SyncPush, messages: Iterable[pb.RowDelta]) -> SyncPush:
    """Decode the deltas of a push one by one, with U+FFFD for each lone surrogate in a value.

    Args:
        push: the push without deltas.
        messages: its deltas.

    Raises:
        MalformedDeltasError: deltas are malformed.
    """
    deltas: list[RowDelta] = []
    rejected = []
    for index, message in enumerate(messages):
        for cell in message.columns:
            cell.value = replace_lone_surrogates(cell.value)
        try:
            deltas += _deltas([message], index)
        except ValidationError as error:
            rejected.append(Rejection(message.delta_id, ValidationError.code, str(error)))
    push = replace(push, deltas=tuple(deltas))
    if rejected:
        raise MalformedDeltasError(rejected, push)
    return push


def _message(delta: RowDelta) -> pb.RowDelta:
    """Convert a delta to a RowDelta message."""
    return pb.RowDelta(
        op=_OP_NUMBERS[delta.op],
        table=delta.table,
        row_id=delta.row_id,
        columns=[pb.ColumnDelta(column=cell.column, value=bytes(cell.value)) for cell in delta.columns],
        hlc=delta.hlc,
        client_id=delta.client_id,
        delta_id=delta.delta_id,
    )


def _deltas(messages: Iterable[pb.RowDelta], first: int = 0) -> tuple[RowDelta, ...]:
    """Convert RowDelta messages to deltas, and check their values; raises ValidationError.

    Args:
        messages: the messages.
        first: the index of the first one in its push, for error messages.
    """
    deltas = tuple(_delta(message, f"deltas[{index}]") for index, message in enumerate(messages, first))
    check_values(deltas, first)
    return deltas


def _delta(message: pb.RowDelta, where: str) -> RowDelta:
    """Convert a RowDelta message to a delta; a ValidationError begins with `where`, its place in the message."""
    op = _OPS.get(message.op)
    if op is None:
        raise ValidationError(f"{where}: op {message.op} is not 1 INSERT, 2 UPDATE or 3 DELETE")
    return RowDelta(
        op,
        message.table,
        message.row_id,
        message.client_id,
        tuple(ColumnValue(cell.column, msgspec.Raw(cell.value.strip(_SPACE))) for cell in message.columns),
        message.hlc,
        message.delta_id,
    )
