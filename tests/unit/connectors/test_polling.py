"""A poll of several tables: how much it buffers, when it lands, and how a failed landing is reported."""

import pytest

from lakesync.connectors.base import Page, SourceRow, Table, Usage, changed_columns
from lakesync.model.errors import AdapterError, FlushError
from lakesync.testing.landing import MemoryLanding, poll

TABLES = (Table("issues"), Table("comments"), Table("projects"))


class Source:
    """A source with three pages for each table, and failures."""

    tables = TABLES
    usage = Usage(0)

    def __init__(self, failing=None):
        self.failing = failing

    def changes(self, table, _cursor):
        for number in range(3):
            if (table, number) == self.failing:
                raise AdapterError("the source is gone")
            yield Page(table, [SourceRow(f"{table}-{number}", {"text": "x" * 100})], {"page": number})


class Landing(MemoryLanding):
    """Records what lands together, and rejects a landing by its number."""

    def __init__(self, refused=None):
        super().__init__(TABLES)
        self.together, self.refused = [], refused

    def land(self, pages):
        self.together.append([page.table for page in pages])
        if len(self.together) - 1 == self.refused:
            raise FlushError("the lake is gone")
        super().land(pages)


def test_a_small_poll_of_many_tables_is_one_landing():
    landing = Landing()
    report = poll(Source(), landing)
    assert landing.together == [["issues"] * 3 + ["comments"] * 3 + ["projects"] * 3]
    assert [(each.rows, each.pages, each.landings, each.cursor) for each in report.tables] == [
        (3, 3, 1, {"page": 2})
    ] * 3


def test_a_poll_buffers_at_most_the_budget_and_one_page():
    landing = Landing()
    report = poll(Source(), landing, budget_bytes=250)
    assert landing.together == [["issues"] * 3, ["comments"] * 3, ["projects"] * 3]
    assert report.error is None


def test_pages_read_before_a_failure_land_and_other_tables_continue():
    landing = Landing()
    issues, comments, projects = poll(Source(("comments", 2)), landing).tables
    assert (issues.error, projects.error) == (None, None)
    assert (comments.rows, comments.cursor) == (2, {"page": 1})
    assert str(comments.error) == "the source is gone"
    assert set(landing.rows["comments"]) == {"comments-0", "comments-1"}


def test_a_failed_landing_is_reported_for_each_of_its_tables():
    landing = Landing(refused=0)
    report = poll(Source(), landing, budget_bytes=500)
    assert landing.together[0] == ["issues"] * 3 + ["comments"] * 2
    assert [str(each.error) for each in report.tables] == ["the lake is gone"] * 2 + ["None"]
    assert [each.cursor for each in report.tables] == [None, None, {"page": 2}]
    assert set(landing.rows["issues"]) | set(landing.rows["comments"]) == set()


@pytest.mark.parametrize(
    ("before", "after", "is_change"),
    [
        (2**53, 2**53 + 1, True),
        ({"ids": [2**53]}, {"ids": [2**53 + 1]}, True),
        (1, 1.0, False),
        ({"a": 1, "b": 2}, {"b": 2.0, "a": 1}, False),
        (1, True, True),
        ([0], [False], True),
        (None, 0, True),
    ],
)
def test_values_that_the_source_changed_are_found(before, after, is_change):
    changed = {"value": after} if is_change else {}
    assert changed_columns({"value": before}, {"value": after}) == changed
