"""A table that is read as a whole: only changed rows land, and an id with several values is an error."""

from __future__ import annotations

import pytest

from lakehouse.landing.known_rows import KnownRows, RowDigests
from lakehouse.landing.rows import LandedTable
from lakesync.connectors.base import Page, SourceRow
from lakesync.model.errors import ConfigurationError

NOTHING = KnownRows(LandedTable("orders", None, (), (), -1), -1)


def page(*names: str) -> Page:
    return Page("orders", [SourceRow("a", {"name": name}) for name in names])


@pytest.mark.parametrize("pages", [[("x", "y")], [("x",), ("y",)], [("x",), ("y", "x")]])
def test_an_id_with_different_values_is_an_error_that_names_it(pages):
    digests = RowDigests(NOTHING)
    *first, last = pages
    for names in first:
        digests.drop_unchanged(page(*names))
    with pytest.raises(ConfigurationError, match=r"orders has several rows with the id 'a' .* GROUP BY"):
        digests.drop_unchanged(page(*last))


def test_equal_rows_with_one_id_are_one_change():
    digests = RowDigests(NOTHING)
    assert len(digests.drop_unchanged(page("x", "x")).rows) == 1
    assert digests.drop_unchanged(page("x")).rows == []
