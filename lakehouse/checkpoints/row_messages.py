"""Encodes rows of a state table as protobuf messages, column by column with Arrow instead of a loop over rows.

A state table has the current rows of one synced table in the lake. A value in it is a *cell*: the value, with the delta
(change of the row) that wrote it. The *stamp* of a delta, and of its cells, is the hlc (the client's timestamp) and the
client's id. A new client is sent each row as deltas again: one for each delta that wrote some of its cells, in order of
their stamps, as `lakesync.feed.render.insert` makes them. In a state table, `_inserted` is the stamp of a row's INSERT.
`_gone` marks deleted rows, which are not sent; the others are *visible*.

A protobuf message is the concatenation of its fields, each a tag, a length and bytes. So columns of bytes are joined
element by element: fields to deltas, deltas to rows. `lakehouse.checkpoints.frame_files` calls `row_messages` and
writes the result to a checkpoint: files from which new clients load all rows.

This is a second encoder of rows, for speed: it takes 4.3 µs of processor time for a row of five columns, where reading
the row, `feed.render.insert` and `wire.protobuf` take 37 µs. A property test in `tests/property/test_kernel.py`
checks that both give the same result.
"""

from __future__ import annotations

from hashlib import sha256
from json.encoder import encode_basestring
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    import numpy.typing as npt

    Ints = npt.NDArray[np.int64]

_RESPONSE_DELTAS = b"\x0a"
"""Tag of the field `deltas` of a `SyncResponse`."""
_INSERT, _UPDATE = b"\x08\x01", b"\x08\x02"
"""A delta's field `op`: tag and value."""
_TABLE, _ROW, _COLUMNS, _HLC, _CLIENT, _DELTA_ID = b"\x12", b"\x1a", b"\x22", b"\x29", b"\x32", b"\x3a"
"""Tags of a delta's other fields in `lakesync.proto`; `hlc` is a fixed64, the others have lengths."""
_COLUMN_NAME, _COLUMN_VALUE = b"\x0a", b"\x12"
"""Tags of the fields of a column."""

_NOTHING = pa.scalar(b"", pa.binary())
"""No bytes: for a field with its default value, which protobuf omits, and between fields that are joined."""
_PLAIN = r'^[^"\\\x00-\x1f]*$'
"""Text without characters that JSON escapes."""


class RowMessages(NamedTuple):
    """Visible rows, encoded as the concatenated deltas of a `SyncResponse`."""

    data: memoryview
    ends: Ints
    """Byte in `data` at which each row ends."""


class _Cells(NamedTuple):
    """The live cells (column values that no DELETE removed) of all rows, as parallel columns in sending order."""

    row: Ints
    """Index of the cell's row."""
    name: pa.Array
    """Name of the cell's column."""
    hlc: pa.Array
    client: pa.Array
    """Client of the delta that wrote the cell."""
    delta_id: pa.Array
    width: Ints
    """Number of columns that the cell's delta wrote. Other deltas may have overwritten some of them since."""
    value: pa.Array
    """The cell's value as JSON text."""

    def take(self, indexes: Ints) -> _Cells:
        """Return the cells with some indexes, in this order."""
        arrow_indexes = pa.array(indexes)
        return _Cells(
            self.row[indexes],
            self.name.take(arrow_indexes),
            self.hlc.take(arrow_indexes),
            self.client.take(arrow_indexes),
            self.delta_id.take(arrow_indexes),
            self.width[indexes],
            self.value.take(arrow_indexes),
        )


class _Deltas(NamedTuple):
    """The deltas of all rows, as parallel columns in the order in which they are sent."""

    row: Ints
    """Index of the delta's row."""
    first: Ints
    """Index of the delta's first cell."""
    cells: Ints
    """Number of the delta's cells."""
    hlc: pa.Array
    client: pa.Array
    delta_id: pa.Array
    """The id of the original delta, if it is sent with all its columns. Otherwise null, which `_delta_ids` replaces by
    a new id: if the row has no cells, if some columns of the delta are no longer live, or if several deltas with the
    same stamp become one."""


