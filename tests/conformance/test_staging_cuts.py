"""Cuts of every staging store."""

from __future__ import annotations

import pytest

from lakesync.exceptions import IntegrityError
from lakesync.staging.records import Cut, CutTable
from tests.conformance.calls import read


def make_cut(epoch, arrival):
    table = CutTable("notes", 77, 3, ("file:///frame-1",), 12)
    return Cut("g", epoch, arrival, 0, (table,), 5)


def test_only_a_newer_one_is_published(place, store, book):
    epoch = read(store, lambda view: view.epoch)
    assert store.newest_cut("g") is None
    assert store.publish_cut(make_cut(epoch, 1000))
    assert not store.publish_cut(make_cut(epoch, 1000))
    assert not store.publish_cut(make_cut(epoch, 999))
    assert store.publish_cut(make_cut(epoch, 2000))
    store = place.reopen(store, book)
    assert store.newest_cut("g") == make_cut(epoch, 2000)


def test_one_of_another_epoch_is_refused(store):
    epoch = read(store, lambda view: view.epoch)
    with pytest.raises(IntegrityError, match="epoch"):
        store.publish_cut(make_cut(epoch + 1, 1000))
