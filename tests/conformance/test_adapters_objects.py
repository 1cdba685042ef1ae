"""The conformance suite of object stores. A store is added by one line in `adapter_places.OBJECT_STORES`."""

from __future__ import annotations

import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakesync.model.errors import NotFoundError, ValidationError
from tests.conformance.adapter_places import EXAMPLES, OBJECT_STORES, start_server


@pytest.fixture(
    params=[pytest.param(name, marks=[pytest.mark.deep] if name == "strict s3" else []) for name in OBJECT_STORES]
)
def kind(request):
    """Each kind of store in turn."""
    start_server(request)
    return request.param


@pytest.fixture
def store(kind, tmp_path):
    """An empty store."""
    opened = OBJECT_STORES[kind](tmp_path)
    yield opened
    opened.close()


def keys(store, prefix="", limit=1000):
    """Every key of a listing."""
    found, after = [], ""
    while True:
        page = store.list_objects(prefix, after=after, limit=limit)
        assert len(page.objects) <= limit
        found += [info.key for info in page.objects]
        if not page.has_more:
            return found
        after = page.objects[-1].key


def test_a_written_object_can_be_read(store):
    for data in (b"", b"\0\xff", b"x" * 3_000_000):
        assert store.put_object("a/b/c.bin", data) is True
        assert store.get_object("a/b/c.bin") == data
        info = store.head_object("a/b/c.bin")
        assert (info.key, info.size) == ("a/b/c.bin", len(data))


def test_etag_changes_with_the_content(store):
    store.put_object("k", b"one")
    before = store.head_object("k").etag
    assert store.head_object("k").etag == before
    store.put_object("k", b"two")
    assert store.head_object("k").etag != before


def test_a_missing_object_is_reported_with_its_key(store):
    for ask in (store.get_object, store.head_object):
        with pytest.raises(NotFoundError, match="a/b"):
            ask("a/b")
    store.put_object("a/b/c", b"")
    for ask in (store.get_object, store.head_object):
        with pytest.raises(NotFoundError, match="a/b"):
            ask("a/b")
        with pytest.raises(NotFoundError, match="a/b/c/d"):
            ask("a/b/c/d")


def test_if_absent_keeps_an_existing_object(store):
    assert store.put_object("k", b"first", if_absent=True) is True
    assert store.put_object("k", b"second", if_absent=True) is False
    assert store.get_object("k") == b"first"
    assert store.put_object("k", b"third") is True
    assert store.get_object("k") == b"third"


def test_one_of_several_conditional_writers_wins(kind, store, tmp_path):
    stores = [OBJECT_STORES[kind](tmp_path) for _ in range(8)]
    for round_ in range(10):
        with ThreadPoolExecutor(8) as pool:
            won = list(
                pool.map(
                    lambda place, key=f"r/{round_}": stores[place].put_object(key, bytes([place]), if_absent=True),
                    range(8),
                )
            )
        assert won.count(True) == 1
        assert store.get_object(f"r/{round_}") == bytes([won.index(True)])
    for each in stores:
        each.close()


def test_readers_see_whole_objects_during_a_replacement(store):
    old, new = b"o" * 200_000, b"n" * 300_000
    store.put_object("k", old)
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(lambda: [store.put_object("k", new if n % 2 else old) for n in range(40)])
        while not writing.done():
            assert store.get_object("k") in (old, new)
            assert keys(store) == ["k"]
        writing.result()


def test_deleting_is_repeatable(store):
    for key in ("a", "b/c", "b/d"):
        store.put_object(key, b"x")
    store.delete_object("b/c")
    store.delete_object("b/c")
    store.delete_object("never/there")
    assert keys(store) == ["a", "b/d"]
    store.delete_objects(["a", "b/d", "absent"])
    assert keys(store) == []
    store.put_object("b/c", b"again")
    assert keys(store) == ["b/c"]


def test_a_listing_is_in_order_and_in_pages(store):
    some = ["a", "a-b", "a.b/c", "b/a", "b/b/c", "b-", "b0", "é/ü", "z/\U00010000", "z/\ufffd"]
    for key in some:
        store.put_object(key, b"")
    ordered = sorted(some, key=str.encode)
    for limit in (1, 2, 3, 10, 11):
        assert keys(store, limit=limit) == ordered
    assert keys(store, "b") == [key for key in ordered if key.startswith("b")]
    assert keys(store, "b/") == ["b/a", "b/b/c"]
    assert keys(store, "absent/") == []
    page = store.list_objects("b", after="b/a", limit=2)
    assert [info.key for info in page.objects] == [key for key in ordered if key.startswith("b") and key > "b/a"][:2]


@pytest.mark.parametrize("key", ["", "/a", "a/", "a//b", ".", "..", "a/../b", "a/./b", "a\0b", "k" * 256, "\ud800"])
def test_invalid_keys_are_rejected(store, key):
    for call in (lambda: store.put_object(key, b""), lambda: store.get_object(key), lambda: store.delete_object(key)):
        with pytest.raises(ValidationError, match="object key"):
            call()
    assert keys(store) == []


parts = st.text(st.sampled_from("ab-./0é\ufffd\U00010000"), min_size=1, max_size=6)
names = parts.filter(lambda key: all(part not in ("", ".", "..") for part in key.split("/")))


def test_listings_are_correct_for_all_keys(kind):
    @settings(max_examples=EXAMPLES.get(kind, 60), deadline=None)
    @given(
        some=st.lists(names, max_size=12, unique=True),
        prefix=st.just("") | parts,
        after=st.just("") | names,
        limit=st.integers(1, 5),
    )
    def holds(some, prefix, after, limit):
        kept = [key for key in some if not any(other.startswith(f"{key}/") for other in some)]
        with tempfile.TemporaryDirectory() as folder:
            store = OBJECT_STORES[kind](Path(folder))
            for key in kept:
                store.put_object(key, key.encode())
            ordered = sorted((key for key in kept if key.startswith(prefix)), key=str.encode)
            assert keys(store, prefix, limit) == ordered
            rest = [key for key in ordered if key.encode() > after.encode()]
            page = store.list_objects(prefix, after=after, limit=limit)
            assert [info.key for info in page.objects] == rest[:limit]
            assert page.has_more == (len(rest) > limit)
            store.close()

    holds()