def row_messages(states: pa.RecordBatch, table: str) -> RowMessages:
    """Encode the visible rows of a state table, each as an INSERT of its oldest cells, then UPDATEs by stamp.

    Args:
        states: rows of the state table, deleted ones included.
        table: the table's name.

    Returns:
        The visible rows, in their order in `states`.
    """
    states = states.filter(pc.invert(states["_gone"]))
    if not states.num_rows:
        return RowMessages(memoryview(b""), np.array([], np.int64))
    cells = _cells(states["_cells"])
    deltas = _deltas(states, cells)
    rows = states["_row"].take(pa.array(deltas.row))
    columns = _join_ranges(_column_messages(cells), deltas.first, deltas.cells)
    delta_ids = _delta_ids(cells, deltas, rows, table)
    is_first = np.diff(deltas.row, prepend=-1) > 0
    ops = pa.array([_UPDATE, _INSERT], pa.binary()).take(pa.array(is_first.astype(np.int8)))
    table_bytes = table.encode()
    messages = _concatenated(
        ops,
        _TABLE + _varint(len(table_bytes)) + table_bytes,
        _with_length(_ROW, rows),
        columns,
        _fixed64(deltas.hlc),
        _with_length(_CLIENT, deltas.client),
        _with_length(_DELTA_ID, delta_ids),
    )
    counts = np.bincount(deltas.row, minlength=states.num_rows)
    encoded_rows = _join_ranges(_with_length(_RESPONSE_DELTAS, messages), np.cumsum(counts) - counts, counts)
    # an Arrow array of bytes has the offsets of its values in buffer 1, and their bytes in buffer 2
    offsets = np.frombuffer(encoded_rows.buffers()[1], np.int32)[
        encoded_rows.offset : encoded_rows.offset + len(encoded_rows) + 1
    ].astype(np.int64)
    return RowMessages(memoryview(encoded_rows.buffers()[2])[offsets[0] : offsets[-1]], offsets[1:] - offsets[0])


def _cells(maps: pa.Array) -> _Cells:
    """Return the cells of a column `_cells`, ordered by row, stamp and delta.

    The cells of one delta keep the map's order, by column name. `_delta_ids` relies on this order, which is that of the
    gateway's code too: a new delta id depends on the order of the columns. A delta that is sent with all its columns
    keeps its id, which is not computed again.
    """
    offsets = np.asarray(maps.offsets).astype(np.int64)
    first, last = int(offsets[0]), int(offsets[-1])
    names, structs = maps.keys.slice(first, last - first), maps.items.slice(first, last - first)
    fields = {name: pc.struct_field(structs, name) for name in ("hlc", "client_id", "delta_id", "width", "value")}
    width = fields["width"].to_numpy(zero_copy_only=False).astype(np.int64)
    row = np.repeat(np.arange(len(maps)), np.diff(offsets))
    cells = _Cells(row, names, fields["hlc"], fields["client_id"], fields["delta_id"], width, fields["value"])
    hlc = np.asarray(cells.hlc)
    # Each row is one delta if every cell, except a row's first, is of the same delta as the cell before it. Most rows
    # are, and need no sorting.
    is_first_in_row = np.diff(row, prepend=-1) > 0
    each_row_is_one_delta = (_same_delta(cells) | is_first_in_row).all()
    if not each_row_is_one_delta:
        # `lexsort` sorts by its last key first
        cells = cells.take(np.lexsort((_ranks(cells.client), hlc, row)))
        stamps_are_unique = (_same_delta(cells) | ~_same_stamp(cells)).all()
        if not stamps_are_unique:
            # A faulty client gave several deltas one stamp. Sorting by width and delta id too keeps the cells of each
            # delta together.
            keys = (cells.width, _ranks(cells.delta_id), _ranks(cells.client), np.asarray(cells.hlc), cells.row)
            cells = cells.take(np.lexsort(keys))
    return cells


def _deltas(states: pa.RecordBatch, cells: _Cells) -> _Deltas:
    """Group the cells with the same stamp into deltas, and add the rows without cells."""
    begins = np.flatnonzero(~_same_stamp(cells))
    ends = np.append(begins[1:], len(cells.row))
    counts = ends - begins
    # Count the deltas that begin in each group. One begins with the group's first cell; if another begins within the
    # group, several deltas have its stamp.
    is_mixed = np.add.reduceat(~_same_delta(cells), begins, dtype=np.int64) > 1 if len(begins) else np.array([], bool)
    is_complete = ~is_mixed & (counts == cells.width[begins])
    first_cells = pa.array(begins)
    ids = pc.if_else(pa.array(is_complete), cells.delta_id.take(first_cells), pa.scalar(None, pa.string()))
    deltas = _Deltas(
        cells.row[begins], begins, counts, cells.hlc.take(first_cells), cells.client.take(first_cells), ids
    )
    empty = np.flatnonzero(np.bincount(cells.row, minlength=states.num_rows) == 0)
    return _with_empty_rows(deltas, empty, states["_inserted"].take(pa.array(empty))) if len(empty) else deltas


