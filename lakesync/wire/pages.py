"""Pages as a client decodes them: the columns of their deltas stay JSON until they are read.

A *delta* is a change of some columns of one row; a *page* is the response to a pull, with the deltas that the client
lacks. A page may have thousands of deltas, and decoding their columns takes most of the time. So `decode_page` leaves
the columns as JSON, and `cells_of` decodes those of many deltas together to `Cells`, the columns of one delta. The
client's HTTP transport, its prefetch of pages, and its writes to the app's database call this module.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import cast

import msgspec

from lakesync.model.errors import ValidationError
from lakesync.model.types import ColumnValue, DeltaProperties, Op, RowDelta, SyncResponse
from lakesync.wire.json import read
from lakesync.wire.malformed import DECODE_ERRORS, check_range

Cells = tuple[ColumnValue, ...]
"""The columns of one delta, each with its value."""

_DELTAS_AT_ONCE = 100
"""How many deltas' columns are decoded together: few enough to stay in the processor's cache."""
_SAMPLE_INTERVAL = 20
"""`about_bytes` measures one of so many deltas."""


class PageDelta(DeltaProperties, msgspec.Struct, frozen=True, rename="camel", gc=False):
    """A `RowDelta` whose columns are decoded when they are read."""

    op: Op
    table: str
    row_id: str
    client_id: str
    """The client that made the change."""
    columns_json: msgspec.Raw = msgspec.field(name="columns")
    """The JSON text of the columns, from which `columns` and `cells_of` decode `Cells`."""
    hlc: int
    """The client's timestamp of the change."""
    delta_id: str
    """The hash of the delta's content."""

    @property
    def columns(self) -> Cells:
        """The columns, decoded on each access.

        Raises:
            ValidationError: they have another form.
        """
        try:
            return _decode_cells(self.columns_json)
        except DECODE_ERRORS as error:
            raise ValidationError(f"columns of row {self.row_id!r}: {error}") from None


class _Page(msgspec.Struct, rename="camel", gc=False):
    """A `SyncResponse` whose deltas are `PageDelta`s."""

    deltas: tuple[PageDelta, ...]
    server_hlc: int
    has_more: bool = False


_decode_page = msgspec.json.Decoder(_Page, strict=False).decode
_decode_cells = msgspec.json.Decoder(Cells).decode
_decode_many = msgspec.json.Decoder(list[Cells]).decode


def decode_page(body: bytes) -> SyncResponse:
    """Decode the response to a pull. Its deltas are `PageDelta`s; their columns and values are not checked.

    Raises:
        ValidationError: the body is not a page.
    """
    page = read("page", _decode_page, body)
    check_range("serverHlc", page.server_hlc)
    return SyncResponse(cast("tuple[RowDelta, ...]", page.deltas), page.server_hlc, page.has_more)


def cells_of(deltas: Sequence[RowDelta]) -> Iterator[Sequence[Cells]]:
    """Yield the decoded columns of deltas, in chunks. A chunk has one item (`Cells`) for each of its deltas, in order.

    Args:
        deltas: deltas of a page; either all or none of them are `PageDelta`s.

    Raises:
        ValidationError: they have another form.
    """
    mixed = cast("Sequence[RowDelta | PageDelta]", deltas)
    texts = [delta.columns_json for delta in mixed if isinstance(delta, PageDelta)]
    if not texts:
        yield [delta.columns for delta in deltas]
        return
    for start in range(0, len(texts), _DELTAS_AT_ONCE):
        chunk = texts[start : start + _DELTAS_AT_ONCE]
        yield read("columns of a page", _decode_many, b"[" + b",".join(chunk) + b"]")


def about_bytes(deltas: Sequence[RowDelta]) -> int:
    """Estimate the JSON size of the deltas' columns from one delta in twenty."""
    sample = cast("Sequence[RowDelta | PageDelta]", deltas[::_SAMPLE_INTERVAL])
    return _SAMPLE_INTERVAL * sum(
        len(delta.columns_json) if isinstance(delta, PageDelta) else sum(len(cell.value) for cell in delta.columns)
        for delta in sample
    )
