"""Protobuf messages: encodes and decodes pushes, pulls, responses and single deltas.

A *push* sends deltas (changes of rows), a *pull* requests those that the client lacks. A *checkpoint* is a snapshot of
all rows, from which new clients start. Gateway, client and the pipeline's checkpoints call this module.

A client that loads a checkpoint decodes millions of deltas. It calls `decode_by_field`, which returns one list for each
field, without an object for each delta. That relies on a rule of protobuf: if encoded messages are concatenated, the
decoder merges them to one message and appends their repeated fields. So this module declares a message with the field
numbers of a delta, all of them repeated, and decodes the concatenated deltas as one such message. C code then builds
the lists.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec
from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Field
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.message import DecodeError, Message

from lakesync.model.errors import ValidationError
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
from lakesync.wire.malformed import check_range, check_values

M = TypeVar("M", bound=Message)

_OPS: dict[pb.DeltaOp, Op] = {pb.DELTA_OP_INSERT: "INSERT", pb.DELTA_OP_UPDATE: "UPDATE", pb.DELTA_OP_DELETE: "DELETE"}
_NUMBERS = {op: number for number, op in _OPS.items()}
_SPACE = b" \t\r\n"
"""The whitespace of JSON, which may surround a value."""


def encode_delta(delta: RowDelta) -> bytes:
    """Encode a delta as the message RowDelta."""
    return _message(delta).SerializeToString()


def decode_delta(data: bytes) -> RowDelta:
    """Decode a delta from the message RowDelta.

    Raises:
        ValidationError: `data` has another form.
    """
    delta = _delta(parse(pb.RowDelta(), data), "delta")
    check_values((delta,))
    return delta


def encode_push(push: SyncPush) -> bytes:
    """Encode a SyncPush message."""
    return pb.SyncPush(
        client_id=push.client_id, deltas=map(_message, push.deltas), last_seen_hlc=push.last_seen_hlc
    ).SerializeToString()


def decode_push(data: bytes) -> SyncPush:
    """Decode a SyncPush message.

    Raises:
        ValidationError: `data` has another form; its attribute `rejected` lists each delta with an invalid value.
    """
    message = parse(pb.SyncPush(), data)
    push = SyncPush(message.client_id, _deltas(message.deltas), message.last_seen_hlc)
    check_range("lastSeenHlc", push.last_seen_hlc)
    return push


def encode_pull(pull: SyncPull) -> bytes:
    """Encode a SyncPull message."""
    return pb.SyncPull(
        client_id=pull.client_id,
        since_hlc=pull.since_hlc,
        max_deltas=pull.max_deltas,
        source=pull.source,
        own_hlc=pull.own_hlc,
    ).SerializeToString()


def decode_pull(data: bytes) -> SyncPull:
    """Decode a SyncPull message; without `max_deltas` the limit is `DEFAULT_MAX_DELTAS`.

    Raises:
        ValidationError: `data` has another form.
    """
    message = parse(pb.SyncPull(), data)
    check_range("sinceHlc", message.since_hlc)
    source = message.source if message.HasField("source") else None
    own = message.own_hlc if message.HasField("own_hlc") else None
    if own is not None:
        check_range("ownHlc", own)
    return SyncPull(message.client_id, message.since_hlc, message.max_deltas or DEFAULT_MAX_DELTAS, source, own)


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


def _message(delta: RowDelta) -> pb.RowDelta:
    """Convert a delta to a RowDelta message."""
    return pb.RowDelta(
        op=_NUMBERS[delta.op],
        table=delta.table,
        row_id=delta.row_id,
        columns=[pb.ColumnDelta(column=cell.column, value=bytes(cell.value)) for cell in delta.columns],
        hlc=delta.hlc,
        client_id=delta.client_id,
        delta_id=delta.delta_id,
    )


def _deltas(messages: Iterable[pb.RowDelta]) -> tuple[RowDelta, ...]:
    """Convert RowDelta messages to deltas, and check their values; raises ValidationError."""
    deltas = tuple(_delta(message, f"deltas[{index}]") for index, message in enumerate(messages))
    check_values(deltas)
    return deltas


def _delta(message: pb.RowDelta, where: str) -> RowDelta:
    """Convert a RowDelta message to a delta; a ValidationError begins with `where`, its place in the message."""
    op = _OPS.get(message.op)
    if op is None:
        raise ValidationError(f"{where}: op {message.op} is none of 1 INSERT, 2 UPDATE, 3 DELETE")
    return RowDelta(
        op,
        message.table,
        message.row_id,
        message.client_id,
        tuple(ColumnValue(cell.column, msgspec.Raw(cell.value.strip(_SPACE))) for cell in message.columns),
        message.hlc,
        message.delta_id,
    )


_PACKAGE = "lakesync.columns"
"""The package of the messages that `_message_classes` declares."""
_BYTES, _INT, _HLC, _TEXT, _MESSAGE = (
    Field.TYPE_BYTES,
    Field.TYPE_INT32,
    Field.TYPE_FIXED64,
    Field.TYPE_STRING,
    Field.TYPE_MESSAGE,
)


class DeltaFields(NamedTuple):
    """The fields of deltas, as lists. The first item of `ops` to `hlcs` belongs to the first delta, and so on."""

    ops: list[int]
    """`DeltaOp` numbers."""
    tables: list[str]
    row_ids: list[str]
    clients: list[str]
    hlcs: list[int]
    names: list[str]
    """The column names of all deltas, one delta after the other; an empty name follows those of each delta."""
    values: list[bytes]
    """The JSON values of these columns; an empty value follows those of each delta."""

    @property
    def width(self) -> int | None:
        """The number of columns of each delta, if all have the same columns in the same order; otherwise None."""
        width = self.names.index("")
        are_equal = self.names == self.names[: width + 1] * len(self.ops)
        return width if are_equal else None


def split_deltas(response: bytes) -> Sequence[bytes]:
    """Return the deltas of a SyncResponse message, each as an encoded RowDelta message.

    Raises:
        ValidationError: the message has another form.
    """
    message: Any = parse(_RESPONSE(), response)
    return message.deltas[:]  # type: ignore[no-any-return]


def decode_by_field(deltas: Sequence[bytes]) -> DeltaFields | None:
    """Decode encoded RowDelta messages to lists of their fields.

    Args:
        deltas: the messages, at least one.

    Returns:
        The fields; None if a delta lacks one (protobuf leaves out empty fields), so that the lists would not match.

    Raises:
        ValidationError: the messages have another form.
    """
    merged: Any = parse(_DELTAS(), _END_OF_DELTA.join([*deltas, b""]))
    cells = merged.columns
    fields = DeltaFields(
        *(merged.op[:], merged.table[:], merged.row_id[:], merged.client_id[:], merged.hlc[:]),
        *(cells.column[:], cells.value[:]),
    )
    counts = {len(field) for field in fields[:5]} | {fields.names.count("")}  # of `ops` to `hlcs`, and of all columns
    if counts != {len(deltas)} or len(fields.names) != len(fields.values):
        return None
    return fields


def _message_classes() -> tuple[type[Message], type[Message]]:
    """Return the classes of a SyncResponse whose deltas stay encoded, and of deltas whose fields are all repeated."""
    delta, cell = pb.RowDelta.DESCRIPTOR.fields_by_name, pb.ColumnDelta.DESCRIPTOR.fields_by_name
    file = FileDescriptorProto(name="lakesync/columns.proto", package=_PACKAGE, syntax="proto3")
    response = file.message_type.add(name="Response")
    number = pb.SyncResponse.DESCRIPTOR.fields_by_name["deltas"].number
    response.field.add(name="deltas", number=number, type=_BYTES, label=Field.LABEL_REPEATED)
    cells = file.message_type.add(name="Cells")
    for name, kind in (("column", _TEXT), ("value", _BYTES)):
        cells.field.add(name=name, number=cell[name].number, type=kind, label=Field.LABEL_REPEATED)
    deltas = file.message_type.add(name="Deltas")
    for name, kind in (("op", _INT), ("table", _TEXT), ("row_id", _TEXT), ("client_id", _TEXT), ("hlc", _HLC)):
        deltas.field.add(name=name, number=delta[name].number, type=kind, label=Field.LABEL_REPEATED)
    one = Field.LABEL_OPTIONAL  # the decoder merges several `columns`; of several delta ids it keeps the last
    deltas.field.add(name="delta_id", number=delta["delta_id"].number, type=_TEXT, label=one)
    deltas.field.add(
        name="columns", number=delta["columns"].number, type=_MESSAGE, type_name=f".{_PACKAGE}.Cells", label=one
    )
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    descriptors = [pool.FindMessageTypeByName(f"{_PACKAGE}.{name}") for name in ("Response", "Deltas")]
    response_class, deltas_class = (message_factory.GetMessageClass(descriptor) for descriptor in descriptors)
    return response_class, deltas_class


def _empty_column() -> bytes:
    """Return an encoded field `columns` of a delta with an empty name and value, which normal encoders would omit."""
    delta, cell = pb.RowDelta.DESCRIPTOR.fields_by_name, pb.ColumnDelta.DESCRIPTOR.fields_by_name
    length_delimited = 2  # protobuf's wire type of texts, bytes and messages
    empty = bytes([cell["column"].number << 3 | length_delimited, 0, cell["value"].number << 3 | length_delimited, 0])
    return bytes([delta["columns"].number << 3 | length_delimited, len(empty)]) + empty


_RESPONSE, _DELTAS = _message_classes()
_END_OF_DELTA = _empty_column()
"""Follows each delta in the concatenation, so that an empty name and value show where its columns end."""
