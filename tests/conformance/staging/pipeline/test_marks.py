"""Marks of the parts that follow the lake, in every staging store."""

from __future__ import annotations

from tests.conformance.calls import read
from tests.conformance.staging.pipeline.test_checkpoints import make_checkpoint


def test_a_mark_is_kept_until_it_is_replaced(place, store, book):
    assert store.marks() == {}
    store.put_mark("destinations/main/pg", '{"streams": {}}')
    store.put_mark("pipeline", "1")
    store.put_mark("pipeline", "2")
    store = place.reopen(store, book)
    assert store.marks() == {"destinations/main/pg": '{"streams": {}}', "pipeline": "2"}


def test_the_backlog_has_the_arrival_of_the_newest_checkpoint(store):
    assert [each.checkpoint_arrival for each in store.backlog()] == [None]
    epoch = read(store, lambda view: view.epoch)
    store.publish_checkpoint(make_checkpoint(epoch, 1000))
    store.publish_checkpoint(make_checkpoint(epoch, 2000))
    assert [each.checkpoint_arrival for each in store.backlog()] == [2000]
