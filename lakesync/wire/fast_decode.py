"""Fast decoding of log bodies to the columns of the history, with numpy and without an object for each delta.

A body is the output of `wire.log.encode_body`: compact JSON with its keys in one order. So the positions of quotes and
brackets show where each string begins and ends, and Arrow extracts all strings at once. Flush tasks call it, and decode
other bodies as JSON (`wire.history`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakesync.wire.history import canonical_texts

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    Ints = npt.NDArray[np.int64]
    Words = npt.NDArray[np.uint64]

_QUOTE, _BACKSLASH = ord('"'), ord("\\")
_OPENS, _CLOSES, _CASE = 0x7B, 0x7D, 0x20
"""`{`, `}`, and the one bit in which `[` and `]` differ from them."""
_FIRST_PRINTABLE = 0x20
"""Bytes below are control characters."""
_CERTAIN = np.isin(np.arange(256), list(b'"tfn'))
"""Byte → whether a value that starts with it is certainly canonical: a string without escapes, true, false, null."""
_PUSH, _DELTA, _CELLS, _CELL = 1, 2, 3, 4
"""The nesting depths: of a body's list of deltas, a delta, a delta's list of columns, and a column with its value."""
_BEFORE_CELLS, _AFTER_CELLS, _IN_CELL = 18, 6, 6
"""The number of quotes of a delta before and after its columns, and of a cell without its value."""
_PADDING = bytes(32)
"""Appended to the text, so that words can be read at every position."""
_WORD = 8
"""Bytes that are compared at once, as one 64-bit number."""
_OPS = pa.array(["INSERT", "UPDATE", "DELETE"])


class DecodedLog(NamedTuple):
    """The deltas of several pushes as columns, push after push."""

    counts: Ints
    """The number of deltas of each push."""
    columns: list[pa.Array]
    """In the order of `lakesync.wire.history.DELTA_FIELDS`."""


def decode_columns(bodies: Sequence[bytes]) -> DecodedLog | None:
    """Decode unpacked bodies; return None if one of them does not have the form of `encode_body`.

    Raises:
        ValidationError: a value has no canonical form.
    """
    text = b"".join([*bodies, _PADDING])
    escaped = _BACKSLASH in text
    marks = _marks(text, escaped=escaped)
    begins = np.cumsum([0, *map(len, bodies)])
    pushes, deltas, lists, cells = (marks.spans(depth) for depth in (_PUSH, _DELTA, _CELLS, _CELL))
    if not (np.array_equal(pushes.begin, begins[:-1]) and np.array_equal(pushes.end, begins[1:] - 1)):
        return None
    if not all(body.startswith(b"[") for body in bodies):
        return None
    if not (_fill(deltas, pushes) and len(lists.begin) == len(deltas.begin) and _fill(cells, lists)):
        return None
    quotes, words = marks.quotes, _words(text)
    if not (_are_deltas(words, deltas, quotes) and _are_cells(words, cells, quotes)):
        return None

    def between(first: Ints, last: Ints) -> pa.Array:
        return _slices(text, first, last)

    def quoted(number: int) -> pa.Array:
        """Return each delta's string that begins at its quote with this number, counted from 0."""
        strings = between(quotes[deltas.quote + number] + 1, quotes[deltas.quote + number + 1])
        return _unescaped(strings) if escaped else strings

    op, table, row_id, client_id = (quoted(number) for number in (2, 6, 10, 14))
    if not pc.all(pc.is_in(op, _OPS)).as_py() and len(op):
        return None
    end = deltas.last_quote
    hlc = between(quotes[end - 5] + 2, quotes[end - 4] - 1).cast(pa.int64())
    delta_id = between(quotes[end - 2] + 1, quotes[end - 1])
    widths = np.searchsorted(cells.begin, deltas.end) - np.searchsorted(cells.begin, deltas.begin)
    counted = np.where(pc.equal(op, "DELETE").to_numpy(zero_copy_only=False), 0, widths)  # a DELETE has no columns
    if counted.sum() != len(cells.begin):
        cells = cells.where(np.repeat(counted > 0, widths))
    names = between(quotes[cells.quote + 2] + 1, quotes[cells.quote + 3])
    first = quotes[cells.quote + 5] + 2
    raw = np.frombuffer(text, np.uint8)
    plain = not escaped and int(raw[: begins[-1]].min(initial=_FIRST_PRINTABLE)) >= _FIRST_PRINTABLE
    doubtful = np.flatnonzero(~_CERTAIN[raw[first]]) if plain else None
    values = canonical_texts(between(first, cells.end), doubtful)
    offsets = pa.array(np.concatenate([[0], np.cumsum(counted)]), pa.int32())
    return DecodedLog(
        np.diff(np.searchsorted(deltas.begin, begins)),
        [
            table,
            row_id,
            op,
            client_id,
            hlc,
            _unescaped(delta_id) if escaped else delta_id,
            pa.array(widths, pa.int32()),
            pa.MapArray.from_arrays(offsets, names, values),
        ],
    )


class _Spans(NamedTuple):
    """All objects or lists of one nesting depth, in order."""

    begin: Ints
    """Position of the opening bracket."""
    end: Ints
    """Position of the closing bracket."""
    quote: Ints
    """Number of the first quote in it."""
    last_quote: Ints
    """Number of the last quote in it, plus one."""

    def where(self, mask: npt.NDArray[np.bool_]) -> _Spans:
        return _Spans(*(each[mask] for each in self))


