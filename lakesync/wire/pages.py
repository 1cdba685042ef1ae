"""A page as a client reads it: its deltas' columns stay JSON until somebody looks at them.

A page has thousands of deltas, and most of what JSON makes of one are its columns. Those of many deltas are decoded
together, a few hundred objects at a time, by whoever takes the values out at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import cast

import msgspec

from lakesync.model.errors import ValidationError
from lakesync.model.types import ColumnValue, OfRow, Op, RowDelta, SyncResponse
from lakesync.model.validation import check_hlc
from lakesync.wire.malformed import DECODE_ERRORS

Cells = tuple[ColumnValue, ...]

_AT_ONCE = 100
"""Deltas whose columns are decoded together: they stay in the processor's own memory."""
_ONE_IN = 20


class PageDelta(OfRow, msgspec.Struct, frozen=True, rename="camel", gc=False):
    """A `RowDelta` in all that can be asked of it."""

    op: Op
    table: str
    row_id: str
    client_id: str
    cells: msgspec.Raw = msgspec.field(name="columns")
    hlc: int
    delta_id: str

    @property
    def columns(self) -> Cells:
        """The columns, decoded each time that they are asked for.

        Raises:
            ValidationError: they are something else.
        """
        try:
            return _decode_cells(self.cells)
        except DECODE_ERRORS as error:
            raise ValidationError(f"columns of row {self.row_id!r}: {error}") from None


class _Page(msgspec.Struct, rename="camel", gc=False):
    deltas: tuple[PageDelta, ...]
    server_hlc: int
    has_more: bool = False


_decode_page = msgspec.json.Decoder(_Page, strict=False).decode
_decode_cells = msgspec.json.Decoder(Cells).decode
_decode_many = msgspec.json.Decoder(list[Cells]).decode


def decode_page(body: bytes) -> SyncResponse:
    """The answer to a pull, of `PageDelta`s. Columns and values are left to who looks into them.

    Raises:
        ValidationError: the body is not a page.
    """
    try:
        page = _decode_page(body)
    except DECODE_ERRORS as error:
        raise ValidationError(f"page: {error}") from None
    message = check_hlc("serverHlc", page.server_hlc)
    if message is not None:
        raise ValidationError(message)
    return SyncResponse(cast("tuple[RowDelta, ...]", page.deltas), page.server_hlc, page.has_more)


def cells_of(deltas: Sequence[RowDelta]) -> Iterator[Sequence[Cells]]:
    """The columns of deltas, of which all or none are `PageDelta`s, some deltas' at a time.

    Raises:
        ValidationError: they are something else.
    """
    mixed = cast("Sequence[RowDelta | PageDelta]", deltas)
    texts = [delta.cells for delta in mixed if isinstance(delta, PageDelta)]
    if not texts:
        yield [delta.columns for delta in deltas]
        return
    for start in range(0, len(texts), _AT_ONCE):
        some = texts[start : start + _AT_ONCE]
        try:
            found = _decode_many(b"[" + b",".join(some) + b"]")
        except DECODE_ERRORS as error:
            raise ValidationError(f"columns of a page: {error}") from None
        yield found


def about_bytes(deltas: Sequence[RowDelta]) -> int:
    """How long the JSON of their columns is, told from one delta in twenty."""
    some = cast("Sequence[RowDelta | PageDelta]", deltas[::_ONE_IN])
    return _ONE_IN * sum(
        len(delta.cells) if isinstance(delta, PageDelta) else sum(len(cell.value) for cell in delta.columns)
        for delta in some
    )


def flat(cells: Sequence[Cells]) -> list[ColumnValue]:
    """All of them in one list."""
    return list(chain.from_iterable(cells))
