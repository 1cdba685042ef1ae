"""Pages of a SQL database in which many deltas share an arrival, sorted by LakeSync or by the database."""

import pytest

from lakesync.adapters import DeltaBatch, DeltaQuery, LifecycleAdapter, SqliteAdapter, StoredDelta
from lakesync.adapters.arrow_access import read_pages
from lakesync.adapters.sql import queries
from tests.conformance.book import make_delta
from tests.conformance.test_adapters import everything


@pytest.mark.parametrize("most", [3, 40, 10_001])
@pytest.mark.parametrize("order", ["arrival", "hlc"])
def test_deltas_with_one_arrival_are_returned_once_and_in_order(tmp_path, monkeypatch, most, order):
    monkeypatch.setattr(queries, "_MAX_EQUAL_VALUES", most)
    adapter = SqliteAdapter(tmp_path / "d.db")
    # stored by hlc, then client, so within one arrival the younger client's come first
    made = [make_delta("ba"[n % 2], 1000 - n // 4, f"r{n % 4}", x=n) for n in range(120)]
    stored = tuple(StoredDelta("g", 256 * (1 + n // 60), delta) for n, delta in enumerate(made))
    adapter.insert_deltas(DeltaBatch("g.1", "g", stored))
    whole = everything(adapter, DeltaQuery(order=order))
    assert len(whole) == 120
    for limit in (1, 7, 59, 60, 61, 120):
        assert everything(adapter, DeltaQuery(order=order, limit=limit)) == whole
    key = {"arrival": lambda one: (one.arrival, one.delta.hlc), "hlc": lambda one: one.delta.hlc}[order]
    assert [(key(one), one.delta.client_id, one.delta.delta_id) for one in whole] == sorted(
        (key(one), one.delta.client_id, one.delta.delta_id) for one in stored
    )
    adapter.close()


def test_pages_of_large_deltas_are_smaller_and_complete(tmp_path, monkeypatch):
    monkeypatch.setattr(queries, "MAX_PAGE_BYTES", 50_000)
    adapter = SqliteAdapter(tmp_path / "d.db")
    made = [make_delta("c", n, f"r{n}", x="x" * (20_000 if n % 9 < 3 else 10)) for n in range(1, 60)]
    adapter.insert_deltas(
        DeltaBatch("g.1", "g", tuple(StoredDelta("g", 256 * (n // 3), each) for n, each in enumerate(made)))
    )
    pages = [page.deltas for page in read_pages(adapter, DeltaQuery())]
    assert [hlc for page in pages for hlc in page.column("hlc").to_pylist()] == [each.hlc for each in made]
    assert len(pages) > 5
    adapter.close()


def test_a_page_of_few_large_deltas_is_read_only_a_few_times(tmp_path, monkeypatch):
    monkeypatch.setattr(queries, "MAX_PAGE_BYTES", 50_000)
    adapter = SqliteAdapter(tmp_path / "d.db")
    made = tuple(StoredDelta("g", 256 * n, make_delta("c", n, f"r{n}", x="x" * 20_000)) for n in range(3))
    adapter.insert_deltas(DeltaBatch("g.1", "g", made))
    limits = []
    read_page = queries.read_page
    monkeypatch.setattr(queries, "read_page", lambda to, query: limits.append(query.limit) or read_page(to, query))
    assert len(adapter.query_arrow(DeltaQuery()).deltas) < 3
    assert len(limits) <= 3
    adapter.close()


@pytest.mark.parametrize("order", ["arrival", "hlc"])
def test_a_composition_returns_every_delta_if_pages_of_large_deltas_are_short(tmp_path, monkeypatch, order):
    monkeypatch.setattr(queries, "MAX_PAGE_BYTES", 50_000)
    large, small = (SqliteAdapter(tmp_path / f"{name}.db") for name in ("large", "small"))
    made = [make_delta("c", n, f"r{n}", x="x" * (20_000 if n % 2 else 10)) for n in range(1, 40)]
    for adapter, rest in ((small, 0), (large, 1)):
        stored = tuple(StoredDelta("g", 256 * each.hlc, each) for each in made if each.hlc % 2 == rest)
        adapter.insert_deltas(DeltaBatch("g.1", "g", stored))
    both = LifecycleAdapter(large, small, 0)
    assert [each.delta for each in everything(both, DeltaQuery(order=order))] == made
    both.close()