def _with_empty_rows(deltas: _Deltas, empty: Ints, inserted: pa.Array) -> _Deltas:
    """Add an INSERT without columns for each row without cells, such as one that was inserted without values.

    Args:
        deltas: the deltas of the other rows.
        empty: indexes of the rows without cells.
        inserted: the stamps of their INSERTs.
    """
    zeros = np.zeros(len(empty), np.int64)
    row = np.concatenate([deltas.row, empty])
    order = np.argsort(row, kind="stable")
    arrow_order = pa.array(order)
    # A merge never leaves `_inserted`, the INSERT's stamp, null in such a row. `lakesync.wire.encoded.row_deltas`, the
    # other encoder, would take the stamp (0, "") for null, so this one does too.
    hlc = pc.fill_null(pc.struct_field(inserted, "hlc"), 0)
    client = pc.fill_null(pc.struct_field(inserted, "client_id"), "")
    return _Deltas(
        row[order],
        np.concatenate([deltas.first, zeros])[order],
        np.concatenate([deltas.cells, zeros])[order],
        pa.concat_arrays([deltas.hlc, hlc]).take(arrow_order),
        pa.concat_arrays([deltas.client, client]).take(arrow_order),
        pa.concat_arrays([deltas.delta_id, pa.nulls(len(empty), pa.string())]).take(arrow_order),
    )


def _delta_ids(cells: _Cells, deltas: _Deltas, rows: pa.Array, table: str) -> pa.Array:
    """Return the id of each delta. One without the id of an original delta gets a new id.

    The new id is computed as `lakesync.model.delta.delta_id` does, from the same canonical text.
    """
    new = np.flatnonzero(pc.is_null(deltas.delta_id).to_numpy(zero_copy_only=False))
    if not len(new):
        return deltas.delta_id
    new_indexes = pa.array(new)
    counts = deltas.cells[new]
    begins = np.cumsum(counts) - counts  # where the cells of each of these deltas begin when only theirs are taken
    shifts = np.repeat(deltas.first[new] - begins, counts)
    cell_indexes = pa.array(shifts + np.arange(len(shifts)))
    texts = _concatenated(
        b'{"column":', _quoted(cells.name.take(cell_indexes)), b',"value":', cells.value.take(cell_indexes), b"}"
    )
    column_texts = _join_ranges(texts, begins, counts, separator=b",")
    canonical = _concatenated(
        b'{"clientId":',
        _quoted(deltas.client.take(new_indexes)),
        b',"columns":[',
        column_texts,
        b'],"hlc":"',
        deltas.hlc.take(new_indexes).cast(pa.string()),
        b'","rowId":',
        _quoted(rows.take(new_indexes)),
        f',"table":{encode_basestring(table)}}}'.encode(),
    )
    ids = pa.array([sha256(text).hexdigest() for text in canonical.to_pylist()], pa.string())
    return pc.replace_with_mask(deltas.delta_id, pc.is_null(deltas.delta_id), ids)


def _column_messages(cells: _Cells) -> pa.Array:
    """Return for each cell the field of a delta that has its column's name and value."""
    return _with_length(
        _COLUMNS, _concatenated(_with_length(_COLUMN_NAME, cells.name), _with_length(_COLUMN_VALUE, cells.value))
    )


def _same_stamp(cells: _Cells) -> npt.NDArray[np.bool_]:
    """Return for each cell whether it has the row and the stamp of the cell before it."""
    return _equals_previous(cells.row) & _equals_previous(np.asarray(cells.hlc)) & _text_equals_previous(cells.client)


def _same_delta(cells: _Cells) -> npt.NDArray[np.bool_]:
    """Return for each cell whether it belongs to the same delta as the cell before it."""
    return _same_stamp(cells) & _equals_previous(cells.width) & _text_equals_previous(cells.delta_id)


def _equals_previous(values: Ints) -> npt.NDArray[np.bool_]:
    """Return for each value whether it equals the one before it."""
    return np.concatenate([[False], values[1:] == values[:-1]])[: len(values)]


