"""The cache of recently read files, and its bound."""

from __future__ import annotations

from lakesync.adapters import StoredDelta
from lakesync.adapters.file_scan import FileCache
from tests.conformance.book import make_delta


def of(count: int) -> list[StoredDelta]:
    return [StoredDelta("g", 1, make_delta("c", n, "r", x=n)) for n in range(1, count + 1)]


def test_the_cache_keeps_the_most_recently_read_files():
    asked = []

    recent = FileCache(max_deltas=5)

    def get(key):
        def read():
            asked.append(key)
            return of({"large": 9}.get(key, 2))

        return recent.get(key, read)

    for key in ("a", "b", "a", "c", "a", "b"):
        assert get(key) == of(2)
    assert asked == ["a", "b", "c", "b"], "c replaced b, which was least recently used"
    assert len(get("large")) == 9
    get("large")
    get("a")
    assert asked[4:] == ["large", "a"]