class _Marks(NamedTuple):
    """A text's structure."""

    quotes: Ints
    """Positions where strings begin and end."""
    brackets: Ints
    """Positions of brackets outside of strings."""
    before: Ints
    """The number of quotes before each bracket."""
    depth: Ints
    """The nesting depth before a closing bracket; for an opening bracket, the depth after it, as a negative number."""

    def spans(self, depth: int) -> _Spans:
        """Return what the brackets of one nesting depth enclose."""
        begin, end = np.flatnonzero(self.depth == -depth), np.flatnonzero(self.depth == depth)
        return _Spans(self.brackets[begin], self.brackets[end], self.before[begin], self.before[end])


def _marks(text: bytes, *, escaped: bool) -> _Marks:
    """Find the quotes and brackets of a text; `escaped` says whether it contains backslashes."""
    raw = np.frombuffer(text, np.uint8)
    folded = raw | _CASE
    marked = (raw == _QUOTE) | (folded == _OPENS) | (folded == _CLOSES)
    if escaped:  # a quote after an odd number of backslashes is escaped
        backslashes = np.flatnonzero(raw == _BACKSLASH)
        begins = np.flatnonzero(np.diff(backslashes, prepend=-2) != 1)
        lengths = np.diff(begins, append=len(backslashes))
        marked[(backslashes[begins] + lengths)[lengths % 2 == 1]] = False
    positions = np.flatnonzero(marked)
    kinds = folded[positions]
    are_quotes = kinds == _QUOTE | _CASE
    quotes_before = np.cumsum(are_quotes)
    brackets = np.flatnonzero(~are_quotes & (quotes_before & 1 == 0))
    opens = kinds[brackets] == _OPENS
    depth = np.cumsum(np.where(opens, 1, -1))
    return _Marks(
        positions[are_quotes], positions[brackets], quotes_before[brackets], np.where(opens, -depth, depth + 1)
    )


def _fill(objects: _Spans, lists: _Spans) -> bool:
    """Return whether lists contain exactly these objects, separated by commas."""
    if len(objects.begin) != len(objects.end) or len(lists.begin) != len(lists.end):
        return False
    counts = np.searchsorted(objects.begin, lists.end) - np.searchsorted(objects.begin, lists.begin)
    content = (lists.end - lists.begin - 1).sum()
    return bool((objects.end - objects.begin + 1).sum() + np.maximum(counts - 1, 0).sum() == content)


def _are_deltas(words: Words, deltas: _Spans, quotes: Ints) -> bool:
    """Return whether all of them have the keys of a delta at the expected positions."""
    begin, end, first, last = deltas
    if not (last - first >= _BEFORE_CELLS + _AFTER_CELLS).all():
        return False
    return (
        _is_at(words, begin, b'{"op":"')
        and _is_at(words, quotes[first + 3], b'","table":"')
        and _is_at(words, quotes[first + 7], b'","rowId":"')
        and _is_at(words, quotes[first + 11], b'","clientId":"')
        and _is_at(words, quotes[first + 15], b'","columns":[')
        and _is_at(words, quotes[last - 6] - 2, b'],"hlc":')
        and _is_at(words, quotes[last - 4] - 1, b',"deltaId":"')
        and bool((quotes[last - 1] + 1 == end).all())
    )


def _are_cells(words: Words, cells: _Spans, quotes: Ints) -> bool:
    """Return whether all of them have the keys of a column's value at the expected positions."""
    begin, _, first, last = cells
    if not (last - first >= _IN_CELL).all():
        return False
    return _is_at(words, begin, b'{"column":"') and _is_at(words, quotes[first + 3], b'","value":')


def _words(text: bytes) -> Words:
    """Return the eight bytes from each position as one number."""
    return np.ndarray(len(text) - _WORD + 1, np.uint64, text, strides=(1,))


def _is_at(words: Words, positions: Ints, text: bytes) -> bool:
    """Return whether this text, of 7 to 16 bytes, is at each of these positions."""
    if len(text) < _WORD:
        return bool((words[positions] << np.uint64(8) == _words(b"\0" + text)).all())
    if not (words[positions] == _words(text[:_WORD])).all():
        return False
    return len(text) == _WORD or bool((words[positions + len(text) - _WORD] == _words(text[-_WORD:])).all())


def _slices(text: bytes, first: Ints, last: Ints) -> pa.Array:
    """Return parts of a text, in order and without overlap, as strings."""
    if not len(first):
        return pa.array([], pa.string())
    offsets = np.empty(2 * len(first), np.int32)
    offsets[0::2], offsets[1::2] = first, last
    parts = pa.Array.from_buffers(pa.string(), len(offsets) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(text)])
    return parts.take(pa.array(np.arange(0, len(offsets) - 1, 2)))


def _unescaped(texts: pa.Array) -> pa.Array:
    """Return strings with their JSON escapes decoded."""
    has_escape = pc.match_substring(texts, "\\")
    if not pc.any(has_escape).as_py():
        return texts
    decoded = [msgspec.json.decode(f'"{text}"', type=str) for text in texts.filter(has_escape).to_pylist()]
    return pc.replace_with_mask(texts, has_escape, pa.array(decoded, pa.string()))