def _text_equals_previous(values: pa.Array) -> npt.NDArray[np.bool_]:
    """Return, for each text, whether it equals the one before."""
    if not len(values):
        return np.array([], bool)
    equal = pc.equal(values.slice(1), values.slice(0, len(values) - 1)).to_numpy(zero_copy_only=False)
    return np.concatenate([[False], equal])


def _ranks(texts: pa.Array) -> Ints:
    """Return integers in the order of texts by UTF-8 bytes, which is the order of code points."""
    coded = texts.dictionary_encode()
    ranks = np.empty(len(coded.dictionary), np.int64)
    ranks[np.asarray(pc.sort_indices(coded.dictionary))] = np.arange(len(ranks))
    ranks_of_texts: Ints = ranks[np.asarray(coded.indices)]
    return ranks_of_texts


def _quoted(texts: pa.Array) -> pa.Array:
    """Return texts as canonical JSON strings (JCS)."""
    plain = pc.match_substring_regex(texts, _PLAIN)
    quoted = _concatenated(b'"', texts, b'"')
    if pc.all(plain).as_py() is not False:
        return quoted
    other = pc.invert(plain)
    escaped = [encode_basestring(text).encode() for text in texts.filter(other).to_pylist()]
    return pc.replace_with_mask(quoted, other, pa.array(escaped, pa.binary()))


def _with_length(tag: bytes, values: pa.Array) -> pa.Array:
    """Return the protobuf field of each value; empty for an empty value, which protobuf omits."""
    data = values.cast(pa.binary())
    lengths = pc.binary_length(data).to_numpy(zero_copy_only=False).astype(np.int64)
    fields = _concatenated(tag, _varints(lengths), data)
    return fields if lengths.all() else pc.if_else(pa.array(lengths > 0), fields, _NOTHING)


def _fixed64(values: pa.Array) -> pa.Array:
    """Return the protobuf field `hlc` of each value; empty for 0."""
    numbers = np.ascontiguousarray(values.to_numpy(zero_copy_only=False), "<i8")
    raw = pa.Array.from_buffers(pa.binary(8), len(numbers), [None, pa.py_buffer(numbers)]).cast(pa.binary())
    fields = _concatenated(_HLC, raw)
    return fields if numbers.all() else pc.if_else(pa.array(numbers != 0), fields, _NOTHING)


def _varints(numbers: Ints) -> pa.Array:
    """Return numbers as protobuf varints: 7 bits a byte, lowest first."""
    sizes = np.ones(len(numbers), np.int32)
    for bits in (7, 14, 21, 28):
        sizes += numbers >> bits > 0
    offsets = np.zeros(len(numbers) + 1, np.int32)
    np.cumsum(sizes, out=offsets[1:])
    data = np.empty(offsets[-1], np.uint8)
    for index in range(int(sizes.max(initial=0))):
        longer = np.flatnonzero(sizes > index)
        more_bytes_follow = (sizes[longer] > index + 1).astype(np.uint8) << 7
        data[offsets[:-1][longer] + index] = (numbers[longer] >> 7 * index & 0x7F).astype(np.uint8) | more_bytes_follow
    return pa.Array.from_buffers(pa.binary(), len(numbers), [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def _varint(number: int) -> bytes:
    """Return one number as a protobuf varint."""
    encoded: bytes = _varints(np.array([number]))[0].as_py()
    return encoded


def _concatenated(*parts: pa.Array | bytes) -> pa.Array:
    """Concatenate columns element by element. A constant is added to every element."""
    given = [pa.scalar(part, pa.binary()) if isinstance(part, bytes) else part.cast(pa.binary()) for part in parts]
    return pc.binary_join_element_wise(*given, _NOTHING)


def _join_ranges(values: pa.Array, first: Ints, count: Ints, separator: bytes = b"") -> pa.Array:
    """Concatenate the values of each range. The ranges are consecutive.

    Args:
        values: the values of all ranges.
        first: index of each range's first value; ignored for an empty range.
        count: number of each range's values.
        separator: is put between the values of a range.
    """
    offsets = np.zeros(len(count) + 1, np.int32)
    np.cumsum(count, out=offsets[1:])
    begin = int(first[count > 0][0]) if (count > 0).any() else 0
    lists = pa.ListArray.from_arrays(pa.array(offsets), values.slice(begin, int(offsets[-1])))
    return pc.binary_join(lists, pa.scalar(separator, pa.binary()))
