"""The cache of decoded rows of `state.db`."""

from lakesync.model.merge import RowState
from lakesync.staging.records import StoredRow
from lakesync.staging.sqlite.row_file import CachedRow, RowCache


def cached(row_id: str) -> CachedRow:
    return CachedRow(StoredRow(("t", row_id), arrival=1, state=RowState()), 1, 1000)


def test_a_row_that_is_written_often_does_not_evict_other_rows():
    cache = RowCache(100_000)
    for number in range(20):
        cache.put("g", cached(f"r{number}"))
    for _ in range(1000):
        cache.put("g", cached("hot"))
    assert all(cache.get("g", ("t", f"r{number}")) is not None for number in range(20))
