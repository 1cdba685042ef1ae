"""What a complete cursor means as a page: it says whether the client may have been sent more since."""

from __future__ import annotations

import pytest

from lakesync.feed.positions import find_page
from lakesync.model.validation import MAX_HLC
from lakesync.staging.records import ARRIVAL_STEP, ClientRecord, PastKey, Scope

CURSOR, LATER = 10 * ARRIVAL_STEP, 11 * ARRIVAL_STEP


def scope(number: int, sent_up_to: int, first_cursor: int = CURSOR) -> Scope:
    return Scope(number, {}, 1, ("k",), began_at=0, first_cursor=first_cursor, sent_up_to=sent_up_to)


@pytest.mark.parametrize(
    ("scopes", "past", "was_sent_more"),
    [
        ([scope(1, CURSOR)], [], False),
        ([scope(1, LATER)], [], True),
        ([scope(1, CURSOR), scope(2, 0, LATER)], [], False),
        ([scope(1, CURSOR), scope(2, LATER, LATER)], [], True),
        ([scope(1, CURSOR)], [CURSOR], False),
        ([scope(1, CURSOR)], [CURSOR, LATER], True),  # in a scope that was removed from the record
        ([scope(1, CURSOR)], [MAX_HLC], False),  # it is unknown what was sent under the key
    ],
)
def test_a_complete_cursor_counts_what_was_sent_later_in_any_scope(scopes, past, was_sent_more):
    keys = tuple(PastKey(f"k{number}", 0, up_to) for number, up_to in enumerate(past))
    record = ClientRecord("alice", 1, 0, scopes=tuple(scopes), past_keys=keys, pages_sent=3)
    page = find_page(record, CURSOR)
    assert page is not None
    assert record.was_sent_more_since(page) == was_sent_more
