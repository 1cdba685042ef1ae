"""Rows that a landing omits because they have just landed do not change the diff, whatever pages follow."""

from hypothesis import example, given
from hypothesis import strategies as st

from lakesync.connectors.base import Page, SourceRow
from lakesync.connectors.seen_rows import MAX_REMEMBERED, SeenRows
from lakesync.testing.landing import diff_page

ROW = st.builds(
    lambda row_id, uid, of, size: SourceRow(f"r{row_id}", {"uid": f"u{uid}", "of": f"o{of}", "size": size}),
    *(st.integers(0, most) for most in (4, 4, 2, 1)),
)
ONCE = st.lists(ROW, max_size=4, unique_by=lambda row: row.row_id)
PAGE = st.builds(
    lambda rows, deleted, whole: Page("issues", rows, None, deleted, [("of", each) for each in whole]),
    ONCE | st.lists(ROW, max_size=4),
    st.lists(st.sampled_from(["r0", "r1", "r2"]), max_size=1),
    st.lists(st.sampled_from(["o0", "o1", "o2"]), max_size=2, unique=True),
)


def _of_one(*row_ids):
    return Page("issues", [SourceRow(each, {"uid": "u0", "of": "o0", "size": 0}) for each in row_ids])


@example(pages=[_of_one("r0", "r1"), _of_one("r0")], repeats=[], identity="uid")
@given(pages=st.lists(PAGE, max_size=30), repeats=st.lists(st.integers(0, 29)), identity=st.sampled_from([None, "uid"]))
def test_omitted_rows_do_not_change_the_diff(pages, repeats, identity):
    truth, known, remembered = {}, {}, SeenRows()
    for page in [*pages, *(pages[number] for number in repeats if number < len(pages))]:
        diff_page(truth, page, identity)
        diff_page(known, remembered.drop_unchanged(page, identity), identity)
        assert known == truth


@given(rows=ONCE)
def test_a_repeated_page_lands_nothing(rows):
    page = Page("issues", rows, None, ["r0"], [("of", "o1")])
    known, remembered = {}, SeenRows()
    diff_page(known, remembered.drop_unchanged(page, None), None)
    again = remembered.drop_unchanged(page, None)
    assert (again.rows, again.deleted, again.complete) == ([], [], [])


def test_the_number_of_remembered_rows_is_bounded():
    remembered = SeenRows()
    rows = [SourceRow(f"r{number}", {"n": number}) for number in range(MAX_REMEMBERED + 1)]
    assert remembered.drop_unchanged(Page("issues", rows), None).rows == rows
    assert remembered.rows == {}
    for row in rows:
        remembered.drop_unchanged(Page("issues", [row]), None)
    assert list(remembered.rows) == [row.row_id for row in rows[1:]]
