"""A page as a client reads it."""

import pytest

from lakesync.model.errors import ValidationError
from lakesync.model.types import ColumnValue, RowDelta, SyncResponse
from lakesync.wire import pages
from lakesync.wire.json import encode_response

DELTAS = tuple(
    RowDelta(
        "UPDATE", "t", f"r{number}", "ann", tuple(ColumnValue.of(name, number) for name in "xyz"[: number % 4]), 7, ""
    )
    for number in range(250)
)


def test_a_page_has_the_sent_deltas_and_their_columns():
    page = pages.decode_page(encode_response(SyncResponse(DELTAS, 1 << 60, has_more=True)))
    assert (page.server_hlc, page.has_more) == (1 << 60, True)
    asked = ("op", "key", "stamp", "client_id", "columns", "delta_id")
    assert [[getattr(delta, name) for name in asked] for delta in page.deltas] == [
        [getattr(delta, name) for name in asked] for delta in DELTAS
    ]
    at_once = [cells for some in pages.cells_of(page.deltas) for cells in some]
    assert at_once == [cells for some in pages.cells_of(DELTAS) for cells in some] == [d.columns for d in DELTAS]


@pytest.mark.parametrize("columns", ['[{"column": 1, "value": 2}]', '{"x": 1}', "[[[]]]"])
def test_columns_of_another_form_are_rejected_when_they_are_read(columns):
    body = '{"deltas":[{"op":"INSERT","table":"t","rowId":"r","clientId":"a","hlc":"1","deltaId":"d","columns":%s}],'
    page = pages.decode_page((body % columns + '"serverHlc":"5","hasMore":false}').encode())
    with pytest.raises(ValidationError, match="columns of row 'r'"):
        _ = page.deltas[0].columns
    with pytest.raises(ValidationError, match="columns of a page"):
        list(pages.cells_of(page.deltas))


@pytest.mark.parametrize("body", [b"{}", b"[", b'{"deltas":[],"serverHlc":"-1"}', b'{"deltas":[1],"serverHlc":"1"}'])
def test_an_invalid_page_is_rejected_immediately(body):
    with pytest.raises(ValidationError):
        pages.decode_page(body)
