"""Decodes the deltas of a checkpoint's messages field by field: to one list for each field, without an object for each.

A *checkpoint* is a snapshot of all rows, from which new clients start: a stream of SyncResponse messages (protobuf)
with *deltas* (changes of rows), here one or more for each row. The *hlc* of a delta is the writer's timestamp. A client
that loads it decodes millions of them, and calls this module (`client.sync.checkpoint_load`).

The decoding relies on a rule of protobuf: if encoded messages are concatenated, the decoder merges them to one message
and appends their repeated fields. So this module declares a message with the field numbers of a delta, all of them
repeated, and decodes the concatenated deltas as one such message. C code then builds the lists.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Field
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.message import Message

from lakesync.wire import lakesync_pb2 as pb
from lakesync.wire.protobuf import parse

_PACKAGE = "lakesync.columns"
"""The package of the messages that `_message_classes` declares."""


class DeltaFields(NamedTuple):
    """The fields of deltas, as lists. The first item of `ops` to `hlcs` belongs to the first delta, and so on."""

    ops: list[int]
    """`DeltaOp` numbers."""
    tables: list[str]
    row_ids: list[str]
    clients: list[str]
    """The ids of the clients that wrote them."""
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
    counts = {len(field) for field in fields[:5]}  # of `ops` to `hlcs`
    counts.add(fields.names.count(""))  # an empty name ends the columns of each delta
    if counts != {len(deltas)} or len(fields.names) != len(fields.values):
        return None
    return fields


def _message_classes() -> tuple[type[Message], type[Message]]:
    """Declare the messages that this module decodes, in place of those of `lakesync.proto`, and return their classes.

    Returns:
        The class of a SyncResponse whose deltas stay encoded; and that of concatenated RowDelta messages, whose fields
        are repeated, except `delta_id`, which is not needed.
    """
    text, repeated = Field.TYPE_STRING, Field.LABEL_REPEATED
    file = FileDescriptorProto(name="lakesync/columns.proto", package=_PACKAGE, syntax="proto3")
    response = file.message_type.add(name="Response").field
    number = pb.SyncResponse.DESCRIPTOR.fields_by_name["deltas"].number
    response.add(name="deltas", number=number, type=Field.TYPE_BYTES, label=repeated)
    cells, numbers = file.message_type.add(name="Cells").field, _field_numbers(pb.ColumnDelta)
    cells.add(name="column", number=numbers["column"], type=text, label=repeated)
    cells.add(name="value", number=numbers["value"], type=Field.TYPE_BYTES, label=repeated)
    deltas, numbers = file.message_type.add(name="Deltas").field, _field_numbers(pb.RowDelta)
    deltas.add(name="op", number=numbers["op"], type=Field.TYPE_INT32, label=repeated)
    for name in ("table", "row_id", "client_id"):
        deltas.add(name=name, number=numbers[name], type=text, label=repeated)
    deltas.add(name="hlc", number=numbers["hlc"], type=Field.TYPE_FIXED64, label=repeated)
    # not repeated: the decoder merges several `columns` to one message, and of several delta ids it keeps the last
    cells_type: dict[str, Any] = {"type": Field.TYPE_MESSAGE, "type_name": f".{_PACKAGE}.Cells"}
    deltas.add(name="columns", number=numbers["columns"], label=Field.LABEL_OPTIONAL, **cells_type)
    deltas.add(name="delta_id", number=numbers["delta_id"], type=text, label=Field.LABEL_OPTIONAL)
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    descriptors = [pool.FindMessageTypeByName(f"{_PACKAGE}.{name}") for name in ("Response", "Deltas")]
    response_class, deltas_class = (message_factory.GetMessageClass(descriptor) for descriptor in descriptors)
    return response_class, deltas_class


def _empty_column() -> bytes:
    """Return an encoded field `columns` of a delta with an empty name and value, which normal encoders would omit."""
    length_delimited = 2  # protobuf's wire type of texts, bytes and messages
    cell = _field_numbers(pb.ColumnDelta)
    empty = bytes([cell["column"] << 3 | length_delimited, 0, cell["value"] << 3 | length_delimited, 0])
    return bytes([_field_numbers(pb.RowDelta)["columns"] << 3 | length_delimited, len(empty)]) + empty


def _field_numbers(message: type[Message]) -> dict[str, int]:
    """Return the number of each field of a message."""
    return {field.name: field.number for field in message.DESCRIPTOR.fields}


_RESPONSE, _DELTAS = _message_classes()
_END_OF_DELTA = _empty_column()
"""Follows each delta in the concatenation, so that an empty name and value show where its columns end."""
