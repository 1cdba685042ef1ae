"""The order of deltas in files, and deltas that occur twice."""

import pytest

from lakesync.adapters import DeltaBatch, LocalDisk, ObjectDeltas, StoredDelta, file_scan
from lakesync.adapters.arrow import from_arrow, to_arrow
from lakesync.adapters.arrow_access import read_pages
from lakesync.adapters.deltas import DeltaQuery, position_of
from lakesync.adapters.file_scan import sort_unique
from tests.conformance.book import make_delta
from tests.conformance.test_adapters import everything


@pytest.mark.parametrize("order", ["arrival", "hlc"])
def test_equal_values_are_ordered_by_the_next_column(order):
    made = [make_delta(client, hlc, "r", x=hlc) for hlc in (3, 1, 2**63 - 1) for client in "ba"]
    stored = [StoredDelta("g", 256 * (1 + n // 4), delta) for n, delta in enumerate(made)]
    wanted = sorted(stored, key=lambda one: position_of(one, order))
    for given in (stored, wanted):
        found = from_arrow(sort_unique(to_arrow(given), order))
        assert [position_of(one, order) for one in found] == [position_of(one, order) for one in wanted]


def test_a_duplicate_delta_is_returned_once_with_its_earliest_arrival(tmp_path):
    """Also if the batch that repeats it has earlier deltas and so is read first."""
    adapter = ObjectDeltas(LocalDisk(tmp_path))
    again, older = make_delta("c", 9, "r", x=1), make_delta("c", 1, "r", x=2)
    for arrival, deltas in ((256, (again,)), (512, (again, older))):
        adapter.insert_deltas(DeltaBatch(f"g.{arrival}", "g", tuple(StoredDelta("g", arrival, one) for one in deltas)))
    found = [(one.arrival, one.delta.delta_id) for one in everything(adapter, DeltaQuery(order="hlc"))]
    assert found == [(512, older.delta_id), (256, again.delta_id)]


@pytest.mark.parametrize("flush_format", ["parquet", "json"])
@pytest.mark.parametrize("order", ["arrival", "hlc"])
def test_pages_of_large_deltas_are_smaller_and_complete(tmp_path, monkeypatch, flush_format, order):
    monkeypatch.setattr(file_scan, "MAX_PAGE_BYTES", 50_000)
    adapter = ObjectDeltas(LocalDisk(tmp_path), flush_format)
    for batch in range(6):  # the batches' ranges of hlcs overlap
        made = [make_delta("c", 1 + 4 * n + batch, f"r{n}", x="x" * (20_000 if n % 3 else 10)) for n in range(10)]
        stored = tuple(StoredDelta("g", 256 * batch + n, each) for n, each in enumerate(made))
        adapter.insert_deltas(DeltaBatch(f"g.{batch}", "g", stored))
    pages = [from_arrow(page.deltas) for page in read_pages(adapter, DeltaQuery(order=order))]
    found = [position_of(one, order) for page in pages for one in page]
    assert found == sorted(set(found))
    assert len(found) == 60
    assert max(sum(len(one.delta.columns[0].value) for one in page) for page in pages) < 80_000
