"""The shard of a table, and the positions in the shards that a client's cursor represents."""

import pytest

from lakesync.engine.sharding.pushing import split
from lakesync.engine.sharding.vectors import MAX_VECTORS, UNKNOWN_CURSOR, confirm, find_vector, issue
from lakesync.model.errors import ConfigurationError
from lakesync.model.types import RowDelta, SyncPush
from lakesync.staging.records import ARRIVAL_STEP
from lakesync.staging.shards import ShardMap, shard_map, shard_urls

SHARDS = ShardMap({"orders": "b", "items": "a", "notes": "a"}, "z")
WALL = 1_700_000_000_000


def delta(table: str, row: str) -> RowDelta:
    return RowDelta("INSERT", table, row, "c", (), 1, f"{table}{row}")


def test_a_push_is_split_by_table_in_the_order_of_the_shards():
    push = SyncPush("c", tuple(delta(table, str(n)) for n, table in enumerate(["orders", "notes", "todos", "items"])))
    parts = split(push, SHARDS)
    assert {name: [each.table for each in part.deltas] for name, part in parts.items()} == {
        "z": ["todos"],
        "a": ["notes", "items"],
        "b": ["orders"],
    }
    assert list(parts) == ["z", "a", "b"]
    assert list(split(SyncPush("c", (delta("orders", "1"),)), SHARDS)) == ["b"]


def test_a_cursor_is_found_again_and_increases_with_any_clock():
    handed, first = issue(None, {"a": 512, "b": 0}, "b", WALL)
    assert first == WALL << 16
    vector = find_vector(handed, first)
    assert vector is not None
    assert (dict(vector.parts), vector.next_shard) == ({"a": 512, "b": 0}, "b")
    assert issue(handed, {"a": 512, "b": 0}, "b", WALL + 5) == (handed, first), "the same position is the same cursor"
    handed, second = issue(handed, {"a": 512, "b": 256}, "b", WALL - 1000)
    assert second == first + ARRIVAL_STEP
    again, third = issue(handed, {"a": 512, "b": 0}, "b", WALL - 1000)
    assert third > second, "an older position gets a new cursor, because clients keep the highest one"
    assert find_vector(again, third + 1) is None
    assert find_vector(None, 0) is not None, "0 is the beginning in every shard"


def test_a_position_between_pages_is_a_page_mark():
    handed, whole = issue(None, {"a": 512}, "", WALL)
    _, mark = issue(handed, {"a": 513}, "", WALL)
    assert whole % ARRIVAL_STEP == 0
    assert mark % ARRIVAL_STEP
    assert UNKNOWN_CURSOR % ARRIVAL_STEP


def test_a_confirmed_position_of_a_client_is_never_forgotten():
    handed, seen = issue(None, {"a": 256}, "", WALL)
    handed, lost = issue(handed, {"a": 257}, "", WALL)
    handed = confirm(handed, seen)
    for n in range(3, 3 * MAX_VECTORS):
        handed, newest = issue(handed, {"a": n * ARRIVAL_STEP}, "", WALL)
    assert len(handed.vectors) == MAX_VECTORS
    assert find_vector(handed, seen) is not None
    assert find_vector(handed, newest) is not None
    assert find_vector(handed, lost) is None
    assert confirm(handed, lost) == handed, "a deleted cursor is not found"


def test_shards_are_folders_beside_the_main_store_unless_they_are_given_a_url():
    assert shard_urls(SHARDS, "sqlite:///data/staging") == {
        "z": "sqlite:///data/staging",
        "a": "sqlite:///data/staging/a",
        "b": "sqlite:///data/staging/b",
    }
    given = ShardMap({"orders": "b"}, "z", {"b": "postgresql://u:p@db/two"})
    assert shard_urls(given, "postgresql://u:p@db/one")["b"] == "postgresql://u:p@db/two"


@pytest.mark.parametrize(
    ("shards", "main", "words"),
    [
        (ShardMap({"orders": "b"}, "z"), "postgresql://db/one", "shard 'b' needs a store of its own"),
        (ShardMap({"orders": "b"}, "z", {"b": "postgres://x@db/one"}), "postgresql://y@db/one", "have the same store"),
        (ShardMap({"orders": "b"}, "z", {"b": "sqlite:///d/s/"}), "sqlite:///d/./s", "have the same store"),
    ],
)
def test_two_shards_cannot_share_a_store(shards, main, words):
    with pytest.raises(ConfigurationError, match=words):
        shard_urls(shards, main)


@pytest.mark.parametrize(
    ("shards", "words"),
    [
        (ShardMap({"or ders": "b"}, "z"), "no push can name"),
        (ShardMap({"orders": "b/c"}, "z"), "shard 'b/c' must be"),
        (ShardMap({"orders": "main"}, "z"), "shard 'main' must be"),
        (ShardMap({"orders": "b"}, "z", {"c": "sqlite:///c"}), "stores are given for c"),
        (ShardMap({"orders": "b"}, "z", {"z": "sqlite:///z"}), "is the one of staging.url"),
    ],
)
def test_an_invalid_shard_configuration_is_rejected(shards, words):
    with pytest.raises(ConfigurationError, match=words):
        shards.check()


def test_without_a_configuration_there_are_no_shards():
    assert shard_map(None) is None


def test_shards_whose_numbers_are_equal_are_rejected(monkeypatch):
    monkeypatch.setattr("lakesync.staging.shards.crc32", lambda _: 0)
    with pytest.raises(ConfigurationError, match="shards 'z' and 'b' have the same number"):
        ShardMap({"orders": "b"}, "z").check()
