"""Decodes the deltas of a checkpoint frame to one list per field, without an object per delta.

The client's load of a checkpoint calls it. If a protobuf message is sent in pieces, the decoder joins them and appends
repeated fields. So the deltas are decoded as pieces of one message whose fields have the numbers of a delta's fields
and are all repeated. C code builds the lists.
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
    """Deltas by field: the first item of each list belongs to the first delta, and so on."""

    ops: list[int]
    """`DeltaOp` numbers."""
    tables: list[str]
    row_ids: list[str]
    clients: list[str]
    hlcs: list[int]
    names: list[str]
    """Column names; an empty name follows those of each delta."""
    values: list[bytes]
    """JSON values; an empty value follows those of each delta."""

    @property
    def width(self) -> int | None:
        """The number of columns of each delta, if all have those of the first one in its order; otherwise None."""
        width = self.names.index("")
        alike = self.names == self.names[: width + 1] * len(self.ops)
        return width if alike else None


def split(response: bytes) -> Sequence[bytes]:
    """Return the deltas of a SyncResponse message, each as an encoded RowDelta message.

    Raises:
        ValidationError: the message has another form.
    """
    message: Any = parse(_RESPONSE(), response)
    return message.deltas[:]  # type: ignore[no-any-return]


def by_field(deltas: Sequence[bytes]) -> Fields | None:
    """Decode RowDelta messages, at least one, by field; None if one lacks a field or has it twice.

    Raises:
        ValidationError: the messages have another form.
    """
    read: Any = parse(_DELTAS(), _END.join([*deltas, b""]))
    cells = read.columns
    found = Fields(
        read.op[:], read.table[:], read.row_id[:], read.client_id[:], read.hlc[:], cells.column[:], cells.value[:]
    )
    counts = {len(field) for field in found[:5]} | {found.names.count("")}
    if counts != {len(deltas)} or len(found.names) != len(found.values):
        return None
    return found


def _messages() -> tuple[type[Message], type[Message]]:
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
    one = Field.LABEL_OPTIONAL  # several messages are joined; of several ids, the last one is kept
    deltas.field.add(name="delta_id", number=delta["delta_id"].number, type=_TEXT, label=one)
    deltas.field.add(
        name="columns", number=delta["columns"].number, type=_MESSAGE, type_name=f".{_PACKAGE}.Cells", label=one
    )
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    made = [pool.FindMessageTypeByName(f"{_PACKAGE}.{name}") for name in ("Response", "Deltas")]
    first, second = (message_factory.GetMessageClass(descriptor) for descriptor in made)
    return first, second


def _an_end() -> bytes:
    """Return a column without name and value, as a piece of a delta, with the empty fields that encoders omit."""
    delta, cell = pb.RowDelta.DESCRIPTOR.fields_by_name, pb.ColumnDelta.DESCRIPTOR.fields_by_name
    text = 2
    """The wire's type of what has a length."""
    empty = bytes([cell["column"].number << 3 | text, 0, cell["value"].number << 3 | text, 0])
    return bytes([delta["columns"].number << 3 | text, len(empty)]) + empty


_RESPONSE, _DELTAS = _messages()
_END = _an_end()
