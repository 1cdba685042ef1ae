"""Deltas of a protobuf frame by field, without an object a delta.

protobuf joins what it reads of one message that comes in several pieces, and appends what it reads of a repeated field.
So deltas that are read as pieces of one message, whose fields have the numbers of a delta's and are all repeated, come
out as lists, made in C.
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
    """Deltas by field: of the first, of the second, and so on."""

    ops: list[int]
    """`DeltaOp`s of the wire."""
    tables: list[str]
    row_ids: list[str]
    clients: list[str]
    hlcs: list[int]
    names: list[str]
    """Of each column, and an empty one after those of each delta."""
    values: list[bytes]
    """As JSON; the same."""

    @property
    def width(self) -> int | None:
        """How many columns each delta has, where all have those of the first, in its order."""
        width = self.names.index("")
        alike = self.names == self.names[: width + 1] * len(self.ops)
        return width if alike else None


def split(response: bytes) -> Sequence[bytes]:
    """The deltas of a SyncResponse message, each a RowDelta message.

    Raises:
        ValidationError: it is something else.
    """
    message: Any = parse(_RESPONSE(), response)
    return message.deltas[:]  # type: ignore[no-any-return]


def by_field(deltas: Sequence[bytes]) -> Fields | None:
    """At least one RowDelta message by field; None where one lacks a field or has it more than once.

    Raises:
        ValidationError: they are something else.
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
    one = Field.LABEL_OPTIONAL  # what comes several times is joined, or, of an id, only the last one kept
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
    """A column without name and value, as a piece of a delta, spelled out where an encoder leaves out what is empty."""
    delta, cell = pb.RowDelta.DESCRIPTOR.fields_by_name, pb.ColumnDelta.DESCRIPTOR.fields_by_name
    text = 2
    """The wire's type of what has a length."""
    empty = bytes([cell["column"].number << 3 | text, 0, cell["value"].number << 3 | text, 0])
    return bytes([delta["columns"].number << 3 | text, len(empty)]) + empty


_RESPONSE, _DELTAS = _messages()
_END = _an_end()
