"""Only a source page's own cursor confirms the page."""

from __future__ import annotations

import pytest

from lakesync.engine.source_progress import after_page, page_start
from lakesync.model.types import Position
from lakesync.rules.model import all_rows_rules
from lakesync.staging.records import ClientRecord, Page

SINCE = 1 << 50


def after_one_page() -> tuple[ClientRecord, int]:
    """A client that was sent one page of a source, and the cursor of that page."""
    record = ClientRecord("ann", 1, 0)
    start = page_start(record, "books", SINCE, all_rows_rules(), {}, lambda: None)
    known, mark = after_page(
        start, record, SINCE, Position(7, 7, "ben", "d", "shop"), frozenset({"books"}), has_more=False
    )
    return ClientRecord("ann", 1, 0, sources=(known,)), mark


def feed_page(cursor: int) -> Page:
    return Page(cursor, 0, 0, 0, False, 0, 1, 0, (), True, 0)


@pytest.mark.parametrize("sent_by_feed", [False, True])
def test_a_page_is_not_confirmed_by_a_cursor_that_the_feed_has_sent_too(sent_by_feed):
    record, mark = after_one_page()
    pages = (feed_page(mark),) if sent_by_feed else ()
    record = ClientRecord("ann", 1, 0, pages=pages, sources=record.sources)
    start = page_start(record, "books", mark, all_rows_rules(), {}, lambda: None)
    assert (start.progress.confirmed is None) == sent_by_feed
