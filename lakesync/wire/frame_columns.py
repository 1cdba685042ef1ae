"""Decodes the deltas of a checkpoint frame to one list per field, without an object per delta.

The client's load of a checkpoint calls it. It relies on a rule of protobuf: if encoded messages are concatenated, the
decoder merges them to one message and appends their repeated fields. So this module declares a message with the field
numbers of a delta, all of them repeated, and decodes the concatenated deltas as one such message. C code then builds
the lists.
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
_BYTES, _INT, _HLC, _TEXT, _MESSAGE = (
    Field.TYPE_BYTES,
    Field.TYPE_INT32,
    Field.TYPE_FIXED64,
    Field.TYPE_STRING,
    Field.TYPE_MESSAGE,
)


class Fields(NamedTuple):
    """The fields of deltas, as lists. The first item of `ops` to `hlcs` belongs to the first delta, and so on."""

    ops: list[int]
    """`DeltaOp` numbers."""
    tables: list[str]
    row_ids: list[str]
    clients: list[str]
    hlcs: list[int]
    names: list[str]
    """The column names of all deltas; an empty name ends those of each delta."""
    values: list[bytes]
    """The JSON values of these columns; an empty value ends those of each delta."""

    @property
    def width(self) -> int | None:
        """The number of columns of each delta, if all have the same columns in the same order; otherwise None."""
        width = self.names.index("")
        are_equal = self.names == self.names[: width + 1] * len(self.ops)
        return width if are_equal else None


def split(response: bytes) -> Sequence[bytes]:
    """Return the deltas of a SyncResponse message, each as an encoded RowDelta message.

    Raises:
        ValidationError: the message has another form.
    """
    message: Any = parse(_RESPONSE(), response)
    return message.deltas[:]  # type: ignore[no-any-return]


def by_field(deltas: Sequence[bytes]) -> Fields | None:
    """Decode encoded RowDelta messages, at least one, to lists of their fields; None if one lacks a field.

    Raises:
        ValidationError: the messages have another form.
    """
    merged: Any = parse(_DELTAS(), _END_OF_DELTA.join([*deltas, b""]))
    cells = merged.columns
    fields = Fields(
        *(merged.op[:], merged.table[:], merged.row_id[:], merged.client_id[:], merged.hlc[:]),
        *(cells.column[:], cells.value[:]),
    )
    counts = {len(field) for field in fields[:5]} | {fields.names.count("")}
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
