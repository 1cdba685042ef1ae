"""Published checkpoints of every staging store."""

from __future__ import annotations

import pytest
from msgspec import structs

from lakesync.model.errors import IntegrityError
from lakesync.rules.model import SyncRules
from lakesync.staging.records import Checkpoint, CheckpointTable, Reindex
from tests.conformance.calls import read


def make_checkpoint(epoch, arrival):
    table = CheckpointTable("notes", 77, 3, ("file:///frame-1",), 12)
    return Checkpoint("g", epoch, arrival, 0, (table,), 5)


def test_only_a_newer_checkpoint_is_published(place, store, book):
    epoch = read(store, lambda view: view.epoch)
    assert store.newest_checkpoint("g") is None
    assert store.publish_checkpoint(make_checkpoint(epoch, 1000))
    assert not store.publish_checkpoint(make_checkpoint(epoch, 1000))
    assert not store.publish_checkpoint(make_checkpoint(epoch, 999))
    assert store.publish_checkpoint(make_checkpoint(epoch, 2000))
    store = place.reopen(store, book)
    assert store.newest_checkpoint("g") == make_checkpoint(epoch, 2000)


def test_a_checkpoint_of_another_epoch_is_rejected(store):
    epoch = read(store, lambda view: view.epoch)
    with pytest.raises(IntegrityError, match="epoch"):
        store.publish_checkpoint(make_checkpoint(epoch + 1, 1000))


def test_new_rules_require_a_new_checkpoint_after_the_reindex(store, book):
    def without_checkpoint():
        return [each.rules_without_checkpoint for each in store.backlog()]

    def in_line(done):
        return store.submit("g", lambda commit: commit.put_reindexing(Reindex(1, None, done))).result()

    epoch = read(store, lambda view: view.epoch)
    store.submit("g", book.set_rules(SyncRules(1, ()))).result()
    in_line(done=True)
    assert without_checkpoint() == [None], "the first flush makes a checkpoint"
    store.publish_checkpoint(make_checkpoint(epoch, 1000))
    assert without_checkpoint() == [1]
    in_line(done=False)
    assert without_checkpoint() == [None]
    in_line(done=True)
    store.publish_checkpoint(structs.replace(make_checkpoint(epoch, 2000), rules_version=1))
    assert without_checkpoint() == [None]
